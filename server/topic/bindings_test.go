package topic

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// bindTo gives a principal a role, of subscribers for groups.
func (x *fixture) bindTo(topic, principal string, role topicv1.Role, groups ...string) Caller {
	x.t.Helper()
	err := x.SetBinding(x.t.Context(), op,
		&topicv1.SetBindingRequest{Topic: topic, Principal: principal, Role: role, Groups: groups})
	if err != nil {
		x.t.Fatal(err)
	}
	return Caller{Principal: principal}
}

// A subscriber uses the groups that its binding names, also after a restart, and is shown no other.
func TestGroupsOfASubscriber(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "audit", "billing", "billing-eu", "billing-us", "ledger")
		billing := x.bindTo("t", "billing", subscriber, "billing-*", "ledger")
		all := x.bindTo("t", "all", subscriber)
		pub := x.bindTo("t", "pub", publisher)
		x.publish("t", 0, 1)
		for _, again := range []bool{false, true} {
			if again {
				x.restart()
			}
			for group, may := range map[string]bool{
				"audit": false, "billing": false, "billing-eu": true, "billing-us": true, "billing-new": true, "ledger": true,
				"ledger-x": false,
			} {
				_, err := x.CreateSubscription(t.Context(), billing,
					&topicv1.CreateSubscriptionRequest{Topic: "t", Group: group})
				if may && err != nil {
					t.Errorf("%s: %v", group, err)
				} else if !may {
					refusedAs(t, err, refusal.TopicForbidden)
				}
			}
		}
		if _, err := x.Message(t.Context(), billing, "t", "0-0"); err != nil { // a group of its own gets it
			t.Error(err)
		}
		want := []string{"billing-eu", "billing-new", "billing-us", "ledger"}
		if got := x.listed(billing, "t"); !slices.Equal(got, want) {
			t.Errorf("the list is %q", got)
		}
		if got := x.listed(all, "t"); len(got) != 6 {
			t.Errorf("the list of a subscriber to all groups is %q", got)
		}
		for c, want := range map[Caller]int{billing: 3, all: 5, pub: 5, op: 5} { // billing-new began later
			st, err := x.MessageStatus(t.Context(), c, &topicv1.GetMessageStatusRequest{Topic: "t", MessageId: "0-0"})
			if err != nil || len(st.GetRequired()) != want {
				t.Errorf("%s sees %v, %v", c.Principal, st, err)
			}
		}
		for _, role := range []topicv1.Role{publisher, admin} {
			err := x.SetBinding(t.Context(), op,
				&topicv1.SetBindingRequest{Topic: "t", Principal: "p", Role: role, Groups: []string{"g"}})
			refusedAs(t, err, refusal.InvalidArgument)
		}
	})
}

// listed are the groups that a caller is shown, on pages of two.
func (x *fixture) listed(c Caller, topic string) (groups []string) {
	x.t.Helper()
	r := &topicv1.ListSubscriptionsRequest{Topic: topic, PageSize: 2}
	for {
		page, err := x.Subscriptions(x.t.Context(), c, r)
		if err != nil {
			x.t.Fatal(err)
		}
		for _, sub := range page.GetSubscriptions() {
			groups = append(groups, sub.GetGroup())
		}
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			return groups
		}
	}
}

// A binding is for the same groups of the topic's dead letters, and for the group of a queue only if
// it names that.
func TestGroupsOfDeadLettersAndQueues(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.configure("q", nil)
		x.groups("u")
		x.subscribe("u", "g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}})
		x.publish("u", 0, 1)
		s := x.attach("u", "g", "m")
		if _, err := s.Nack(t.Context(), &topicv1.NackSet{Positions: at(x.want(s, "0")).GetPositions()}); err != nil {
			t.Fatal(err)
		}
		x.want(s, "") // the dead letter is stored meanwhile
		c := x.bindTo("u", "billing", subscriber, "billing-*")
		for group, may := range map[string]bool{"billing-eu": true, "g": false} {
			_, err := x.CreateSubscription(t.Context(), c, &topicv1.CreateSubscriptionRequest{Topic: "u.dlq", Group: group})
			if may && err != nil {
				t.Errorf("%s: %v", group, err)
			} else if !may {
				refusedAs(t, err, refusal.TopicForbidden)
			}
		}
		x.bindTo("q", "billing", subscriber, "billing-*")
		_, err := x.Attach(t.Context(), c, &topicv1.Attach{Topic: "q"}, false)
		refusedAs(t, err, refusal.TopicForbidden)
		x.bindTo("q", "billing", subscriber, "$queue")
		if _, err = x.Attach(t.Context(), c, &topicv1.Attach{Topic: "q"}, false); err != nil {
			t.Error(err)
		}
	})
}

