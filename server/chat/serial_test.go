package chat_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// call and reply are what a client asked and was answered.
type call struct {
	op           chat.Operation // "send" too
	caller, user int
	role         table.Role
}

type reply struct {
	err     string // of the rules; "" is success
	version int64  // of the change, where the answer tells it
	unknown bool   // no answer: it may have happened, or happen yet
}

// group is the state of the one chat.
type group struct {
	roles    [6]table.Role
	version  int64
	sequence int64
}

func (g group) size() (n int) {
	for _, r := range g.roles {
		if r != "" {
			n++
		}
	}
	return n
}

const serialSize = 4

// apply is the rules of ADR-016 once more, in the plainest form.
func (g group) apply(c call) (group, string) {
	caller, target := g.roles[c.caller], g.roles[c.user]
	g.version++
	refuse := func(err error) (group, string) { return group{}, err.Error() }
	switch {
	case caller == "":
		return refuse(chat.ErrNotAMember)
	case c.op == "send":
		g.sequence++
	case c.op == chat.OpLeave:
		if caller == table.Owner {
			return refuse(chat.ErrInvalidOperation)
		}
		g.roles[c.caller] = ""
	case c.op == chat.OpAdd:
		switch {
		case caller == table.Member, caller == table.Admin && c.role == table.Admin:
			return refuse(chat.ErrForbidden)
		case target != "":
			return refuse(chat.ErrAlreadyMember)
		case g.size() == serialSize:
			return refuse(chat.ErrChatFull)
		}
		g.roles[c.user] = c.role
	case c.op == chat.OpRemove:
		switch {
		case c.caller == c.user:
			return refuse(chat.ErrInvalidOperation)
		case caller == table.Member:
			return refuse(chat.ErrForbidden)
		case target == "":
			return refuse(chat.ErrMemberNotFound)
		case target == table.Owner:
			return refuse(chat.ErrInvalidOperation)
		case caller == table.Admin && target == table.Admin:
			return refuse(chat.ErrForbidden)
		}
		g.roles[c.user] = ""
	case c.op == chat.OpRole:
		switch {
		case caller != table.Owner:
			return refuse(chat.ErrForbidden)
		case c.caller == c.user:
			return refuse(chat.ErrInvalidOperation)
		case target == "":
			return refuse(chat.ErrMemberNotFound)
		case target == c.role:
			g.version--
		}
		g.roles[c.user] = c.role
	}
	return g, ""
}

// serialModel says which answers a state allows.
func serialModel(start group) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{start} },
		Step: func(state, input, output any) []any {
			g, c, r := state.(group), input.(call), output.(reply)
			next, err := g.apply(c)
			switch {
			case r.unknown && err == "":
				return []any{g, next}
			case r.unknown:
				return []any{g}
			case err != r.err:
				return nil
			case err != "":
				return []any{g}
			case r.version != 0 && c.op != chat.OpRole && r.version != next.version:
				return nil
			}
			return []any{next}
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v → %+v", input, output)
		},
	}
	return m.ToModel()
}

// L-160, L-183: whatever clients of several processes do to one chat at once, with
// replies lost and plans that arrive late, there is an order of one after another
// that explains all answers.
func TestSerialOrder(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		for seed := range uint64(8) {
			rate := 0.0
			if seed%2 == 1 {
				rate = 0.2
			}
			f := newFaulty(st, seed, rate)
			_, history, start := serialHistory(t, st, [2]store.Store{f, f}, seed)
			f.arrive(context.Background(), true)
			model := serialModel(start)
			checkSerial(t, model, history, seed)
			if rate > 0 {
				continue
			}
			// The check can fail: with one answer turned round it does.
			for i, o := range history {
				r := o.Output.(reply)
				if c := o.Input.(call); c.op != chat.OpAdd || r.err != "" {
					continue
				}
				history[i].Output = reply{err: chat.ErrNotAMember.Error()}
				if c := o.Input.(call); c.caller == 0 && porcupine.CheckOperations(model, history) {
					t.Errorf("seed %d: the owner was no member: %+v", seed, c)
				}
				history[i].Output = r
			}
		}
	})
}

