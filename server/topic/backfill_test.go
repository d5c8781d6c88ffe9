package topic

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// many publishes n messages, 1,000 at a time.
func (x *fixture) many(name string, from, n int) {
	x.t.Helper()
	for ; n > 0; n, from = n-1000, from+1000 {
		x.publish(name, from, min(n, 1000))
	}
}

func (x *fixture) backfill(r *topicv1.StartBackfillRequest) *topicv1.StartBackfillResponse {
	x.t.Helper()
	a, err := x.StartBackfill(x.t.Context(), op, r)
	if err != nil {
		x.t.Fatal(err)
	}
	return a
}

func (x *fixture) filled(name, group string) *topicv1.Backfill {
	x.t.Helper()
	b, err := x.Backfill(x.t.Context(), op, name, group)
	if err != nil {
		x.t.Fatal(err)
	}
	return b
}

// drain is a member that acknowledges all that comes, and what came.
type drain struct {
	x    *fixture
	in   *Session
	mu   sync.Mutex
	seen map[string]int
	done map[string]bool // was answered as acknowledged
	stop func()
}

// drained runs a member that acknowledges everything, renewing its credits.
func (x *fixture) drained(name, group, member string) *drain {
	x.t.Helper()
	in, err := x.Attach(x.t.Context(), op, &topicv1.Attach{
		Topic: name, Group: group, Member: member, RenewCredits: true, Credits: &topicv1.Credits{Messages: 20_000},
	}, false)
	if err != nil {
		x.t.Fatal(err)
	}
	d := &drain{x: x, in: in, seen: map[string]int{}, done: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			e, err := in.Receive(ctx, 1000)
			if err != nil || e.Gone != "" {
				return
			}
			set := &topicv1.AckSet{}
			for _, one := range e.Deliveries {
				d.count(one)
				set.Positions = append(set.Positions, whole(one)...)
			}
			if _, err := in.Ack(ctx, set); err != nil {
				return
			}
			d.answered(set)
		}
	}()
	d.stop = func() {
		cancel()
		<-done
		in.End("DETACHED")
	}
	return d
}

// whole are the positions of a delivery.
func whole(d Delivery) []*topicv1.Positions {
	if d.Offsets == nil {
		return []*topicv1.Positions{{Partition: d.Partition, Base: d.Base, Count: int64(d.Count)}}
	}
	var list []*topicv1.Positions
	for _, o := range d.Offsets {
		list = append(list, &topicv1.Positions{Partition: d.Partition, Base: d.Base + int64(o)})
	}
	return list
}

func (d *drain) count(one Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range whole(one) {
		for i := range max(p.GetCount(), 1) {
			d.seen[fmt.Sprintf("%d-%d", p.GetPartition(), p.GetBase()+i)]++
		}
	}
}

func (d *drain) answered(set *topicv1.AckSet) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range set.GetPositions() {
		for i := range max(p.GetCount(), 1) {
			d.done[fmt.Sprintf("%d-%d", p.GetPartition(), p.GetBase()+i)] = true
		}
	}
}

// acknowledged is what was answered as acknowledged.
func (d *drain) acknowledged() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.done)
}

// got is how many different messages came, and how many of them again.
func (d *drain) got() (different, again int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.seen {
		different++
		again += n - 1
	}
	return different, again
}

const running = topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS

// HQ-D13, HQ-K09, HQ-K11, HQ-K19: a backfill brings a group what was before it, once each, and says how far it is.
func TestBackfill(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "other")
		x.many("t", 0, 3000)
		x.subscribe("t", "g", nil)
		x.publish("t", 3000, 10)
		if s := x.filled("t", "g").GetStatus(); s != topicv1.BackfillStatus_BACKFILL_STATUS_NOT_STARTED {
			t.Errorf("status %s before it", s)
		}
		m := x.drained("t", "g", "m")
		defer m.stop()
		a := x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"})
		b := a.GetBackfill()
		if !a.GetStarted() || b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED || b.GetTotal() != 3000 ||
			b.GetProcessed() != 3000 || b.GetPercent() != 100 || b.GetNumber() != 1 || b.GetStartedAt() == nil ||
			b.GetCompletedAt() == nil || b.GetError() != "" || b.GetLimitReached() {
			t.Errorf("after a small one, which is waited for: %v", a)
		}
		if n, again := m.got(); n != 3010 || again != 0 {
			t.Errorf("%d messages came, %d again", n, again)
		}
		if s := x.status("t", "0-5"); len(s.GetRequired()) != 2 {
			t.Errorf("required of %v", s.GetRequired())
		}
		a = x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"})
		if a.GetStarted() || a.GetBackfill().GetNumber() != 1 {
			t.Errorf("once more: %v", a)
		}
		a = x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Again: true})
		if !a.GetStarted() || a.GetBackfill().GetNumber() != 2 || a.GetBackfill().GetTotal() != 0 {
			t.Errorf("another one, of nothing: %v", a)
		}
		for _, call := range []string{"operator StartBackfill"} {
			if x.audit.count(call) != 3 {
				t.Errorf("%s is recorded %d times", call, x.audit.count(call))
			}
		}
	})
}

