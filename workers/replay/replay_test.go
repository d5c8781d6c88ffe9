package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
)

type fixture struct {
	t     *testing.T
	now   time.Time
	store store.Store
	chats *chat.Service
	relay *relay.Relay
	log   []string // chat/version, as published
	ids   []string

	stable error // what the log says to be on stable storage
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	r := &fixture{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return r.now }
	r.store = dynamotest.Store(t, clock)
	ids, err := registry.New(r.store).Events(t.Context())
	r.must(err)
	serde, err := event.NewSerde(ids, nil)
	r.must(err)
	r.chats, err = chat.New(t.Context(), chat.Config{Store: r.store, Clock: clock, Generation: "g", Producer: "p"})
	r.must(err)
	for _, u := range []string{"alice", "bob"} {
		r.must(r.chats.EnsureUser(t.Context(), u))
	}
	r.relay, err = relay.New(relay.Config{
		Store: r.store, Serde: serde, Clock: clock, Logger: slog.New(slog.DiscardHandler),
		Flush: func(context.Context) error { return r.stable },
		Publish: relay.Flatten(func(_ context.Context, records []*kafka.Record) error {
			for _, rec := range records {
				e, err := serde.Decode(context.Background(), rec.Key, rec.Value)
				r.must(err)
				r.log = append(r.log, fmt.Sprintf("%s/%d", e.GetChatId(), e.GetMetadata().GetVersion()))
			}
			return nil
		}),
	})
	r.must(err)
	for range 3 {
		r.ids = append(r.ids, r.group())
	}
	return r
}

func (r *fixture) group() string {
	r.t.Helper()
	c, err := r.chats.CreateGroup(r.t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
	r.must(err)
	return c.ChatID
}

func (r *fixture) must(err error) {
	r.t.Helper()
	testkit.Must(r.t, err)
}

func (r *fixture) send(id string, n int) {
	r.t.Helper()
	for range n {
		_, err := r.chats.Send(r.t.Context(), chat.Send{Caller: "alice", ChatID: id, Content: "x"})
		r.must(err)
	}
}

// publish runs the relay until nothing is left to publish.
func (r *fixture) publish() {
	r.t.Helper()
	for range 3 {
		r.now = r.now.Add(3 * time.Second)
		r.must(r.relay.Cycle(r.t.Context()))
	}
	page, err := r.store.Scan(r.t.Context(), store.Scan{Table: store.Outbox, Segments: 1})
	r.must(err)
	if len(page.Rows) > 0 {
		r.t.Fatalf("%d rows are left, the first %s", len(page.Rows), page.Rows[0].Key)
	}
}

func (r *fixture) run(c Filter, dry bool) Report {
	r.t.Helper()
	rep, err := Run(r.t.Context(), r.store, func() time.Time { return r.now }, c, Options{DryRun: dry, Rate: MaxRate})
	r.must(err)
	return rep
}

// Chosen events, and no others, are published again, in order per chat and once per replay. The
// relay, which has the chats' positions cached, continues with new events.
func TestReplay(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		choose func(ids []string) Filter
		want   int
	}{
		"all":      {func([]string) Filter { return Filter{} }, 36},
		"chat":     {func(ids []string) Filter { return Filter{Chats: []string{ids[1], ids[1], "chat_nobody"}} }, 12},
		"versions": {func(ids []string) Filter { return Filter{Chats: ids, From: 3, To: 5} }, 9},
		"from":     {func(ids []string) Filter { return Filter{Chats: ids[:1], From: 11} }, 2},
		"types":    {func([]string) Filter { return Filter{Types: []string{event.TypeMessagePersisted}} }, 30},
		"time":     {func([]string) Filter { return Filter{After: start, Until: start.Add(time.Second)} }, 36},
		"future":   {func([]string) Filter { return Filter{After: start.Add(time.Second)} }, 0},
		"past":     {func([]string) Filter { return Filter{Until: start} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			for _, id := range r.ids {
				r.send(id, 10)
			}
			r.publish()
			if len(r.log) != 36 {
				t.Fatalf("%d events", len(r.log))
			}
			choice := c.choose(r.ids)
			if rep := r.run(choice, true); rep.Events != c.want || rep.Unpublished != 0 || rep.More {
				t.Errorf("dry: %+v", rep)
			}
			r.log = nil
			r.publish()
			if len(r.log) != 0 {
				t.Errorf("a dry run published %d events", len(r.log))
			}
			if rep := r.run(choice, false); rep.Events != c.want {
				t.Errorf("%+v", rep)
			}
			r.send(r.ids[0], 1)
			r.publish()
			if len(r.log) != c.want+1 {
				t.Errorf("%d events published, not %d and a new one", len(r.log), c.want)
			}
			last := map[string]int{}
			for _, s := range r.log {
				id, number, _ := strings.Cut(s, "/")
				v, err := strconv.Atoi(number)
				r.must(err)
				if id == r.ids[0] && v == 13 { // the new one
					continue
				}
				if v <= last[id] {
					t.Errorf("%s after %d", s, last[id])
				}
				last[id] = v
			}
		})
	}
}