func checkSerial(t *testing.T, model porcupine.Model, history []porcupine.Operation, seed uint64) {
	t.Helper()
	if porcupine.CheckOperations(model, history) {
		return
	}
	for _, o := range history {
		t.Logf("%d–%d: %s", o.Call, o.Return, model.DescribeOperation(o.Input, o.Output))
	}
	t.Fatalf("seed %d: no serial order explains the answers", seed)
}

// serialHistory lets clients use one chat through two processes, each with its own way
// to the store.
func serialHistory(
	t *testing.T, st store.Store, ways [2]store.Store, seed uint64,
) (*fixture, []porcupine.Operation, group) {
	w := newFixture(t, st)
	small := func(c *chat.Config) { c.Members = serialSize }
	services := []*chat.Service{w.service("p", ways[0], small), w.service("q", ways[1], small)}
	users := numbered(fmt.Sprintf("s%d_", seed), 6)
	healthy := w.service("h", st, small)
	w.users(healthy, users...)
	id := w.group(healthy, users[0], users[1], users[2])
	if _, err := healthy.Change(w.ctx, chat.OpRole,
		chat.MemberChange{Caller: users[0], ChatID: id, UserID: users[1], Role: table.Admin}); err != nil {
		t.Fatal(err)
	}
	start := group{version: w.head(id).Version}
	start.roles[0], start.roles[1], start.roles[2] = table.Owner, table.Admin, table.Member

	var clock atomic.Int64
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for client := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			for i := range 8 {
				c := call{op: []chat.Operation{chat.OpAdd, chat.OpAdd, chat.OpRemove, chat.OpRemove, chat.OpLeave, chat.OpRole,
					"send"}[rng.IntN(7)],
					caller: rng.IntN(3), user: rng.IntN(6), role: table.Member}
				if rng.IntN(3) == 0 {
					c.caller = rng.IntN(6)
				}
				if rng.IntN(3) == 0 {
					c.role = table.Admin
				}
				if c.op == chat.OpLeave {
					c.user = c.caller
				}
				o := porcupine.Operation{ClientId: client, Input: c, Call: clock.Add(1)}
				r := perform(w, services[rng.IntN(2)], id, users, c, fmt.Sprintf("r%d_%d", client, i))
				o.Output, o.Return = r, clock.Add(1)
				if r.unknown {
					o.Return = math.MaxInt64
				}
				mu.Lock()
				history = append(history, o)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return w, history, start
}

// perform carries a call out.
func perform(w *fixture, s *chat.Service, id string, users []string, c call, request string) reply {
	var err error
	var r reply
	if c.op == "send" {
		var sent chat.Sent
		sent, err = s.Send(w.ctx, chat.Send{Caller: users[c.caller], ChatID: id, Content: "x", ClientMessageID: request})
		r.version = sent.Version
	} else {
		var out chat.Changed
		out, err = s.Change(w.ctx, c.op,
			chat.MemberChange{Caller: users[c.caller], ChatID: id, UserID: users[c.user], Role: c.role, RequestID: request})
		if c.op == chat.OpAdd {
			r.version = out.Member.Version
		}
	}
	if err == nil {
		return r
	}
	for _, is := range []error{chat.ErrNotAMember, chat.ErrForbidden, chat.ErrInvalidOperation, chat.ErrAlreadyMember,
		chat.ErrChatFull, chat.ErrMemberNotFound} {
		if errors.Is(err, is) {
			return reply{err: is.Error()}
		}
	}
	if !errors.Is(err, store.ErrAmbiguous) && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrThrottled) &&
		!errors.Is(err, context.Canceled) {
		w.t.Errorf("%+v: %v", c, err)
	}
	return reply{unknown: true}
}
