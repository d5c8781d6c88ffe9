package topic

import (
	"context"
	"regexp"
	"slices"
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
	maxBindings = 1000    // of a topic
	defaultPage = 100
	maxPage     = 1000
)

// nameRule says what validName takes.
const nameRule = "a name is 1 to 255 letters, digits, dots, hyphens or underscores and begins with a letter or digit"

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// Configure makes or changes a topic.
func (s *Service) Configure(
	ctx context.Context, c Caller, r *topicv1.ConfigureTopicRequest,
) (*topicv1.ConfigureTopicResponse, error) {
	if s.catalog.Topic(r.GetTopic()) != nil {
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
		return s.configure(ctx, c, r)
	}
	var answer *topicv1.ConfigureTopicResponse
	err := s.audited(ctx, c, "ConfigureTopic", r, func() (err error) {
		answer, err = s.configure(ctx, c, r)
		return err
	})
	return answer, err
}

func (s *Service) configure(
	ctx context.Context, c Caller, r *topicv1.ConfigureTopicRequest,
) (*topicv1.ConfigureTopicResponse, error) {
	t := s.catalog.Topic(r.GetTopic())
	if t == nil {
		if r.GetEtag() != "" {
			return nil, refusal.New(refusal.TopicExists, "there is no topic %.255q, and the etag is one's", r.GetTopic())
		}
		config, warnings, err := storage.TopicConfig(nil, r.GetConfig(), r.GetPreset())
		if err != nil {
			return nil, err
		}
		if s.catalog.Count() >= maxTopics {
			return nil, refusal.New(refusal.TooMany, "there are %d topics", maxTopics)
		}
		if r.GetDryRun() {
			would := &topicv1.Topic{Name: r.GetTopic(), Config: config, Warnings: warnings}
			return &topicv1.ConfigureTopicResponse{Topic: would, Created: true},
				s.sources.Check(ctx, c.Operator, r.GetTopic(), config)
		}
		t, created, err := s.create(ctx, c, r.GetTopic(), config, r.GetPreset())
		if err != nil {
			return nil, err
		}
		if created {
			return &topicv1.ConfigureTopicResponse{Topic: s.describe(t, warnings), Created: true}, nil
		}
	}
	return s.reconfigure(ctx, t, r)
}

// create makes a topic. Its maker is its first administrator.
func (s *Service) create(
	ctx context.Context, c Caller, name string, config *topicv1.TopicConfig, p topicv1.Preset,
) (*storage.Topic, bool, error) {
	if !validName.MatchString(strings.TrimSuffix(name, storage.DeadLetterSuffix)) {
		return nil, false, refusal.New(refusal.InvalidArgument, nameRule)
	}
	if err := s.sources.Check(ctx, c.Operator, name, config); err != nil {
		return nil, false, err
	}
	first := c.Principal
	if c.Operator {
		first = "" // may do everything anyway
	}
	t, created, err := s.catalog.Create(ctx, name, config, p, first)
	if created {
		s.cfg.Logger.Info("topic made", "topic", name, "semantics", config.GetSemantics().String(), "by", c.Principal)
	}
	return t, created, err
}

// Topic returns a topic with its bounds.
func (s *Service) Topic(ctx context.Context, c Caller, name string) (*topicv1.Topic, error) {
	t, err := s.find(c, name, anyRole)
	if err != nil {
		return nil, err
	}
	l, err := s.topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := s.sources.Follow(ctx, l); err != nil {
		return nil, err
	}
	t.Lock.RLock()
	defer t.Lock.RUnlock()
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
	list := s.catalog.Topics(r.GetPageToken(), size+1, func(t *storage.Topic) bool {
		return !t.View().Deleting && s.allowed(c, t, anyRole)
	})
	answer := &topicv1.ListTopicsResponse{}
	if len(list) > size {
		list = list[:size]
		answer.NextPageToken = list[size-1].Name
	}
	for _, t := range list {
		t.Lock.RLock()
		answer.Topics = append(answer.Topics, s.describe(t, nil))
		t.Lock.RUnlock()
	}
	return answer, nil
}

// Delete removes a topic with its messages, its subscriptions and its dead letters: who
// makes a topic of that name later is to find nothing of it.
func (s *Service) Delete(ctx context.Context, c Caller, name string) error {
	t := s.catalog.Topic(name)
	if t == nil || !t.View().Deleting || !s.allowed(c, t, admin) { // else an earlier call did not come to its end
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
		return s.finish(context.WithoutCancel(ctx), t)
	})
}

