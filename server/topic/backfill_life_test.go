package topic

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// HQ-K10, HQ-K14, HQ-K15, HQ-K18: a backfill that is cancelled gives up what nobody has begun with, and continues
// when it is
// started again.
func TestBackfillIsCancelled(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 3000)
		x.subscribe("t", "g", nil)
		_, err := x.CancelBackfill(t.Context(), op, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"})
		refusedAs(t, err, refusal.InvalidTransition)
		slow := &topicv1.BackfillLimits{Batch: 100, MaxRate: 1000}
		first := x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Limits: slow}).GetBackfill()
		m := x.drained("t", "g", "m")
		defer m.stop()
		time.Sleep(time.Second)
		for range 2 {
			a, err := x.CancelBackfill(t.Context(), op, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"})
			if err != nil {
				t.Fatal(err)
			}
			if b := a.GetBackfill(); b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_CANCELLED ||
				b.GetProcessed() < 500 || b.GetProcessed() > 1200 || b.GetTotal() != 3000 {
				t.Errorf("cancelled: %v", b)
			}
		}
		n, _ := m.got()
		time.Sleep(10 * time.Second)
		if more, _ := m.got(); more != n {
			t.Errorf("%d messages came after it was cancelled", more-n)
		}
		if s := x.status("t", "0-2999"); len(s.GetRequired()) != 0 {
			t.Errorf("required of %v after it was cancelled", s.GetRequired())
		}
		x.stop() // also what a crash leaves of a cancelled one
		if err := x.store.Close(); err != nil {
			t.Fatal(err)
		}
		x.start()
		d := x.drained("t", "g", "m")
		defer d.stop()
		b := x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"}).GetBackfill()
		if b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED || b.GetTotal() != 3000 ||
			b.GetProcessed() != 3000 || b.GetNumber() != 1 || !b.GetStartedAt().AsTime().Equal(first.GetStartedAt().AsTime()) {
			t.Errorf("continued: %v", b)
		}
		if more, again := d.got(); n+more != 3000 || again != 0 {
			t.Errorf("%d and %d messages", n, more)
		}
	})
}

// HQ-K10, HQ-N5: a backfill of a paused group waits; one of a group that is dead, cancelled or unknown, or
// by somebody without a role, is refused; a group that moves or dies ends it, and it can be
// started again.
func TestBackfillOfOtherStates(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 200)
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{HeartbeatTimeout: seconds(30)})
		r := &topicv1.StartBackfillRequest{Topic: "t", Group: "g"}
		for _, c := range []Caller{nobody, maker} {
			_, err := x.StartBackfill(t.Context(), c, r)
			refusedAs(t, err, refusal.TopicForbidden)
			_, err = x.CancelBackfill(t.Context(), c, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"})
			refusedAs(t, err, refusal.TopicForbidden)
			_, err = x.Backfill(t.Context(), c, "t", "g")
			refusedAs(t, err, refusal.TopicForbidden)
			err = x.WatchBackfill(t.Context(), c, "t", "g", time.Second, func(*topicv1.Backfill) error { return nil })
			refusedAs(t, err, refusal.TopicForbidden)
		}
		_, err := x.StartBackfill(t.Context(), op, &topicv1.StartBackfillRequest{Topic: "t", Group: "none"})
		refusedAs(t, err, refusal.SubscriptionNotFound)
		if _, err := x.Pause(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		if b := x.backfill(r).GetBackfill(); b.GetStatus() != running || b.GetTotal() != 200 {
			t.Errorf("of a paused group: %v", b)
		}
		m := x.drained("t", "g", "m")
		time.Sleep(5 * time.Second)
		if n, _ := m.got(); n != 0 {
			t.Errorf("%d messages came to a paused group", n)
		}
		m.stop()
		if _, err := x.Resume(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if s := x.state("t", "g"); s != topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD {
			t.Fatalf("the group is %s", s)
		}
		if b := x.filled("t", "g"); b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_FAILED || b.GetError() == "" {
			t.Errorf("of a group that died: %v", b)
		}
		_, err = x.StartBackfill(t.Context(), op, r)
		refusedAs(t, err, refusal.InvalidTransition)
		m = x.drained("t", "g", "m") // it lives again
		defer m.stop()
		if b := x.backfill(r).GetBackfill(); b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED ||
			b.GetProcessed() != 200 {
			t.Errorf("started again: %v", b)
		}
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		_, err = x.StartBackfill(t.Context(), op, &topicv1.StartBackfillRequest{Topic: "t", Group: "g", Again: true})
		refusedAs(t, err, refusal.InvalidTransition)
	})
}

// A seek ends a backfill: it says where the group is to be.
func TestSeekEndsBackfill(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 200)
		x.subscribe("t", "g", nil)
		x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"})
		_, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{
			Topic: "t", Group: "g", To: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-150"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if b := x.filled("t", "g"); b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_FAILED {
			t.Errorf("after a seek: %v", b)
		}
		m := x.attach("t", "g", "m")
		x.ack(m, x.want(m, numbers(150, 50)))
		m.End("DETACHED")
	})
}

// A queue has its backfill, too: of what its group passed over.
func TestBackfillOfQueue(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", nil)
		x.publish("q", 0, 50)
		a := x.backfill(&topicv1.StartBackfillRequest{Topic: "q", Group: storage.QueueGroup})
		if b := a.GetBackfill(); b.GetTotal() != 0 || b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED {
			t.Errorf("of what it has anyway: %v", b)
		}
		_, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{Topic: "q", Group: storage.QueueGroup,
			To: &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}})
		if err != nil {
			t.Fatal(err)
		}
		m := x.drained("q", storage.QueueGroup, "m")
		defer m.stop()
		a = x.backfill(&topicv1.StartBackfillRequest{Topic: "q", Group: storage.QueueGroup, Again: true})
		if n, again := m.got(); a.GetBackfill().GetProcessed() != 50 || n != 50 || again != 0 {
			t.Errorf("%v: %d messages, %d again", a.GetBackfill(), n, again)
		}
	})
}