// Replays add up, whichever events they share and however far the relay is with the first when
// the second starts: each publishes all events that it reported.
func TestReplaysAddUp(t *testing.T) {
	r := newFixture(t)
	id := r.ids[0]
	r.send(id, 98) // with the group's own, 100 events
	r.publish()
	r.log = nil
	all, one := Filter{Chats: []string{id}}, Filter{Chats: []string{id}, From: 1, To: 1}
	if rep := r.run(all, false); rep.Events != 100 {
		t.Fatalf("%+v", rep)
	}
	r.run(one, false) // of the first event, which stands in the same row of the other
	r.publish()
	count := map[string]int{}
	for _, s := range r.log {
		count[s]++
	}
	if len(r.log) != 101 || len(count) != 100 || count[id+"/1"] != 2 {
		t.Fatalf("%d events were published, %d different ones", len(r.log), len(count))
	}
	// The first is published and not deleted yet: the second is not merged into it.
	r.log = nil
	r.run(one, false)
	r.now = r.now.Add(3 * time.Second)
	r.stable = errors.New("the disk is slow")
	_ = r.relay.Cycle(t.Context())
	r.run(one, false)
	r.stable = nil
	r.publish()
	if len(r.log) != 2 {
		t.Fatalf("%d events, not 2", len(r.log))
	}
}

// A replay of all chats that ended early continues at its position: no event is skipped.
func TestReplayResumes(t *testing.T) {
	r := newFixture(t)
	for range 350 {
		r.group()
	}
	r.publish()
	r.log = nil
	stop := errors.New("interrupted")
	var chats int
	var rep Report
	resume := ""
	for runs := 0; ; runs++ {
		var err error
		reports := 0
		rep, err = Run(t.Context(), r.store, func() time.Time { return r.now }, Filter{},
			Options{Rate: MaxRate, Resume: resume, OnProgress: func(Report) error {
				if reports++; reports > 150 {
					return stop
				}
				return nil
			}})
		chats += rep.Chats
		if err == nil {
			if runs < 2 {
				t.Fatalf("it ended after %d runs", runs)
			}
			break
		}
		if !errors.Is(err, stop) || rep.Resume == resume {
			t.Fatalf("%+v: %v", rep, err)
		}
		resume = rep.Resume
	}
	r.publish()
	seen := map[string]bool{}
	for _, s := range r.log {
		seen[s] = true
	}
	if want := 353 * 2; len(seen) != want || len(r.log) > want+2*2*100 {
		t.Fatalf("%d different events of %d, %d in all, %d chats read", len(seen), want, len(r.log), chats)
	}
	if _, err := Run(t.Context(), r.store, time.Now, Filter{Chats: r.ids}, Options{Resume: resume}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("chosen chats: %v", err)
	}
}

// An outbox row that cannot be read stops the replay of its chat, not of others.
func TestReplayBesideAnUnreadableRow(t *testing.T) {
	r := newFixture(t)
	r.publish()
	bad := store.Key{Table: store.Outbox, PK: table.ShardKey(event.Shard(r.ids[0])), SK: r.ids[0] + "#nonsense"}
	r.must(r.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: bad, Item: store.Item{}}}))
	if rep := r.run(Filter{}, false); rep.Events != 4 || rep.Unpublished != 2 {
		t.Fatalf("%+v", rep)
	}
}

// Events that were never published are not replayed ahead of earlier ones.
func TestReplayLeavesNewEventsAlone(t *testing.T) {
	r := newFixture(t)
	id := r.ids[0]
	r.send(id, 5)
	r.publish()
	r.send(id, 5) // versions 8 to 12 wait
	rep := r.run(Filter{Chats: []string{id}, From: 6, Types: []string{event.TypeMessagePersisted}}, false)
	if rep.Events != 2 || rep.Unpublished != 5 || rep.Rows != 1 {
		t.Fatalf("%+v", rep)
	}
	r.log = nil
	r.publish()
	seen := map[string]bool{}
	for _, v := range []int{1, 2, 3, 4, 5, 6, 7} {
		seen[fmt.Sprintf("%s/%d", id, v)] = true
	}
	next := 8
	for _, s := range r.log {
		if !seen[s] && s != fmt.Sprintf("%s/%d", id, next) {
			t.Fatalf("%v", r.log)
		}
		if !seen[s] {
			seen[s] = true
			next++
		}
	}
	if len(r.log) != 7 {
		t.Fatalf("%v", r.log)
	}
}

