package topic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxPublish is the size of the messages of a publish in Protobuf's encoding, in bytes.
const maxPublish = 4_000_000

// Publish stores messages and returns once they are on stable storage. Whether a topic
// takes them is decided at the moment at which they get their positions: no subscription
// begins or ends between.
func (s *Service) Publish(
	ctx context.Context, c Caller, r *topicv1.PublishRequest,
) (*topicv1.PublishResponse, error) {
	t, err := s.publishTo(ctx, c, r.GetTopic())
	if err != nil {
		return nil, err
	}
	if err := refuseReadOnly(t); err != nil {
		return nil, err
	}
	size := 0
	for i, m := range r.GetMessages() {
		m.ExpireTime = nil // the server's own, as the time of the publish: a message may be passed on as it was received
		size += proto.Size(m)
		for name := range m.GetHeaders() {
			if operations.IsReserved(name) {
				return nil, refusal.New(refusal.InvalidArgument,
					"the header %.255q is the server's: publish the message without it", name)
			}
		}
		if m.GetDeduplicationId() != "" && r.GetProducer() != nil {
			return nil, refusal.New(refusal.InvalidArgument, "message %d has a deduplication_id, and the request a producer: "+
				"each makes a repetition harmless, so send one of them", i)
		}
		if err := checkDelivery(t.View().Config, m, s.cfg.Clock()); err != nil {
			return nil, refusal.New(refusal.InvalidArgument, "message %d: %s", i, err)
		}
	}
	if size > maxPublish {
		return nil, refusal.New(refusal.TooLarge, "the messages have %d bytes in all, more than %d: send fewer in a request",
			size, maxPublish)
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	appends, indexes := serving.Distribute(l, r)
	stored, err := s.store(ctx, l, r, appends, int64(size))
	if err != nil {
		return nil, err
	}
	answer := &topicv1.PublishResponse{Results: make([]*topicv1.PublishResult, len(indexes))}
	results := make([]topicv1.PublishResult, len(indexes)) // one allocation
	for i, at := range indexes {
		n, p, one := appends[at.Batch].Partition.Number, stored[at.Batch][at.Index], &results[i]
		one.MessageId, one.Partition = serving.MessageID(n, p.Position), n
		one.Position, one.Replayed = p.Position, p.Replayed
		answer.Results[i] = one
	}
	s.engine.Counters.Published.Add(int64(len(indexes)))
	return answer, nil
}

// maxDelay is how long a message may wait for its time, by the contract.
const maxDelay = 30 * 24 * time.Hour

// checkDelivery says why a message may not wait for its time: the topic would not keep it so long, its group would be
// moved past it, or nothing would be left to deliver.
func checkDelivery(c *topicv1.TopicConfig, m *topicv1.TopicMessage, now time.Time) error {
	if m.GetDelay() != nil && m.GetDeliverTime() != nil {
		return errors.New("it has delay and deliver_time: send one of them")
	}
	due := commitlog.Delivery(m, now.UnixMilli())
	if due == 0 {
		return nil
	}
	delay := time.UnixMilli(due).Sub(now)
	for _, limit := range []struct {
		name string
		most *durationpb.Duration
	}{{"max_retention", c.GetMaxRetention()}, {"zombie_subscription_ttl", c.GetZombieSubscriptionTtl()}} {
		if most := limit.most.AsDuration(); delay >= most {
			return fmt.Errorf("it is to be delivered in %s, and the topic's %s is %s: deliver it earlier, or raise that",
				delay.Round(time.Second), limit.name, most)
		}
	}
	if delay > maxDelay {
		return fmt.Errorf("it is to be delivered in %s, the most is %s", delay.Round(time.Second), maxDelay)
	}
	if m.GetTtl() != nil && delay >= m.GetTtl().AsDuration() {
		return errors.New("its ttl ends before it is to be delivered")
	}
	return nil
}

// store appends the messages of a request once they are as the topic's schema says. The check may read
// the registry, so it comes before the topic's lock. If the schema changes between, and that change has
// been answered, messages of the earlier one must not be stored: Append notices, and they are checked again.
func (s *Service) store(
	ctx context.Context, l *serving.OpenTopic, r *topicv1.PublishRequest, appends []commitlog.Append, size int64,
) ([][]serving.MessagePosition, error) {
	admitted := false
	for range schemaAttempts {
		terms := &serving.Terms{Schema: l.View().Config.GetSchema()}
		if err := s.checkSchema(ctx, l, terms.Schema, r.GetMessages(), appends); err != nil {
			return nil, err
		}
		if !admitted {
			if err := s.engine.Publisher.Admit(ctx, l, appends, size); err != nil {
				return nil, err
			}
			admitted = true
		}
		stored, err := s.engine.Publisher.Publish(ctx, l, appends, terms)
		if !errors.Is(err, serving.ErrSchemaChanged) {
			return stored, err
		}
	}
	return nil, errSchemaBusy
}

// checkSchema refuses messages that are not as a schema says. A request whose number the topic
// remembers stores nothing: it is let through, so that its sender learns what became of it, although
// the topic may have another schema since.
func (s *Service) checkSchema(
	ctx context.Context, l *serving.OpenTopic, by *topicv1.TopicSchema, messages []*topicv1.TopicMessage,
	appends []commitlog.Append,
) error {
	if by == nil {
		return nil
	}
	err := s.schemas.Check(ctx, by, messages)
	if refused, ok := refusal.Of(err); !ok || refused.Reason != refusal.SchemaMismatch {
		return err
	}
	if known, lookup := s.engine.Publisher.Remembers(ctx, l, appends); known || lookup != nil {
		return lookup
	}
	s.engine.Counters.Mismatched.Add(1)
	return err
}

// publishTo returns the topic to publish to. One that does not exist is made as a queue,
// if the caller may make topics.
func (s *Service) publishTo(ctx context.Context, c Caller, name string) (*storage.Topic, error) {
	if strings.HasSuffix(name, storage.DeadLetterSuffix) {
		return nil, refusal.Forbidden(name)
	}
	if s.engine.Catalog.Topic(name) != nil || !c.Operator && !c.Creator {
		return s.find(c, name, publisher)
	}
	config, _, err := storage.TopicConfig(nil, nil, 0)
	if err != nil {
		return nil, err
	}
	err = s.audited(ctx, c, "ConfigureTopic", &topicv1.ConfigureTopicRequest{Topic: name}, func() error {
		_, _, err := s.create(ctx, c, name, storage.Settings{Config: config})
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.find(c, name, publisher)
}

// refuseReadOnly refuses topics to which nothing is published.
func refuseReadOnly(t *storage.Topic) error {
	if storage.OfChats(t.View().Config) {
		return refusal.New(refusal.TopicReadOnly,
			"topic %q holds the events of chats: nothing is published to it", t.Name)
	}
	return nil
}

// MessageStatus says which groups have acknowledged a message, among those that the caller may
// know about.
func (s *Service) MessageStatus(
	ctx context.Context, c Caller, r *topicv1.GetMessageStatusRequest,
) (*topicv1.GetMessageStatusResponse, error) {
	t, err := s.find(c, r.GetTopic(), anyRole)
	if err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := s.engine.Sources.Follow(ctx, l); err != nil {
		return nil, err
	}
	n, position, err := l.Message(r.GetMessageId())
	if err != nil {
		return nil, err
	}
	var status machine.Status
	var start, end int64
	l.Parts[n].Do(func(m *machine.Machine) {
		if start, end = m.Bounds(); position >= start && position < end {
			status = m.Status(position)
		}
	})
	if position < start || position >= end {
		return nil, refusal.New(refusal.PositionOutOfRange, "the partition has the positions %d to %d", start, end-1)
	}
	hidden := func(group string) bool { return !s.sees(c, t, group) }
	answer := &topicv1.GetMessageStatusResponse{
		Required:     slices.DeleteFunc(status.Required, hidden),
		Acknowledged: slices.DeleteFunc(status.Acknowledged, hidden),
		Status:       topicv1.MessageStatus_MESSAGE_STATUS_PENDING,
	}
	switch {
	case status.Complete:
		answer.Status = topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED
	case status.InFlight && t.View().Config.GetSemantics() == storage.Queue:
		answer.Status = topicv1.MessageStatus_MESSAGE_STATUS_PROCESSING
	}
	return answer, nil
}
