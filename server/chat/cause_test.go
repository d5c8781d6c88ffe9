package chat_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// causes are those of a chat's events, in their order.
func (w *fixture) causes(id string) (list []event.Cause) {
	w.t.Helper()
	for _, row := range w.scan(store.Events) {
		if row.Key.PK != id {
			continue
		}
		stored, err := table.EventFrom(row)
		if err != nil {
			w.t.Fatal(err)
		}
		e, err := event.Unmarshal(stored.Type, stored.Payload)
		if err != nil {
			w.t.Fatal(err)
		}
		md := e.GetMetadata()
		list = append(list, event.Cause{Trace: md.GetTraceId(), Correlation: md.GetCorrelationId(),
			Causation: md.GetCausationId(), Service: md.GetServiceId()})
	}
	return list
}

// one demands that n events of a chat from a version on have one cause, and returns it.
func (w *fixture) one(id string, from, n int) event.Cause {
	w.t.Helper()
	list := w.causes(id)
	if len(list) < from+n-1 {
		w.t.Fatalf("%s has %d events, want %d", id, len(list), from+n-1)
	}
	list = list[from-1 : from+n-1]
	for i, c := range list {
		if c != list[0] {
			w.t.Errorf("%s@%d: %+v, want that of the command, %+v", id, from+i, c, list[0])
		}
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(c.Trace) || c.Correlation == "" || c.Causation == "" {
			w.t.Errorf("%s@%d: %+v, want a W3C trace-id and ids", id, from+i, c)
		}
	}
	return list[0]
}

// client is the cause that a request brings, with a trace and without.
var client = []event.Cause{
	{Trace: "4bf92f3577b34da6a3ce929d0e0e4736", Causation: "r1", Service: "svc-1"},
	{},
}

// All events of one command have one correlation, causation and trace, whatever the request
// brought, however many plans the command takes.
func TestOneCauseOfACommand(t *testing.T) {
	for _, cause := range client {
		w := newFixture(t, dynamotest.Store(t, time.Now))
		s := w.service("p", w.store, func(c *chat.Config) { c.Chunk = 2 })
		w.users(s, "ann", "bob", "cat", "dan", "eve", "fay", "gus")
		direct, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "bob", Cause: cause})
		if err != nil {
			t.Fatal(err)
		}
		group, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g",
			Members: []string{"bob", "cat", "dan", "eve", "fay"}, Cause: cause})
		if err != nil || group.Incomplete != nil {
			t.Fatal(group, err)
		}
		seen := map[string]bool{}
		for id, n := range map[string]int{direct.ChatID: 2, group.ChatID: 6} {
			got := w.one(id, 1, n)
			if cause.Trace != "" && (got.Trace != cause.Trace || got.Causation != cause.Causation ||
				got.Service != cause.Service) {
				t.Errorf("%s: %+v, want what the request brought, %+v", id, got, cause)
			}
			seen[got.Correlation] = true
		}
		w.add(s, group.ChatID, "ann", "gus", table.Member)
		seen[w.one(group.ChatID, 7, 1).Correlation] = true
		if len(seen) != 3 {
			t.Errorf("three commands have the correlations %v", seen)
		}
		w.check()
	}
}

// A process that completes a creation after a crash continues the command of the client.
func TestCauseOfACreationSurvivesACrash(t *testing.T) {
	for _, cause := range client {
		w := newFixture(t, dynamotest.Store(t, time.Now))
		s := w.service("p", w.store)
		w.users(s, "ann", "bob", "cat")
		dying := &crash{Store: w.store}
		dying.left.Store(1)
		c, err := w.service("d", dying).CreateGroup(w.ctx,
			chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"}, Cause: cause})
		if err != nil || c.Incomplete == nil {
			t.Fatal(c, err)
		}
		w.send(s, c.ChatID, "ann", "x")
		if err := s.FinishPending(w.ctx, c.ChatID); err != nil {
			t.Fatal(err)
		}
		list := w.causes(c.ChatID)
		if len(list) != 4 || list[2] != list[0] || list[3] != list[0] || list[1].Correlation == list[0].Correlation ||
			cause.Trace != "" && list[0].Trace != cause.Trace {
			t.Errorf("%+v, want one cause of 1, 3 and 4, with what %+v brings", list, cause)
		}
	}
}

// A list of pending members of an earlier version, without a trace, is completed with the
// correlation that it has, and one trace.
func TestCauseOfAnOlderCreation(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	s := w.service("p", w.store, func(c *chat.Config) { c.Chunk = 1 })
	w.users(s, "ann", "bob", "cat")
	dying := &crash{Store: w.store}
	dying.left.Store(1)
	c, err := w.service("d", dying).CreateGroup(w.ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"}, Cause: client[0]})
	if err != nil || c.Incomplete == nil {
		t.Fatal(c, err)
	}
	older := store.Write{Op: store.OpPut, Key: table.PendingKey(c.ChatID), Item: table.Pending{
		Members: []string{"bob", "cat"}, CreatedBy: "ann", CreatedAt: 1, Correlation: "evt_1", Causation: "evt_1"}.Item()}
	if err := w.store.BatchWrite(w.ctx, []store.Write{older}); err != nil {
		t.Fatal(err)
	}
	if err := s.FinishPending(w.ctx, c.ChatID); err != nil {
		t.Fatal(err)
	}
	if got := w.one(c.ChatID, 2, 2); got.Correlation != "evt_1" || got.Causation != "evt_1" {
		t.Errorf("%+v, want the ids of the row", got)
	}
}

// Whoever is taken off a new group because of a block is taken off by the command that made
// the group.
func TestCauseOfABlockedMember(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	st := &blocking{Store: w.store}
	s := w.service("p", st)
	w.users(s, "ann", "bob", "cat")
	c, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"},
		Cause: client[0]})
	if err != nil || c.Incomplete != nil {
		t.Fatal(c, err)
	}
	if got := w.one(c.ChatID, 1, 3); got.Trace != client[0].Trace {
		t.Errorf("%+v, want the trace of the request", got)
	}
	if _, ok := w.membersOf(c.ChatID)["bob"]; ok {
		t.Error("bob, who blocks ann, became a member")
	}
}

// blocking lets bob block ann when a group's first plan is committed.
type blocking struct{ store.Store }

func (b *blocking) Transact(ctx context.Context, p store.Plan) error {
	err := b.Store.Transact(ctx, p)
	for _, wr := range p.Writes {
		if err == nil && wr.Key.Table == store.PendingMembers && wr.Op == store.OpPut {
			err = b.BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: people.BlockKey("bob", "ann"),
				Item: store.NewItem(store.Attr{Name: "at", Value: store.Int(1)})}})
		}
	}
	return err
}

// A deleted account leaves all its groups by one command, in whichever processes: where it
// owned the group, the successor's role belongs to it, too.
func TestOneCauseOfADeletion(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	s := w.service("p", w.store)
	w.users(s, "ann", "bob", "cat")
	owned, joined := w.group(s, "ann", "bob"), w.group(s, "bob", "ann")
	other := w.group(s, "cat", "bob")
	for process, id := range map[string]string{"q": owned, "r": joined} {
		if err := w.service(process, w.store).Depart(w.ctx, "ann", id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Depart(w.ctx, "cat", other); err != nil {
		t.Fatal(err)
	}
	of := w.one(owned, 3, 2)
	if got := w.one(joined, 3, 1); got != of {
		t.Errorf("%+v in a group, %+v in another one", got, of)
	}
	if got := w.one(other, 3, 2); got.Correlation == of.Correlation || got.Trace == of.Trace {
		t.Errorf("two deletions are %+v", got)
	}
}
