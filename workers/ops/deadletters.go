package ops

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/ops/pagetoken"
	"github.com/parley-chat/parley/workers/ops/redact"
	"github.com/parley-chat/parley/workers/ops/withhold"
)

// progressEvery is how often a call reports its progress.
const progressEvery = time.Second

const (
	defaultPage = 100
	maxCounts   = 100
	maxResults  = 100
)

// ListDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) ListDeadLetters(
	ctx context.Context, req *opsv1.ListDeadLettersRequest,
) (*opsv1.ListDeadLettersResponse, error) {
	f := filterOf(req.GetFilter(), req.GetStatuses())
	query := &opsv1.ListDeadLettersRequest{Filter: req.GetFilter(), Statuses: req.GetStatuses()}
	from, err := positionOf(req.GetPageToken(), query)
	if err != nil {
		return nil, err
	}
	p, err := s.deadLetters.List(ctx, f, cmp.Or(int(req.GetPageSize()), defaultPage), from)
	if err != nil {
		return nil, err
	}
	out := &opsv1.ListDeadLettersResponse{}
	for i := range p.DeadLetters {
		out.DeadLetters = append(out.DeadLetters, deadLetterTo(&p.DeadLetters[i]))
	}
	if p.Next != nil {
		out.NextPageToken = tokenOf(*p.Next, query)
	}
	return out, nil
}

// A position in a list of dead letters has a byte each for the source and whether the
// dead letter is parked, partition and offset, and for a topic's the names of log and group.
const positionSize = 1 + 1 + 4 + 8

var tokenSources = []deadletter.Source{"", deadletter.Events, deadletter.Topics}

func tokenOf(p deadletter.Position, query proto.Message) string {
	parked := byte(0)
	if p.Parked {
		parked = 1
	}
	b := []byte{byte(slices.Index(tokenSources, p.Source)), parked}
	b = binary.BigEndian.AppendUint32(b, uint32(p.Partition))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Offset))
	return pagetoken.Encode(append(b, p.Log+"\x00"+p.Group...), query)
}

func positionOf(token string, query proto.Message) (p deadletter.Position, err error) {
	b, err := pagetoken.Decode(token, query)
	if err != nil || len(b) == 0 {
		return p, err
	}
	if len(b) <= positionSize || int(b[0]) >= len(tokenSources) {
		return p, pagetoken.ErrInvalid
	}
	p = deadletter.Position{
		Source: tokenSources[b[0]], Parked: b[1] == 1,
		Partition: int32(binary.BigEndian.Uint32(b[2:])), Offset: int64(binary.BigEndian.Uint64(b[6:])),
	}
	var named bool
	p.Log, p.Group, named = strings.Cut(string(b[positionSize:]), "\x00")
	if p.Partition < 0 || p.Offset < 0 || !named {
		return deadletter.Position{}, pagetoken.ErrInvalid
	}
	return p, nil
}

// CountDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) CountDeadLetters(
	ctx context.Context, req *opsv1.CountDeadLettersRequest,
) (*opsv1.CountDeadLettersResponse, error) {
	counts, total, err := s.deadLetters.Count(ctx, filterOf(req.GetFilter(), req.GetStatuses()))
	if err != nil {
		return nil, err
	}
	out := &opsv1.CountDeadLettersResponse{Total: int64(total)}
	for _, c := range counts[:min(len(counts), maxCounts)] {
		out.Counts = append(out.Counts, &opsv1.DeadLetterCount{
			Group: c.Group, Topic: c.Topic, Reason: truncate(c.Reason, maxReason), Count: int64(c.DeadLetters),
			FirstFailedAt: timestamp(c.First), LastFailedAt: timestamp(c.Last),
		})
	}
	return out, nil
}

// GetDeadLetter implements opsv1connect.OpsServiceHandler.
func (s *Service) GetDeadLetter(
	ctx context.Context, req *opsv1.GetDeadLetterRequest,
) (*opsv1.GetDeadLetterResponse, error) {
	l, err := s.deadLetters.Get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	out := &opsv1.GetDeadLetterResponse{DeadLetter: deadLetterTo(&l)}
	content := req.GetContent()
	defer func() { out.Record = recordTo(&l, content) }()
	if l.Source == deadletter.Topics { // its content is its publisher's business
		return out, nil
	}
	e, err := s.cfg.Decode(ctx, l.Record.Key, l.Record.Value)
	if err != nil {
		out.Problem = s.problem(&l, err)
		content, err = withhold.Unreadable(ctx, s.cfg.Store, l.Record.Key, l.Record.Value, typeOf(&l), content)
		if err != nil {
			return nil, err
		}
		if req.GetContent() && !content {
			out.Problem = truncate(out.Problem, maxReason/2) + "; its content may be of a deleted account and is not shown"
		}
		return out, nil
	}
	if content, err = withhold.Content(ctx, s.cfg.Store, e, content); err != nil {
		return nil, err
	}
	if !content {
		redact.Message(e.ProtoReflect())
	}
	text, err := protojson.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write event: %w", err)
	}
	out.EventType, out.EventJson = event.TypeOf(e), string(text)
	return out, nil
}

