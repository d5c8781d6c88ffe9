package topic

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// CreateSubscription registers a group.
func (s *Service) CreateSubscription(
	ctx context.Context, c Caller, r *topicv1.CreateSubscriptionRequest,
) (*topicv1.CreateSubscriptionResponse, error) {
	t, err := s.findGroup(c, r.GetTopic(), r.GetGroup())
	if err != nil {
		return nil, err
	}
	if err := storage.CheckName(r.GetGroup()); err != nil {
		return nil, err
	}
	if t.View().Config.GetSemantics() == storage.Queue {
		return nil, refusal.New(refusal.InvalidArgument,
			"topic %q is a queue: its consumers are members of %s and need no subscription", t.Name, storage.QueueGroup)
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	config, by, err := s.setsPush(c, r.GetConfig(), r.GetPushSecret())
	if err != nil {
		return nil, err
	}
	// Without the secret: the request is recorded.
	r = &topicv1.CreateSubscriptionRequest{Topic: r.GetTopic(), Group: r.GetGroup(), Config: config}
	answer := &topicv1.CreateSubscriptionResponse{}
	err = s.audited(ctx, c, "CreateSubscription", r, func() error {
		if err := s.engine.Sources.Follow(ctx, l); err != nil {
			return err
		}
		defer t.Changing().End()
		sub := t.Subscription(r.GetGroup())
		if sub == nil || sub.State == storage.Cancelled {
			answer.Warnings, answer.PushSecret, err = s.engine.Subscriptions.Begin(ctx, l, r.GetGroup(), config, by)
			if err != nil {
				return err
			}
			sub, answer.Created = t.Subscription(r.GetGroup()), true
			s.cfg.Logger.Info("subscription made", "topic", t.Name, "group", sub.Group, "generation", sub.Row.Generation,
				"by", c.Principal)
		}
		answer.Subscription = serving.ShowSubscription(l, sub, true)
		if !answer.GetCreated() && config != nil {
			answer.Differences, err = storage.Differences(sub.Config, config)
			if by.Secret != "" && !sub.Push.Signs(by.Secret) {
				answer.Differences = append(answer.Differences, &topicv1.SettingDifference{
					Name: "push_secret", Is: "another one", Asked: "the one of the request"})
			}
		}
		return err
	})
	if config.GetPush() != nil { // with an error as well: the row may be there
		s.pushes.add(t.Name)
	}
	return answer, err
}

// UpdateSubscription changes settings of a subscription.
func (s *Service) UpdateSubscription(
	ctx context.Context, c Caller, r *topicv1.UpdateSubscriptionRequest,
) (*topicv1.UpdateSubscriptionResponse, error) {
	t, err := s.findGroup(c, r.GetTopic(), r.GetGroup())
	if err != nil {
		return nil, err
	}
	// Before the call is recorded: a mask with another path may have no form in JSON.
	if err := storage.CheckPaths(r.GetUpdateMask().GetPaths()); err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	config, by, err := s.setsPush(c, r.GetConfig(), r.GetPushSecret())
	if err != nil {
		return nil, err
	}
	mask := r.GetUpdateMask()
	if paths := mask.GetPaths(); by.Secret != "" && len(paths) > 0 && !slices.Contains(paths, "push") {
		mask = &fieldmaskpb.FieldMask{Paths: append(slices.Clone(paths), "push")}
	}
	// Without the secret: the request is recorded.
	r = &topicv1.UpdateSubscriptionRequest{Topic: r.GetTopic(), Group: r.GetGroup(), Config: config,
		UpdateMask: mask, Etag: r.GetEtag()}
	answer := &topicv1.UpdateSubscriptionResponse{}
	err = s.audited(ctx, c, "UpdateSubscription", r, func() (err error) {
		answer.Warnings, answer.PushSecret, err = s.engine.Subscriptions.Update(ctx, l, r, by)
		return err
	})
	if config.GetPush() != nil { // with an error as well: the row may be there
		s.pushes.add(t.Name)
	}
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("subscription updated", "topic", t.Name, "group", r.GetGroup(), "by", c.Principal)
	for _, o := range s.sessionsOf("") {
		if o.Ended() != "" {
			o.forget()
		}
	}
	defer t.Reading().End()
	sub := t.Subscription(r.GetGroup())
	if sub == nil { // it was removed since
		return nil, refusal.NoSubscription(t.Name, r.GetGroup())
	}
	answer.Subscription = serving.ShowSubscription(l, sub, true)
	return answer, nil
}

// subscribed returns a topic and a group's subscription, which does not change while it is
// read. The caller ends that, and releases the topic.
func (s *Service) subscribed(
	ctx context.Context, c Caller, topic, name string,
) (l *serving.OpenTopic, sub *storage.Subscription, reading storage.Read, err error) {
	t, err := s.findGroup(c, topic, name)
	if err != nil {
		return nil, nil, reading, err
	}
	if l, err = s.engine.Topics.Open(ctx, t); err != nil {
		return nil, nil, reading, err
	}
	reading = t.Reading()
	if sub = t.Subscription(name); sub == nil {
		reading.End()
		l.Release()
		return nil, nil, reading, refusal.NoSubscription(topic, name)
	}
	return l, sub, reading, nil
}

// Subscription returns a subscription with its positions.
func (s *Service) Subscription(ctx context.Context, c Caller, topic, name string) (*topicv1.Subscription, error) {
	l, sub, reading, err := s.subscribed(ctx, c, topic, name)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	defer reading.End()
	if err := s.engine.Sources.Follow(ctx, l); err != nil {
		return nil, err
	}
	return serving.ShowSubscription(l, sub, true), nil
}

// Subscriptions returns a page of a topic's subscriptions by group: of those that the caller may
// use.
func (s *Service) Subscriptions(
	ctx context.Context, c Caller, r *topicv1.ListSubscriptionsRequest,
) (*topicv1.ListSubscriptionsResponse, error) {
	t, err := s.find(c, r.GetTopic(), subscriber)
	if err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	defer t.Reading().End()
	size := PageSize(r.GetPageSize())
	answer := &topicv1.ListSubscriptionsResponse{}
	for _, sub := range t.Subscriptions() {
		if sub.Group <= r.GetPageToken() || !s.allowed(c, t, subscriber, sub.Group) {
			continue
		}
		if len(answer.Subscriptions) == size {
			answer.NextPageToken = answer.Subscriptions[size-1].GetGroup()
			break
		}
		answer.Subscriptions = append(answer.Subscriptions, serving.ShowSubscription(l, sub, false))
	}
	return answer, nil
}

// Pause stops the deliveries.
func (s *Service) Pause(ctx context.Context, c Caller, topic, name string) (*topicv1.Subscription, error) {
	return s.ask(ctx, c, topic, name, storage.Pause, &topicv1.PauseSubscriptionRequest{Topic: topic, Group: name})
}

// Resume continues where the pause began.
func (s *Service) Resume(ctx context.Context, c Caller, topic, name string) (*topicv1.Subscription, error) {
	return s.ask(ctx, c, topic, name, storage.Resume, &topicv1.ResumeSubscriptionRequest{Topic: topic, Group: name})
}

// Cancel ends a subscription for good.
func (s *Service) Cancel(ctx context.Context, c Caller, topic, name string) (*topicv1.Subscription, error) {
	return s.ask(ctx, c, topic, name, storage.Cancel, &topicv1.CancelSubscriptionRequest{Topic: topic, Group: name})
}

// Seek moves a subscription.
func (s *Service) Seek(
	ctx context.Context, c Caller, r *topicv1.SeekSubscriptionRequest,
) (*topicv1.SeekSubscriptionResponse, error) {
	t, err := s.findGroup(c, r.GetTopic(), r.GetGroup())
	if err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	answer := &topicv1.SeekSubscriptionResponse{}
	err = s.audited(ctx, c, "SeekSubscription", r, func() (err error) {
		answer.Seeks, err = s.engine.Subscriptions.Seek(ctx, l, r)
		return err
	})
	if err == nil && !r.GetDryRun() {
		err = s.engine.Flusher.Wait(ctx, r.GetGroup(), l.Parts...)
	}
	return answer, err
}

// Unpark delivers messages again that wait with their keys, and returns how many.
func (s *Service) Unpark(ctx context.Context, c Caller, topic, name string, keys []string) (int64, error) {
	l, _, reading, err := s.subscribed(ctx, c, topic, name)
	if err != nil {
		return 0, err
	}
	defer l.Release()
	var messages int64
	request := &topicv1.UnparkKeysRequest{Topic: topic, Group: name, Keys: keys}
	err = s.audited(ctx, c, "UnparkKeys", request, func() error {
		g := l.Group(name)
		if g == nil {
			return refusal.New(refusal.SubscriptionGone, "the subscription has ended")
		}
		messages, err = g.Unpark(ctx, keys)
		return err
	})
	reading.End()
	if err == nil && messages > 0 {
		err = s.engine.Flusher.Wait(ctx, name, l.Parts...)
	}
	return messages, err
}

// ask makes a transition that a caller requests.
func (s *Service) ask(
	ctx context.Context, c Caller, topic, name string, tr storage.Transition, request proto.Message,
) (*topicv1.Subscription, error) {
	t, err := s.findGroup(c, topic, name)
	if err != nil {
		return nil, err
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if name == storage.QueueGroup && tr == storage.Cancel && t.View().Config.GetSemantics() == storage.Queue {
		return nil, refusal.New(refusal.InvalidTransition, "the group of a queue ends with the queue")
	}
	var d *topicv1.Subscription
	call := string(request.ProtoReflect().Descriptor().Name())
	err = s.audited(ctx, c, call[:len(call)-len("Request")], request, func() error {
		if _, err := s.engine.Subscriptions.Transition(ctx, l, name, tr, c.Principal); err != nil {
			return err
		}
		defer t.Reading().End()
		if sub := t.Subscription(name); sub != nil {
			d = serving.ShowSubscription(l, sub, true)
		}
		return nil
	})
	return d, err
}

// Heartbeat says that the group is alive.
func (s *Service) Heartbeat(ctx context.Context, c Caller, topic, name string) (*topicv1.HeartbeatResponse, error) {
	l, sub, reading, err := s.subscribed(ctx, c, topic, name)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	state, generation := sub.State, sub.Row.Generation
	reading.End()
	if g := l.Group(name); g != nil {
		l.RecordHeartbeat(g, s.cfg.Clock())
	}
	if state != storage.Active {
		if state, err = s.engine.Subscriptions.Transition(ctx, l, name, storage.Heartbeat, c.Principal); err != nil {
			return nil, err
		}
	}
	return &topicv1.HeartbeatResponse{State: state, Generation: generation}, nil
}
