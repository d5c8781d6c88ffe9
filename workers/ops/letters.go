package ops

import (
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

const (
	defaultPage = 100
	maxCounts   = 100
	maxResults  = 100
	tellEvery   = time.Second // of progress
)

// ListDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) ListDeadLetters(ctx context.Context, req *opsv1.ListDeadLettersRequest) (*opsv1.ListDeadLettersResponse, error) {
	f := filterOf(req.GetFilter(), req.GetStatuses())
	query := sumOf(&opsv1.ListDeadLettersRequest{Filter: req.GetFilter(), Statuses: req.GetStatuses()})
	from, err := placeOf(req.GetPageToken(), query)
	if err != nil {
		return nil, err
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	p, err := s.office.List(ctx, f, size, from)
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

// A page token is a place and the sum of its query: one of another query would show a
// part of a list as if it were all.
const tokenSize = 4 + 8 + 8

func sumOf(query proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(query)
	if err != nil {
		return nil // a request that was read can be written
	}
	sum := sha256.Sum256(b)
	return sum[:8]
}

func tokenOf(p deadletter.Place, query []byte) string {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, tokenSize), uint32(p.Partition))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Offset))
	return base64.RawURLEncoding.EncodeToString(append(b, query...))
}

func placeOf(token string, query []byte) (deadletter.Place, error) {
	if token == "" {
		return deadletter.Place{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != tokenSize || string(b[12:]) != string(query) {
		return deadletter.Place{}, errPageToken
	}
	p := deadletter.Place{Partition: int32(binary.BigEndian.Uint32(b)), Offset: int64(binary.BigEndian.Uint64(b[4:]))}
	if p.Partition < 0 || p.Offset < 0 {
		return deadletter.Place{}, errPageToken
	}
	return p, nil
}

// CountDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) CountDeadLetters(ctx context.Context, req *opsv1.CountDeadLettersRequest) (*opsv1.CountDeadLettersResponse, error) {
	counts, all, err := s.office.Count(ctx, filterOf(req.GetFilter(), req.GetStatuses()))
	if err != nil {
		return nil, err
	}
	out := &opsv1.CountDeadLettersResponse{Total: int64(all)}
	for _, c := range counts[:min(len(counts), maxCounts)] {
		out.Counts = append(out.Counts, &opsv1.DeadLetterCount{
			Group: c.Group, Topic: c.Topic, Reason: cut(c.Reason, maxReason), Count: int64(c.Letters), FirstFailedAt: stamp(c.First), LastFailedAt: stamp(c.Last),
		})
	}
	return out, nil
}

// GetDeadLetter implements opsv1connect.OpsServiceHandler.
func (s *Service) GetDeadLetter(ctx context.Context, req *opsv1.GetDeadLetterRequest) (*opsv1.GetDeadLetterResponse, error) {
	if req.GetContent() {
		s.cfg.Logger.Warn("ops: content of a dead letter is shown", "id", req.GetId(), "by", by(ctx))
	}
	l, err := s.office.Get(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	out := &opsv1.GetDeadLetterResponse{Letter: letterTo(&l), Record: recordTo(l.Record, req.GetContent())}
	e, err := s.cfg.Decode(ctx, l.Record.Key, l.Record.Value)
	switch {
	case errors.Is(err, event.ErrSchema):
		out.Problem = cut(ownText(err, event.ErrSchema), maxReason)
		return out, nil
	case err != nil:
		s.cfg.Logger.Warn("ops: a record cannot be read", "id", l.ID, "error", err)
		out.Problem = "the schema registry cannot be asked"
		return out, nil
	}
	if !req.GetContent() {
		blank(e.ProtoReflect())
	}
	text, err := protojson.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write event: %w", err)
	}
	out.EventType, out.EventJson = event.TypeOf(e), string(text)
	return out, nil
}

// progress gathers results until there are many, or some time has passed.
type progress struct {
	ctx     context.Context //nolint:containedctx // of the one call that this is a part of
	durable func(context.Context) error
	send    func([]*opsv1.DeadLetterResult, *opsv1.DeadLetterSummary) error
	clock   func() time.Time
	results []*opsv1.DeadLetterResult
	sent    time.Time
}

func (p *progress) each(id string, r deadletter.Result, reason string) error {
	p.results = append(p.results, &opsv1.DeadLetterResult{Id: id, Outcome: outcomes[r], Reason: cut(reason, maxReason)})
	if len(p.results) < maxResults && p.clock().Sub(p.sent) < tellEvery {
		return nil
	}
	return p.tell(nil)
}

func (p *progress) tell(summary *opsv1.DeadLetterSummary) error {
	if err := p.durable(p.ctx); err != nil {
		return err
	}
	if err := p.send(p.results, summary); err != nil {
		return err
	}
	p.results, p.sent = nil, p.clock()
	return nil
}

// end tells what is left, and the summary; also of a call that failed half way, whose
// results are true nevertheless.
func (p *progress) end(rep deadletter.Report, err error) error {
	if err != nil {
		_ = p.tell(nil) // the error is what counts
		return err
	}
	return p.tell(summaryTo(rep))
}

// chosen refuses the empty filter that nobody meant.
func chosen(f *opsv1.DeadLetterFilter, all bool) error {
	empty := f == nil || proto.Equal(f, &opsv1.DeadLetterFilter{})
	switch {
	case empty && !all:
		return fmt.Errorf("%w: an empty filter chooses all dead letters, which must be said", errArgument)
	case !empty && all:
		return fmt.Errorf("%w: either a filter or all dead letters", errArgument)
	}
	return nil
}

// audit logs what an operator has called, and what came of it.
func (s *Service) audit(ctx context.Context, what string, execute bool, filter proto.Message) func(result any, err *error) {
	args := []any{"call", what, "by", by(ctx), "execute", execute, "choice", protojson.Format(filter)}
	s.cfg.Logger.Info("ops: begins", args...)
	return func(result any, err *error) {
		s.cfg.Logger.Info("ops: ended", append(args, "result", result, "error", *err)...)
	}
}

// RedriveDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) RedriveDeadLetters(ctx context.Context, req *opsv1.RedriveDeadLettersRequest, stream *connect.ServerStream[opsv1.RedriveDeadLettersResponse]) (err error) {
	if err := chosen(req.GetFilter(), req.GetAll()); err != nil {
		return err
	}
	var rep deadletter.Report
	ended := s.audit(ctx, "redrive", req.GetExecute(), req.GetFilter())
	defer func() { ended(rep, &err) }()
	p := s.progress(ctx, func(r []*opsv1.DeadLetterResult, sum *opsv1.DeadLetterSummary) error {
		return stream.Send(&opsv1.RedriveDeadLettersResponse{Results: r, Summary: sum})
	})
	rep, err = s.office.Redrive(ctx, filterOf(req.GetFilter(), nil), deadletter.Redrive{
		By: by(ctx), Limit: int(req.GetLimit()), DryRun: !req.GetExecute(), Rate: int(req.GetRate()), Handlers: s.cfg.Handlers, Each: p.each,
	})
	return p.end(rep, err)
}

