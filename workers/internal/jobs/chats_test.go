package jobs

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// chunks is a store that dies or throttles at the second phase of creations.
type chunks struct {
	store.Store
	fails []error // of the next plans that make pending members members
}

func (c *chunks) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if w.Key.Table == store.PendingMembers && w.Op != store.OpPut && len(c.fails) > 0 {
			err := c.fails[0]
			c.fails = c.fails[1:]
			return err
		}
	}
	return c.Store.Transact(ctx, p)
}

// L-169: chunks that run again in a worker, which completes creations, are among its metrics.
func TestWorkersCountRetries(t *testing.T) {
	st := &chunks{Store: storetest.NewMemory(time.Now)}
	p := &program{backend: &backend.Backend{Store: st, Generation: "gen"}, process: "wrk_test"}
	metrics := telemetry.NewMetrics()
	chats, err := p.chats(t.Context(), metrics.Chats(), func(chat.Commit) {})
	testkit.Must(t, err)
	for _, user := range []string{"ann", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), user))
	}
	st.fails = []error{errors.New("the server dies")}
	c, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}})
	testkit.Must(t, err)
	if c.Incomplete == nil {
		t.Fatal("nothing is pending")
	}
	st.fails = []error{store.ErrThrottled, store.ErrThrottled}
	testkit.Must(t, chats.FinishPending(t.Context(), c.ChatID))
	rec := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if !strings.Contains(rec.Body.String(), "\n"+telemetry.CreationRetries+" 2\n") {
		t.Errorf("two chunks were throttled: %s", rec.Body)
	}
}
