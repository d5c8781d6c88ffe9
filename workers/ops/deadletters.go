package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/workers/deadletter"
)

// progressEvery is how often a call reports its progress.
const progressEvery = time.Second

const (
	defaultPage = 100
	maxCounts   = 100
	maxResults  = 100
)

// ListDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) ListDeadLetters(ctx context.Context, req *opsv1.ListDeadLettersRequest) (*opsv1.ListDeadLettersResponse, error) {
	f := filterOf(req.GetFilter(), req.GetStatuses())
	query := hashOf(&opsv1.ListDeadLettersRequest{Filter: req.GetFilter(), Statuses: req.GetStatuses()})
	from, err := positionOf(req.GetPageToken(), query)
	if err != nil {
		return nil, err
	}
	p, err := s.letters.List(ctx, f, cmp.Or(int(req.GetPageSize()), defaultPage), from)
	if err != nil {
		return nil, err
	}
	out := &opsv1.ListDeadLettersResponse{}
	for i := range p.Letters {
		out.Letters = append(out.Letters, letterTo(&p.Letters[i]))
	}
	if p.Next != nil {
		out.NextPageToken = tokenOf(*p.Next, query)
	}
	return out, nil
}

// A page token is a position and the hash of its query: the token of another query would
// show a part of a list as if it were all.
const tokenSize = 4 + 8 + 8

func hashOf(query proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(query)
	if err != nil {
		return nil // a request that was decoded can be encoded
	}
	sum := sha256.Sum256(b)
	return sum[:8]
}

func tokenOf(p deadletter.Position, query []byte) string {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, tokenSize), uint32(p.Partition))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Offset))
	return base64.RawURLEncoding.EncodeToString(append(b, query...))
}

func positionOf(token string, query []byte) (deadletter.Position, error) {
	if token == "" {
		return deadletter.Position{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != tokenSize || string(b[12:]) != string(query) {
		return deadletter.Position{}, errPageToken
	}
	p := deadletter.Position{Partition: int32(binary.BigEndian.Uint32(b)), Offset: int64(binary.BigEndian.Uint64(b[4:]))}
	if p.Partition < 0 || p.Offset < 0 {
		return deadletter.Position{}, errPageToken
	}
	return p, nil
}

// CountDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) CountDeadLetters(ctx context.Context, req *opsv1.CountDeadLettersRequest) (*opsv1.CountDeadLettersResponse, error) {
	counts, total, err := s.letters.Count(ctx, filterOf(req.GetFilter(), req.GetStatuses()))
	if err != nil {
		return nil, err
	}
	out := &opsv1.CountDeadLettersResponse{Total: int64(total)}
	for _, c := range counts[:min(len(counts), maxCounts)] {
		out.Counts = append(out.Counts, &opsv1.DeadLetterCount{
			Group: c.Group, Topic: c.Topic, Reason: truncate(c.Reason, maxReason), Count: int64(c.Letters), FirstFailedAt: timestamp(c.First), LastFailedAt: timestamp(c.Last),
		})
	}
	return out, nil
}

// GetDeadLetter implements opsv1connect.OpsServiceHandler.
func (s *Service) GetDeadLetter(ctx context.Context, req *opsv1.GetDeadLetterRequest) (*opsv1.GetDeadLetterResponse, error) {
	l, err := s.letters.Get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	out := &opsv1.GetDeadLetterResponse{Letter: letterTo(&l), Record: recordTo(l.Record, req.GetContent())}
	e, err := s.cfg.Decode(ctx, l.Record.Key, l.Record.Value)
	switch {
	case errors.Is(err, event.ErrSchema):
		out.Problem = truncate(ownText(err, event.ErrSchema), maxReason)
		return out, nil
	case err != nil:
		s.cfg.Logger.Warn("ops: the schema registry does not answer", "id", l.ID(), "error", err)
		out.Problem = "the schema registry does not answer"
		return out, nil
	}
	if !req.GetContent() {
		redact(e.ProtoReflect())
	}
	text, err := protojson.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write event: %w", err)
	}
	out.EventType, out.EventJson = event.TypeOf(e), string(text)
	return out, nil
}

// requireFilter refuses the empty filter that nobody meant.
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
func (s *Service) RedriveDeadLetters(ctx context.Context, req *opsv1.RedriveDeadLettersRequest, stream *connect.ServerStream[opsv1.RedriveDeadLettersResponse]) error {
	if err := requireFilter(req.GetFilter(), req.GetAll()); err != nil {
		return err
	}
	p := s.progress(ctx, func(r []*opsv1.DeadLetterResult, sum *opsv1.DeadLetterSummary) error {
		return stream.Send(&opsv1.RedriveDeadLettersResponse{Results: r, Summary: sum})
	})
	report, err := s.letters.Redrive(ctx, filterOf(req.GetFilter(), nil), deadletter.Redrive{
		Actor: actor(ctx), Limit: int(req.GetLimit()), DryRun: !req.GetExecute(), Rate: int(req.GetRate()), Handlers: s.cfg.Handlers, OnOutcome: p.add,
	})
	return p.end(report, err)
}

// DiscardDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) DiscardDeadLetters(ctx context.Context, req *opsv1.DiscardDeadLettersRequest, stream *connect.ServerStream[opsv1.DiscardDeadLettersResponse]) error {
	if err := requireFilter(req.GetFilter(), req.GetAll()); err != nil {
		return err
	}
	p := s.progress(ctx, func(r []*opsv1.DeadLetterResult, sum *opsv1.DeadLetterSummary) error {
		return stream.Send(&opsv1.DiscardDeadLettersResponse{Results: r, Summary: sum})
	})
	report, err := s.letters.Discard(ctx, filterOf(req.GetFilter(), nil), deadletter.Discard{
		Actor: actor(ctx), Reason: req.GetReason(), Limit: int(req.GetLimit()), DryRun: !req.GetExecute(), OnOutcome: p.add,
	})
	return p.end(report, err)
}

// progress sends the outcomes of one call, many at a time or after some time.
type progress struct {
	ctx      context.Context //nolint:containedctx // of the one call that this is a part of
	durable  func(context.Context) error
	send     func([]*opsv1.DeadLetterResult, *opsv1.DeadLetterSummary) error
	clock    func() time.Time
	results  []*opsv1.DeadLetterResult
	lastSent time.Time
}

func (s *Service) progress(ctx context.Context, send func([]*opsv1.DeadLetterResult, *opsv1.DeadLetterSummary) error) *progress {
	return &progress{ctx: ctx, durable: s.cfg.Store.Durable, send: send, clock: s.cfg.Clock, lastSent: s.cfg.Clock()}
}

func (p *progress) add(id string, o deadletter.Outcome, reason string) error {
	p.results = append(p.results, &opsv1.DeadLetterResult{Id: id, Outcome: outcomeTo(o), Reason: truncate(reason, maxReason)})
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