// DiscardDeadLetters implements opsv1connect.OpsServiceHandler.
func (s *Service) DiscardDeadLetters(ctx context.Context, req *opsv1.DiscardDeadLettersRequest, stream *connect.ServerStream[opsv1.DiscardDeadLettersResponse]) (err error) {
	if err := chosen(req.GetFilter(), req.GetAll()); err != nil {
		return err
	}
	var rep deadletter.Report
	ended := s.audit(ctx, "discard", req.GetExecute(), req.GetFilter())
	defer func() { ended(rep, &err) }()
	p := s.progress(ctx, func(r []*opsv1.DeadLetterResult, sum *opsv1.DeadLetterSummary) error {
		return stream.Send(&opsv1.DiscardDeadLettersResponse{Results: r, Summary: sum})
	})
	rep, err = s.office.Discard(ctx, filterOf(req.GetFilter(), nil), deadletter.Discard{
		By: by(ctx), Reason: req.GetReason(), Limit: int(req.GetLimit()), DryRun: !req.GetExecute(), Each: p.each,
	})
	return p.end(rep, err)
}

func (s *Service) progress(ctx context.Context, send func([]*opsv1.DeadLetterResult, *opsv1.DeadLetterSummary) error) *progress {
	return &progress{ctx: ctx, durable: s.cfg.Store.Durable, send: send, clock: s.cfg.Clock, sent: s.cfg.Clock()}
}
