package topic

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Producer returns which requests of a producer are remembered, to callers who may publish.
func (s *Service) Producer(
	ctx context.Context, c Caller, r *topicv1.GetProducerRequest,
) (*topicv1.GetProducerResponse, error) {
	if strings.HasSuffix(r.GetTopic(), storage.DeadLetterSuffix) {
		return nil, refusal.Forbidden(r.GetTopic())
	}
	t, err := s.find(c, r.GetTopic(), publisher)
	if err != nil {
		return nil, err
	}
	if err := refuseReadOnly(t); err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	// A request is in each partition that one of its messages went to.
	numbers := map[int64]*topicv1.StoredNumber{}
	for _, p := range l.Parts {
		known, err := s.cfg.Log.Remembered(ctx, p.Address, r.GetProducer())
		if err != nil {
			return nil, err
		}
		for _, k := range known {
			n := numbers[k.Number]
			if n == nil {
				n = &topicv1.StoredNumber{Number: k.Number, PublishTime: timestamppb.New(time.UnixMilli(k.Time))}
				numbers[k.Number] = n
			}
			n.Messages += k.Count
		}
	}
	answer := &topicv1.GetProducerResponse{}
	for _, n := range numbers {
		answer.Numbers = append(answer.Numbers, n)
	}
	slices.SortFunc(answer.Numbers, func(a, b *topicv1.StoredNumber) int {
		return cmp.Compare(a.GetNumber(), b.GetNumber())
	})
	if n := len(answer.GetNumbers()); n > 0 {
		answer.LastNumber = answer.GetNumbers()[n-1].GetNumber()
		answer.Numbers = answer.GetNumbers()[max(0, n-commitlog.ProducerWindow):]
	}
	return answer, nil
}
