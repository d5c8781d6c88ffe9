package projection_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
)

// damage replaces an event of the store by one that cannot be read, and returns how to repair it.
func (f *fixture) damage(chat string, version int64) (repair func()) {
	f.t.Helper()
	key := table.EventKey(chat, version)
	good, err := f.store.Get(f.t.Context(), key, store.Strong)
	testkit.Must(f.t, err)
	put := func(it store.Item) {
		f.t.Helper()
		testkit.Must(f.t, f.store.BatchWrite(f.t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: it}}))
	}
	put(table.Event{ChatID: chat, EventID: "e", Type: event.TypeMessagePersisted, Payload: []byte{0xff}}.Item())
	return func() { put(good) }
}

// resume resumes the rebuild.
func (f *fixture) resume(acceptGaps bool) {
	f.t.Helper()
	_, err := f.operate().Do(f.t.Context(), chatactivity.Name,
		projection.Change{Action: projection.Resume, AcceptGaps: acceptGaps}, "ada", true)
	testkit.Must(f.t, err)
}

// blocked checks that a rebuild waits because a chat has a gap, and that queries read a build.
func (f *fixture) blocked(what string, live int64, chat string) {
	f.t.Helper()
	s := f.status()
	if !s.Rebuild.Blocked || !s.Builds.Paused || s.Builds.Live != live || s.Builds.Next == 0 || s.Rebuild.EndedAt != 0 {
		f.t.Fatalf("%s: %+v", what, s)
	}
	testkit.Equal(f.t, what+": gaps", s.Rebuild.Stuck, int64(1))
	testkit.Equal(f.t, what+": their names", s.Rebuild.Gaps, chat)
}

// An event is damaged that the live build has counted. A rebuild that meets it keeps the live
// build, counts and names the chat, and waits. The live build follows new messages meanwhile, of
// this chat too. Only an operator who accepts the gap makes the new build live.
func TestGapKeepsTheLiveBuild(t *testing.T) {
	f := newFixture(t, 60) // more than a page
	f.talk(120)
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	testkit.Must(t, s.RebuildOnce(t.Context()))
	chat := f.ids[17]
	first := f.talkTo(chat, 5) - 4
	handle(t, s, f.batches(9))
	f.check()
	f.damage(chat, first)

	stuck := s.Stats(chatactivity.Name).Stuck
	f.do(projection.Start)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.blocked("a rebuild", 1, chat)
	testkit.Equal(t, "chats that the alert counts", s.Stats(chatactivity.Name).Stuck-stuck, int64(1))
	before := f.shown()
	f.send(chat, "bob", 6)
	record := &kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte(chat)}
	if n, err := s.Handle(t.Context(), []*kafka.Record{record}); n != 1 {
		t.Fatalf("a record of the chat: %v", err)
	}
	day := chat + " " + f.clock.now().Format("2006-01-02") + " messages"
	before[day]++
	testkit.Equal(t, "messages in the live build", f.shown()[day], before[day])

	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.blocked("nothing was decided", 1, chat)
	f.resume(false)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.blocked("resumed without a repair", 1, chat)
	testkit.Equal(t, "events that were read", f.status().Rebuild.Done, int64(len(f.heads())))

	f.resume(true)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	got := f.status()
	if got.Builds.Live != 2 || got.Builds.Next != 0 || got.Builds.AcceptGaps || got.Rebuild.Blocked ||
		got.Rebuild.EndedAt == 0 || got.Rebuild.Stuck != 1 {
		t.Fatalf("accepted: %+v", got)
	}
	if maps.Equal(f.shown(), before) {
		t.Fatal("the build has no gap")
	}
	f.do(projection.Start)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.blocked("the next rebuild", 2, chat)
}

// heads has an entry for every event that the heads of chats count.
func (f *fixture) heads() (list []struct{}) {
	f.t.Helper()
	for row, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.ChatCounters, Segments: 1}) {
		testkit.Must(f.t, err)
		list = append(list, make([]struct{}, table.HeadFrom(row.Key.PK, row.Item).Version)...)
	}
	return list
}

