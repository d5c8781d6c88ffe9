package replay

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// fail makes the relay fail at a chat's next event: its row announces more events than
// there are. It returns the version of the event.
func (r *fixture) fail(id string) int64 {
	r.t.Helper()
	it, err := r.store.Get(r.t.Context(), table.HeadKey(id), store.Strong)
	r.must(err)
	next := table.HeadFrom(id, it).Version + 1
	r.send(id, 1)
	o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: next, Count: 9, CreatedAt: 1}
	r.must(r.store.BatchWrite(r.t.Context(), []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}}))
	return next
}

// sweep lets the relay do what it can.
func (r *fixture) sweep() {
	r.t.Helper()
	for range 3 {
		r.now = r.now.Add(3 * time.Second)
		r.must(r.relay.Cycle(r.t.Context()))
	}
}

func (r *fixture) status(id string, version int64) outbox.Status {
	r.t.Helper()
	s, err := outbox.Standings(r.t.Context(), r.store, id, []int64{version})
	r.must(err)
	return s[0].Status
}

// EV66, KS20, KS21: an event is new, fails, is made new again by a replay of what failed,
// chosen by type, chat, time and limit, and is published; those of other chats proceed all
// the time (EV69). A dry run changes nothing.
func TestFailedEventsAreNewAgain(t *testing.T) {
	r := newFixture(t)
	r.publish()
	r.log = nil
	a, b, healthy := r.ids[0], r.ids[1], r.ids[2]
	va, vb := r.fail(a), r.fail(b)
	if s := r.status(a, va); s != outbox.New {
		t.Fatalf("before the relay tried it is %s", s)
	}
	r.send(healthy, 2)
	r.sweep()
	if len(r.log) != 2 || !strings.HasPrefix(r.log[0], healthy) || r.status(healthy, 4) != outbox.Published {
		t.Fatalf("published: %v", r.log)
	}
	if r.status(a, va) != outbox.Failed || r.status(b, vb) != outbox.Failed {
		t.Fatal("the rows have not failed")
	}
	failed := func(c Filter, dry bool, limit int) Report {
		t.Helper()
		c.Statuses = []outbox.Status{outbox.Failed}
		rep, err := Run(t.Context(), r.store, func() time.Time { return r.now }, c,
			Options{DryRun: dry, Rate: MaxRate, Limit: limit})
		r.must(err)
		return rep
	}
	for name, tt := range map[string]struct {
		filter Filter
		want   int
	}{
		"all":            {Filter{}, 2},
		"type":           {Filter{Types: []string{event.TypeMessagePersisted}}, 2},
		"another type":   {Filter{Types: []string{event.TypeChatUpdated}}, 0},
		"chat":           {Filter{Chats: []string{b, healthy}}, 1},
		"version":        {Filter{Chats: []string{b}, From: vb, To: vb}, 1},
		"earlier":        {Filter{To: vb - 1}, 0},
		"since":          {Filter{After: r.now.Add(-time.Hour)}, 2},
		"later":          {Filter{After: r.now.Add(time.Hour)}, 0},
		"published ones": {Filter{Chats: []string{healthy}}, 0},
	} {
		if rep := failed(tt.filter, true, 0); rep.Events != tt.want || rep.Lost != 0 || rep.More {
			t.Errorf("%s: %+v, not %d", name, rep, tt.want)
		}
	}
	if r.status(a, va) != outbox.Failed {
		t.Fatal("a dry run changed a row")
	}
	if rep := failed(Filter{}, false, 1); rep.Events != 1 || !rep.More {
		t.Errorf("with a limit of one: %+v", rep)
	}
	if rep := failed(Filter{}, false, 0); rep.Events != 1 || rep.More {
		t.Errorf("what was left: %+v", rep)
	}
	if r.status(a, va) != outbox.New || r.status(b, vb) != outbox.New {
		t.Error("the events are not new again")
	}
	r.log = nil
	r.publish()
	if len(r.log) != 2 || r.status(a, va) != outbox.Published || r.status(b, vb) != outbox.Published {
		t.Errorf("published: %v", r.log)
	}
}

// Rows without readable events are counted and left; both statuses go in one replay; new
// events cannot be asked for, because they are published anyway.
func TestFailedEventsThatAreLost(t *testing.T) {
	r := newFixture(t)
	r.publish()
	id := r.ids[0]
	version := r.fail(id)
	r.must(r.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: table.EventKey(id, version)}}))
	r.sweep()
	both := Filter{Statuses: []outbox.Status{outbox.Published, outbox.Failed}}
	rep := r.run(both, false)
	if rep.Lost != 1 || rep.Events != 6 || rep.Chats != 3 {
		t.Fatalf("%+v", rep)
	}
	if r.status(id, version) != outbox.Failed {
		t.Error("the row is gone")
	}
	for _, s := range []outbox.Status{outbox.New, "lost"} {
		_, err := Run(t.Context(), r.store, time.Now, Filter{Statuses: []outbox.Status{s}}, Options{})
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", s, err)
		}
	}
	only := Filter{Statuses: []outbox.Status{outbox.Failed}}
	if rep := r.run(only, false); rep.Lost != 1 || rep.Events != 0 || rep.Chats != 0 {
		t.Errorf("failed ones only: %+v", rep)
	}
	// One that nobody can read is only chosen where nothing is asked of its events.
	bad := store.Key{Table: store.Outbox, PK: table.ShardKey(event.Shard(r.ids[1])), SK: r.ids[1] + "#nonsense"}
	r.must(r.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: bad, Item: store.Item{}}}))
	r.sweep()
	only.Types = []string{event.TypeChatCreated}
	if rep := r.run(only, true); rep.Events != 0 {
		t.Errorf("by type: %+v", rep)
	}
	only.Types, only.Chats = nil, slices.Clone(r.ids)
	if rep := r.run(only, true); rep.Events != 2 || rep.Lost != 1 {
		t.Errorf("by chat: %+v", rep)
	}
}
