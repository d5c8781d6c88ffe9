package topic

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/push"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

const (
	// pushMember is the name of the member that sends a group's messages to its webhook.
	pushMember = "webhook"
	// pushScanEvery is how often the groups with webhooks are compared with the workers.
	pushScanEvery = time.Second
	// pushCheck is how often a worker checks whether the user who set its webhook has access.
	pushCheck = 5 * time.Second
	// pushAgain is the longest pause before a worker attaches again that could not.
	pushAgain = 10 * time.Second
)

// pushes has the workers of the groups with webhooks.
type pushes struct {
	service *Service
	wake    chan struct{}

	mu      sync.Mutex
	topics  map[string]bool // that may have such groups
	running map[pushedGroup]bool
}

type pushedGroup struct{ topic, group string }

func newPushes(s *Service) *pushes {
	return &pushes{service: s, wake: make(chan struct{}, 1), topics: map[string]bool{}, running: map[pushedGroup]bool{}}
}

// add records that a topic may have a group with a webhook. It is called after the subscription was stored, or
// may have been:
// pendingOf removes a topic that has none while it holds the topic's lock, so it sees the subscription, or is
// followed by add.
func (p *pushes) add(topic string) {
	p.mu.Lock()
	p.topics[topic] = true
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run has a worker for each group with a webhook until stop ends. Requests that are under way then may end
// until ctx does.
func (p *pushes) run(ctx, stop context.Context) {
	catalog := p.service.engine.Catalog
	for _, t := range catalog.Topics("", catalog.Count(), func(*storage.Topic) bool { return true }) {
		if len(pushed(t)) > 0 {
			p.add(t.Name)
		}
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	for stop.Err() == nil {
		for _, of := range p.pending() {
			workers.Go(func() {
				p.serve(ctx, stop, of)
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.running, of)
			})
		}
		timer := time.NewTimer(pushScanEvery)
		select {
		case <-p.wake:
		case <-timer.C:
		case <-stop.Done():
		}
		timer.Stop()
	}
}

// pending returns the groups with webhooks that have no worker, and counts them as running from then on.
func (p *pushes) pending() (begin []pushedGroup) {
	p.mu.Lock()
	names := make([]string, 0, len(p.topics))
	for name := range p.topics {
		names = append(names, name)
	}
	p.mu.Unlock()
	for _, name := range names {
		begin = append(begin, p.pendingOf(name)...)
	}
	return begin
}

func (p *pushes) pendingOf(name string) (begin []pushedGroup) {
	t := p.service.engine.Catalog.Topic(name)
	var groups []string
	if t != nil {
		defer t.Reading().End()
		groups = pushedNow(t)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(groups) == 0 {
		delete(p.topics, name)
	}
	for _, g := range groups {
		if of := (pushedGroup{name, g}); !p.running[of] {
			p.running[of] = true
			begin = append(begin, of)
		}
	}
	return begin
}

// pushed are the groups of a topic with webhooks.
func pushed(t *storage.Topic) []string {
	defer t.Reading().End()
	return pushedNow(t)
}

// pushedNow is pushed for a caller that holds the topic's lock.
func pushedNow(t *storage.Topic) (groups []string) {
	t.EachOf(func(sub *storage.Subscription) {
		if sub.Push != nil && sub.Config.GetPush() != nil && sub.State != storage.Cancelled {
			groups = append(groups, sub.Group)
		}
	})
	return groups
}

// find returns what there is of a group with a webhook, nil if it has none any more.
func (p *pushes) find(of pushedGroup) (*storage.Topic, *storage.Subscription) {
	t := p.service.engine.Catalog.Topic(of.topic)
	if t == nil || t.View().Deleting {
		return nil, nil
	}
	defer t.Reading().End()
	sub := t.Subscription(of.group)
	if sub == nil || sub.Push == nil || sub.Config.GetPush() == nil || sub.State == storage.Cancelled {
		return nil, nil
	}
	return t, sub
}

// serve pushes for a group, with one session after the other, until it has no webhook any more.
func (p *pushes) serve(ctx, stop context.Context, of pushedGroup) {
	for failures := 0; stop.Err() == nil; {
		t, sub := p.find(of)
		if sub == nil {
			p.ended(of)
			return
		}
		session, err := p.attach(stop, of, sub)
		if err != nil {
			p.stopped(t, of.group, err, failures == 0)
			_ = wait.For(stop, wait.Jittered(pushScanEvery, pushAgain, failures))
			failures++
			continue
		}
		failures = 0
		session.Group().Push.Reset()
		session.Group().Metric.PushFailing.Store(sub.Push.GoneAt > 0)
		p.work(ctx, stop, session, t)
		session.End(serving.Draining) // unless it has ended
	}
}

var errPushRefused = errors.New("topic: the user who set the webhook is suspended or deleted")

var errNoPush = errors.New("topic: this server sends nothing to webhooks")

// attach attaches the worker as the principal that set the webhook.
func (p *pushes) attach(ctx context.Context, of pushedGroup, sub *storage.Subscription) (*Session, error) {
	if p.service.cfg.Push == nil {
		return nil, errNoPush
	}
	c := Caller{Principal: sub.Push.Principal, Operator: sub.Push.Operator}
	switch no, err := p.service.refused(ctx, c); {
	case err != nil:
		return nil, err
	case no:
		return nil, errPushRefused
	}
	return p.service.attach(ctx, c, &topicv1.Attach{Topic: of.topic, Group: of.group, Member: pushMember}, true, true)
}

// refused reports whether a caller has no access now. Operators are no users.
func (s *Service) refused(ctx context.Context, c Caller) (bool, error) {
	if s.cfg.Refused == nil || c.Operator {
		return false, nil
	}
	return s.cfg.Refused(ctx, c.Principal)
}

// endRefused ends the session of a worker once its user has no access, until ctx ends. A store that does not
// answer ends none.
func (p *pushes) endRefused(ctx context.Context, session *Session) {
	for wait.For(ctx, pushCheck) == nil {
		if no, err := p.service.refused(ctx, session.caller); err == nil && no {
			session.End(forbiddenReason)
			return
		}
	}
}

// stopped reports why nothing is pushed, in the log once.
func (p *pushes) stopped(t *storage.Topic, group string, err error, first bool) {
	text := "the server cannot push just now, and tries again"
	if r, ok := refusal.Of(err); ok && r.Reason == refusal.TopicForbidden {
		text = "the user who set the webhook has no role any more that allows it: " +
			"give that user the role back, or set the webhook again as another user"
	}
	if errors.Is(err, errPushRefused) {
		text = "the user who set the webhook is suspended or deleted: set the webhook again as another user"
	}
	if first {
		p.service.cfg.Logger.Warn("nothing is sent to a webhook", "topic", t.Name, "group", group, "error", err)
	}
	l := p.service.engine.Topics.Hold(t.Number)
	if l == nil {
		return
	}
	defer l.Release()
	if g := l.Group(group); g != nil {
		g.Push.Set(&topicv1.PushStatus{State: topicv1.PushState_PUSH_STATE_STOPPED, Text: text}, p.service.cfg.Clock())
		g.Metric.PushFailing.Store(true)
	}
}

// ended forgets how the pushes of a group went that has no webhook any more.
func (p *pushes) ended(of pushedGroup) {
	t := p.service.engine.Catalog.Topic(of.topic)
	if t == nil {
		return
	}
	if l := p.service.engine.Topics.Hold(t.Number); l != nil {
		defer l.Release()
		if g := l.Group(of.group); g != nil {
			g.Push.Reset()
			g.Metric.PushFailing.Store(false)
		}
	}
}

// work pushes what a session receives.
func (p *pushes) work(ctx, stop context.Context, session *Session, t *storage.Topic) {
	checking, checked := context.WithCancel(ctx)
	var check sync.WaitGroup
	check.Go(func() { p.endRefused(checking, session) })
	defer check.Wait()
	defer checked()
	s, g, sub := p.service, session.Group(), session.attached.GetSubscription()
	principal := session.caller.Principal
	if session.caller.Operator { // as streams, of which operators may have any number
		principal = ""
	}
	push.NewWorker(push.Config{
		Principal: principal,
		Sender:    s.cfg.Push, Session: session, Topic: t.Name, Group: g.Name(), Logger: s.cfg.Logger, Clock: s.engine.Steady,
		Lease: sub.GetConfig().GetRetry().GetLease().AsDuration(),
		Target: func() push.Target {
			if _, now := p.find(pushedGroup{t.Name, g.Name()}); now != nil {
				return push.Target{URL: now.Config.GetPush().GetUrl(), Secrets: now.Push.Secrets(s.cfg.Clock()),
					Etag: storage.Etag(now.Row.Version)}
			}
			return push.Target{}
		},
		ID:   func(m *topicv1.StoredMessage, moves int64) string { return pushID(t, sub, m, moves) },
		Gone: func(ctx context.Context, etag string) error { return s.pauseGone(ctx, session.live, g.Name(), etag) },
		Report: func(status *topicv1.PushStatus, failed bool) {
			g.Push.Set(status, s.cfg.Clock())
			if failed {
				g.Metric.PushFailures.Add(1)
			}
			g.Metric.PushFailing.Store(status.GetState() == topicv1.PushState_PUSH_STATE_FAILING)
		},
	}).Run(ctx, stop)
}

// pushID is the id of a message for a webhook. Repetitions of the message have it. It is another one in
// another topic of the same name, in another generation of the group, and after a seek, which asks for
// messages again: a receiver that passes over ids that it has seen must not pass over those. After a restore
// of a backup positions are given again, to other messages: the time and the content tell them apart.
func pushID(t *storage.Topic, sub *topicv1.Subscription, m *topicv1.StoredMessage, moves int64) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s\x00%d\x00%d\x00%s\x00%d\x00%d\x00%x", t.Name, t.Number,
		sub.GetGroup(), sub.GetGeneration(), sub.GetSubscribedAt().AsTime().UnixMilli(), m.GetMessageId(), moves,
		m.GetMessage().GetPublishTime().AsTime().UnixMilli(), contentHash(m.GetMessage())))
	const length = 26 // 130 bits
	return "msg_" + base32.StdEncoding.EncodeToString(h[:])[:length]
}

