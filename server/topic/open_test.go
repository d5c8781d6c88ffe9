package topic

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// More messages pass a delayed one than can be open at a time, and a restart keeps it that way.
func TestManyPassADelayedMessage(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		const batches = 70
		x.groups("t", "g")
		s := x.renewing("t", "g")
		x.publish("t", 0, 1)
		had := x.want(s, "0")
		_, err := s.Nack(t.Context(),
			&topicv1.NackSet{Positions: at(had).GetPositions(), Delay: durationpb.New(24 * time.Hour)})
		testkit.Must(t, err)
		pass := func(batch int) {
			x.publish("t", 1+1000*batch, 1000)
			list := x.receive(s)
			if len(list) != 1000 {
				t.Fatalf("received %d messages of batch %d", len(list), batch)
			}
			all := &topicv1.AckSet{Positions: []*topicv1.Positions{{Base: list[0].position, Count: 1000}}}
			_, err := s.Ack(t.Context(), all)
			testkit.Must(t, err)
		}
		for i := range batches {
			pass(i)
		}
		time.Sleep(time.Second) // the cursor is stored
		x.restart()
		s = x.renewing("t", "g")
		pass(batches)
		p := x.subscription("t", "g").GetPartitions()[0]
		testkit.Equal(t, "floor", p.GetFloor(), 0)
		testkit.Equal(t, "pending", p.GetPending(), 1)
		time.Sleep(24 * time.Hour)
		if again := x.receive(s); len(again) != 1 || again[0].position != 0 || again[0].attempt != 2 {
			t.Errorf("after its delay %d messages are delivered: %+v", len(again), again)
		}
		s.End("DETACHED")
	})
}

// A lease for which no timer runs ends by the sweep within two seconds, which counts it.
func TestSweepEndsLeases(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 2)
		for _, l := range x.engine.Topics.All() {
			l.Parts[0].Do(func(m *machine.Machine) { // no session knows of it: no timer is set
				pieces, _ := m.Group("g").Next(time.Now(), 2, nil)
				testkit.Equal(t, "pieces handed out", len(pieces), 1)
			})
		}
		testkit.Advance(28 * time.Second) // a lease lasts for 30 s
		testkit.Equal(t, "counted before the end", x.Counters().LeasesOverdue.Load(), 0)
		testkit.Advance(5 * time.Second)
		testkit.Equal(t, "messages that were overdue", x.Counters().LeasesOverdue.Load(), 2)
		e, err := s.Receive(t.Context(), 10)
		testkit.Must(t, err)
		testkit.Equal(t, "lost", e.LeaseLost[0].GetCount(), 2)
		for _, g := range x.receive(s) {
			if g.attempt != 2 {
				t.Errorf("%d is delivered for the %dth time", g.position, g.attempt)
			}
		}
		testkit.Advance(10 * time.Second)
		testkit.Equal(t, "counted once", x.Counters().LeasesOverdue.Load(), 2)
		s.End("DETACHED")
	})
}
