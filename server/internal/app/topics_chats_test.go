package app_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

const chatTopic = "messages.persisted"

// topicOperator calls topics as an operator of the server in dir.
func topicOperator(t *testing.T, dir string, p *process) topicv1connect.TopicServiceClient {
	t.Helper()
	key, err := auth.ReadKey(filepath.Join(dir, "auth.key"))
	testkit.Must(t, err)
	ada, err := key.IssueOperator("ada", time.Now(), time.Hour)
	testkit.Must(t, err)
	return topicv1connect.NewTopicServiceClient(
		&http.Client{Transport: bearer{ada, newTransport(t, true)}}, "http://"+opsOf(t, p))
}

func refusedWith(t *testing.T, what string, err error, code connect.Code, text string) {
	t.Helper()
	if connect.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v; want %s %s", what, err, code, text)
	}
}

// heard is what a group has handled: the messages of chats by their text.
type heard struct {
	testing.TB
	texts []string // that are looked for

	mu   sync.Mutex
	keys map[string][]string // of the events, by text, in their order
	at   map[string]int      // how often each position came
}

func (h *heard) handle(_ context.Context, m *topic.Received) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[m.ID]++
	for _, text := range h.texts {
		if strings.Contains(string(m.GetPayload()), text) {
			h.keys[text] = append(h.keys[text], m.GetKey())
		}
	}
	if m.GetType() == "" || len(m.GetHeaders()) == 0 {
		h.Errorf("an event of type %q with headers %v", m.GetType(), m.GetHeaders())
	}
	return nil
}

// The events of chats are a topic that an operator makes and binds: who is bound consumes
// what is sent, each event once, over a kill of the server, and nobody else sees that it is
// there.
func TestChatTopic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listen := func(addr string) *process {
		return launch(t, dir, addr, "--ops-listen", "127.0.0.1:0", "--topic-creators", "carol")
	}
	p := listen("127.0.0.1:0")
	dial := func(user string) *topic.Client {
		bearer := token(t, dir, user)
		c, err := topic.Dial(topic.Config{BaseURL: "http://" + p.addr,
			Token: func(context.Context, bool) (string, error) { return bearer, nil }})
		testkit.Must(t, err)
		return c
	}
	bob, carol := dial("bob"), dial("carol")
	operatorOfTopics := topicOperator(t, dir, p)
	refuseChatTopics(t, operatorOfTopics, bob, carol)

	alice := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	made, err := alice.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"carol"}})
	testkit.Must(t, err)
	chat := made.GetOverview().GetChat().GetChatId()
	send := func(text string) {
		t.Helper()
		_, err := alice.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: chat, Content: text})
		testkit.Must(t, err)
	}
	h := &heard{TB: t, keys: map[string][]string{}, at: map[string]int{}}
	for i := range 20 {
		h.texts = append(h.texts, fmt.Sprintf("said-%02d.", i))
	}
	for _, text := range h.texts[:5] { // before the group begins
		send(text)
	}
	consumer, err := bob.Consumer(chatTopic, "g", topic.ConsumerConfig{Handler: h.handle,
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}},
			Backfill: true}})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	done := func(n int) {
		t.Helper()
		testkit.Eventually(t, "events are handled", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.keys) >= n
		})
		// Ends of transactions stand behind the last events: they are passed, too.
		testkit.Eventually(t, "everything is acknowledged", func() bool {
			s := subscriptionOf(t, bob)
			return !slices.ContainsFunc(s.GetPartitions(), func(x *topicv1.SubscriptionPartition) bool {
				return x.GetPending() > 0 || x.GetFloor() < x.GetEnd()
			})
		})
	}
	done(5)
	for _, text := range h.texts[5:10] {
		send(text)
	}
	done(10)
	browseChats(t, bob, operatorOfTopics)
	p.kill()
	p = listen(p.addr)
	for _, text := range h.texts[10:15] {
		send(text)
	}
	done(15)
	_, err = bob.Subscriptions().PauseSubscription(t.Context(),
		&topicv1.PauseSubscriptionRequest{Topic: chatTopic, Group: "g"})
	testkit.Must(t, err)
	for _, text := range h.texts[15:] {
		send(text)
	}
	_, err = bob.Subscriptions().ResumeSubscription(t.Context(),
		&topicv1.ResumeSubscriptionRequest{Topic: chatTopic, Group: "g"})
	testkit.Must(t, err)
	done(20)
	h.mu.Lock()
	for text, keys := range h.keys {
		// The relay repeats what it had published when the server was killed.
		if keys = slices.Compact(keys); len(keys) != 1 || keys[0] != chat {
			t.Errorf("keys of %s are %v, not %s", text, keys, chat)
		}
	}
	for id, n := range h.at {
		if n != 1 {
			t.Errorf("message %s was handled %d times", id, n)
		}
	}
	seen := len(h.at)
	clear(h.at)
	h.mu.Unlock()

	_, err = bob.Subscriptions().SeekSubscription(t.Context(), &topicv1.SeekSubscriptionRequest{Topic: chatTopic,
		Group: "g", To: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}})
	testkit.Must(t, err)
	testkit.Eventually(t, "all come again", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.at) == seen
	})
	_, err = topicOperator(t, dir, p).RemoveBinding(t.Context(),
		&topicv1.RemoveBindingRequest{Topic: chatTopic, Principal: "bob"})
	testkit.Must(t, err)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "FORBIDDEN") {
		t.Errorf("a consumer that is bound no more ends with %v", err)
	}
}

