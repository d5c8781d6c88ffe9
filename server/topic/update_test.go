package topic

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/refusal"
)

func (x *fixture) update(group string, c *topicv1.SubscriptionConfig, paths ...string) (*topicv1.Subscription, error) {
	x.t.Helper()
	r, err := x.UpdateSubscription(x.t.Context(), op, &topicv1.UpdateSubscriptionRequest{
		Topic: "t", Group: group, Config: c, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	})
	return r.GetSubscription(), err
}

// keyed publishes messages with a key, numbered from from on.
func (x *fixture) keyed(from, n int, key string) {
	x.t.Helper()
	list := messages(from, n)
	for _, m := range list {
		m.Key = key
	}
	if _, err := x.Publish(x.t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list}); err != nil {
		x.t.Fatal(err)
	}
}

// A change holds for what is delivered from then on, in all partitions, also after a restart. Members
// attach again; what they had comes again as a first delivery, and what is acknowledged does not.
func TestUpdateSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 4})
		x.subscribe("t", "g", nil)
		for n := range 8 {
			x.keyed(3*n, 3, string(rune('a'+n)))
		}
		s := x.attach("t", "g", "m")
		had := x.receive(s)
		if len(had) != 24 {
			t.Fatalf("%d messages", len(had))
		}
		x.ack(s, had[:1])
		before := x.subscription("t", "g")
		sub, err := x.update("g", &topicv1.SubscriptionConfig{
			Ordering: topicv1.Ordering_ORDERING_KEY, Retry: &topicv1.RetryPolicy{Lease: seconds(5)},
			HeartbeatInterval: seconds(5),
		})
		if err != nil {
			t.Fatal(err)
		}
		if sub.GetEtag() == before.GetEtag() || sub.GetGeneration() != before.GetGeneration() ||
			sub.GetConfig().GetRetry().GetLease().GetSeconds() != 5 || sub.GetConfig().GetRetry().GetMaxAttempts() != 5 {
			t.Errorf("%v", sub)
		}
		if e, err := s.Receive(t.Context(), 1); err != nil || e.Gone != "DRAINING" {
			t.Errorf("%+v, %v", e, err)
		}
		if n := x.Sizes().Sessions; n != 0 {
			t.Errorf("%d sessions remain", n)
		}
		for _, again := range []bool{false, true} {
			if again {
				x.restart()
			}
			s = x.attach("t", "g", "m")
			if d := s.Attached().GetHeartbeatInterval().AsDuration(); d != 5*time.Second {
				t.Errorf("heartbeats each %s", d)
			}
			list := x.receive(s)
			if len(list) != 8 { // one of each key
				t.Errorf("again %t: %d messages are under way", again, len(list))
			}
			for _, g := range list {
				if g.attempt != 1 || g.partition == had[0].partition && g.position == had[0].position {
					t.Errorf("again %t: %+v", again, g)
				}
			}
			if again { // the lease ends after 5 s and not 30
				time.Sleep(7 * time.Second)
				if list = x.receive(s); len(list) != 1 { // each of what it had comes alone
					t.Errorf("after the lease: %v", list)
				}
			}
			if err := s.Detach(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		if x.audit.count("operator UpdateSubscription") != 1 {
			t.Error(x.audit.text.String())
		}
	})
}

// What cannot be changed is refused, and so is a wrong etag; a mask resets what it names and the
// request does not set. A queue has settings, too.
func TestUpdateIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		for path, want := range map[string]string{
			"start": "cannot be changed", "backfill": "cannot be changed", "topic": "takes", "retry.leese": "takes", "": "takes",
		} {
			_, err := x.update("g", nil, path)
			refusedAs(t, err, refusal.InvalidArgument)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", path, err)
			}
		}
		_, err := x.update("g", nil)
		refusedAs(t, err, refusal.InvalidArgument)
		_, err = x.update("g", &topicv1.SubscriptionConfig{Start: &topicv1.Position{}})
		refusedAs(t, err, refusal.InvalidArgument)
		_, err = x.update("g", &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(300)})
		refusedAs(t, err, refusal.InvalidArgument)
		_, err = x.update("g", &topicv1.SubscriptionConfig{Filter: &topicv1.Filter{
			Clauses: []*topicv1.FilterClause{{Operator: topicv1.FilterClause_OPERATOR_IN}}}})
		refusedAs(t, err, refusal.InvalidFilter)
		_, err = x.update("none", &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(30)})
		refusedAs(t, err, refusal.SubscriptionNotFound)
		old := x.subscription("t", "g")
		x.attach("t", "g", "m")
		if _, err = x.update("g", old.GetConfig(), "retry"); err != nil { // nothing changes: the member stays
			t.Error(err)
		}
		if now := x.subscription("t", "g"); now.GetEtag() != old.GetEtag() || now.GetMembers() != 1 {
			t.Errorf("%v", now)
		}
		retry := &topicv1.RetryPolicy{Lease: seconds(60), MaxAttempts: 9}
		if _, err = x.update("g", &topicv1.SubscriptionConfig{Retry: retry}); err != nil {
			t.Fatal(err)
		}
		_, err = x.UpdateSubscription(t.Context(), op, &topicv1.UpdateSubscriptionRequest{
			Topic: "t", Group: "g", Etag: old.GetEtag(), Config: &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(30)},
		})
		refusedAs(t, err, refusal.TopicExists)
		sub, err := x.update("g", nil, "retry.lease")
		if r := sub.GetConfig().GetRetry(); err != nil || r.GetLease().GetSeconds() != 30 || r.GetMaxAttempts() != 9 {
			t.Errorf("%v, %v", r, err)
		}
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		_, err = x.update("g", nil, "retry")
		refusedAs(t, err, refusal.SubscriptionGone)
		x.configure("q", nil)
		r, err := x.UpdateSubscription(t.Context(), op, &topicv1.UpdateSubscriptionRequest{
			Topic: "q", Group: "$queue", Config: &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{Lease: seconds(90)}},
		})
		if err != nil || r.GetSubscription().GetConfig().GetRetry().GetLease().GetSeconds() != 90 {
			t.Errorf("%v, %v", r, err)
		}
	})
}