// A row whose events cannot be read is recorded, and stops neither its chat nor others.
func TestReplayOfWhatCannotBePublished(t *testing.T) {
	r := newFixture(t)
	id := r.ids[0]
	r.publish()
	o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: 90, Count: 2, CreatedAt: 1, Replay: true}
	r.must(r.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}}))
	r.send(id, 1)
	r.log = nil
	r.now = r.now.Add(3 * time.Second)
	r.must(r.relay.Cycle(t.Context()))
	if len(r.log) != 1 || r.relay.Stats().Poisoned != 1 {
		t.Fatalf("%v, %+v", r.log, r.relay.Stats())
	}
	it, err := r.store.Get(t.Context(), o.Key(), store.Strong)
	if err != nil || it.Get("last_error").Str() == "" {
		t.Fatal(it, err)
	}
}

func TestChoiceIsChecked(t *testing.T) {
	r := newFixture(t)
	at := time.Now()
	for name, c := range map[string]Filter{
		"chats": {Chats: make([]string, MaxChats+1)}, "versions": {From: 3, To: 2}, "negative": {From: -1},
		"times": {After: at, Until: at}, "type": {Types: []string{"Nothing"}},
	} {
		if _, err := Run(t.Context(), r.store, time.Now, c, Options{DryRun: true}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A limit ends a replay, which reports that, also where a chat has more events than one read
// returns. The caller gets its progress, and can end it.
func TestLimitAndProgress(t *testing.T) {
	r := newFixture(t)
	for _, id := range r.ids {
		r.send(id, 10)
	}
	r.publish()
	var reports []Report
	o := Options{Limit: 20, Rate: MaxRate,
		OnProgress: func(rep Report) error { reports = append(reports, rep); return nil }}
	rep, err := Run(t.Context(), r.store, time.Now, Filter{}, o)
	if err != nil || rep.Events != 20 || !rep.More || rep.Chats != 2 || len(reports) != 1 || reports[0].Events != 12 {
		t.Fatalf("%+v, %v, %+v", rep, err, reports)
	}
	r.log = nil
	r.publish()
	if len(r.log) != 20 {
		t.Fatalf("%d events", len(r.log))
	}
	o.Limit = 36
	if rep, err := Run(t.Context(), r.store, time.Now, Filter{}, o); err != nil || rep.Events != 36 || rep.More ||
		rep.Chats != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	r.publish()
	end := errors.New("enough")
	o.OnProgress = func(Report) error { return end }
	if rep, err := Run(t.Context(), r.store, time.Now, Filter{}, o); !errors.Is(err, end) || rep.Chats != 1 ||
		rep.Events != 12 {
		t.Fatalf("%+v, %v", rep, err)
	}
	for _, o := range []Options{{Rate: -1}, {Rate: MaxRate + 1}, {Limit: -1}} {
		if _, err := Run(t.Context(), r.store, time.Now, Filter{}, o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A chat with more events than one read returns is replayed completely and in order.
func TestReplayOfALongChat(t *testing.T) {
	r := newFixture(t)
	id := r.ids[0]
	r.send(id, maxChunk+outbox.MaxRun/2)
	for left := 1; left > 0; {
		r.now = r.now.Add(3 * time.Second)
		r.must(r.relay.Cycle(t.Context()))
		page, err := r.store.Scan(t.Context(), store.Scan{Table: store.Outbox, Segments: 1})
		r.must(err)
		left = len(page.Rows)
	}
	r.log = nil
	rep := r.run(Filter{Chats: []string{id}}, false)
	if want := 2 + maxChunk + outbox.MaxRun/2; rep.Events != want || rep.Rows != want/outbox.MaxRun+1 || rep.More {
		t.Fatalf("%+v", rep)
	}
	for left := 1; left > 0; {
		r.now = r.now.Add(3 * time.Second)
		r.must(r.relay.Cycle(t.Context()))
		page, err := r.store.Scan(t.Context(), store.Scan{Table: store.Outbox, Segments: 1})
		r.must(err)
		left = len(page.Rows)
	}
	if len(r.log) != rep.Events {
		t.Fatalf("%d events", len(r.log))
	}
	for i, s := range r.log {
		if s != fmt.Sprintf("%s/%d", id, i+1) {
			t.Fatalf("%s as number %d", s, i+1)
		}
	}
}
