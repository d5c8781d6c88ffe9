package topicrpc

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic"
)

// Whatever is wrong with a call has one stable name.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice, bob := w.as("alice"), w.as("bob")
	alice.topic("news", pubSub, "a")
	m := &member{userClients: alice, topic: "news", group: "a", name: "m"}
	m.pull(1, 0)
	publish := func(c *userClients, topic string, messages ...*topicv1.TopicMessage) error {
		_, err := c.topics.Publish(t.Context(), &topicv1.PublishRequest{Topic: topic, Messages: messages})
		return err
	}
	subscribe := func(config *topicv1.SubscriptionConfig) error {
		_, err := alice.subscriptions.CreateSubscription(t.Context(),
			&topicv1.CreateSubscriptionRequest{Topic: "news", Group: "b", Config: config})
		return err
	}
	ack := func(c *userClients, session string, p *topicv1.Positions) error {
		_, err := c.consumers.Ack(t.Context(), &topicv1.AckRequest{Session: session,
			Set: &topicv1.AckSet{Positions: []*topicv1.Positions{p}}})
		return err
	}
	pull := func(c *userClients, r *topicv1.PullRequest) error {
		_, err := c.consumers.Pull(t.Context(), r)
		return err
	}
	bind := func(principal string) error {
		_, err := alice.topics.SetBinding(t.Context(),
			&topicv1.SetBindingRequest{Topic: "news", Principal: principal, Role: topicv1.Role_ROLE_PUBLISHER})
		return err
	}
	get := func(c *userClients, id string) error {
		_, err := c.topics.GetMessage(t.Context(), &topicv1.GetMessageRequest{Topic: "news", MessageId: id})
		return err
	}
	browse := func(c *userClients, r *topicv1.BrowseMessagesRequest) error {
		r.Topic = "news"
		_, err := c.topics.BrowseMessages(t.Context(), r)
		return err
	}
	purge := func(c *userClients, before *topicv1.Position, partitions ...int32) error {
		_, err := c.topics.PurgeMessages(t.Context(),
			&topicv1.PurgeMessagesRequest{Topic: "news", Before: before, Partitions: partitions})
		return err
	}
	latest := &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}
	must(t, bind("auth0|1@example.com"))
	one := &topicv1.TopicMessage{Payload: []byte("x")}
	mib := &topicv1.TopicMessage{Payload: make([]byte, 1<<20)}
	for _, tt := range []struct {
		name, reason string
		code         connect.Code
		err          error
	}{
		{"a topic that is not there", "TOPIC_FORBIDDEN", connect.CodePermissionDenied, publish(bob, "nowhere", one)},
		{"another's topic", "TOPIC_FORBIDDEN", connect.CodePermissionDenied, publish(bob, "news", one)},
		{"no topic, to who may make some", "TOPIC_NOT_FOUND", connect.CodeNotFound,
			pull(alice, &topicv1.PullRequest{Topic: "nowhere", Group: "a"})},
		{"no group", "SUBSCRIPTION_NOT_FOUND", connect.CodeNotFound,
			pull(alice, &topicv1.PullRequest{Topic: "news", Group: "x"})},
		{"1 MiB and a byte", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			publish(alice, "news", &topicv1.TopicMessage{Payload: make([]byte, 1<<20+1)})},
		{"1,001 messages", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			publish(alice, "news", slices.Repeat([]*topicv1.TopicMessage{one}, 1001)...)},
		{"a key of 1,025 bytes", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			publish(alice, "news", &topicv1.TopicMessage{Key: strings.Repeat("k", 1025)})},
		{"a binding of who cannot be", "INVALID_ARGUMENT", connect.CodeInvalidArgument, bind("a b")},
		{"more than 4 MB in all", "TOO_LARGE", connect.CodeResourceExhausted, publish(alice, "news", mib, mib, mib, mib)},
		{"more than 6 MB", "REQUEST_TOO_LARGE", connect.CodeResourceExhausted,
			publish(alice, "news", mib, mib, mib, mib, mib, mib, mib)},
		{"no messages", "INVALID_ARGUMENT", connect.CodeInvalidArgument, publish(alice, "news")},
		{"a filter without values", "INVALID_FILTER", connect.CodeInvalidArgument,
			subscribe(&topicv1.SubscriptionConfig{Filter: &topicv1.Filter{Clauses: []*topicv1.FilterClause{{
				Operator: topicv1.FilterClause_OPERATOR_IN}}}})},
		{"a filter with 17 clauses", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			subscribe(&topicv1.SubscriptionConfig{Filter: &topicv1.Filter{Clauses: make17()}})},
		{"heartbeats as rare as the timeout", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			subscribe(&topicv1.SubscriptionConfig{HeartbeatInterval: durationpb.New(300 * time.Second),
				HeartbeatTimeout: durationpb.New(300 * time.Second)})},
		{"a message far beyond the end", "POSITION_OUT_OF_RANGE", connect.CodeOutOfRange,
			subscribe(&topicv1.SubscriptionConfig{
				Start: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-99"}}})},
		{"positions beyond every partition", "POSITION_OUT_OF_RANGE", connect.CodeOutOfRange,
			ack(alice, m.session, &topicv1.Positions{Base: 1<<63 - 1})},
		{"a message that is not there", "MESSAGE_NOT_FOUND", connect.CodeNotFound, get(alice, "0-0")},
		{"a message of another's topic", "TOPIC_FORBIDDEN", connect.CodePermissionDenied, get(bob, "0-0")},
		{"what is no id", "INVALID_ARGUMENT", connect.CodeInvalidArgument, get(alice, "first")},
		{"to browse another's topic", "TOPIC_FORBIDDEN", connect.CodePermissionDenied,
			browse(bob, &topicv1.BrowseMessagesRequest{})},
		{"a page of less than nothing", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			browse(alice, &topicv1.BrowseMessagesRequest{MaxMessages: -1})},
		{"a token of nothing", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			browse(alice, &topicv1.BrowseMessagesRequest{PageToken: "next"})},
		{"to purge another's topic", "TOPIC_FORBIDDEN", connect.CodePermissionDenied, purge(bob, latest)},
		{"to purge nothing in particular", "INVALID_ARGUMENT", connect.CodeInvalidArgument, purge(alice, nil)},
		{"to purge up to no place", "INVALID_ARGUMENT", connect.CodeInvalidArgument, purge(alice, &topicv1.Position{})},
		{"to purge a partition twice", "INVALID_ARGUMENT", connect.CodeInvalidArgument, purge(alice, latest, 0, 0)},
		{"to purge a partition that is not there", "POSITION_OUT_OF_RANGE", connect.CodeOutOfRange, purge(alice, latest, 1)},
		{"a session that is not there", "SESSION_GONE", connect.CodeNotFound, ack(alice, "1-x", &topicv1.Positions{})},
		{"another's session", "SESSION_GONE", connect.CodeNotFound, ack(bob, m.session, &topicv1.Positions{})},
		{"a session of another group", "SESSION_GONE", connect.CodeNotFound,
			pull(alice, &topicv1.PullRequest{Topic: "news", Group: "z", Session: m.session})},
		{"a wait of a minute", "INVALID_ARGUMENT", connect.CodeInvalidArgument,
			pull(alice, &topicv1.PullRequest{Topic: "news", Group: "a", Wait: durationpb.New(time.Minute)})},
	} {
		testkit.Equal(t, tt.name+": code", connect.CodeOf(tt.err), tt.code)
		testkit.Equal(t, tt.name+": reason", reason(tt.err), tt.reason)
		if tt.err != nil && strings.Contains(tt.err.Error(), "topic: ") {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}
	refused := m.ack(&topicv1.Positions{Base: 1 << 40})
	if len(refused) != 1 || refused[0].GetOutcome() != topicv1.Outcome_OUTCOME_NOT_DELIVERED {
		t.Errorf("what was never delivered: %v", refused)
	}
}

func make17() (all []*topicv1.FilterClause) {
	for range 17 {
		all = append(all, &topicv1.FilterClause{Operator: topicv1.FilterClause_OPERATOR_EXISTS})
	}
	return all
}

// A role allows what it says, from its next call on, and open streams end with it.
func TestBindings(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice, bob, op := w.as("alice"), w.as("bob"), w.as("operator")
	alice.topic("news", pubSub, "a")
	calls := map[string]func(c *userClients) error{
		"publish": func(c *userClients) error {
			_, err := c.topics.Publish(t.Context(), &topicv1.PublishRequest{Topic: "news",
				Messages: []*topicv1.TopicMessage{{}}})
			return err
		},
		"subscribe": func(c *userClients) error {
			_, err := c.subscriptions.CreateSubscription(t.Context(),
				&topicv1.CreateSubscriptionRequest{Topic: "news", Group: "a"})
			return err
		},
		"consume": func(c *userClients) error {
			_, err := c.consumers.Pull(t.Context(), &topicv1.PullRequest{Topic: "news", Group: "a"})
			return err
		},
		"administer": func(c *userClients) error {
			_, err := c.topics.ListBindings(t.Context(), &topicv1.ListBindingsRequest{Topic: "news"})
			return err
		},
	}
	check := func(who string, c *userClients, allowed ...string) {
		t.Helper()
		for name, call := range calls {
			want := ""
			if !strings.Contains(strings.Join(allowed, " "), name) {
				want = "TOPIC_FORBIDDEN"
			}
			testkit.Equal(t, who+": "+name, reason(call(c)), want)
		}
	}
	bind := func(role topicv1.Role) {
		t.Helper()
		_, err := alice.topics.SetBinding(t.Context(),
			&topicv1.SetBindingRequest{Topic: "news", Principal: "bob", Role: role})
		must(t, err)
	}
	check("alice", alice, "publish", "subscribe", "consume", "administer")
	check("the operator", op, "publish", "subscribe", "consume", "administer")
	check("bob", bob)
	bind(topicv1.Role_ROLE_PUBLISHER)
	check("bob, a publisher", bob, "publish")
	bind(topicv1.Role_ROLE_SUBSCRIBER)
	check("bob, a subscriber", bob, "subscribe", "consume")
	stream, err := bob.consumers.Consume(t.Context(), attachTo("news", "a", "bob"))
	must(t, err)
	attachedTo(t, stream)
	_, err = alice.topics.RemoveBinding(t.Context(), &topicv1.RemoveBindingRequest{Topic: "news", Principal: "bob"})
	must(t, err)
	testkit.Equal(t, "bob's stream ends with", goneOf(t, stream), "TOPIC_FORBIDDEN")
	testkit.Equal(t, "and the code", connect.CodeOf(stream.Err()), connect.CodePermissionDenied)
	check("bob, unbound", bob)
}

func attachTo(topic, group, member string) *topicv1.ConsumeRequest {
	return &topicv1.ConsumeRequest{Attach: &topicv1.Attach{Topic: topic, Group: group, Member: member}}
}

// attachedTo takes the first response of a stream and returns its session.
func attachedTo(t *testing.T, stream *connect.ServerStreamForClient[topicv1.ConsumeResponse]) string {
	t.Helper()
	if !stream.Receive() || stream.Msg().GetAttached() == nil {
		t.Fatalf("the first response is %v, %v", stream.Msg(), stream.Err())
	}
	return stream.Msg().GetAttached().GetSession()
}

// goneOf reads a stream to its end and returns the reason of its last response.
func goneOf(t *testing.T, stream *connect.ServerStreamForClient[topicv1.ConsumeResponse]) (reason string) {
	t.Helper()
	for stream.Receive() {
		reason = stream.Msg().GetGone().GetReason()
	}
	return reason
}

// Streams end with their token, with its session, and with the server, and say so.
func TestEndsOfStreams(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	alice.topic("news", pubSub, "a")
	open := func() *connect.ServerStreamForClient[topicv1.ConsumeResponse] {
		stream, err := alice.consumers.Consume(t.Context(), attachTo("news", "a", ""))
		must(t, err)
		attachedTo(t, stream)
		return stream
	}
	w.expires.Store(time.Now().Add(2 * time.Second).Unix())
	short := open()
	w.expires.Store(time.Now().Add(time.Hour).Unix())
	testkit.Equal(t, "a token", goneOf(t, short), "TOKEN_EXPIRED")
	revoked := open()
	for _, session := range []string{"ses-bob", "ses-alice"} {
		w.streams.EndRevoked(func(id Identity) bool { return id.Token.SessionID == session })
	}
	testkit.Equal(t, "a session", goneOf(t, revoked), "TOPIC_FORBIDDEN")
	cancelled := open()
	_, err := alice.subscriptions.CancelSubscription(t.Context(),
		&topicv1.CancelSubscriptionRequest{Topic: "news", Group: "a"})
	must(t, err)
	testkit.Equal(t, "a subscription", goneOf(t, cancelled), "SUBSCRIPTION_GONE")
	alice.subscribe("news", "a", nil)
	last := open()
	polled := make(chan error, 1)
	go func() {
		_, err := alice.consumers.Pull(context.Background(), &topicv1.PullRequest{Topic: "news", Group: "a",
			Wait: durationpb.New(30 * time.Second)})
		polled <- err
	}()
	testkit.Eventually(t, "the poll", func() bool {
		w.streams.mu.Lock()
		defer w.streams.mu.Unlock()
		return len(w.streams.polled) == 1
	})
	w.streams.Drain()
	testkit.Equal(t, "the server", goneOf(t, last), "DRAINING")
	if err := <-polled; err != nil { // long before its 30 s are over
		t.Errorf("a poll ends with %v", err)
	}
	refused, err := alice.consumers.Consume(t.Context(), attachTo("news", "a", ""))
	if err == nil {
		refused.Receive()
		err = refused.Err()
	}
	testkit.Equal(t, "a stream of a server that goes down", reason(err), "DRAINING")
	testkit.Equal(t, "open streams", w.streams.Len(), 0)
}

// A poll is the only one of its session, which is no stream's.
func TestPollsOfASession(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	alice.topic("news", pubSub, "a")
	stream, err := alice.consumers.Consume(t.Context(), attachTo("news", "a", "m"))
	must(t, err)
	_, err = alice.consumers.Pull(t.Context(),
		&topicv1.PullRequest{Topic: "news", Group: "a", Session: attachedTo(t, stream)})
	testkit.Equal(t, "a stream's session", reason(err), "SESSION_GONE")
	leave, err := w.streams.poll("1-x")
	must(t, err)
	if _, err := w.streams.poll("1-x"); err == nil {
		t.Error("two polls of a session at once")
	}
	leave()
	leave, err = w.streams.poll("1-x")
	must(t, err)
	leave()
}

// aborted is the context of a call whose client has gone, which is noticed at the end of it.
type aborted struct{ context.Context }

func (aborted) Err() error { return context.Canceled }

// What a poll has for a client that has gone is for others at once, and no attempt.
func TestPollOfAClientThatHasGone(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	alice.topic("news", pubSub, "a")
	first, err := alice.consumers.Pull(t.Context(), &topicv1.PullRequest{Topic: "news", Group: "a"})
	must(t, err)
	alice.publish("news", 3)
	here := &consumers{New(Config{Topics: w.service, Streams: w.streams, Identify: func(context.Context) Identity {
		return Identity{Caller: topic.Caller{Principal: "alice"}}
	}})}
	_, err = here.Pull(aborted{t.Context()},
		&topicv1.PullRequest{Topic: "news", Group: "a", Session: first.GetSession()})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	res := (&member{userClients: alice, topic: "news", group: "a", name: "n"}).pull(10, time.Second)
	testkit.Equal(t, "messages of another member", messages(res), 3)
	for _, d := range res.GetDeliveries() {
		if len(d.GetAttempts()) > 0 {
			t.Errorf("delivered again: %v", d)
		}
	}
}

// A principal has a thousand streams at most, and gets others' room back.
func TestStreamsOfAPrincipal(t *testing.T) {
	t.Parallel()
	s := NewStreams(nil)
	id := Identity{}
	id.Principal = "alice"
	var leaves []func()
	for range 1000 {
		leave, err := s.Enter(id, func(string) {})
		must(t, err)
		leaves = append(leaves, leave)
	}
	if _, err := s.Enter(id, func(string) {}); err == nil || explain(err).Reason != "TOO_MANY" {
		t.Errorf("one more: %v", err)
	}
	leaves[0]()
	if _, err := s.Enter(id, func(string) {}); err != nil {
		t.Errorf("after one has gone: %v", err)
	}
}

// Where there are no topics, every call says so.
func TestNotInThisMode(t *testing.T) {
	t.Parallel()
	s := New(Config{Streams: NewStreams(nil)})
	_, err := (&topics{s}).Publish(t.Context(), &topicv1.PublishRequest{})
	r := explain(err)
	if r == nil || r.Reason != "NOT_IN_THIS_MODE" || r.Code != connect.CodeUnimplemented {
		t.Errorf("%v is %+v", err, r)
	}
}

// Whoever's access is revoked while a stream is being opened gets none: EndRevoked has not found
// it. Operators, and callers whom another process let in, are not checked here.
func TestRevokedWhileOpening(t *testing.T) {
	t.Parallel()
	var s *Streams
	var found int
	s = NewStreams(func(id Identity) bool {
		found = s.Len() // it must be registered by now
		return id.Token.SessionID == "ses-alice"
	})
	alice := Identity{Token: auth.Principal{SessionID: "ses-alice"}}
	if _, err := s.Enter(alice, func(string) {}); err == nil || explain(err).Reason != "TOPIC_FORBIDDEN" {
		t.Errorf("with a session that was revoked: %v", err)
	}
	testkit.Equal(t, "streams when it is asked", found, 1)
	testkit.Equal(t, "streams that are left", s.Len(), 0)
	carried, operator := alice, alice
	carried.Carried, operator.Operator = true, true
	for _, id := range []Identity{carried, operator, {Token: auth.Principal{SessionID: "ses-bob"}}} {
		leave, err := s.Enter(id, func(string) {})
		must(t, err)
		leave()
	}
}

// A revocation of the user, or of the session, covers the caller of a call that another process passes on, and no
// operator.
func TestRevocationsCoverForwardedCallers(t *testing.T) {
	t.Parallel()
	for _, operator := range []bool{false, true} {
		h := http.Header{}
		must(t, introduce(h, Identity{Caller: topic.Caller{Principal: "alice", Operator: operator},
			Token: auth.Principal{SessionID: "ses-alice"}}, 3))
		call, err := readVisit(h)
		must(t, err)
		user := auth.Revocation{Kind: auth.RevokedUser, ID: "alice", Before: time.Now()}
		testkit.Equal(t, "covered by the user's revocation", user.Covers(call.identity.Token), !operator)
		if !operator { // operators have no session
			session := auth.Revocation{Kind: auth.RevokedSession, ID: "ses-alice"}
			testkit.Equal(t, "covered by the session's revocation", session.Covers(call.identity.Token), true)
		}
	}
}
