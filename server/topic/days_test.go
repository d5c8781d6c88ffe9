package topic

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// HQ-W07: ten days with a message an hour, three groups at different rates and seven days of
// retention. What was published on a day goes as a whole when it is seven days old, not
// before; a group that dies on the ninth day holds nothing of the tenth.
func TestTenDays(t *testing.T) {
	const day, perDay, kept = 24 * time.Hour, 24, 7
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MessageRetention: durationpb.New(kept * day),
			ZeroSubscriptionRetention: durationpb.New(kept * day),
		})
		sessions := map[string]*Session{}
		for _, group := range []string{"each-hour", "each-day", "dies"} {
			x.subscribe("t", group, nil)
			sessions[group] = x.attach("t", group, "m")
		}
		begins := []int64{} // the first position of each day
		for d := range 10 {
			if d == 8 {
				sessions["dies"].End("DETACHED")
				time.Sleep(10 * time.Minute) // twice its timeout
			}
			_, end := x.bounds("t")
			begins = append(begins, end)
			for range perDay {
				x.publish("t", 0, 1)
				x.ack(sessions["each-hour"], x.receive(sessions["each-hour"]))
				x.ahead.Add(int64(time.Hour))
				x.jobs.Retain(t.Context())
			}
			x.ack(sessions["each-day"], x.receive(sessions["each-day"]))
			if d < 8 {
				x.ack(sessions["dies"], x.receive(sessions["dies"]))
			}
			x.jobs.Retain(t.Context())
			start, _ := x.bounds("t")
			if d < kept-1 && start != 0 {
				t.Fatalf("on day %d the log begins with %d", d+1, start)
			}
			// With the last of the day, the first of the next one is as old.
			if d >= kept && start != begins[d-kept+1]+1 {
				t.Errorf("on day %d the log begins with %d, not behind day %d, which ends with %d", d+1, start, d-kept+1,
					begins[d-kept+1]-1)
			}
		}
		if s := x.state("t", "dies"); s != topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD {
			t.Errorf("the silent group is %v", s)
		}
		d, err := x.Topic(t.Context(), op, "t")
		if err != nil {
			t.Fatal(err)
		}
		if p := d.GetPartitions()[0]; p.GetWatermark() != p.GetEnd() || p.GetEnd() != 10*perDay {
			t.Errorf("the dead group holds messages: %v", p)
		}
		x.ahead.Add(int64(kept*day + time.Minute))
		x.jobs.Retain(t.Context())
		if start, end := x.bounds("t"); start != end {
			t.Errorf("seven days later %d to %d are left", start, end)
		}
	})
}

func (x *fixture) bounds(name string) (start, end int64) {
	x.t.Helper()
	d, err := x.Topic(x.t.Context(), op, name)
	if err != nil {
		x.t.Fatal(err)
	}
	return d.GetPartitions()[0].GetStart(), d.GetPartitions()[0].GetEnd()
}
