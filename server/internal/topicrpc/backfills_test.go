package topicrpc

import (
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// backfills is a client of the service.
func (c *userClients) backfills() topicv1connect.BackfillServiceClient {
	return topicv1connect.NewBackfillServiceClient(c.client, "http://"+c.addr)
}

// A backfill is started, watched to its end and cancelled through the service.
func TestBackfillService(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub)
	alice.publish("news", 2500)
	alice.subscribe("news", "g", nil)
	service := alice.backfills()
	_, err := service.CancelBackfill(t.Context(), &topicv1.CancelBackfillRequest{Topic: "news", Group: "g"})
	testkit.Equal(t, "cancelled before it is started", connect.CodeOf(err), connect.CodeFailedPrecondition)
	res, err := service.StartBackfill(t.Context(), &topicv1.StartBackfillRequest{Topic: "news", Group: "g"})
	must(t, err)
	testkit.Equal(t, "total", res.GetBackfill().GetTotal(), int64(2500))
	watching, err := service.WatchBackfill(t.Context(), &topicv1.WatchBackfillRequest{Topic: "news", Group: "g",
		Interval: durationpb.New(100_000_000)})
	must(t, err)
	testkit.Equal(t, "it is shown at once", watching.Receive(), true)
	testkit.Equal(t, "from nothing", watching.Msg().GetBackfill().GetPercent(), float64(0))
	m, n := &member{userClients: alice, topic: "news", group: "g", name: "m"}, 0
	testkit.Eventually(t, "all has come", func() bool {
		n += m.drain()
		return n >= 2500
	})
	testkit.Equal(t, "drained", n, 2500)
	last, percent := watching.Msg().GetBackfill(), 0.0
	for watching.Receive() {
		last = watching.Msg().GetBackfill()
		if p := last.GetPercent(); p < percent {
			t.Errorf("%v percent after %v", p, percent)
		}
		percent = last.GetPercent()
	}
	must(t, watching.Err())
	testkit.Equal(t, "percent at the end", last.GetPercent(), float64(100))
	testkit.Equal(t, "status at the end", last.GetStatus(), topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED)
	got, err := service.GetBackfill(t.Context(), &topicv1.GetBackfillRequest{Topic: "news", Group: "g"})
	must(t, err)
	testkit.Equal(t, "processed", got.GetBackfill().GetProcessed(), int64(2500))
}

// What cannot be is refused with one clear code: without a role, of what there is not, beyond
// the end, and out of bounds. A stream ends when the server goes down (S-30).
func TestSec_S_30_BackfillRefusals(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	alice.topic("news", pubSub, "g")
	beyond := &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-99"}}
	for _, tt := range []struct {
		user string
		req  *topicv1.StartBackfillRequest
		code connect.Code
	}{
		{"mallory", &topicv1.StartBackfillRequest{Topic: "news", Group: "g"}, connect.CodePermissionDenied},
		{"mallory", &topicv1.StartBackfillRequest{Topic: "none", Group: "g"}, connect.CodePermissionDenied},
		{"alice", &topicv1.StartBackfillRequest{Topic: "none", Group: "g"}, connect.CodeNotFound},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "h"}, connect.CodeNotFound},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g", From: beyond}, connect.CodeOutOfRange},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g", Scope: 9}, connect.CodeInvalidArgument},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g", Preset: 9}, connect.CodeInvalidArgument},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g", MaxMessages: -2}, connect.CodeInvalidArgument},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g",
			Limits: &topicv1.BackfillLimits{Batch: 100_001}}, connect.CodeInvalidArgument},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g",
			Limits: &topicv1.BackfillLimits{MaxRate: 1_000_001}}, connect.CodeInvalidArgument},
		{"alice", &topicv1.StartBackfillRequest{Topic: "news", Group: "g",
			Limits: &topicv1.BackfillLimits{TargetLatency: durationpb.New(-1)}}, connect.CodeInvalidArgument},
	} {
		_, err := w.as(tt.user).backfills().StartBackfill(t.Context(), tt.req)
		testkit.Equal(t, tt.user+": "+tt.req.String(), connect.CodeOf(err), tt.code)
	}
	service := alice.backfills()
	_, err := service.GetBackfill(t.Context(), &topicv1.GetBackfillRequest{Topic: "news"})
	testkit.Equal(t, "of no group", connect.CodeOf(err), connect.CodeInvalidArgument)
	alice.publish("news", 10)
	alice.subscribe("news", "late", nil)
	_, err = service.StartBackfill(t.Context(), &topicv1.StartBackfillRequest{Topic: "news", Group: "late"})
	must(t, err)
	watching, err := service.WatchBackfill(t.Context(), &topicv1.WatchBackfillRequest{Topic: "news", Group: "late"})
	must(t, err)
	testkit.Equal(t, "it is shown at once", watching.Receive(), true)
	w.streams.Drain()
	for watching.Receive() {
	}
	testkit.Equal(t, "at a drain", reason(watching.Err()), "DRAINING")
}