// contentHash is a hash of all of a message but its publish_time.
func contentHash(m *topicv1.TopicMessage) [sha256.Size]byte {
	content := &topicv1.TopicMessage{} // it shares the payload, and is not changed
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() != "publish_time" {
			content.ProtoReflect().Set(f, v)
		}
		return true
	})
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(content) // it fails for what has no form in JSON either
	return sha256.Sum256(b)
}

// pauseGone pauses a group whose webhook answered 410, with its rows in the audit, if the subscription has the
// etag that it had when the webhook was asked:
//
//  1. Two requests are under way. The webhook answers one with 410, which pauses the group.
//  2. A user resumes the group, or gives it another webhook.
//  3. The other request is answered with 410. That says nothing about what the user has set since.
func (s *Service) pauseGone(ctx context.Context, l *serving.OpenTopic, group, etag string) error {
	reading := l.Reading()
	sub := l.Subscription(group)
	same := sub != nil && sub.State != storage.Paused && storage.Etag(sub.Row.Version) == etag
	reading.End()
	if !same {
		return nil
	}
	return s.audited(ctx, Caller{Principal: Actor}, "PauseSubscription",
		&topicv1.PauseSubscriptionRequest{Topic: l.Name, Group: group},
		func() error { return s.engine.Subscriptions.PauseGone(ctx, l, group, Actor, etag) })
}

// setsPush checks the webhook that a request sets, and returns the settings of the request: a secret alone sets a
// webhook, too.
func (s *Service) setsPush(c Caller, config *topicv1.SubscriptionConfig, secret string) (
	*topicv1.SubscriptionConfig, storage.PushedBy, error,
) {
	by := storage.PushedBy{Principal: c.Principal, Operator: c.Operator, Secret: secret, New: push.NewSecret}
	if secret != "" {
		if err := push.CheckSecret(secret); err != nil {
			return nil, by, refusal.New(refusal.InvalidArgument, "%v", err)
		}
		if config.GetPush() == nil {
			given := config
			if config = (&topicv1.SubscriptionConfig{}); given != nil {
				config = proto.CloneOf(given)
			}
			config.Push = &topicv1.PushConfig{}
		}
	}
	if config.GetPush() == nil {
		return config, by, nil
	}
	if s.cfg.Push == nil {
		return nil, by, refusal.New(refusal.InvalidArgument, "push: this server sends nothing to webhooks")
	}
	if url := config.GetPush().GetUrl(); url != "" {
		if err := s.cfg.Push.Check(url); err != nil {
			return nil, by, refusal.New(refusal.InvalidArgument, "push.url: %v", err)
		}
	}
	return config, by, nil
}
