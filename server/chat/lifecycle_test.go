package chat_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// L-101 to L-105: the store itself refuses plans that would change a direct chat,
// made by somebody who takes it for a group.
func TestDirectChatsAreImmutableInTheStore(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		c, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "bob"})
		if err != nil {
			t.Fatal(err)
		}
		planner := plan.Planner{Origin: event.Origin{Generation: "g1", Producer: "p"}, NewID: chat.NewID}
		lie := func(role, target table.Role) *plan.State {
			row := w.chat(c.ChatID)
			row.Type = table.Group
			st := &plan.State{
				Head: w.head(c.ChatID), Chat: &row, TargetExists: true,
				Caller: &table.Membership{ChatID: c.ChatID, UserID: "ann", Role: role},
			}
			if target != "" {
				st.Target = &table.Membership{ChatID: c.ChatID, UserID: "bob", Role: target}
			}
			return st
		}
		name := "n"
		decide := func(st *plan.State, op chat.Operation, user string, role table.Role) func() (*plan.Plan, error) {
			return func() (*plan.Plan, error) {
				c := command.Change{Op: op, MemberChange: chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: user,
					Role: role}, Name: &name}
				p, _, err := planner.Change(st, c, 1)
				return p, err
			}
		}
		for what, make := range map[string]func() (*plan.Plan, error){
			"add":     decide(lie(table.Owner, ""), chat.OpAdd, "cat", table.Member),
			"remove":  decide(lie(table.Owner, table.Member), chat.OpRemove, "bob", ""),
			"leave":   decide(lie(table.Member, table.Member), chat.OpLeave, "ann", ""),
			"role":    decide(lie(table.Owner, table.Member), chat.OpRole, "bob", table.Admin),
			"rename":  decide(lie(table.Owner, ""), command.OpUpdate, "", ""),
			"correct": func() (*plan.Plan, error) { return planner.CorrectCount(lie(table.Owner, ""), 7, 1) },
		} {
			p, err := make()
			if err != nil {
				t.Fatal(what, err)
			}
			var failed *store.ConditionError
			if err := st.Transact(w.ctx, p.Transaction()); !errors.As(err, &failed) {
				t.Fatalf("%s: %v", what, err)
			}
			if _, ok := failed.Failed(plan.CondChat); !ok {
				t.Errorf("%s: %v", what, failed)
			}
		}
		w.check()
	})
}