// The first build has no other to keep. It waits for the repair, or for an operator, too, and so
// does a rebuild whose gaps are accepted from the start make its build live.
func TestGapOfTheFirstBuild(t *testing.T) {
	f := newFixture(t, 3)
	f.talk(30)
	last := f.talkTo(f.ids[1], 3)
	repair := f.damage(f.ids[1], last-1)
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.blocked("the first build", 0, f.ids[1])
	record := &kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte(f.ids[1])}
	if n, err := s.Handle(t.Context(), []*kafka.Record{record}); n != 0 || consume.ClassOf(err) != consume.Permanent {
		t.Fatalf("no build takes the record: %d, %v", n, err)
	}
	if _, err := f.operate().Do(t.Context(), chatactivity.Name, projection.Change{Action: projection.Pause,
		AcceptGaps: true}, "ada", true); !errors.Is(err, projection.ErrAccept) {
		t.Fatalf("pause with gaps accepted: %v", err)
	}
	repair()
	f.resume(false)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	testkit.Equal(t, "the live build", f.status().Builds.Live, int64(1))
	testkit.Equal(t, "gaps", f.status().Rebuild.Stuck, int64(0))
	f.check()

	f.damage(f.ids[1], last-1)
	_, err := f.operate().Do(t.Context(), chatactivity.Name,
		projection.Change{Action: projection.Start, AcceptGaps: true}, "ada", true)
	testkit.Must(t, err)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	testkit.Equal(t, "the live build", f.status().Builds.Live, int64(2))
}

// All gaps are counted, and the first 100 are named.
func TestManyGaps(t *testing.T) {
	f := newFixture(t, 130)
	for _, id := range f.ids {
		f.damage(id, f.talkTo(id, 1))
	}
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	testkit.Must(t, s.RebuildOnce(t.Context()))
	r := f.status().Rebuild
	testkit.Equal(t, "gaps", r.Stuck, int64(130))
	testkit.Equal(t, "gaps by name", len(strings.Fields(r.Gaps)), 100)
	testkit.Equal(t, "what the alert counts", s.Stats(chatactivity.Name).Stuck, int64(130))
}

// A rebuild that an operator cancels while its last page is read does not become live, with gaps
// and without: the row of the projection has changed since the rebuild looked.
func TestCanceledDuringTheLastPage(t *testing.T) {
	for _, gap := range []bool{false, true} {
		f := newFixture(t, 3)
		f.talk(30)
		s := f.set(f.store, nil)
		testkit.Must(t, s.Prepare(t.Context()))
		testkit.Must(t, s.RebuildOnce(t.Context()))
		if gap {
			f.damage(f.ids[0], f.talkTo(f.ids[0], 1))
		}
		want := f.shown()
		f.do(projection.Start)
		canceling := faulty.New(f.store, faulty.Options{Policy: faulty.On(func(c faulty.Call) faulty.Fault {
			if c.Number == 2 { // the first counts the events, the second reads the only page
				f.do(projection.Cancel)
			}
			return faulty.Fault{}
		}, faulty.Scan)})
		testkit.Must(t, f.set(canceling, nil).RebuildOnce(t.Context()))
		if b := f.status().Builds; b.Live != 1 || b.Next != 0 || b.Paused || b.By != "ada" {
			t.Errorf("canceled, gap %v: %+v", gap, b)
		}
		if got := f.shown(); !maps.Equal(got, want) {
			t.Errorf("gap %v: the live build says %v, want %v", gap, got, want)
		}
	}
}

// Another member has folded the events of a record, and its plan may not be on the disk yet. The
// record is finished only when it is: its offset is committed then, and nobody brings it again.
func TestFoldByAnotherIsDurableBeforeTheRecordIsFinished(t *testing.T) {
	f := newFixture(t, 1)
	f.talk(5)
	other := f.set(f.store, nil)
	testkit.Must(t, other.Prepare(t.Context()))
	testkit.Must(t, other.RebuildOnce(t.Context()))
	lost := errors.New("the disk does not answer")
	s := f.set(faulty.New(f.store, faulty.Options{Policy: faulty.On(func(faulty.Call) faulty.Fault {
		return faulty.Fault{When: faulty.Before, Err: lost}
	}, faulty.Durable)}), func(c *projection.Config) { c.Process = "p2" })
	record := &kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte(f.ids[0])}
	n, err := s.Handle(t.Context(), []*kafka.Record{record})
	if n != 0 || consume.ClassOf(err) != consume.Authoritative || !errors.Is(err, lost) {
		t.Errorf("finished %d records, %v; want none and %v", n, err, lost)
	}
}
