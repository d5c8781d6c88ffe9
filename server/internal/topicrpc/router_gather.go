package topicrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// merger makes one answer of those of all slots, in the order of the slots. Either of a slot's
// answer and its error is nil.
type merger func(request any, answers []proto.Message, errs []error) (proto.Message, error)

// mergerOf is how the answers to a request that is about all topics become one; nil if it is
// about nothing, so that any slot answers.
func mergerOf(m any) merger {
	switch m.(type) {
	case *topicv1.ListTopicsRequest:
		return all(mergeTopics)
	case *topicv1.ListMonitorsRequest:
		return all(mergeMonitors)
	case *topicv1.GetJobsRequest:
		return all(mergeJobs)
	case *topicv1.RunJobRequest:
		return mergeRuns
	}
	return nil
}

// all is a merger for which every slot must have answered: a list without the topics of a
// slot would be wrong.
func all[Q, A proto.Message](merge func(request Q, answers []A) A) merger {
	return func(request any, answers []proto.Message, errs []error) (proto.Message, error) {
		for _, err := range errs {
			if err != nil {
				return nil, err
			}
		}
		list, err := typed[A](answers)
		if err != nil {
			return nil, err
		}
		q, ok := request.(Q)
		if !ok {
			return nil, fmt.Errorf("topicrpc: %T is not a request of all slots", request)
		}
		return merge(q, list), nil
	}
}

// typed are answers as what they are. Those of other processes are decoded.
func typed[A proto.Message](answers []proto.Message) (list []A, err error) {
	for _, m := range answers {
		if e, passes := m.(*encoded); passes {
			if m, err = e.decode(); err != nil {
				return nil, err
			}
		}
		a, ok := m.(A)
		if !ok {
			return nil, fmt.Errorf("topicrpc: %T is not what a slot answers", m)
		}
		list = append(list, a)
	}
	return list, nil
}

// everywhere makes a call in all slots.
func (r *Router) everywhere(
	ctx context.Context, merge merger, req connect.AnyRequest, next connect.UnaryFunc,
) (connect.AnyResponse, error) {
	answers := make([]proto.Message, r.cfg.Slots.Slots())
	errs := make([]error, len(answers))
	var wg sync.WaitGroup
	for slot := range answers {
		wg.Go(func() {
			res, err := r.call(ctx, slot, req, next)
			if err != nil {
				errs[slot] = err
				return
			}
			answers[slot], _ = res.Any().(proto.Message) // all responses are
		})
	}
	wg.Wait()
	answer, err := merge(req.Any(), answers, errs)
	if err != nil {
		return nil, err
	}
	return response(answer)
}

// response is an answer as that of its procedure.
func response(m proto.Message) (connect.AnyResponse, error) {
	switch m := m.(type) {
	case *topicv1.ListTopicsResponse:
		return connect.NewResponse(m), nil
	case *topicv1.ListMonitorsResponse:
		return connect.NewResponse(m), nil
	case *topicv1.GetJobsResponse:
		return connect.NewResponse(m), nil
	case *topicv1.RunJobResponse:
		return connect.NewResponse(m), nil
	}
	return nil, fmt.Errorf("topicrpc: %T is not an answer of all slots", m)
}

// mergeTopics takes the first names of a page of each slot.
func mergeTopics(q *topicv1.ListTopicsRequest, pages []*topicv1.ListTopicsResponse) *topicv1.ListTopicsResponse {
	answer := &topicv1.ListTopicsResponse{}
	more := false
	for _, p := range pages {
		answer.Topics, more = append(answer.Topics, p.GetTopics()...), more || p.GetNextPageToken() != ""
	}
	slices.SortFunc(answer.Topics, func(a, b *topicv1.Topic) int { return strings.Compare(a.GetName(), b.GetName()) })
	if limit := PageSize(q.GetPageSize()); len(answer.Topics) > limit {
		answer.Topics, more = answer.Topics[:limit], true
	}
	if more {
		answer.NextPageToken = answer.Topics[len(answer.Topics)-1].GetName()
	}
	return answer
}

// maxFindings is how many findings an answer has at most.
const maxFindings = 1000