// HQ-K22, HQ-K23: what is complete stays so: by default it is not in a backfill, and with all that is kept
// it is delivered and stays complete.
func TestBackfillScope(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "first")
		x.many("t", 0, 100)
		m := x.drained("t", "first", "m")
		time.Sleep(time.Second)
		m.stop()
		x.many("t", 100, 20)
		for i, scope := range []topicv1.BackfillScope{
			topicv1.BackfillScope_BACKFILL_SCOPE_UNSPECIFIED, topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED,
		} {
			group, want := fmt.Sprint("g", i), []int64{20, 120}[i]
			x.subscribe("t", group, nil)
			b := x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: group, Scope: scope, Async: true}).GetBackfill()
			if b.GetTotal() != want || b.GetProcessed() != 0 || b.GetPercent() != 0 {
				t.Errorf("%s: %v", scope, b)
			}
			if s := x.status("t", "0-7"); s.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
				t.Errorf("a complete message is %s while %s runs", s.GetStatus(), scope)
			}
			d := x.drained("t", group, "m")
			time.Sleep(3 * time.Second)
			d.stop()
			if n, again := d.got(); int64(n) != want || again != 0 {
				t.Errorf("%s: %d messages, %d again", scope, n, again)
			}
			if s := x.status("t", "0-7"); s.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED ||
				len(s.GetRequired()) != 1 {
				t.Errorf("a complete message after %s: %v", scope, s)
			}
		}
	})
}

// HQ-K02: a backfill has the newest of its messages, exactly as many as it may, over all partitions,
// and begins where it is asked to.
func TestBackfillBounds(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 3})
		for i := range 1000 {
			r := &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{{Key: fmt.Sprint(i % 50)}}}
			if _, err := x.Publish(t.Context(), op, r); err != nil {
				t.Fatal(err)
			}
		}
		x.subscribe("t", "g", nil)
		m := x.drained("t", "g", "m")
		defer m.stop()
		b := x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", MaxMessages: 333}).GetBackfill()
		if n, again := m.got(); b.GetTotal() != 333 || !b.GetLimitReached() || n != 333 || again != 0 {
			t.Errorf("%v: %d messages, %d again", b, n, again)
		}
		at := time.Now()
		time.Sleep(time.Minute)
		x.subscribe("t", "late", nil)
		from := &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-5000"}}
		_, err := x.StartBackfill(t.Context(), op, &topicv1.StartBackfillRequest{Topic: "t", Group: "late", From: from})
		refusedAs(t, err, refusal.PositionOutOfRange)
		from = &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "9-5"}}
		_, err = x.StartBackfill(t.Context(), op, &topicv1.StartBackfillRequest{Topic: "t", Group: "late", From: from})
		refusedAs(t, err, refusal.PositionOutOfRange)
		if s := x.filled("t", "late").GetStatus(); s != topicv1.BackfillStatus_BACKFILL_STATUS_NOT_STARTED {
			t.Errorf("status %s after a refusal", s)
		}
		b = x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "late", From: &topicv1.Position{
			At: &topicv1.Position_Time{Time: timestamppb.New(at.Add(time.Second))},
		}}).GetBackfill()
		if b.GetTotal() != 0 || b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED {
			t.Errorf("from a time after all: %v", b)
		}
	})
}

