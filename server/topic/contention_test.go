package topic

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// slowRemoval is a log whose trims take a while.
type slowRemoval struct {
	commitlog.Log
	takes, now *atomic.Int64
}

func (l slowRemoval) Trim(ctx context.Context, p commitlog.Partition, before int64) (int64, error) {
	l.now.Add(1)
	defer l.now.Add(-1)
	time.Sleep(time.Duration(l.takes.Load()))
	return l.Log.Trim(ctx, p, before)
}

// renewing attaches a member that gets credits back with what it acknowledges.
func (x *fixture) renewing(name, group string) *Session {
	x.t.Helper()
	s, err := x.Attach(x.t.Context(), op, &topicv1.Attach{Topic: name, Group: group, RenewCredits: true}, false)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// some is what comes next, within a minute.
func (x *fixture) some(s *Session) []got {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	e, err := s.Receive(ctx, 1000)
	if err != nil || len(e.Deliveries) == 0 {
		x.t.Fatal(e, err)
	}
	return read(x.t, e.Deliveries)
}

// HQ-P13: while 20,000 messages of a partition are removed, however long that takes, what is
// published to it is delivered and acknowledged as at any other time.
func TestTrimHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		takes, now := &atomic.Int64{}, &atomic.Int64{}
		x.over = func(l commitlog.Log) commitlog.Log { return slowRemoval{l, takes, now} }
		x.restart()
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MessageRetention: seconds(60)})
		x.subscribe("t", "g", nil)
		s := x.renewing("t", "g")
		rounds := func(from int) (took time.Duration) {
			begin := time.Now()
			for n := range 20 {
				x.publish("t", from+n, 1)
				if list := x.some(s); payloads(list) != fmt.Sprint(from+n) || len(x.ack(s, list)) > 0 {
					t.Fatalf("received %s", payloads(list))
				}
			}
			return time.Since(begin)
		}
		for n := range 20 {
			x.many("t", 1000*n, 1000)
			x.ack(s, x.receive(s))
		}
		usual := rounds(20_000)
		takes.Store(int64(time.Minute))
		for waited := 0; now.Load() == 0 && waited < 600; waited++ {
			time.Sleep(time.Second)
		}
		if took := rounds(20_020); took > usual+usual/5 || now.Load() != 1 {
			t.Errorf("20 messages take %v while the log is trimmed, %v before", took, usual)
		}
		for now.Load() > 0 {
			time.Sleep(time.Second)
		}
		if n := x.start0("t"); n < 20_000 {
			t.Errorf("trimmed to %d", n)
		}
	})
}

// HQ-R1: the heartbeats of 2,000 members, one each 30 s, keep all groups alive, and bring none
// near its timeout.
func TestManyHeartbeats(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		for g := range 100 {
			name := fmt.Sprint("g", g)
			x.subscribe("t", name, heartbeatConfig(30, 300))
			for m := range 20 {
				x.attach("t", name, fmt.Sprint(m))
			}
		}
		for range 20 {
			testkit.Advance(30 * time.Second)
			for g := range 100 {
				last := x.subscription("t", fmt.Sprint("g", g)).GetLastHeartbeatAt().AsTime()
				if silent := time.Since(last); silent > 60*time.Second {
					t.Fatalf("group %d was not heard of for %v", g, silent)
				}
			}
		}
		if c := x.Counters(); c.Died.Load() != 0 || c.NearTimeout.Load() != 0 {
			t.Errorf("%d groups died, %d are near their timeout", c.Died.Load(), c.NearTimeout.Load())
		}
	})
}

// HQ-R2, HQ-R4: what is published to 50 groups asks nothing of the store, and what they
// acknowledge one by one is stored in a few writes.
func TestGroupsCostNoCalls(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		c := &calls{}
		x.wrap = func(s store.Store) store.Store { return countedStore{s, c} }
		x.restart()
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB,
			CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK})
		sessions := make([]*Session, 50)
		for g := range sessions {
			name := fmt.Sprint("g", g)
			x.subscribe("t", name, nil)
			sessions[g] = x.renewing("t", name)
		}
		x.publish("t", 0, 1)
		reads, writes := c.reads.Load(), c.writes.Load()
		for n := range 100 {
			x.publish("t", 1+10*n, 10)
		}
		if r, w := c.reads.Load()-reads, c.writes.Load()-writes; r != 0 || w != 0 {
			t.Errorf("100 publishes cost %d reads and %d writes", r, w)
		}
		all := make([][]got, len(sessions))
		for g, s := range sessions {
			for len(all[g]) < 1001 {
				list := x.some(s)
				all[g] = append(all[g], list...)
				x.ack(s, list[min(len(list), 200):])
			}
		}
		begin, writes := time.Now(), c.writes.Load()
		for n := range 200 {
			for g, s := range sessions {
				x.ack(s, all[g][n:n+1])
			}
		}
		time.Sleep(2 * time.Second)
		if w, limit := c.writes.Load()-writes, 10_000/1000+int64(time.Since(begin)/time.Second)+2; w == 0 || w > limit {
			t.Errorf("10,000 acknowledgements cost %d writes, more than %d", w, limit)
		}
	})
}