// L-006: whatever changes a chat demands that it is active.
func TestInactiveChatsDoNotChange(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	s := w.service("p", w.store)
	w.users(s, "ann", "bob", "cat")
	id := w.group(s, "ann", "bob")
	err := w.store.Transact(w.ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.ChatKey(id),
		Update: store.Update{Set: []store.Attr{{Name: table.AttrStatus, Value: store.String("archived")}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	before := w.head(id)
	name := "n"
	for what, do := range map[string]func() error{
		"add": func() error {
			_, err := s.Change(w.ctx, chat.OpAdd,
				chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Member})
			return err
		},
		"remove": func() error { return remove("bob")(w, s, id, "ann") },
		"leave": func() error {
			return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id})
		},
		"role": func() error {
			_, err := s.Change(w.ctx, chat.OpRole,
				chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Admin})
			return err
		},
		"rename": func() error {
			_, _, err := s.UpdateChat(w.ctx, chat.ChatChange{Caller: "ann", ChatID: id, Name: &name})
			return err
		},
	} {
		if err := do(); !errors.Is(err, chat.ErrInvalidOperation) {
			t.Errorf("L-085 %s: %v", what, err)
		}
	}
	if w.head(id) != before {
		t.Error("it changed")
	}
	dying := &crash{Store: w.store}
	dying.left.Store(1)
	c, err := w.service("d", dying).CreateGroup(w.ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}})
	if err != nil || c.Incomplete == nil {
		t.Fatal(c, err)
	}
	err = w.store.Transact(w.ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.ChatKey(c.ChatID),
		Update: store.Update{Set: []store.Attr{{Name: table.AttrStatus, Value: store.String("archived")}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.FinishPending(w.ctx, c.ChatID); !errors.Is(err, chat.ErrInvalidOperation) {
		t.Errorf("finish: %v", err)
	}
}

// S-53: requests are remembered for 24 hours, sends for 7 days, by user, procedure
// and chat.
func TestHowLongRequestsAreRemembered(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	clock := func() time.Time { return time.UnixMilli(now.Load()) }
	w := newFixture(t, dynamotest.Store(t, clock))
	s := w.service("p", w.store, func(c *chat.Config) { c.Clock = clock })
	w.users(s, "ann", "bob", "cat")
	id, other := w.group(s, "ann", "bob"), w.group(s, "ann", "bob")
	change := func(id string, op chat.Operation, user string, replayed bool) {
		t.Helper()
		out, err := s.Change(w.ctx, op,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: user, Role: table.Member, RequestID: "r"})
		if err != nil || out.Replayed != replayed {
			t.Errorf("%s %s: %+v, %v", op, user, out, err)
		}
	}
	send := func(by string, replayed bool) {
		t.Helper()
		sent, err := s.Send(w.ctx, chat.Send{Caller: by, ChatID: id, Content: "x", ClientMessageID: "r"})
		if err != nil || sent.Replayed != replayed {
			t.Errorf("%+v, %v", sent, err)
		}
	}
	change(id, chat.OpAdd, "cat", false)
	change(other, chat.OpAdd, "cat", false)
	change(id, chat.OpRemove, "cat", false)
	send("ann", false)
	send("bob", false)
	now.Add((24*time.Hour - time.Minute).Milliseconds())
	change(id, chat.OpAdd, "cat", true)
	change(id, chat.OpRemove, "cat", true)
	now.Add((2 * time.Minute).Milliseconds())
	change(id, chat.OpAdd, "cat", false)
	change(id, chat.OpRemove, "cat", false)
	now.Add((6*24*time.Hour - 5*time.Minute).Milliseconds())
	send("ann", true)
	now.Add((10 * time.Minute).Milliseconds())
	send("ann", false)
}

// Somebody on the way in whose role is changed becomes a member with that role,
// and the chunk that comes later does not take it back (L-037, X-34).
func TestRoleOfAPendingMember(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		dying := &crash{Store: st}
		dying.left.Store(1)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		c, err := w.service("d", dying).CreateGroup(w.ctx,
			chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"}})
		if err != nil || c.Incomplete == nil {
			t.Fatal(c, err)
		}
		m, err := s.Change(w.ctx, chat.OpRole,
			chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "bob", Role: table.Admin, RequestID: "r"})
		if err != nil || m.Member.Role != table.Admin || m.Member.JoinedVersion != 1 || m.Member.Version != 2 {
			t.Fatal(m, err)
		}
		if err := s.FinishPending(w.ctx, c.ChatID); err != nil {
			t.Fatal(err)
		}
		again, err := s.Change(w.ctx, chat.OpRole,
			chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "bob", Role: table.Admin, RequestID: "r"})
		if err != nil || again.Member != m.Member {
			t.Errorf("%+v, %v; first %+v", again, err, m)
		}
		w.check()
		w.checkCommits(true)
	})
}

// L-100: a role that is there already changes nothing, and the request is
// remembered all the same: repeated after a later change it does not undo it.
func TestUnchangedIsRemembered(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob")
		id := w.group(s, "ann", "bob")
		before := w.head(id)
		same := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Member, RequestID: "r"}
		if out, err := s.Change(w.ctx, chat.OpRole, same); err != nil || out.Replayed || out.Member.Role != table.Member ||
			w.head(id) != before {
			t.Errorf("%+v, %v", out, err)
		}
		name := "group"
		if row, replayed, err := s.UpdateChat(w.ctx,
			chat.ChatChange{Caller: "ann", ChatID: id, Name: &name, RequestID: "n"}); err != nil || replayed ||
			row.Version != w.chat(id).Version {
			t.Errorf("%+v, %v", row, err)
		}
		if _, err := s.Change(w.ctx, chat.OpRole,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Admin}); err != nil {
			t.Fatal(err)
		}
		if out, err := s.Change(w.ctx, chat.OpRole, same); err != nil || !out.Replayed {
			t.Errorf("%+v, %v", out, err)
		}
		it, err := st.Get(w.ctx, table.MembershipKey(id, "bob"), store.Strong)
		if err != nil || table.MembershipFrom(id, "bob", it).Role != table.Admin {
			t.Errorf("%v, %v", it, err)
		}
	})
}

// counter counts calls.
type counter struct {
	store.Store
	calls atomic.Int64
}

