package topicrpc

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/streamwriter"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// AttachTime is how long the first message of a stream of requests may take.
const AttachTime = 15 * time.Second

const detachTime = 5 * time.Second // for the end of a session whose stream is over

// session is an attached member.
type session interface {
	answers
	Attached() *topicv1.Attached
	Stalls() []*topicv1.Stall
	Receive(ctx context.Context, limit int) (topic.Event, error)
	AddCredits(c *topicv1.Credits) *topicv1.Credits
	Detach(ctx context.Context, cancel bool) error
	End(reason string)
}

// answers are what a member says of its messages.
type answers interface {
	Ack(ctx context.Context, set *topicv1.AckSet) ([]*topicv1.Refusal, error)
	Nack(ctx context.Context, set *topicv1.NackSet) ([]*topicv1.Refusal, error)
	Extend(ctx context.Context, set *topicv1.ExtendSet) ([]*topicv1.Refusal, error)
}

var _ session = (*topic.Session)(nil)

// consumers serves ConsumerService.
type consumers struct{ *Server }

var _ topicv1connect.ConsumerServiceHandler = (*consumers)(nil)

// attach attaches a member whose session lives as long as its stream. leave ends it: if the
// stream ended without a word, what the member has counts as tried.
func (s *consumers) attach(ctx context.Context, a *topicv1.Attach) (_ session, leave func(err error), err error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, nil, err
	}
	in, err := s.topics(ctx).Attach(ctx, c, a, false)
	if err != nil {
		return nil, nil, err
	}
	out, err := s.streams.Enter(s.identify(ctx), in.End)
	if err != nil {
		detach(ctx, in)
		return nil, nil, err
	}
	return in, func(err error) {
		out()
		if err == nil {
			detach(ctx, in)
			return
		}
		in.End(topic.Broken) // nothing, if it has ended
	}, nil
}

// detach ends a session whose stream is over, which may have ended its context.
func detach(ctx context.Context, s session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachTime)
	defer cancel()
	_ = s.Detach(ctx, false) // fails only if it is to cancel the subscription, too
}

// Consume implements ConsumerService.
func (s *consumers) Consume(
	ctx context.Context, req *topicv1.ConsumeRequest, stream *connect.ServerStream[topicv1.ConsumeResponse],
) (err error) {
	in, leave, err := s.attach(ctx, req.GetAttach())
	if err != nil {
		return err
	}
	defer func() { leave(err) }()
	out := newSender(ctx, in, stream.Conn(), s.history)
	defer out.close()
	return out.run(ctx)
}

// ConsumeBidi implements ConsumerService.
func (s *consumers) ConsumeBidi(
	ctx context.Context, stream *connect.BidiStream[topicv1.ConsumeBidiRequest, topicv1.ConsumeBidiResponse],
) (err error) {
	first := time.AfterFunc(AttachTime, func() { streamwriter.CutRead(ctx, time.Unix(1, 0)) })
	req, err := stream.Receive()
	first.Stop()
	switch {
	case errors.Is(err, io.EOF):
		return api.Invalid("attach", "the stream ended before it")
	case err != nil:
		return err
	case req.GetAttach() == nil:
		return api.Invalid("attach", "must be the first request of the stream")
	}
	in, leave, err := s.attach(ctx, req.GetAttach())
	if err != nil {
		return err
	}
	defer func() { leave(err) }()
	out := newSender(ctx, in, stream.Conn(), s.history)
	defer out.close()
	return converse(ctx, in, out, stream.Receive)
}

// open is the session of a call.
func (s *consumers) open(ctx context.Context, id string) (session, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.topics(ctx).Session(c, id)
}

// holder is the session of a call that names positions which the session has.
func (s *consumers) holder(ctx context.Context, id string, positions []*topicv1.Positions) (session, error) {
	in, err := s.open(ctx, id)
	if err != nil {
		return nil, err
	}
	return in, checkPositions(positions)
}

// Ack implements ConsumerService.
func (s *consumers) Ack(ctx context.Context, req *topicv1.AckRequest) (*topicv1.AckResponse, error) {
	in, err := s.holder(ctx, req.GetSession(), req.GetSet().GetPositions())
	if err != nil {
		return nil, err
	}
	refused, err := in.Ack(ctx, req.GetSet())
	if err != nil {
		return nil, err
	}
	return &topicv1.AckResponse{Refusals: refused}, nil
}

// Nack implements ConsumerService.
func (s *consumers) Nack(ctx context.Context, req *topicv1.NackRequest) (*topicv1.NackResponse, error) {
	in, err := s.holder(ctx, req.GetSession(), req.GetSet().GetPositions())
	if err != nil {
		return nil, err
	}
	refused, err := in.Nack(ctx, req.GetSet())
	if err != nil {
		return nil, err
	}
	return &topicv1.NackResponse{Refusals: refused}, nil
}

