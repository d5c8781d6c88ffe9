package topicrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/topicproxy"
)

// any is how one of the servers that run is called, another one each time.
func (w *fixture) any(context.Context) (connect.HTTPClient, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn++
	names := slices.Sorted(maps.Keys(w.servers))
	for i := range names {
		if s := w.servers[names[(w.turn+i)%len(names)]]; !s.gone.Load() {
			return client, "http://" + s.others, nil
		}
	}
	return nil, "", errors.New("no server")
}

// operators serves operators as a process does that has no topics; the header says who calls.
func (w *fixture) operators() (addr string) {
	mux := http.NewServeMux()
	for path, h := range topicproxy.Handlers(topicproxy.Config{Servers: w.any, Logger: slog.New(slog.DiscardHandler),
		Operator: func(ctx context.Context) (auth.Operator, bool) {
			name, ok := ctx.Value(user{}).(string)
			return auth.Operator{Name: name, ExpiresAt: time.Now().Add(time.Hour)}, ok && name != ""
		}}) {
		mux.Handle(path, h)
	}
	return w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), user{}, r.Header.Get("User"))))
	})).addr
}

// What operators ask of all topics is answered from all slots, and what they ask of one by its
// owner, whichever server takes the call.
func TestOperators(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	one, two := w.start("one"), w.start("two")
	w.spread(one, two)
	base := "http://" + w.operators()
	ctx := t.Context()
	var names []string
	for i, s := range []*server{one, two, one, two} {
		names = append(names, w.named(s, fmt.Sprintf("asked-%d-", i)))
		w.make(one, names[i], "g")
		_, err := publish(ctx, two, names[i], "hello", nil)
		testkit.Must(t, err)
	}
	for _, o := range [][]connect.ClientOption{nil, {connect.WithProtoJSON()}, {connect.WithGRPC()},
		{connect.WithHTTPGet()}} {
		admin := topicv1connect.NewTopicAdminServiceClient(as("ada"), base, o...)
		for _, name := range names {
			groups, err := admin.ListGroups(ctx, &topicv1.ListGroupsRequest{Topic: name})
			testkit.Must(t, err)
			testkit.Equal(t, "groups of "+name, len(groups.GetGroups()), 1)
			testkit.Equal(t, "pending", groups.GetGroups()[0].GetPending(), int64(1))
		}
		runs, err := admin.RunJob(ctx, &topicv1.RunJobRequest{Job: topicv1.Job_JOB_TRIM})
		testkit.Must(t, err)
		testkit.Equal(t, "topics that a job looked at", runs.GetRun().GetTopics(), int64(len(names)))
		jobs, err := admin.GetJobs(ctx, &topicv1.GetJobsRequest{})
		testkit.Must(t, err)
		testkit.Equal(t, "jobs", len(jobs.GetJobs()), 3)
		for _, j := range jobs.GetJobs() {
			if j.GetJob() == topicv1.Job_JOB_TRIM && j.GetLast().GetTopics() != int64(len(names)) {
				t.Errorf("the last trim looked at %v", j.GetLast())
			}
		}
	}
	admin := topicv1connect.NewTopicAdminServiceClient(as("ada"), base)
	w.monitored(admin, names)
	w.removed(admin, names[3])
	_, err := admin.RunJob(ctx, &topicv1.RunJobRequest{})
	testkit.Equal(t, "a job that there is not", connect.CodeOf(err), connect.CodeInvalidArgument)
	_, err = admin.ListGroups(ctx, &topicv1.ListGroupsRequest{Topic: "none"})
	testkit.Equal(t, "a topic that there is not", connect.CodeOf(err), connect.CodeNotFound)
	_, err = topicv1connect.NewTopicAdminServiceClient(as(""), base).GetJobs(ctx, &topicv1.GetJobsRequest{})
	testkit.Equal(t, "nobody", connect.CodeOf(err), connect.CodeUnavailable)
	end, err := audit.New(w.Store, time.Now).Begin(ctx, "ada", "RunJob", "{}")
	testkit.Must(t, err)
	testkit.Must(t, end.End(ctx, "ok", ""))
	records, err := admin.ListAudit(ctx, &topicv1.ListAuditRequest{})
	testkit.Must(t, err)
	testkit.Equal(t, "records", len(records.GetRecords()), 1)
	w.backfilled(base, one, names[1])
	w.consumed(base, one, names[1])
	one.cut()
	two.cut()
	_, err = admin.GetJobs(ctx, &topicv1.GetJobsRequest{})
	if why, retry := reason(err); connect.CodeOf(err) != connect.CodeUnavailable || why != "NO_OWNER" || !retry {
		t.Errorf("without servers: %v, %s, %t", err, why, retry)
	}
}