// browseChats reads the events without a group, each like one that was delivered. They cannot be purged.
func browseChats(t *testing.T, bob *topic.Client, operator topicv1connect.TopicServiceClient) {
	t.Helper()
	r, n := &topicv1.BrowseMessagesRequest{Topic: chatTopic, MaxMessages: 3}, 0
	for done := false; !done; done = r.GetPageToken() == "" {
		res, err := bob.Topics().BrowseMessages(t.Context(), r)
		testkit.Must(t, err)
		for _, m := range res.GetMessages() {
			if n++; m.GetMessage().GetType() == "" || m.GetMessage().GetPublishTime() == nil {
				t.Errorf("an event is %v", m)
			}
			_, err := bob.Topics().GetMessage(t.Context(),
				&topicv1.GetMessageRequest{Topic: chatTopic, MessageId: m.GetMessageId()})
			testkit.Must(t, err)
		}
		r.PageToken = res.GetNextPageToken()
	}
	testkit.Equal(t, "events", n, 10)
	_, err := operator.PurgeMessages(t.Context(), &topicv1.PurgeMessagesRequest{Topic: chatTopic,
		Before: &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}})
	refusedWith(t, "a purge", err, connect.CodeFailedPrecondition, "events of chats")
}

func subscriptionOf(t *testing.T, c *topic.Client) *topicv1.Subscription {
	t.Helper()
	res, err := c.Subscriptions().GetSubscription(t.Context(),
		&topicv1.GetSubscriptionRequest{Topic: chatTopic, Group: "g"})
	if err != nil {
		return &topicv1.Subscription{Partitions: []*topicv1.SubscriptionPartition{{Pending: 1}}} // not yet, or restarting
	}
	return res.GetSubscription()
}