// Extend implements ConsumerService.
func (s *consumers) Extend(ctx context.Context, req *topicv1.ExtendRequest) (*topicv1.ExtendResponse, error) {
	in, err := s.holder(ctx, req.GetSession(), req.GetSet().GetPositions())
	if err != nil {
		return nil, err
	}
	set := req.GetSet()
	if set == nil {
		set = &topicv1.ExtendSet{} // all of the session
	}
	refused, err := in.Extend(ctx, set)
	if err != nil {
		return nil, err
	}
	return &topicv1.ExtendResponse{Refusals: refused}, nil
}

// AddCredits implements ConsumerService.
func (s *consumers) AddCredits(
	ctx context.Context, req *topicv1.AddCreditsRequest,
) (*topicv1.AddCreditsResponse, error) {
	in, err := s.open(ctx, req.GetSession())
	if err != nil {
		return nil, err
	}
	return &topicv1.AddCreditsResponse{Credits: in.AddCredits(req.GetCredits())}, nil
}

// Detach implements ConsumerService.
func (s *consumers) Detach(ctx context.Context, req *topicv1.DetachRequest) (*topicv1.DetachResponse, error) {
	in, err := s.open(ctx, req.GetSession())
	if err != nil {
		return nil, err
	}
	return &topicv1.DetachResponse{}, in.Detach(ctx, req.GetCancel())
}

// maxPosition is beyond what any partition reaches.
const maxPosition = 1 << 62

// checkPositions refuses positions that no message can have, and bitmaps that say more
// than their range has.
func checkPositions(all []*topicv1.Positions) error {
	for _, p := range all {
		count := max(p.GetCount(), 1)
		switch {
		case p.GetBase() > maxPosition-count:
			return refusal.New(refusal.PositionOutOfRange, "base: %d is beyond every partition", p.GetBase())
		case len(p.GetBitmap()) > 0 && int64(len(p.GetBitmap())) > (count+7)/8:
			return api.Invalid("bitmap", "has more bits than count says there are positions")
		}
	}
	return nil
}

// Limits of an answer of Pull.
const (
	pullMessages = 1000
	pullDefault  = 100
	pullMinWait  = 50 * time.Millisecond // to find what is there, also without a wait
	pullAnswer   = time.Second
)

// Pull implements ConsumerService.
func (s *consumers) Pull(ctx context.Context, req *topicv1.PullRequest) (*topicv1.PullResponse, error) {
	in, err := s.polled(ctx, req)
	if err != nil {
		return nil, err
	}
	leave, err := s.streams.poll(in.ID())
	if err != nil {
		return nil, err
	}
	defer leave()
	limit := int(req.GetMaxMessages())
	if limit == 0 {
		limit = pullDefault
	}
	limit = min(limit, pullMessages)
	wait := req.GetWait().AsDuration()
	if end, ok := ctx.Deadline(); ok { // the answer needs time as well
		wait = min(wait, time.Until(end)-pullAnswer)
	}
	waiting, cancel := s.streams.untilDrain(ctx)
	defer cancel()
	waiting, stop := context.WithTimeout(waiting, max(wait, pullMinWait))
	defer stop()
	res := &topicv1.PullResponse{Session: in.Attached().GetSession(), State: in.State()}
	for {
		event, err := in.Receive(waiting, limit)
		switch {
		case ctx.Err() != nil: // the client does not read an answer
			in.Return(event.Deliveries)
			return nil, ctx.Err()
		case err != nil: // nothing came in time
			res.State, res.Stalls = in.State(), in.Stalls()
			return res, nil
		case event.Gone != "":
			return nil, goneWith(event.Gone)
		}
		res.State = in.State()
		for _, d := range event.Deliveries {
			m, err := (&deliveryFrame{Delivery: d}).message()
			if err != nil {
				return nil, err
			}
			res.Deliveries = append(res.Deliveries, m)
		}
		if len(res.Deliveries) > 0 || event.State != 0 {
			return res, nil
		}
	}
}

// polled is the session of a poll, which attaches if it has none.
func (s *consumers) polled(ctx context.Context, req *topicv1.PullRequest) (*topic.Session, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetSession() != "" {
		in, err := s.topics(ctx).Session(c, req.GetSession())
		if err != nil {
			return nil, err
		}
		if !in.Options().Polled {
			return nil, refusal.New(refusal.SessionGone, "the session is one of a stream")
		}
		if sub := in.Attached().GetSubscription(); sub.GetTopic() != req.GetTopic() || sub.GetGroup() != req.GetGroup() {
			return nil, refusal.New(refusal.SessionGone, "the session is one of another subscription")
		}
		return in, nil
	}
	return s.topics(ctx).Attach(ctx, c, &topicv1.Attach{
		Topic: req.GetTopic(), Group: req.GetGroup(), Member: req.GetMember(), Filter: req.GetFilter(),
	}, true)
}