// HQ-K21: what is published while a backfill runs comes at once, to its own group and to others, and
// all comes once.
func TestPublishedDuringBackfill(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "other")
		x.many("t", 0, 30_000)
		x.subscribe("t", "g", nil)
		x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Limits: &topicv1.BackfillLimits{
			Batch: 500, MaxRate: 5000,
		}})
		own, other := x.drained("t", "g", "m"), x.drained("t", "other", "m")
		time.Sleep(time.Second)
		for i := range 50 {
			x.publish("t", 30_000+i, 1)
			time.Sleep(10 * time.Millisecond)
			for _, d := range []*drain{own, other} {
				d.mu.Lock()
				if d.seen[fmt.Sprint("0-", 30_000+i)] != 1 {
					t.Errorf("%d has not come after 10 ms", 30_000+i)
				}
				d.mu.Unlock()
			}
		}
		if b := x.filled("t", "g"); b.GetProcessed() == 0 || b.GetStatus() != running {
			t.Errorf("meanwhile: %v", b)
		}
		time.Sleep(10 * time.Second)
		own.stop()
		other.stop()
		for _, d := range []*drain{own, other} {
			if n, again := d.got(); n != 30_050 || again != 0 {
				t.Errorf("%d messages, %d again", n, again)
			}
		}
		if b := x.filled("t", "g"); b.GetProcessed() != 30_000 || b.GetTotal() != 30_000 {
			t.Errorf("at the end: %v", b)
		}
	})
}

// HQ-K02: a backfill that is continued has no more in all than it may.
func TestBackfillLimitHoldsAcrossCancel(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 3000)
		x.subscribe("t", "g", nil)
		m := x.drained("t", "g", "m")
		defer m.stop()
		r := &topicv1.StartBackfillRequest{Topic: "t", Group: "g", MaxMessages: 1000, Async: true,
			Limits: &topicv1.BackfillLimits{Batch: 100, MaxRate: 500}}
		x.backfill(r)
		time.Sleep(time.Second)
		if _, err := x.CancelBackfill(t.Context(), op, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"}); err != nil {
			t.Fatal(err)
		}
		x.backfill(r)
		time.Sleep(10 * time.Second)
		b := x.filled("t", "g")
		if n, again := m.got(); n != 1000 || again != 0 || b.GetTotal() != 1000 || b.GetProcessed() != 1000 {
			t.Errorf("%d messages, %d again, %v", n, again, b)
		}
	})
}

// failing is a store that fails to write backfills' rows while on is set.
type failing struct {
	store.Store
	on atomic.Bool
	n  atomic.Int64 // rows of backfills that were written
}

func (f *failing) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Name == "backfill" {
		if f.on.Load() {
			return errors.New("the disk is on fire")
		}
		f.n.Add(1)
	}
	return f.Store.Transact(ctx, p)
}

// HQ-K05, HQ-K10, HQ-K16: a backfill whose row cannot be stored fails, says so once it can, keeps what it has, and
// continues when it is started again.
func TestBackfillFails(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		f := &failing{}
		x.wrap = func(s store.Store) store.Store { f.Store = s; return f }
		x.restart()
		x.groups("t")
		x.many("t", 0, 3000)
		x.subscribe("t", "g", nil)
		f.on.Store(true)
		limits := &topicv1.BackfillLimits{Batch: 50, MaxRate: 100, CheckpointInterval: seconds(1)}
		r := &topicv1.StartBackfillRequest{Topic: "t", Group: "g", Limits: limits}
		if _, err := x.StartBackfill(t.Context(), op, r); err == nil {
			t.Fatal("it starts without a row")
		}
		if s := x.status("t", "0-2999"); len(s.GetRequired()) != 0 {
			t.Errorf("required of %v though it did not start", s.GetRequired())
		}
		f.on.Store(false)
		x.backfill(r)
		m := x.drained("t", "g", "m")
		defer m.stop()
		time.Sleep(5 * time.Second)
		if n := f.n.Load(); n < 4 || n > 7 {
			t.Errorf("%d rows in 5 s at a checkpoint a second", n)
		}
		f.on.Store(true)
		time.Sleep(15 * time.Second)
		n, _ := m.got()
		time.Sleep(10 * time.Second)
		if more, _ := m.got(); more != n || n > 2500 {
			t.Errorf("%d messages came, and %d after it failed", n, more-n)
		}
		f.on.Store(false)
		time.Sleep(10 * time.Second)
		b := x.filled("t", "g")
		if b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_FAILED || b.GetError() == "" ||
			b.GetProcessed() != int64(n) {
			t.Errorf("%d came: %v", n, b)
		}
		if n := x.Backfills().Counters.Failed.Load(); n != 1 {
			t.Errorf("%d failed", n) // which is alerted on
		}
		if s := x.status("t", "0-2999"); len(s.GetRequired()) != 1 {
			t.Errorf("required of %v after it failed", s.GetRequired())
		}
		b = x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"}).GetBackfill()
		if total, again := m.got(); b.GetProcessed() != 3000 || total != 3000 || again != 0 {
			t.Errorf("started again: %v: %d messages, %d again", b, total, again)
		}
	})
}