// monitored cancels all groups, so that their topics have messages for nobody.
func (w *fixture) monitored(admin topicv1connect.TopicAdminServiceClient, names []string) {
	w.t.Helper()
	for _, name := range names[:3] {
		_, err := w.servers["one"].subscriptions("maker").CancelSubscription(w.t.Context(),
			&topicv1.CancelSubscriptionRequest{Topic: name, Group: "g"})
		testkit.Must(w.t, err)
		_, err = publish(w.t.Context(), w.servers["one"], name, "for nobody", nil)
		testkit.Must(w.t, err)
	}
	found, err := admin.ListMonitors(w.t.Context(), &topicv1.ListMonitorsRequest{
		Kinds: []topicv1.MonitorKind{topicv1.MonitorKind_MONITOR_KIND_ZERO_SUBSCRIPTIONS}})
	testkit.Must(w.t, err)
	var of []string
	for _, f := range found.GetFindings() {
		of = append(of, f.GetTopic())
	}
	testkit.Equal(w.t, "topics without subscriptions", strings.Join(of, " "),
		strings.Join(slices.Sorted(slices.Values(names[:3])), " "))
	found, err = admin.ListMonitors(w.t.Context(), &topicv1.ListMonitorsRequest{Topic: names[1]})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "findings of one", len(found.GetFindings()), 1)
}

// removed removes a group of a topic.
func (w *fixture) removed(admin topicv1connect.TopicAdminServiceClient, name string) {
	w.t.Helper()
	ctx := w.t.Context()
	done, err := admin.ForceComplete(ctx, &topicv1.ForceCompleteRequest{Topic: name, OlderThan: durationpb.New(0),
		Force: true, DryRun: true})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "would be skipped", done.GetSkipped(), int64(1))
	gone, err := admin.RemoveGroup(ctx, &topicv1.RemoveGroupRequest{Topic: name, Group: "g"})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "released", gone.GetReleased(), int64(1))
	_, err = admin.GetGroupMetrics(ctx, &topicv1.GetGroupMetricsRequest{Topic: name, Group: "g"})
	testkit.Equal(w.t, "a group that was removed", connect.CodeOf(err), connect.CodeNotFound)
}

// backfilled lets a new group have what came before it: started at one place, watched at
// another, and seen at a third.
func (w *fixture) backfilled(base string, one *server, name string) {
	w.t.Helper()
	ctx := w.t.Context()
	_, err := one.subscriptions("maker").CreateSubscription(ctx,
		&topicv1.CreateSubscriptionRequest{Topic: name, Group: "late"})
	testkit.Must(w.t, err)
	operator := topicv1connect.NewBackfillServiceClient(as("ada"), base)
	maker := topicv1connect.NewBackfillServiceClient(as("maker"), "http://"+one.users)
	started, err := operator.StartBackfill(ctx, &topicv1.StartBackfillRequest{Topic: name, Group: "late", Async: true})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "messages of the backfill", started.GetBackfill().GetTotal(), int64(2))
	watching, err := operator.WatchBackfill(ctx, &topicv1.WatchBackfillRequest{Topic: name, Group: "late"})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "it is shown at once", watching.Receive(), true)
	for session, n := "", 0; n < 2; {
		pulled, err := one.consumers("maker").Pull(ctx, &topicv1.PullRequest{Topic: name, Group: "late", Session: session,
			Wait: durationpb.New(5 * time.Second)})
		testkit.Must(w.t, err)
		session = pulled.GetSession()
		n += w.settle(one, pulled, "")
	}
	for watching.Receive() {
	}
	testkit.Must(w.t, watching.Err())
	got, err := maker.GetBackfill(ctx, &topicv1.GetBackfillRequest{Topic: name, Group: "late"})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "status at the end", got.GetBackfill().GetStatus(),
		topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED)
	_, err = operator.CancelBackfill(ctx, &topicv1.CancelBackfillRequest{Topic: name, Group: "late"})
	testkit.Equal(w.t, "cancelled when it is done", connect.CodeOf(err), connect.CodeFailedPrecondition)
}

// consumed consumes over a stream in both directions, which passes a process without topics and
// a server that is not the owner.
func (w *fixture) consumed(base string, one *server, name string) {
	w.t.Helper()
	for _, o := range [][]connect.ClientOption{nil, {connect.WithGRPC()}} {
		stream, err := topicv1connect.NewConsumerServiceClient(as("ada"), base, o...).ConsumeBidi(w.t.Context())
		testkit.Must(w.t, err)
		testkit.Must(w.t, stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{
			Attach: &topicv1.Attach{Topic: name, Group: "late"}}}))
		first, err := stream.Receive()
		testkit.Must(w.t, err)
		if first.GetAttached().GetSession() == "" {
			w.t.Fatalf("the first response is %v", first)
		}
		_, err = publish(w.t.Context(), one, name, "again", nil)
		testkit.Must(w.t, err)
		d, err := stream.Receive()
		testkit.Must(w.t, err)
		testkit.Equal(w.t, "messages", len(d.GetDelivery().GetMessages()), 1)
		testkit.Must(w.t, stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{
			Positions: []*topicv1.Positions{{Base: d.GetDelivery().GetBase()}}}}}))
		settled, err := stream.Receive()
		testkit.Must(w.t, err)
		testkit.Equal(w.t, "requests settled", settled.GetSettled().GetRequests(), int64(2))
		testkit.Must(w.t, stream.CloseRequest())
		if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
			w.t.Errorf("the end of a stream: %v", err)
		}
	}
}
