package topicrpc

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/refusal"
)

func ran(at int64, took time.Duration, done int64, problem string) *topicv1.JobRun {
	return &topicv1.JobRun{BeganAt: timestamppb.New(time.Unix(at, 0)), Took: durationpb.New(took), Topics: 1, Done: done,
		Failed: done, Problem: problem}
}

// A job runs in all slots: what it did is added up. Slots in which it runs already do not count,
// unless it does in all; any other error is the call's.
func TestRunsAreAddedUp(t *testing.T) {
	t.Parallel()
	busy := refusal.New(refusal.JobRunning, "it runs")
	remote := connect.NewError(connect.CodeAborted, errors.New("it runs"))
	detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: string(refusal.JobRunning)})
	testkit.Must(t, err)
	remote.AddDetail(detail)
	a := &topicv1.RunJobResponse{Run: ran(20, 2*time.Second, 1, "the second")}
	b := &topicv1.RunJobResponse{Run: ran(10, 5*time.Second, 10, "the first")}
	quiet := &topicv1.RunJobResponse{Run: ran(10, time.Second, 3, "")}
	for name, tt := range map[string]struct {
		answers []proto.Message
		errs    []error
		want    *topicv1.JobRun
		err     error
	}{
		"all": {[]proto.Message{a, b}, []error{nil, nil}, &topicv1.JobRun{BeganAt: b.GetRun().GetBeganAt(),
			Took: b.GetRun().GetTook(), Topics: 2, Done: 11, Failed: 11, Problem: "the first"}, nil},
		"some run": {[]proto.Message{nil, quiet, nil}, []error{busy, nil, remote}, func() *topicv1.JobRun {
			r := ran(10, time.Second, 3, "in 2 of 3 slots it ran already")
			return r
		}(), nil},
		"all run":  {[]proto.Message{nil, nil}, []error{busy, remote}, nil, remote},
		"an error": {[]proto.Message{a, nil}, []error{nil, errNoOwner}, nil, errNoOwner},
	} {
		got, err := mergeRuns(nil, tt.answers, tt.errs)
		if !errors.Is(err, tt.err) || err == nil && !proto.Equal(got.(*topicv1.RunJobResponse).GetRun(), tt.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// Of jobs the soonest run is shown, the schedule of the busiest slot, and what all last runs did.
func TestJobsAreOne(t *testing.T) {
	t.Parallel()
	of := func(every, next int64, running bool, last *topicv1.JobRun) *topicv1.GetJobsResponse {
		return &topicv1.GetJobsResponse{Schedule: "auto", Jobs: []*topicv1.JobStatus{{Job: topicv1.Job_JOB_TRIM,
			Every: durationpb.New(time.Duration(every)), Batch: every, Running: running,
			NextAt: timestamppb.New(time.Unix(next, 0)), Last: last}}}
	}
	got := mergeJobs(nil, []*topicv1.GetJobsResponse{of(7, 30, false, nil), of(5, 40, true, ran(10, time.Second, 1, "")),
		of(9, 20, false, ran(5, time.Second, 2, ""))})
	want := of(5, 20, true, ran(5, time.Second, 3, ""))
	want.Jobs[0].Last.Topics = 2
	if !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A list of findings has a bound, and says when it does not have all.
func TestFindingsAreBounded(t *testing.T) {
	t.Parallel()
	page := func(prefix string, n int) *topicv1.ListMonitorsResponse {
		p := &topicv1.ListMonitorsResponse{}
		for i := range n {
			p.Findings = append(p.Findings, &topicv1.Finding{Topic: fmt.Sprintf("%s%04d", prefix, i)})
		}
		return p
	}
	got := mergeMonitors(nil, []*topicv1.ListMonitorsResponse{page("b", 600), page("a", 400)})
	testkit.Equal(t, "findings", len(got.GetFindings()), 1000)
	testkit.Equal(t, "the first", got.GetFindings()[0].GetTopic(), "a0000")
	testkit.Equal(t, "truncated", got.GetTruncated(), false)
	got = mergeMonitors(nil, []*topicv1.ListMonitorsResponse{page("b", 600), page("a", 401)})
	testkit.Equal(t, "findings", len(got.GetFindings()), 1000)
	testkit.Equal(t, "truncated", got.GetTruncated(), true)
}
