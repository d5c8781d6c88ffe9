package chat_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// calls is a store that writes down which calls concern the pending members of a group.
type calls struct {
	store.Store
	list []string
}

func (c *calls) BatchGet(ctx context.Context, keys []store.Key, cons store.Consistency) ([]store.Item, error) {
	if keys[0].Table == store.PendingMembers {
		c.list = append(c.list, "read")
	}
	return c.Store.BatchGet(ctx, keys, cons)
}

func (c *calls) Transact(ctx context.Context, p store.Plan) error {
	if slices.ContainsFunc(p.Writes, func(w store.Write) bool { return w.Key.Table == store.PendingMembers }) {
		c.list = append(c.list, "plan")
	}
	return c.Store.Transact(ctx, p)
}

// L-050: the second phase takes as long as its store calls: one read for each plan of 24 members,
// the first of which brings the block lists, and no wait between them.
func TestSecondPhaseWaitsForNothing(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	st, waits := &calls{Store: w.store}, 0
	s := w.service("p", st, func(c *chat.Config) {
		c.Sleep = func(ctx context.Context, _ time.Duration) error { waits++; return ctx.Err() }
	})
	users := numbered("u", 96)
	w.users(s, append(users, "ann")...)
	c, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: users})
	if err != nil || c.Incomplete != nil {
		t.Fatal(c, err)
	}
	want := []string{"plan", "read", "plan", "read", "plan", "read", "plan", "read", "plan"}
	if !slices.Equal(st.list, want) || waits != 0 {
		t.Errorf("%q and %d waits, want the first phase, a read and a plan for each chunk, and no wait", st.list, waits)
	}
}