// refuseChatTopics makes the topic of messages and binds bob, and checks what is refused on
// the way: everything to strangers, what is Kafka's to operators.
func refuseChatTopics(t *testing.T, operator topicv1connect.TopicServiceClient, bob, carol *topic.Client) {
	t.Helper()
	ctx := t.Context()
	configure := func(c topicv1connect.TopicServiceClient, name string, config *topicv1.TopicConfig) error {
		_, err := c.ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: name, Config: config})
		return err
	}
	chats := func(edit func(*topicv1.TopicConfig)) *topicv1.TopicConfig {
		c := &topicv1.TopicConfig{Source: topicv1.Source_SOURCE_CHAT_EVENTS}
		edit(c)
		return c
	}
	plain := func(*topicv1.TopicConfig) {}
	create := func(c *topic.Client) error {
		_, err := c.Subscriptions().CreateSubscription(ctx,
			&topicv1.CreateSubscriptionRequest{Topic: chatTopic, Group: "h"})
		return err
	}
	invalid, denied := connect.CodeInvalidArgument, connect.CodePermissionDenied
	refusedWith(t, "a creator", configure(carol.Topics(), chatTopic, chats(plain)), denied, "")
	refusedWith(t, "a creator, a log", configure(carol.Topics(), chatTopic, nil), invalid, "SOURCE_CHAT_EVENTS")
	refusedWith(t, "another name", configure(operator, "messages", chats(plain)), invalid, "messages")
	refusedWith(t, "dead letters", configure(operator, "dead_letters", chats(plain)), invalid, "dead_letters")
	refusedWith(t, "a later version that is not", configure(operator, chatTopic+".v2", chats(plain)), invalid, ".v2")
	for name, edit := range map[string]func(*topicv1.TopicConfig){
		"partitions": func(c *topicv1.TopicConfig) { c.Partitions = 64 },
		"retention":  func(c *topicv1.TopicConfig) { c.MessageRetention = durationpb.New(time.Hour) },
		"most":       func(c *topicv1.TopicConfig) { c.MaxRetention = durationpb.New(time.Hour) },
		"zero":       func(c *topicv1.TopicConfig) { c.ZeroSubscriptionRetention = durationpb.New(time.Hour) },
		"blocks":     func(c *topicv1.TopicConfig) { c.BlockWritesOnZeroSubscriptions = proto.Bool(true) },
	} {
		refusedWith(t, name, configure(operator, chatTopic, chats(edit)), invalid, "Kafka's")
	}
	refusedWith(t, "a stranger before", create(bob), denied, "")
	testkit.Must(t, configure(operator, chatTopic, chats(plain)))
	testkit.Must(t, configure(operator, "mine", nil))
	refusedWith(t, "another source", configure(operator, "mine", chats(plain)), invalid, "source")
	res, err := operator.GetTopic(ctx, &topicv1.GetTopicRequest{Topic: chatTopic})
	testkit.Must(t, err)
	testkit.Equal(t, "partitions", len(res.GetTopic().GetPartitions()), 64)
	for name, c := range map[string]*topic.Client{"a stranger": bob, "a creator": carol} {
		_, err := c.Topics().GetTopic(ctx, &topicv1.GetTopicRequest{Topic: chatTopic})
		for _, err := range []error{err, create(c)} {
			refusedWith(t, name, err, denied, "")
			var e *connect.Error
			if !errors.As(err, &e) || len(e.Details()) == 0 {
				t.Errorf("%s: %v without a reason", name, err)
			}
		}
	}
	for _, role := range []topicv1.Role{topicv1.Role_ROLE_ADMIN, topicv1.Role_ROLE_SUBSCRIBER} {
		_, err = operator.SetBinding(ctx, &topicv1.SetBindingRequest{Topic: chatTopic, Principal: "bob", Role: role})
		testkit.Must(t, err)
		_, err = bob.Topics().SetBinding(ctx,
			&topicv1.SetBindingRequest{Topic: chatTopic, Principal: "carol", Role: topicv1.Role_ROLE_SUBSCRIBER})
		refusedWith(t, "who is bound and binds", err, denied, "")
	}
	_, err = operator.Publish(ctx, &topicv1.PublishRequest{Topic: chatTopic,
		Messages: []*topicv1.TopicMessage{{Payload: []byte("forged")}}})
	refusedWith(t, "publish", err, connect.CodeFailedPrecondition, "nothing is published")
}
