package topic

import (
	"context"
	"fmt"
	"testing"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Each call needs its role; a topic that there is not answers like a foreign one.
func TestRoles(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		callers := map[string]Caller{"nobody": nobody, "operator": op}
		for name, role := range map[string]topicv1.Role{"pub": publisher, "sub": subscriber, "adm": admin} {
			callers[name] = x.bindTo("t", name, role)
		}
		calls := []struct {
			name string
			may  []string
			call func(context.Context, Caller) error
		}{
			{"publish", []string{"pub", "adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Publish(ctx, c, &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 1)})
				return err
			}},
			{"get", []string{"pub", "sub", "adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Topic(ctx, c, "t")
				return err
			}},
			{"subscribe", []string{"sub", "adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.CreateSubscription(ctx, c, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
				return err
			}},
			{"attach", []string{"sub", "adm", "operator"}, func(ctx context.Context, c Caller) error {
				s, err := x.Attach(ctx, c, &topicv1.Attach{Topic: "t", Group: "g"}, false)
				if err == nil {
					err = s.Detach(ctx, false)
				}
				return err
			}},
			{"get a message", []string{"sub", "adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Message(ctx, c, "t", "0-0")
				return err
			}},
			{"browse", []string{"sub", "adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Browse(ctx, c, &topicv1.BrowseMessagesRequest{Topic: "t"})
				return err
			}},
			{"purge", []string{"adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Purge(ctx, c, &topicv1.PurgeMessagesRequest{Topic: "t", Before: latest()})
				return err
			}},
			{"forecast a purge", []string{"adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Purge(ctx, c, &topicv1.PurgeMessagesRequest{Topic: "t", Before: latest(), DryRun: true})
				return err
			}},
			{"bindings", []string{"adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Bindings(ctx, c, "t")
				return err
			}},
			{"configure", []string{"adm", "operator"}, func(ctx context.Context, c Caller) error {
				_, err := x.Configure(ctx, c, &topicv1.ConfigureTopicRequest{Topic: "t"})
				return err
			}},
		}
		for _, call := range calls {
			for name, c := range callers {
				err := call.call(t.Context(), c)
				may := false
				for _, m := range call.may {
					may = may || m == name
				}
				if may && err != nil {
					t.Errorf("%s by %s: %v", call.name, name, err)
				} else if !may {
					refusedAs(t, err, refusal.TopicForbidden)
				}
			}
		}
		_, err := x.Topic(t.Context(), nobody, "unknown")
		refusedAs(t, err, refusal.TopicForbidden)
		_, err = x.Topic(t.Context(), maker, "unknown")
		refusedAs(t, err, refusal.TopicNotFound)
	})
}

// Who loses the role loses the session; a session is its principal's.
func TestSessionsFollowBindings(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		who := Caller{Principal: "who"}
		err := x.SetBinding(t.Context(), op, &topicv1.SetBindingRequest{Topic: "t", Principal: "who", Role: subscriber})
		if err != nil {
			t.Fatal(err)
		}
		s, err := x.Attach(t.Context(), who, &topicv1.Attach{Topic: "t", Group: "g"}, false)
		if err != nil {
			t.Fatal(err)
		}
		id := s.Attached().GetSession()
		if _, err := x.Session(who, id); err != nil {
			t.Error(err)
		}
		_, err = x.Session(nobody, id)
		refusedAs(t, err, refusal.SessionGone)
		if err := x.RemoveBinding(t.Context(), op, &topicv1.RemoveBindingRequest{Topic: "t", Principal: "who"}); err != nil {
			t.Fatal(err)
		}
		if e, err := s.Receive(t.Context(), 1); err != nil || e.Gone != "TOPIC_FORBIDDEN" {
			t.Error(e, err)
		}
		_, err = x.Session(who, id)
		refusedAs(t, err, refusal.SessionGone)
		if n := x.Sizes().Sessions; n != 0 {
			t.Errorf("%d sessions remain", n)
		}
	})
}

