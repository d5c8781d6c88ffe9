package topic

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/testkit"
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
