package chat_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
)

// requests is a store that notes how the rows of requests are written, and fails some plans.
type requests struct {
	store.Store
	fresh []bool  // of each row of a request, in order
	fail  []error // of the next plans
}

func (r *requests) Transact(ctx context.Context, p store.Plan) error {
	sends := false
	for _, w := range p.Writes {
		if w.Key.Table == store.IdempotencyKeys {
			r.fresh, sends = append(r.fresh, w.Fresh), true
		}
	}
	if sends && len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		return err
	}
	return r.Store.Transact(ctx, p)
}

// Only an id that the server has made for this very plan is not looked up: one that a client
// gives may be a repetition, and so may a second plan be.
func TestOnlyFreshIDsAreNotLookedUp(t *testing.T) {
	engine, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	st := &requests{Store: engine}
	w := newFixture(t, st)
	svc := w.service("p", st)
	w.users(svc, "ann", "ben")
	g := w.group(svc, "ann", "ben")
	send := func(id string) (chat.Sent, error) {
		return svc.Send(t.Context(), chat.Send{Caller: "ann", ChatID: g, Content: "hello", ClientMessageID: id})
	}
	st.fresh = nil
	first, err := send("")
	if err != nil {
		t.Fatal(err)
	}
	again, err := send(first.ClientMessageID)
	if err != nil || !again.Replayed || again.MessageID != first.MessageID {
		t.Fatalf("%+v %v, want the message %s once more", again, err, first.MessageID)
	}
	stale := &store.ConditionError{Failures: []store.Failure{}}
	st.fail = []error{stale} // of another process, say
	if _, err := send(""); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(st.fresh), "[true false true false]"; got != want {
		t.Errorf("fresh ids: %s, want %s", got, want)
	}
	w.check()
}