// HQ-A02, HQ-A03, HQ-A09, HQ-A11: topics are made, changed and removed; one that is
// published to is made as a queue, by who may make topics.
func TestCatalogue(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		_, err := x.Publish(t.Context(), nobody, &topicv1.PublishRequest{Topic: "q", Messages: messages(0, 1)})
		refusedAs(t, err, refusal.TopicForbidden)
		_, err = x.Publish(t.Context(), maker, &topicv1.PublishRequest{Topic: "q", Messages: messages(0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		q, err := x.Topic(t.Context(), maker, "q")
		if err != nil || q.GetConfig().GetSemantics() != topicv1.Semantics_SEMANTICS_QUEUE {
			t.Error(q, err)
		}
		if st := x.status("q", "0-0"); len(st.GetRequired()) != 1 || st.GetRequired()[0] != "$queue" {
			t.Error(st) // HQ-B04
		}
		x.groups("t", "g")
		before, err := x.Topic(t.Context(), op, "t")
		if err != nil {
			t.Fatal(err)
		}
		r, err := x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{
			Topic: "t", Etag: before.GetEtag(), Config: &topicv1.TopicConfig{MessageRetention: seconds(60)},
		})
		if err != nil || r.GetCreated() || !r.GetTopic().GetCreatedAt().AsTime().Equal(before.GetCreatedAt().AsTime()) ||
			r.GetTopic().GetConfig().GetMessageRetention().GetSeconds() != 60 {
			t.Error(r, err)
		}
		_, err = x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "t", Etag: before.GetEtag()})
		refusedAs(t, err, refusal.TopicExists)
		x.restart()
		list, err := x.Topics(t.Context(), op, &topicv1.ListTopicsRequest{PageSize: 1})
		if err != nil || len(list.GetTopics()) != 1 || list.GetTopics()[0].GetName() != "q" || list.GetNextPageToken() == "" {
			t.Error(list, err)
		}
		list, err = x.Topics(t.Context(), maker, &topicv1.ListTopicsRequest{})
		if err != nil || len(list.GetTopics()) != 1 || list.GetTopics()[0].GetName() != "q" {
			t.Error(list, err)
		}
		s := x.attach("t", "g", "m")
		if err := x.Delete(t.Context(), op, "t"); err != nil {
			t.Fatal(err)
		}
		if e, err := s.Receive(t.Context(), 1); err != nil || e.Gone != "TOPIC_DELETED" {
			t.Error(e, err)
		}
		x.groups("t")
		_, err = x.Subscription(t.Context(), op, "t", "g")
		refusedAs(t, err, refusal.SubscriptionNotFound)
		x.restart()
		_, err = x.Subscription(t.Context(), op, "t", "g")
		refusedAs(t, err, refusal.SubscriptionNotFound)
		if x.audit.count("operator DeleteTopic") != 1 || x.audit.count("maker ConfigureTopic") != 1 {
			t.Error(x.audit.text.String())
		}
	})
}

// HQ-A08: a queue becomes a topic of groups; what was in it is not lost, and another topic
// does not notice. It becomes a queue again when its groups have ended.
func TestSemanticsChange(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", nil)
		x.configure("other", nil)
		x.publish("q", 0, 5)
		x.publish("other", 0, 5)
		x.configure("q", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB})
		x.subscribe("q", "g", nil)
		x.publish("q", 5, 5)
		x.want(x.attach("q", "$queue", "m"), numbers(0, 10))
		x.want(x.attach("q", "g", "m"), numbers(5, 5))
		x.want(x.attach("other", "", "m"), numbers(0, 5))
		back := &topicv1.ConfigureTopicRequest{
			Topic: "q", Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_QUEUE},
		}
		_, err := x.Configure(t.Context(), op, back)
		refusedAs(t, err, refusal.InvalidTransition)
		if _, err := x.Cancel(t.Context(), op, "q", "g"); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Configure(t.Context(), op, back); err != nil {
			t.Fatal(err)
		}
		_, err = x.Cancel(t.Context(), op, "q", "$queue")
		refusedAs(t, err, refusal.InvalidTransition)
	})
}

// Ten thousand topics are there again soon after a start: their partitions open when they
// are used.
func TestManyTopics(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		for i := range 300 {
			x.groups(fmt.Sprintf("t%03d", i), "g")
		}
		x.restart()
		if n := x.Sizes(); n.Topics != 300 || n.Open != 0 {
			t.Errorf("%+v", n)
		}
		x.publish("t007", 0, 1)
		if n := x.Sizes(); n.Open != 1 {
			t.Errorf("%+v", n)
		}
	})
}
