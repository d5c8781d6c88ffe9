package topic

import (
	"context"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// heldTrim is a log whose trims take a while: during is called before one removes messages.
type heldTrim struct {
	commitlog.Log
	during func()
}

func (l heldTrim) Trim(ctx context.Context, p commitlog.Partition, before int64) (int64, error) {
	l.during()
	return l.Log.Trim(ctx, p, before)
}

// In order of key a member has one message of a key, also if the log is trimmed while it asks. A message that is
// being removed is not delivered: its lease would end with it, and the next message of its key would follow while
// the member works on it.
func TestTrimKeepsTheOrderOfKeys(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		during := func() {}
		x.over = func(l commitlog.Log) commitlog.Log { return heldTrim{l, func() { during() }} }
		x.restart()
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB,
			MessageRetention: durationpb.New(0)})
		x.subscribe("t", "other", nil)
		other := x.attach("t", "other", "m")
		for i := range 4 {
			list := messages(i, 1)
			list[0].Key = "k"
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
			testkit.Must(t, err)
		}
		x.ack(other, x.want(other, numbers(0, 4))[:2]) // the trim goes up to message 2
		late := earliest()
		late.Backfill, late.Ordering = false, topicv1.Ordering_ORDERING_KEY
		x.subscribe("t", "late", late)
		var first, second *Session
		var has []got
		during = func() {
			first, second = x.attach("t", "late", "a"), x.attach("t", "late", "b")
			has = append(x.receive(first), x.receive(second)...)
		}
		x.later(0)
		if n := x.start0("t"); n != 2 {
			t.Fatalf("trimmed to %d", n)
		}
		has = append(append(has, x.receive(first)...), x.receive(second)...)
		if p := payloads(has); p != "2" {
			t.Errorf("members have %q at the same time", p)
		}
	})
}

// A trim that fails holds nothing up.
func TestTrimThatFailsHoldsNothingUp(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.over = func(l commitlog.Log) commitlog.Log { return brokenTrim{l} }
		x.restart()
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB,
			MessageRetention: durationpb.New(0)})
		x.subscribe("t", "other", nil)
		other := x.attach("t", "other", "m")
		x.publish("t", 0, 4)
		x.ack(other, x.want(other, numbers(0, 4)))
		x.later(0)
		late := earliest()
		late.Ordering = topicv1.Ordering_ORDERING_KEY
		x.subscribe("t", "late", late)
		x.want(x.attach("t", "late", "m"), numbers(0, 4))
	})
}

// brokenTrim is a log that cannot be trimmed.
type brokenTrim struct{ commitlog.Log }

func (l brokenTrim) Trim(context.Context, commitlog.Partition, int64) (int64, error) {
	return 0, context.DeadlineExceeded
}