// mergeMonitors puts what was found in order of topics.
func mergeMonitors(
	_ *topicv1.ListMonitorsRequest, pages []*topicv1.ListMonitorsResponse,
) *topicv1.ListMonitorsResponse {
	answer := &topicv1.ListMonitorsResponse{}
	for _, p := range pages {
		answer.Findings = append(answer.Findings, p.GetFindings()...)
		answer.Truncated = answer.GetTruncated() || p.GetTruncated()
	}
	slices.SortStableFunc(answer.Findings, func(a, b *topicv1.Finding) int {
		return strings.Compare(a.GetTopic(), b.GetTopic())
	})
	if len(answer.Findings) > maxFindings {
		answer.Findings, answer.Truncated = answer.Findings[:maxFindings], true
	}
	return answer
}

// mergeJobs says of each job when it runs next in any slot, and what its last runs did in all.
func mergeJobs(_ *topicv1.GetJobsRequest, slots []*topicv1.GetJobsResponse) *topicv1.GetJobsResponse {
	answer := &topicv1.GetJobsResponse{}
	of := map[topicv1.Job]*topicv1.JobStatus{}
	for _, s := range slots {
		answer.Schedule = cmp.Or(answer.GetSchedule(), s.GetSchedule())
		for _, j := range s.GetJobs() {
			sum := of[j.GetJob()]
			if sum == nil {
				of[j.GetJob()], answer.Jobs = j, append(answer.Jobs, j)
				continue
			}
			// A schedule that goes by the rate of publishes is that of the busiest slot.
			if j.GetEvery().AsDuration() < sum.GetEvery().AsDuration() {
				sum.Every, sum.Batch = j.GetEvery(), j.GetBatch()
			}
			sum.Running = sum.GetRunning() || j.GetRunning()
			if sum.GetNextAt() == nil || j.GetNextAt() != nil && j.GetNextAt().AsTime().Before(sum.GetNextAt().AsTime()) {
				sum.NextAt = j.GetNextAt()
			}
			sum.Last = addRun(sum.GetLast(), j.GetLast())
		}
	}
	return answer
}

// addRun is two runs of a job as one, which began with the first and took as long as the
// longest. Either may be nil. Of what was wrong it says the first.
func addRun(a, b *topicv1.JobRun) *topicv1.JobRun {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	if b.GetBeganAt().AsTime().Before(a.GetBeganAt().AsTime()) {
		a, b = b, a
	}
	return &topicv1.JobRun{
		BeganAt: a.GetBeganAt(), Took: durationpb.New(max(a.GetTook().AsDuration(), b.GetTook().AsDuration())),
		Topics: a.GetTopics() + b.GetTopics(), Done: a.GetDone() + b.GetDone(), Failed: a.GetFailed() + b.GetFailed(),
		Problem: cmp.Or(a.GetProblem(), b.GetProblem()),
	}
}

// mergeRuns adds up what a job did in the slots. In which it runs already, there it does what
// is asked for: that is an error only if it runs already in all.
func mergeRuns(_ any, answers []proto.Message, errs []error) (proto.Message, error) {
	var running error
	var ran []proto.Message
	for slot, err := range errs {
		switch {
		case err == nil:
			ran = append(ran, answers[slot])
		case isRunning(err):
			running = err
		default:
			return nil, err
		}
	}
	if len(ran) == 0 {
		return nil, running
	}
	list, err := typed[*topicv1.RunJobResponse](ran)
	if err != nil {
		return nil, err
	}
	answer := &topicv1.RunJobResponse{}
	for _, r := range list {
		answer.Run = addRun(answer.GetRun(), r.GetRun())
	}
	if busy := len(errs) - len(ran); busy > 0 && answer.GetRun().GetProblem() == "" {
		answer.Run.Problem = fmt.Sprintf("in %d of %d slots it ran already", busy, len(errs))
	}
	return answer, nil
}

// isRunning reports whether an error says that a job runs already, here or at another server.
func isRunning(err error) bool {
	if r, ok := refusal.Of(err); ok {
		return r.Reason == refusal.JobRunning
	}
	var ce *connect.Error
	return errors.As(err, &ce) && reasonOf(ce) == string(refusal.JobRunning)
}
