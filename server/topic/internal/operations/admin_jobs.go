package operations

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// kindOf converts a job.
func kindOf(j topicv1.Job) (JobKind, bool) {
	switch j {
	case topicv1.Job_JOB_TRIM:
		return Trim, true
	case topicv1.Job_JOB_DETECTION:
		return Detection, true
	case topicv1.Job_JOB_SUBSCRIPTIONS:
		return Subscriptions, true
	}
	return 0, false
}

// RunJob runs a job now.
func (a *Admin) RunJob(ctx context.Context, by string, r *topicv1.RunJobRequest) (*topicv1.RunJobResponse, error) {
	k, ok := kindOf(r.GetJob())
	if !ok {
		return nil, refusal.New(refusal.InvalidArgument, "there is no such job")
	}
	answer := &topicv1.RunJobResponse{}
	err := a.audited(ctx, by, "RunJob", r, func() (string, error) {
		report, err := a.jobs.RunNow(ctx, k)
		answer.Run = runOf(report)
		return answer.Run.GetProblem(), err
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// maxProblem bounds what is said of a run, in bytes.
const maxProblem = 500

func runOf(r JobReport) *topicv1.JobRun {
	problem := r.Problem
	return &topicv1.JobRun{
		BeganAt: timestamppb.New(r.Began), Took: durationpb.New(r.Took), Topics: r.Topics, Done: r.Done, Failed: r.Failed,
		Problem: strings.ToValidUTF8(problem[:min(len(problem), maxProblem)], ""),
	}
}

// Jobs returns the jobs, when they run, and what their last runs did.
func (a *Admin) Jobs() *topicv1.GetJobsResponse {
	schedule, list := a.jobs.Status()
	answer := &topicv1.GetJobsResponse{Schedule: schedule}
	for _, s := range list {
		j := &topicv1.JobStatus{Every: durationpb.New(s.Every), Batch: s.Batch, Running: s.Running}
		for _, x := range []topicv1.Job{
			topicv1.Job_JOB_TRIM, topicv1.Job_JOB_DETECTION, topicv1.Job_JOB_SUBSCRIPTIONS,
		} {
			if k, ok := kindOf(x); ok && k == s.Kind {
				j.Job = x
			}
		}
		if !s.Last.Began.IsZero() {
			j.Last = runOf(s.Last)
		}
		if s.Next.After(time.Time{}) {
			j.NextAt = timestamppb.New(s.Next)
		}
		answer.Jobs = append(answer.Jobs, j)
	}
	return answer
}
