//go:build !windows

package app_test

import (
	"context"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Operators look after the topics of many servers at the workers that serve them: the commands
// are those of a server that is alone. What they ask of all topics comes from all slots, what
// they ask of one from its owner, dead letters too. A topic of chats has what is sent.
func TestTopicOperatorsOfAnInstallation(t *testing.T) {
	in := newInstallation(t)
	worker, deadLetters := in.operators(t)
	at := opsServed.FindStringSubmatch(worker.log.String())[1]
	topics := func(line string) string {
		t.Helper()
		args := append(slices.Clone(in.flags), "--ops-address", at, "--operator", "ada", "topics")
		out, err := exec.Command(binary(t), append(args, strings.Fields(line)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("topics %s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	says := func(what, text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q: %s", what, w, text)
			}
		}
	}
	prefix := strings.TrimSuffix(in.keys, ":")
	c := in.topicClients("alice", 0)
	var names []string
	for _, suffix := range []string{"a", "b", "c", "d"} {
		name := prefix + "-" + suffix
		names = append(names, name)
		says("create", topics("create "+name+" --semantics pub-sub"), name)
		topics("bindings " + name + " alice admin")
		_, err := c.subscriptions.CreateSubscription(t.Context(), &topicv1.CreateSubscriptionRequest{Topic: name,
			Group: "g", Config: &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}}})
		testkit.Must(t, err)
		topics("publish " + name + " one")
		topics("publish " + name + " two")
		says("health", topics("health "+name), "g")
	}
	says("list", topics("list"), names...)
	says("jobs trim", topics("jobs trim"), "topics looked at")
	says("jobs", topics("jobs"), "schedule standard")
	says("monitors", topics("monitors"), "nothing needs attention")
	topics("subscribe " + names[0] + " late")
	backfills := topicv1connect.NewBackfillServiceClient(
		&http.Client{Transport: bearer{in.token("alice"), newTransport(t, true)}}, "http://"+in.servers[1].addr)
	_, err := backfills.StartBackfill(t.Context(),
		&topicv1.StartBackfillRequest{Topic: names[0], Group: "late", Async: true})
	testkit.Must(t, err)
	says("tail", topics("tail "+names[0]+" --group late -n 2"), "one", "two")
	says("backfill", topics("backfill status "+names[0]+" late --watch"), "completed")
	says("remove-group", topics("remove-group "+names[0]+" late --execute"), "late is removed")
	says("audit", topics("audit "+names[0]+" --call RemoveGroup"), "ada")
	for _, name := range names {
		c.givesUp(t, name, "g", 2)
	}
	testkit.Eventually(t, "the dead letters", func() bool {
		return strings.Count(deadLetters("deadletters", "list", "--source", "topics"), ".dlq/0-") == 2*len(names)
	})
	says("redrive", deadLetters("deadletters", "redrive", "--topic", names[1], "--execute"), "2 redriven")
	says("tail", topics("tail "+names[1]+" --group g -n 2"), "one", "two")
	says("discard", deadLetters("deadletters", "discard", "--topic", names[2], "--reason", "test", "--execute"),
		"2 discarded")
	in.chatTopic(t, topics)
}

func (in *installation) topicClients(user string, server int) *topicClients {
	hc := &http.Client{Transport: bearer{in.token(user), newTransport(in.t, true)}}
	base := "http://" + in.servers[server].addr
	return &topicClients{topicv1connect.NewTopicServiceClient(hc, base, connect.WithGRPC()),
		topicv1connect.NewSubscriptionServiceClient(hc, base, connect.WithGRPC()),
		topicv1connect.NewConsumerServiceClient(hc, base, connect.WithGRPC())}
}

// chatTopic makes a topic of the events of chats and looks for a message there, at a server
// other than the one where it was sent.
func (in *installation) chatTopic(t *testing.T, topics func(string) string) {
	t.Helper()
	topics("create " + chatTopic + " --source chat-events")
	topics("bindings " + chatTopic + " bob subscriber")
	bob := in.topicClients("bob", 1)
	_, err := bob.subscriptions.CreateSubscription(t.Context(),
		&topicv1.CreateSubscriptionRequest{Topic: chatTopic, Group: "g"})
	testkit.Must(t, err)
	in.user("carol", 1)
	alice := in.user("alice", 0)
	made, err := call(t.Context(), alice.chats.CreateChat, &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"carol"}})
	testkit.Must(t, err)
	text := "said in " + in.keys
	_, err = call(t.Context(), alice.messages.SendMessage, &messagev1.SendMessageRequest{
		ChatId: made.GetOverview().GetChat().GetChatId(), Content: text})
	testkit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session := ""
	until(ctx, t, "the message is in the topic", func() bool {
		res, err := bob.consumers.Pull(ctx, &topicv1.PullRequest{Topic: chatTopic, Group: "g", Session: session,
			Wait: durationpb.New(time.Second)})
		testkit.Must(t, err)
		session = res.GetSession()
		for _, d := range res.GetDeliveries() {
			for _, m := range d.GetMessages() {
				if strings.Contains(string(m.GetPayload()), text) {
					return true
				}
			}
		}
		return false
	})
}
