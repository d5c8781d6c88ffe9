package topic

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of the catalogue.
const (
	maxTopics   = 100_000 // that are asked for: those of dead letters may be more
	defaultPage = 100
	maxPage     = 1000
)

// Configure makes or changes a topic.
func (s *Service) Configure(
	ctx context.Context, c Caller, r *topicv1.ConfigureTopicRequest,
) (*topicv1.ConfigureTopicResponse, error) {
	if s.engine.Catalog.Topic(r.GetTopic()) != nil {
		if _, err := s.find(c, r.GetTopic(), admin); err != nil {
			return nil, err
		}
	} else if !c.Operator && !c.Creator {
		return nil, refusal.Forbidden(r.GetTopic())
	}
	if strings.HasSuffix(r.GetTopic(), storage.DeadLetterSuffix) {
		return nil, refusal.New(refusal.InvalidArgument, "topics whose names end in %s are made by the server",
			storage.DeadLetterSuffix)
	}
	if r.GetDryRun() {
		return s.configureWithSchema(ctx, c, r)
	}
	var answer *topicv1.ConfigureTopicResponse
	err := s.audited(ctx, c, "ConfigureTopic", r, func() (err error) {
		answer, err = s.configureWithSchema(ctx, c, r)
		return err
	})
	return answer, err
}

// configure makes or changes a topic. change is what becomes of its schema; nil if the request says
// nothing of it.
func (s *Service) configure(
	ctx context.Context, c Caller, r *topicv1.ConfigureTopicRequest, change *schemaChange,
) (*topicv1.ConfigureTopicResponse, error) {
	if n, limit := r.GetConfig().GetMaxBytes(), s.cfg.MaxBytes; limit > 0 && n > limit && !c.Operator {
		return nil, refusal.New(refusal.InvalidArgument, "max_bytes may be %d at most: operators may set more", limit)
	}
	t := s.engine.Catalog.Topic(r.GetTopic())
	if t == nil {
		if r.GetEtag() != "" {
			return nil, refusal.New(refusal.TopicExists, "there is no topic %.255q, and the etag is one's", r.GetTopic())
		}
		config, warnings, err := storage.TopicConfig(nil, r.GetConfig(), r.GetPreset())
		if err != nil {
			return nil, err
		}
		if s.engine.Catalog.Count() >= maxTopics {
			return nil, refusal.New(refusal.TooMany, "there are %d topics", maxTopics)
		}
		if r.GetDryRun() {
			would := &topicv1.Topic{Name: r.GetTopic(), Config: config, Warnings: warnings}
			return &topicv1.ConfigureTopicResponse{Topic: would, Created: true},
				s.engine.Sources.Check(ctx, c.Operator, r.GetTopic(), config)
		}
		t, created, err := s.create(ctx, c, r.GetTopic(), storage.Settings{
			Config: config, Preset: r.GetPreset(), With: change.with(),
		})
		if err != nil {
			return nil, err
		}
		if created {
			return &topicv1.ConfigureTopicResponse{Topic: s.describe(t, warnings), Created: true}, nil
		}
	}
	t, err := s.find(c, r.GetTopic(), admin) // another one may have made it since Configure looked
	if err != nil {
		return nil, err
	}
	return s.reconfigure(ctx, t, r, change)
}

// create makes a topic. Its maker is its first administrator, unless it is an operator, who may
// do everything anyway.
func (s *Service) create(
	ctx context.Context, c Caller, name string, set storage.Settings,
) (*storage.Topic, bool, error) {
	first := c.Principal
	if c.Operator {
		first = ""
	}
	t, created, err := s.engine.CreateTopic(ctx, name, set, c.Operator, first)
	if created {
		s.cfg.Logger.Info("topic made", "topic", name, "semantics", set.Config.GetSemantics().String(), "by", c.Principal)
	}
	return t, created, err
}

// Topic returns a topic with its bounds.
func (s *Service) Topic(ctx context.Context, c Caller, name string) (*topicv1.Topic, error) {
	t, err := s.find(c, name, anyRole)
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
	defer t.Reading().End()
	d := s.describe(t, nil)
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			start, end := m.Bounds()
			d.Partitions = append(d.Partitions, &topicv1.PartitionBounds{
				Partition: int32(n), Start: start, End: end, Watermark: m.Watermark(),
			})
		})
	}
	return d, nil
}

// describe shows a topic. The caller holds its lock, or has just made it.
func (s *Service) describe(t *storage.Topic, warnings []string) *topicv1.Topic {
	v := t.View()
	return &topicv1.Topic{
		Name: t.Name, Config: v.Config, Etag: storage.Etag(v.Version), ActiveSubscriptions: int32(t.Active()),
		Warnings:  warnings,
		CreatedAt: timestamppb.New(v.CreatedAt), UpdatedAt: timestamppb.New(v.UpdatedAt),
	}
}

// PageSize is how many are on a page of a wanted size.
func PageSize(n int32) int {
	if n == 0 {
		return defaultPage
	}
	return int(min(n, maxPage))
}

// Topics returns a page of the topics that the caller has a role in, by name.
func (s *Service) Topics(
	_ context.Context, c Caller, r *topicv1.ListTopicsRequest,
) (*topicv1.ListTopicsResponse, error) {
	size := PageSize(r.GetPageSize())
	list := s.engine.Catalog.Topics(r.GetPageToken(), size+1, func(t *storage.Topic) bool {
		return !t.View().Deleting && s.allowed(c, t, anyRole, noGroup)
	})
	answer := &topicv1.ListTopicsResponse{}
	if len(list) > size {
		list = list[:size]
		answer.NextPageToken = list[size-1].Name
	}
	for _, t := range list {
		reading := t.Reading()
		answer.Topics = append(answer.Topics, s.describe(t, nil))
		reading.End()
	}
	return answer, nil
}

// Delete removes a topic with its messages, its subscriptions and its dead letters: a later
// topic of that name must contain nothing of it.
func (s *Service) Delete(ctx context.Context, c Caller, name string) error {
	t := s.engine.Catalog.Topic(name)
	if t == nil || !t.View().Deleting || !s.allowed(c, t, admin, noGroup) { // else an earlier call did not come to its end
		var err error
		if t, err = s.find(c, name, admin); err != nil {
			return err
		}
	}
	return s.audited(ctx, c, "DeleteTopic", &topicv1.DeleteTopicRequest{Topic: name}, func() error {
		if err := s.mark(ctx, t); err != nil {
			return err
		}
		s.cfg.Logger.Info("topic removed", "topic", name, "by", c.Principal)
		return s.engine.FinishRemoval(context.WithoutCancel(ctx), t)
	})
}

// mark says that a topic is being removed, for good.
func (s *Service) mark(ctx context.Context, t *storage.Topic) error {
	defer t.Changing().End()
	if t.View().Deleting {
		return nil
	}
	return s.engine.Catalog.Deleting(ctx, t)
}

// Recommend says which mode suits a load.
func (s *Service) Recommend(r *topicv1.RecommendModeRequest) *topicv1.RecommendModeResponse {
	mode, required, why := storage.Recommend(r.GetGroups(), r.GetMessagesPerSecond(), r.GetStrict())
	return &topicv1.RecommendModeResponse{Mode: mode, Required: required, Reason: why}
}