// unstored is a store in which nothing can be written while on says so.
type unstored struct {
	store.Store
	on *bool
}

var errUnstored = errors.New("the store does not answer")

// Transact implements store.Store.
func (u unstored) Transact(ctx context.Context, p store.Plan) error {
	if *u.on {
		return errUnstored
	}
	return u.Store.Transact(ctx, p)
}

// A change that is not stored changes nothing: the members stay, with the lease that they have.
func TestUpdateThatIsNotStored(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.stop()
		on := false
		x.wrap = func(s store.Store) store.Store { return unstored{s, &on} }
		if err := x.store.Close(); err != nil {
			t.Fatal(err)
		}
		x.start()
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 2)
		had := x.want(s, "0 1")
		on = true
		_, err := x.update("g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{Lease: seconds(5)}})
		if !errors.Is(err, errUnstored) {
			t.Fatal(err)
		}
		on = false
		if c := x.subscription("t", "g").GetConfig(); c.GetRetry().GetLease().GetSeconds() != 30 {
			t.Error(c)
		}
		time.Sleep(10 * time.Second)
		if refused := x.ack(s, had); len(refused) > 0 {
			t.Error(refused)
		}
	})
}

// A request for a group or a backfill that is there says what it asked for and does not get.
func TestDifferences(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		create := func(c *topicv1.SubscriptionConfig) map[string][2]string {
			r, err := x.CreateSubscription(t.Context(), op,
				&topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g", Config: c})
			if err != nil || r.GetCreated() {
				t.Fatal(r, err)
			}
			return shown(r.GetDifferences())
		}
		if d := create(nil); len(d) > 0 {
			t.Error(d)
		}
		if d := create(x.subscription("t", "g").GetConfig()); len(d) > 0 {
			t.Error(d)
		}
		d := create(&topicv1.SubscriptionConfig{
			Ordering: topicv1.Ordering_ORDERING_KEY, Backfill: true,
			Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}},
			Retry: &topicv1.RetryPolicy{Lease: seconds(60), MaxAttempts: 5},
			Filter: &topicv1.Filter{Clauses: []*topicv1.FilterClause{{Operator: topicv1.FilterClause_OPERATOR_IN,
				Values: []string{strings.Repeat("ä", 2000)}}}},
		})
		for name, want := range map[string][2]string{
			"ordering": {"ORDERING_NONE", "ORDERING_KEY"}, "backfill": {"not set", "true"},
			"start": {`{"latest":true}`, `{"earliest":true}`}, "retry.lease": {"30s", "60s"},
		} {
			if d[name] != want {
				t.Errorf("%s: %q", name, d[name])
			}
		}
		if f := d["filter"][1]; len(d) != 5 || len(f) > 1000 || !strings.HasSuffix(f, "ä...") {
			t.Errorf("%d differences, %q", len(d), f)
		}
		x.publish("t", 0, 10)
		x.subscribe("t", "late", nil)
		late := func(r *topicv1.StartBackfillRequest) (bool, map[string][2]string) {
			r.Topic, r.Group, r.Async = "t", "late", true
			a, err := x.StartBackfill(t.Context(), op, r)
			if err != nil {
				t.Fatal(err)
			}
			return a.GetStarted(), shown(a.GetDifferences())
		}
		if started, d := late(&topicv1.StartBackfillRequest{MaxMessages: 5}); !started || len(d) > 0 {
			t.Error(started, d)
		}
		started, b := late(&topicv1.StartBackfillRequest{
			MaxMessages: 7, Scope: topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED,
			Limits: &topicv1.BackfillLimits{MaxRate: 100, Batch: 10_000},
		})
		if started || len(b) != 3 || b["max_messages"] != [2]string{"5", "7"} ||
			b["limits.max_rate"] != [2]string{"50000", "100"} {
			t.Error(started, b)
		}
	})
}

func shown(list []*topicv1.SettingDifference) map[string][2]string {
	all := map[string][2]string{}
	for _, d := range list {
		all[d.GetName()] = [2]string{d.GetIs(), d.GetAsked()}
	}
	return all
}