func (c *counter) Get(ctx context.Context, k store.Key, cons store.Consistency) (store.Item, error) {
	c.calls.Add(1)
	return c.Store.Get(ctx, k, cons)
}

func (c *counter) BatchGet(ctx context.Context, k []store.Key, cons store.Consistency) ([]store.Item, error) {
	c.calls.Add(1)
	return c.Store.BatchGet(ctx, k, cons)
}

func (c *counter) Transact(ctx context.Context, p store.Plan) error {
	c.calls.Add(1)
	return c.Store.Transact(ctx, p)
}

// L-146: whether a chat exists cannot be learned from the time that a refusal takes:
// it takes as many calls of the store.
func TestStrangersCostTheSame(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	count := &counter{Store: w.store}
	s := w.service("p", w.store)
	w.users(s, "ann", "bob", "eve")
	id := w.group(s, "ann", "bob")
	name := "n"
	for what, do := range map[string]func(s *chat.Service, id string) error{
		"add": func(s *chat.Service, id string) error {
			_, err := s.Change(w.ctx, chat.OpAdd,
				chat.MemberChange{Caller: "eve", ChatID: id, UserID: "eve", Role: table.Member})
			return err
		},
		"remove": func(s *chat.Service, id string) error { return remove("bob")(w, s, id, "eve") },
		"leave": func(s *chat.Service, id string) error {
			return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "eve", ChatID: id})
		},
		"role": func(s *chat.Service, id string) error {
			_, err := s.Change(w.ctx, chat.OpRole,
				chat.MemberChange{Caller: "eve", ChatID: id, UserID: "bob", Role: table.Admin})
			return err
		},
		"rename": func(s *chat.Service, id string) error {
			_, _, err := s.UpdateChat(w.ctx, chat.ChatChange{Caller: "eve", ChatID: id, Name: &name})
			return err
		},
		"mute": func(s *chat.Service, id string) error {
			_, err := s.SetMemberSettings(w.ctx,
				chat.MemberSettings{Caller: "eve", ChatID: id, MutedUntil: new(int64), Procedure: "unmute"})
			return err
		},
		"read": func(s *chat.Service, id string) error {
			_, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "eve", ChatID: id, Sequence: 1})
			return err
		},
	} {
		cost := func(id string) int64 {
			s := w.service("q", count)
			w.users(s, "ann") // so that the clock's stamp is written
			before := count.calls.Load()
			if err := do(s, id); !errors.Is(err, chat.ErrNotAMember) {
				t.Errorf("%s: %v", what, err)
			}
			return count.calls.Load() - before
		}
		if real, none := cost(id), cost(chat.NewID("chat_")); real != none {
			t.Errorf("%s: %d calls for a chat of others, %d for none", what, real, none)
		}
	}
}

// L-164 to L-169: what the meter counts.
func TestMeter(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	var reported []string
	s := w.service("p", w.store, func(c *chat.Config) {
		c.Meter = chat.Meter{
			ChatCreated: func(kind table.Type) { reported = append(reported, "created "+string(kind)) },
			CreationTook: func(kind table.Type, phase int, _ time.Duration) {
				reported = append(reported, string(kind)+" phase "+string(rune('0'+phase)))
			},
			DirectAsked: func(existed bool) {
				reported = append(reported, map[bool]string{true: "existing", false: "new"}[existed])
			},
			MembershipChanged: func(op chat.Operation, _ time.Duration) { reported = append(reported, string(op)) },
		}
	})
	w.users(s, "ann", "bob", "cat")
	id := w.group(s, "ann", "bob")
	for range 2 {
		if _, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "bob"}); err != nil {
			t.Fatal(err)
		}
	}
	change := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Member, RequestID: "r"}
	for _, op := range []chat.Operation{chat.OpAdd, chat.OpAdd, chat.OpRole, chat.OpRemove, chat.OpRemove} {
		if _, err := s.Change(w.ctx, op, change); err != nil { // repetitions and roles that are there count for nothing
			t.Fatal(err)
		}
	}
	want := []string{"created group", "group phase 1", "group phase 2", "created direct", "direct phase 1", "new",
		"existing", "add", "remove"}
	if len(reported) != len(want) {
		t.Fatalf("%q, want %q", reported, want)
	}
	for i := range want {
		if reported[i] != want[i] {
			t.Errorf("%q, want %q", reported, want)
		}
	}
}
