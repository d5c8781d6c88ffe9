package deadletter

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// unsure is a store of whose plans the next ones are done or not, and end with an unknown outcome.
type unsure struct {
	store.Store
	plans []bool // whether each is done
}

func (u *unsure) Transact(ctx context.Context, p store.Plan) error {
	if len(u.plans) == 0 {
		return u.Store.Transact(ctx, p)
	}
	done := u.plans[0]
	u.plans = u.plans[1:]
	if done {
		if err := u.Store.Transact(ctx, p); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the connection was cut", store.ErrAmbiguous)
}

// A dead letter whose discarding had an unknown outcome is discarded, and counted once. One that another
// operator took meanwhile is not this one's.
func TestDiscardIsSettled(t *testing.T) {
	r := newFixture(t)
	for n := range 3 {
		r.add("fanout", "chat0", n)
	}
	u := &unsure{Store: r.store, plans: []bool{true, false, false}} // the third attempt succeeds
	r.manager.cfg.Store = u
	d := Discard{Actor: "ops", Reason: "test data", Limit: 2}
	if rep, err := r.manager.Discard(t.Context(), Filter{}, d); err != nil || rep.Done != 2 || len(r.list(Filter{})) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	l := testkit.Value(r.manager.List(t.Context(), Filter{}, 1, Position{}))(t).DeadLetters[0]
	other := l
	testkit.Must(t, r.manager.setStatus(t.Context(), &other, Discarded, "another", "mine"))
	u.plans = []bool{false}
	var lost *store.ConditionError
	if err := r.manager.setStatus(t.Context(), &l, Discarded, "ops", "test data"); !errors.As(err, &lost) {
		t.Errorf("a letter of another operator: %v", err)
	}
	testkit.Equal(t, "its operator", testkit.Value(r.manager.Get(t.Context(), l.ID()))(t).Handling.By, "another")
}