// HQ-K20: of starts at once one does it; without members it is not waited for.
func TestBackfillsStartOnce(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 5000)
		x.subscribe("t", "g", nil)
		var all sync.WaitGroup
		var started atomic.Int64
		begin := time.Now()
		for range 5 {
			all.Go(func() {
				if x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g"}).GetStarted() {
					started.Add(1)
				}
			})
		}
		all.Wait()
		if n := started.Load(); n != 1 || x.engine.Backfills.Running() != 1 {
			t.Errorf("%d starts, %d run", n, x.engine.Backfills.Running())
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("without members it was waited for %v", d)
		}
		b := x.filled("t", "g")
		if b.GetStatus() != running || b.GetTotal() != 5000 || b.GetProcessed() != 0 {
			t.Errorf("without members: %v", b)
		}
	})
}

// HQ-K06, HQ-K18: a backfill continues after the process ends, in whatever state it was, and brings nothing
// twice that was acknowledged.
func TestBackfillResumes(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 4000)
		x.subscribe("t", "g", nil)
		x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Limits: &topicv1.BackfillLimits{
			Batch: 100, MaxRate: 1000,
		}})
		seen := map[string]int{}
		for i := range 4 {
			m := x.drained("t", "g", "m")
			time.Sleep(time.Second)
			if b := x.filled("t", "g"); i < 3 && (b.GetRate() < 500 || b.GetRate() > 1100 || b.GetEta() == nil) {
				t.Errorf("%v messages a second, %v left", b.GetRate(), b.GetEta())
			}
			m.stop()
			if i == 3 {
				x.publish("t", 4000, 1)
			}
			for p, n := range m.seen {
				seen[p] += n
			}
			x.restart()
		}
		m := x.drained("t", "g", "m")
		time.Sleep(5 * time.Second)
		m.stop()
		for p, n := range m.seen {
			seen[p] += n
		}
		again := 0
		for _, n := range seen {
			again += n - 1
		}
		b := x.filled("t", "g")
		if len(seen) != 4001 || again != 0 || b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED ||
			b.GetTotal() != 4000 || b.GetProcessed() != 4000 {
			t.Errorf("%d messages, %d again, %v", len(seen), again, b)
		}
	})
}

// HQ-K02, HQ-K05, HQ-K08: 100,000 messages are waited for, 100,001 are not; a checkpoint is
// written after 100,000.
func TestLargeBackfill(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		f := &failing{}
		x.wrap = func(s store.Store) store.Store { f.Store = s; return f }
		x.restart()
		x.groups("t")
		x.many("t", 0, 100_001)
		for _, tt := range []struct {
			group    string
			most     int64
			complete bool
		}{{"small", 100_000, true}, {"large", 100_001, false}} {
			x.subscribe("t", tt.group, nil)
			m := x.drained("t", tt.group, "m")
			before := f.n.Load()
			b := x.backfill(&topicv1.StartBackfillRequest{
				Topic: "t", Group: tt.group, MaxMessages: tt.most, Scope: topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED,
				Preset: topicv1.BackfillPreset_BACKFILL_PRESET_AGGRESSIVE,
				Limits: &topicv1.BackfillLimits{CheckpointInterval: seconds(3600)},
			}).GetBackfill()
			if complete := b.GetStatus() == topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED; complete != tt.complete ||
				b.GetTotal() != tt.most || b.GetLimitReached() != (tt.most == 100_000) {
				t.Errorf("%s: %v", tt.group, b)
			}
			time.Sleep(10 * time.Second)
			m.stop()
			if n, again := m.got(); int64(n) != tt.most || again != 0 {
				t.Errorf("%s: %d messages, %d again", tt.group, n, again)
			}
			// At the start, when it ends, and if it is not over then, after 100,000.
			if n := f.n.Load() - before; n < 2 || n > 3 || !tt.complete && n != 3 {
				t.Errorf("%s: %d rows", tt.group, n)
			}
		}
	})
}

// What is let go and not taken does not pile up, whatever the rate.
func TestBackfillWaitsForMembers(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.many("t", 0, 5000)
		x.subscribe("t", "g", nil)
		m := x.attach("t", "g", "m")
		defer m.End("DETACHED")
		x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Async: true,
			Limits: &topicv1.BackfillLimits{Batch: 100}})
		time.Sleep(time.Minute)
		l := x.engine.Topics.Opened(x.engine.Catalog.Topic("t").Number)
		l.Parts[0].Do(func(machine *machine.Machine) {
			if h := machine.Group("g").History(); h.Allowed != 100 || h.Untaken != 5000 {
				t.Errorf("after a minute: %+v", h)
			}
		})
	})
}
