package topic

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// mortal publishes messages numbered from from on that end after a while.
func (x *fixture) mortal(name string, from, n int, ttl time.Duration) []*topicv1.PublishResult {
	x.t.Helper()
	list := messages(from, n)
	for _, m := range list {
		m.Ttl = durationpb.New(ttl)
	}
	r, err := x.Publish(x.t.Context(), op, &topicv1.PublishRequest{Topic: name, Messages: list})
	testkit.Must(x.t, err)
	return r.GetResults()
}

// Messages whose time is over are delivered to nobody: they are complete without a member and without a request,
// the log is not kept for them, and each group's ledger counts them. Neither health nor gap takes them for a loss.
// A restart changes nothing of that.
func TestTimeToLive(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g", "idle", "paused")
		s := x.attach("t", "g", "m")
		x.mortal("t", 0, 1, 40*time.Second)
		got := x.want(s, "0")
		ends := got[0].message.GetExpireTime().AsTime().Sub(got[0].message.GetPublishTime().AsTime())
		if ends < 40*time.Second || ends >= 41*time.Second || got[0].message.GetTtl() != nil {
			t.Errorf("%v", got[0].message)
		}
		x.ack(s, got)
		s.End("DETACHED")
		_, err := x.Pause(t.Context(), op, "t", "paused")
		testkit.Must(t, err)
		ids := x.mortal("t", 1, 3, 40*time.Second)
		x.publish("t", 4, 1)
		x.mortal("t", 5, 1, 40*time.Second)
		testkit.Advance(30 * time.Second)
		x.restart()
		testkit.Equal(t, "status while it lives", x.status("t", ids[0].GetMessageId()).GetStatus(),
			topicv1.MessageStatus_MESSAGE_STATUS_PENDING)
		testkit.Advance(2 * time.Minute)
		for _, again := range []bool{false, true} {
			if again {
				x.restart()
			}
			testkit.Equal(t, "status when it is over", x.status("t", ids[2].GetMessageId()).GetStatus(),
				topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED)
			for group, want := range map[string]int64{"g": 3, "idle": 4, "paused": 4} {
				sub := x.subscription("t", group)
				testkit.Equal(t, group+": expired", sub.GetReleased().GetExpired(), want)
				testkit.Equal(t, group+": gap", sub.GetGap(), false)
				if p := strings.Join(x.health("t", group).GetProblems(), " "); strings.Contains(p, "does not get") {
					t.Errorf("%s: problems %s", group, p)
				}
				testkit.Equal(t, group+": floor", sub.GetPartitions()[0].GetFloor(), 4)
			}
		}
		s = x.attach("t", "g", "m")
		x.ack(s, x.want(s, "4")) // and finds what is behind it
		sub := x.subscription("t", "g")
		testkit.Equal(t, "expired", sub.GetReleased().GetExpired(), 4)
		testkit.Equal(t, "processed", sub.GetProcessed(), 2)
		testkit.Equal(t, "pending", sub.GetPartitions()[0].GetPending(), 0)
		if n := x.Counters().Ledger[machine.ByExpiry].Load(); n != 1 { // since the restart
			t.Errorf("%d are counted", n)
		}
	})
}

// A message that a consumer passes on as it received it is another message, without a time to live; what a
// publisher says of the server's times does not count. A dead letter does not end.
func TestTimeToLiveOfCopies(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}})
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{
			{Payload: []byte("passed on"), ExpireTime: timestamppb.New(time.Now().Add(-time.Hour))},
			{Payload: []byte("fails"), Ttl: durationpb.New(10 * time.Second)},
		}})
		testkit.Must(t, err)
		s := x.attach("t", "g", "m")
		got := x.want(s, "passed on fails")
		if got[0].message.GetExpireTime() != nil {
			t.Errorf("%v", got[0].message)
		}
		x.ack(s, got[:1])
		_, err = s.Nack(t.Context(), &topicv1.NackSet{Positions: at(got[1:]).GetPositions()})
		testkit.Must(t, err)
		testkit.Advance(time.Minute)
		x.subscribe("t.dlq", "d", &topicv1.SubscriptionConfig{Start: &topicv1.Position{
			At: &topicv1.Position_Earliest{Earliest: true}}})
		deadLetters := x.want(x.attach("t.dlq", "d", "m"), "fails")
		if deadLetters[0].message.GetExpireTime() != nil {
			t.Errorf("%v", deadLetters[0].message)
		}
	})
}

// A group that is dead does not get what is over when it returns, and the topic does not keep it. A group that
// comes later and holds what is there gets what is not over, and a seek back finds it over again.
func TestTimeToLiveOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB,
			MessageRetention: durationpb.New(0)})
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(1), HeartbeatTimeout: seconds(3)})
		s := x.attach("t", "g", "m")
		s.End("DETACHED")
		x.mortal("t", 0, 5, 20*time.Minute)
		x.publish("t", 5, 1)
		testkit.Advance(15 * time.Minute)
		testkit.Equal(t, "state", x.state("t", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD)
		testkit.Advance(16 * time.Minute)
		testkit.Equal(t, "expired while it is dead", x.subscription("t", "g").GetReleased().GetExpired(), 5)
		s = x.attach("t", "g", "m")
		x.ack(s, x.want(s, "5"))
		x.mortal("t", 6, 2, time.Minute)
		x.publish("t", 8, 1)
		testkit.Advance(90 * time.Second)
		x.subscribe("t", "late", &topicv1.SubscriptionConfig{Backfill: true, Start: &topicv1.Position{
			At: &topicv1.Position_Earliest{Earliest: true}}})
		late := x.attach("t", "late", "m")
		x.want(late, "5 8")
		x.ack(s, x.want(s, "8"))
		testkit.Equal(t, "expired", x.subscription("t", "g").GetReleased().GetExpired(), 7)
		_, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{Topic: "t", Group: "g",
			To: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-6"}}})
		testkit.Must(t, err)
		x.want(s, "8")
	})
}

// An hour of messages without a consumer expires without being read more than once, and its space is
// free again.
func TestTimeToLiveInBulk(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB,
			MessageRetention: durationpb.New(0)})
		x.subscribe("t", "g", nil)
		for n := range 60 {
			x.mortal("t", 500*n, 500, time.Minute)
		}
		x.restart() // nothing of it is in memory
		x.subscription("t", "g")
		testkit.Advance(10 * time.Minute)
		sub := x.subscription("t", "g")
		testkit.Equal(t, "expired", sub.GetReleased().GetExpired(), 30_000)
		testkit.Equal(t, "pending", sub.GetPartitions()[0].GetPending(), 0)
		l := x.engine.Topics.Opened(x.engine.Catalog.Topic("t").Number)
		start, end := l.Parts[0].Bounds()
		testkit.Equal(t, "start of the log", start, end)
	})
}
