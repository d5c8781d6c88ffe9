package topic

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
)

// cut keeps what is left of the disk when the power fails at one of the writes.
type cut struct {
	store.Store
	x     *fixture
	rng   *rand.Rand
	armed func() map[string]bool // what was answered as acknowledged; nil: not yet
	at    int                    // number of the write
	after bool                   // once it is durable

	mu    sync.Mutex
	n     int
	disk  *embeddedtest.Disk
	acked map[string]bool
}

func (c *cut) Transact(ctx context.Context, p store.Plan) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := false
	if c.armed != nil {
		c.n++
		now = c.n == c.at
	}
	if now && !c.after {
		c.acked, c.disk = c.armed(), c.x.disk.PowerLoss(c.rng)
	}
	err := c.Store.Transact(ctx, p)
	if now && c.after {
		c.acked, c.disk = c.armed(), c.x.disk.PowerLoss(c.rng)
	}
	return err
}

const crashMessages = 300

// HQ-X7, HQ-K12, HQ-K13: whenever the power fails, before or after any write of a backfill
// that is started, cancelled, started again and completed, the next process knows what became
// of it, brings what is left, and nothing again that was answered as acknowledged.
func TestBackfillCrashes(t *testing.T) {
	for _, after := range []bool{false, true} {
		for at, more := 1, true; more; at++ {
			bubble(t, func(t *testing.T, x *fixture) {
				c := &cut{x: x, rng: rand.New(rand.NewPCG(uint64(at), 9)), at: at, after: after}
				x.wrap = func(s store.Store) store.Store { c.Store = s; return c }
				x.restart()
				backfillScenario(x, c)
				if more = c.disk != nil; !more {
					if at < 10 {
						t.Errorf("there were %d writes", at-1)
					}
					return
				}
				x.wrap = nil
				x.stop()
				x.disk = c.disk
				x.start()
				afterCrash(t, x, c, fmt.Sprintf("write %d, after it %v", at, after))
			})
		}
	}
}

// backfillScenario is what is cut.
func backfillScenario(x *fixture, c *cut) {
	x.groups("t")
	x.many("t", 0, crashMessages)
	x.subscribe("t", "g", nil)
	m := x.drained("t", "g", "m")
	c.mu.Lock()
	c.armed = m.acknowledged
	c.mu.Unlock()
	limits := &topicv1.BackfillLimits{Batch: 50, MaxRate: 100}
	start := &topicv1.StartBackfillRequest{Topic: "t", Group: "g", Limits: limits, Async: true}
	x.backfill(start)
	time.Sleep(1200 * time.Millisecond)
	if _, err := x.CancelBackfill(x.t.Context(), op, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"}); err != nil {
		x.t.Error(err)
	}
	x.backfill(start)
	time.Sleep(5 * time.Second)
	m.stop()
}

// afterCrash continues with what is left.
func afterCrash(t *testing.T, x *fixture, c *cut, where string) {
	t.Helper()
	b := x.filled("t", "g")
	required := 0
	for i := range crashMessages {
		if s := x.status("t", fmt.Sprint("0-", i)); len(s.GetRequired()) > len(s.GetAcknowledged()) {
			required++
		}
	}
	switch b.GetStatus() {
	case running:
		if int64(required) != b.GetTotal()-b.GetProcessed() {
			t.Errorf("%s: %d messages are held, %v", where, required, b)
		}
	case topicv1.BackfillStatus_BACKFILL_STATUS_NOT_STARTED, topicv1.BackfillStatus_BACKFILL_STATUS_CANCELLED,
		topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED:
		if required != 0 {
			t.Errorf("%s: %d messages are held by a backfill that is %s", where, required, b.GetStatus())
		}
	default:
		t.Errorf("%s: %v", where, b)
	}
	m := x.drained("t", "g", "m")
	defer m.stop()
	x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"})
	time.Sleep(10 * time.Second)
	all := m.acknowledged()
	for p := range c.acked {
		if all[p] {
			t.Errorf("%s: %s comes again though it was acknowledged", where, p)
		}
	}
	maps.Copy(all, c.acked)
	if b = x.filled("t", "g"); b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED ||
		b.GetProcessed() != b.GetTotal() || b.GetTotal() > crashMessages {
		t.Errorf("%s: at the end %v", where, b)
	}
	// What was acknowledged and not answered may have become durable.
	if n := x.subscription("t", "g").GetProcessed(); n != crashMessages || len(all) > crashMessages {
		t.Errorf("%s: %d messages are acknowledged, %d came", where, n, len(all))
	}
}