// mark says that a topic is being removed, for good.
func (s *Service) mark(ctx context.Context, t *storage.Topic) error {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if t.View().Deleting {
		return nil
	}
	return s.catalog.Deleting(ctx, t)
}

// finish ends a topic that is marked, unless that has been done.
func (s *Service) finish(ctx context.Context, t *storage.Topic) error {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if s.catalog.Topic(t.Name) != t {
		return nil
	}
	return s.remove(ctx, t)
}

// remove ends a topic that is being deleted, and before it that of its dead letters. It may
// be repeated.
func (s *Service) remove(ctx context.Context, t *storage.Topic) error {
	if d := s.catalog.Topic(t.Name + storage.DeadLetterSuffix); d != nil {
		if err := s.removeLetters(ctx, d); err != nil {
			return err
		}
	}
	s.topics.End(t.Number, topicDeleted)
	if err := s.cfg.Log.Delete(ctx, t.Number); err != nil {
		return err
	}
	return s.catalog.Remove(ctx, t)
}

const topicDeleted = "TOPIC_DELETED"

// removeLetters ends a topic of dead letters. The lock of the topic whose they are is held.
func (s *Service) removeLetters(ctx context.Context, d *storage.Topic) error {
	d.Lock.Lock()
	defer d.Lock.Unlock()
	if !d.View().Deleting {
		if err := s.catalog.Deleting(ctx, d); err != nil {
			return err
		}
	}
	return s.remove(ctx, d)
}

// Recommend says which mode suits a load.
func (s *Service) Recommend(r *topicv1.RecommendModeRequest) *topicv1.RecommendModeResponse {
	mode, required, why := storage.Recommend(r.GetGroups(), r.GetMessagesPerSecond(), r.GetStrict())
	return &topicv1.RecommendModeResponse{Mode: mode, Required: required, Reason: why}
}

// Bindings returns a topic's bindings by principal.
func (s *Service) Bindings(_ context.Context, c Caller, topic string) ([]*topicv1.Binding, error) {
	t, err := s.find(c, topic, admin)
	if err != nil {
		return nil, err
	}
	var list []*topicv1.Binding
	for principal, role := range t.View().Bindings {
		list = append(list, &topicv1.Binding{Principal: principal, Role: role})
	}
	slices.SortFunc(list, func(a, b *topicv1.Binding) int { return strings.Compare(a.Principal, b.Principal) })
	return list, nil
}

// SetBinding gives a principal a role.
func (s *Service) SetBinding(ctx context.Context, c Caller, r *topicv1.SetBindingRequest) error {
	t, err := s.find(c, r.GetTopic(), admin)
	if err != nil {
		return err
	}
	return s.audited(ctx, c, "SetBinding", r, func() error { return s.bind(ctx, t, r.GetPrincipal(), r.GetRole()) })
}

// RemoveBinding takes a principal's role; its sessions end with TOPIC_FORBIDDEN.
func (s *Service) RemoveBinding(ctx context.Context, c Caller, r *topicv1.RemoveBindingRequest) error {
	t, err := s.find(c, r.GetTopic(), admin)
	if err != nil {
		return err
	}
	return s.audited(ctx, c, "RemoveBinding", r, func() error { return s.bind(ctx, t, r.GetPrincipal(), 0) })
}

func (s *Service) bind(ctx context.Context, t *storage.Topic, principal string, role topicv1.Role) error {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	v := t.View()
	if v.Deleting {
		return refusal.Forbidden(t.Name)
	}
	if _, ok := v.Bindings[principal]; !ok && len(v.Bindings) >= maxBindings {
		return refusal.New(refusal.TooMany, "topic %q has %d bindings", t.Name, maxBindings)
	}
	if err := s.catalog.Bind(ctx, t, principal, role); err != nil {
		return err
	}
	for _, o := range s.sessionsOf(principal) {
		if at := s.catalog.Topic(o.Group().Topic()); at != nil && !s.allowed(o.caller, at, subscriber) {
			o.End(forbiddenReason)
		}
	}
	return nil
}

const forbiddenReason = string(refusal.TopicForbidden)