// problem says why a dead letter cannot be read.
func (s *Service) problem(l *deadletter.DeadLetter, err error) string {
	if errors.Is(err, event.ErrSchema) {
		_, why, _ := strings.Cut(err.Error(), event.ErrSchema.Error()+": ")
		return truncate(why, maxReason)
	}
	s.cfg.Logger.Warn("ops: the schema registry does not answer", "id", l.ID(), "error", err)
	return "the schema registry does not answer"
}

// typeOf is the type of a dead letter's event, as its producer says; empty if it does not.
func typeOf(l *deadletter.DeadLetter) string {
	for _, h := range l.Record.Headers {
		if h.Key == kafka.HeaderEventType {
			return string(h.Value)
		}
	}
	return ""
}

// requireFilter refuses an empty filter unless the operator asks for all dead letters.
func requireFilter(f *opsv1.DeadLetterFilter, all bool) error {
	empty := f == nil || proto.Equal(f, &opsv1.DeadLetterFilter{})
	switch {
	case empty && !all:
		return fmt.Errorf("%w: an empty filter selects all dead letters: set all if that is meant", errArgument)
	case !empty && all:
		return fmt.Errorf("%w: either a filter or all dead letters", errArgument)
	}
	return nil
}

// RedriveDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) RedriveDeadLetters(
	ctx context.Context, req *opsv1.RedriveDeadLettersRequest,
	stream *connect.ServerStream[opsv1.RedriveDeadLettersResponse],
) error {
	if err := requireFilter(req.GetFilter(), req.GetAll()); err != nil {
		return err
	}
	p := s.progress(ctx, func(r []*opsv1.DeadLetterResult, sum *opsv1.DeadLetterSummary) error {
		return stream.Send(&opsv1.RedriveDeadLettersResponse{Results: r, Summary: sum})
	})
	report, err := s.deadLetters.Redrive(ctx, filterOf(req.GetFilter(), nil), deadletter.Redrive{
		Actor: actor(ctx), Limit: int(req.GetLimit()), DryRun: !req.GetExecute(), Rate: int(req.GetRate()),
		Handlers: s.cfg.Handlers, OnOutcome: p.add,
	})
	return p.end(report, err)
}

// DiscardDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) DiscardDeadLetters(
	ctx context.Context, req *opsv1.DiscardDeadLettersRequest,
	stream *connect.ServerStream[opsv1.DiscardDeadLettersResponse],
) error {
	if err := requireFilter(req.GetFilter(), req.GetAll()); err != nil {
		return err
	}
	p := s.progress(ctx, func(r []*opsv1.DeadLetterResult, sum *opsv1.DeadLetterSummary) error {
		return stream.Send(&opsv1.DiscardDeadLettersResponse{Results: r, Summary: sum})
	})
	report, err := s.deadLetters.Discard(ctx, filterOf(req.GetFilter(), nil), deadletter.Discard{
		Actor: actor(ctx), Reason: req.GetReason(), Limit: int(req.GetLimit()), DryRun: !req.GetExecute(), OnOutcome: p.add,
	})
	return p.end(report, err)
}

// progress sends the outcomes of one call, many at a time or after some time.
type progress struct {
	ctx      context.Context // of the one call that this is a part of
	durable  func(context.Context) error
	send     func([]*opsv1.DeadLetterResult, *opsv1.DeadLetterSummary) error
	clock    func() time.Time
	results  []*opsv1.DeadLetterResult
	lastSent time.Time
}

func (s *Service) progress(
	ctx context.Context, send func([]*opsv1.DeadLetterResult, *opsv1.DeadLetterSummary) error,
) *progress {
	return &progress{ctx: ctx, durable: s.cfg.Store.Durable, send: send, clock: s.cfg.Clock, lastSent: s.cfg.Clock()}
}

func (p *progress) add(id string, o deadletter.Outcome, reason string) error {
	p.results = append(p.results, &opsv1.DeadLetterResult{Id: id, Outcome: outcomeTo(o),
		Reason: truncate(reason, maxReason)})
	if len(p.results) < maxResults && p.clock().Sub(p.lastSent) < progressEvery {
		return nil
	}
	return p.flush(nil)
}

func (p *progress) flush(summary *opsv1.DeadLetterSummary) error {
	if err := p.durable(p.ctx); err != nil {
		return err
	}
	if err := p.send(p.results, summary); err != nil {
		return err
	}
	p.results, p.lastSent = nil, p.clock()
	return nil
}

// end sends what is left, and the summary. If the call failed half way, its results are
// valid all the same.
func (p *progress) end(report deadletter.Report, err error) error {
	if err != nil {
		_ = p.flush(nil) // the error is what counts
		return err
	}
	return p.flush(summaryTo(report))
}