// A binding that is narrowed ends the sessions that it does not allow any more, also one whose
// Attach had asked for the binding before, and becomes known after it was changed.
func TestNarrowedBindingEndsSessions(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "a", "b")
		c := x.bindTo("t", "who", subscriber)
		open := func(group string) *Session {
			s, err := x.Attach(t.Context(), c, &topicv1.Attach{Topic: "t", Group: group}, false)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		a, b, late := open("a"), open("b"), open("b")
		x.mu.Lock()
		delete(x.sessions, late.ID()) // Attach has not come to this yet
		x.mu.Unlock()
		x.bindTo("t", "who", subscriber, "a")
		x.register(late)
		for s, want := range map[*Session]string{a: "", b: "TOPIC_FORBIDDEN", late: "TOPIC_FORBIDDEN"} {
			if got := s.Ended(); got != want {
				t.Errorf("the session of %s ended with %q", s.Group().Name(), got)
			}
		}
	})
}

// A topic keeps its last administrator, also from operators, and also if several administrators
// remove each other at once.
func TestLastAdmin(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		made := func(name string) {
			_, err := x.Configure(t.Context(), maker, &topicv1.ConfigureTopicRequest{Topic: name})
			if err != nil {
				t.Fatal(err)
			}
		}
		made("t")
		remove := func(c Caller, topic, who string) error {
			return x.RemoveBinding(t.Context(), c, &topicv1.RemoveBindingRequest{Topic: topic, Principal: who})
		}
		for _, c := range []Caller{maker, op} {
			refusedAs(t, remove(c, "t", "maker"), refusal.LastAdmin)
			for _, role := range []topicv1.Role{publisher, subscriber} {
				refusedAs(t, x.SetBinding(t.Context(), c,
					&topicv1.SetBindingRequest{Topic: "t", Principal: "maker", Role: role}), refusal.LastAdmin)
			}
		}
		x.bindTo("t", "maker", admin) // as it is
		x.bindTo("t", "ann", admin)
		if err := remove(maker, "t", "maker"); err != nil {
			t.Error(err)
		}
		refusedAs(t, remove(Caller{Principal: "ann"}, "t", "ann"), refusal.LastAdmin)
		for round := range 50 {
			name := fmt.Sprintf("t%d", round)
			made(name)
			admins := []string{"maker", "ann", "bob", "cid"}
			for _, who := range admins[1:] {
				x.bindTo(name, who, admin)
			}
			var all sync.WaitGroup
			for i, who := range admins {
				all.Go(func() {
					err := remove(Caller{Principal: who}, name, admins[(i+1)%len(admins)])
					if r, ok := refusal.Of(err); err != nil &&
						(!ok || r.Reason != refusal.LastAdmin && r.Reason != refusal.TopicForbidden) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			left, err := x.Bindings(t.Context(), op, name)
			if err != nil || len(left) == 0 || len(left) == len(admins) {
				t.Errorf("%d administrators remain, %v", len(left), err)
			}
		}
	})
}

// A principal takes its share of a group's members and of a server's sessions, and no more, so that
// others get in. What it gives back can be taken again.
func TestShares(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "a", "b", "c", "d", "e")
		eve, bob := x.bindTo("t", "eve", subscriber), x.bindTo("t", "bob", subscriber)
		pull := func(c Caller, group string) (*Session, error) {
			return x.Attach(t.Context(), c, &topicv1.Attach{Topic: "t", Group: group}, true)
		}
		take := func(c Caller, group string, n int) (last *Session) {
			for range n {
				s, err := pull(c, group)
				if err != nil {
					t.Fatal(err)
				}
				last = s
			}
			return last
		}
		one := take(eve, "a", serving.MemberShare)
		_, err := pull(eve, "a")
		refusedAs(t, err, refusal.TooMany)
		take(bob, "a", 1)
		one.End("DETACHED")
		take(eve, "a", 1)
		rest := serving.SessionShare - serving.MemberShare
		for _, group := range []string{"b", "c", "d"} {
			n := min(rest, serving.MemberShare)
			take(eve, group, n)
			rest -= n
		}
		if rest > 0 {
			t.Fatalf("%d more sessions need more groups", rest)
		}
		_, err = pull(eve, "e")
		refusedAs(t, err, refusal.TooMany)
		take(bob, "e", 1)
		if n, want := x.cfg.Sessions.Taken(), serving.SessionShare+2; n != want || n != x.Sizes().Sessions {
			t.Errorf("%d sessions are taken, not %d of %d", n, want, x.Sizes().Sessions)
		}
		// A member that is refused takes no session.
		if _, err := x.Attach(t.Context(), bob, &topicv1.Attach{Topic: "t", Group: "e", Member: "m"}, true); err != nil {
			t.Fatal(err)
		}
		_, err = x.Attach(t.Context(), bob, &topicv1.Attach{Topic: "t", Group: "e", Member: "m"}, true)
		refusedAs(t, err, refusal.MemberExists)
		if n, want := x.cfg.Sessions.Taken(), serving.SessionShare+3; n != want {
			t.Errorf("%d sessions are taken, not %d", n, want)
		}
		for _, s := range x.sessionsOf("") {
			s.End("DETACHED")
		}
		if n := x.cfg.Sessions.Taken(); n != 0 {
			t.Errorf("%d sessions are taken by nobody", n)
		}
	})
}
