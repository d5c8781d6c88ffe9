package topic

import (
	"context"
	"strings"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A group that gets nothing for longer than a lease although its member has credits is stalled: its
// health and the monitors say why, the metric counts it, and all forget it once something moves.
func TestStalledGroupIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY})
		s := x.attach("t", "g", "m")
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{
			{Key: "k"}, {Key: "k"},
		}})
		testkit.Must(t, err)
		had := x.receive(s)
		testkit.Equal(t, "messages of the key with the member", len(had), 1)
		check := func(what, want string) {
			t.Helper()
			n := 0
			if want != "" {
				n = 1
			}
			problems := strings.Join(x.health("t", "g").GetProblems(), " ")
			if strings.Contains(problems, "STALLED") != (n == 1) || !strings.Contains(problems, want) {
				t.Errorf("%s: problems %q", what, problems)
			}
			testkit.Equal(t, what+": stalled groups", x.metric("t", "g").Stalled, int64(n))
			shown, polled := x.subscription("t", "g").GetStalls(), s.Stalls()
			testkit.Equal(t, what+": stalls of the subscription", len(shown), n)
			testkit.Equal(t, what+": stalls that a poll is told", len(polled), n)
			kinds := []topicv1.MonitorKind{topicv1.MonitorKind_MONITOR_KIND_STALLED}
			found := x.found(&topicv1.ListMonitorsRequest{Kinds: kinds})
			testkit.Equal(t, what+": findings", found, strings.Repeat("STALLED t/g", n))
			if n == 1 && (shown[0].GetReason() == 0 || !strings.Contains(shown[0].GetText(), want) ||
				shown[0].GetSince() == nil) {
				t.Errorf("%s: %v", what, shown)
			}
		}
		extend := func(seconds int) {
			for range seconds / 10 {
				testkit.Advance(10 * time.Second)
				_, err := s.Extend(t.Context(), &topicv1.ExtendSet{})
				testkit.Must(t, err)
			}
		}
		receiving := func(f func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := s.Receive(ctx, 1000)
				done <- err
			}()
			f()
			cancel()
			testkit.Equal(t, "nothing comes", <-done, context.Canceled)
		}
		extend(40)
		check("while nobody receives", "")
		receiving(func() {
			extend(20)
			check("before a lease is over", "")
			extend(20)
			check("while the member extends", "wait for keys")
		})
		x.ack(s, had)
		had = x.receive(s)
		testkit.Equal(t, "messages after it", len(had), 1)
		testkit.Advance(2 * time.Second)
		check("after an acknowledgement", "")
		x.ack(s, had)
		resume := x.engine.Topics.All()[0].Group("g").Hold() // nothing is delivered
		x.publish("t", 2, 1)
		receiving(func() {
			testkit.Advance(40 * time.Second)
			check("while nothing is handed out", "messages are ready")
		})
		resume()
		x.ack(s, x.receive(s))
		testkit.Advance(2 * time.Second)
		check("in the end", "")
		s.End("DETACHED")
	})
}
