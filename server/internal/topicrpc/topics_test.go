package topicrpc

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// HQ-A01: each message of a queue has one consumer, however many there are; each of a topic has
// all its groups.
func TestQueueAndPubSub(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("work", asQueue)
	alice.topic("news", pubSub, "a", "b", "c")
	alice.publish("work", 100)
	alice.publish("news", 100)
	total, everybody := 0, 0
	for _, name := range []string{"a", "b", "c"} {
		total += (&member{userClients: alice, topic: "work", group: "$queue", name: name}).drain()
		everybody += (&member{userClients: alice, topic: "news", group: name, name: "m"}).drain()
	}
	testkit.Equal(t, "of the queue", total, 100)
	testkit.Equal(t, "of three groups", everybody, 300)
}

// Answers of publishes are not compressed, those of other calls are, for those who take it.
func TestCompression(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub)
	encoding := func(method, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+alice.addr+"/parley.topic.v1.TopicService/"+method, strings.NewReader(body))
		alice.must(err)
		for name, value := range map[string]string{"Content-Type": "application/json", "Accept-Encoding": "gzip",
			"Authorization": "Bearer alice"} {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		alice.must(err)
		defer res.Body.Close()
		testkit.Equal(t, method, res.StatusCode, http.StatusOK)
		return res.Header.Get("Content-Encoding")
	}
	many := strings.Repeat(`{"payload":"AQ=="},`, 999) + `{"payload":"AQ=="}`
	testkit.Equal(t, "of a publish", encoding("Publish", `{"topic":"news","messages":[`+many+`]}`), "")
	for i := range 20 {
		alice.topic(fmt.Sprint("topic", i), pubSub)
	}
	testkit.Equal(t, "of a list", encoding("ListTopics", `{}`), "gzip")
}

// A topic is read without a group, page by page and message by message; a purge removes what no group has
// acknowledged, says which groups lose it, and a consumer that has some of it gets what follows.
func TestBrowseAndPurge(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	alice.topic("news", pubSub, "a", "b")
	alice.publish("news", 25)
	browse := func() (n int) {
		r := &topicv1.BrowseMessagesRequest{Topic: "news", MaxMessages: 10}
		for {
			p, err := alice.topics.BrowseMessages(t.Context(), r)
			alice.must(err)
			n += len(p.GetMessages())
			if r.PageToken = p.GetNextPageToken(); r.GetPageToken() == "" {
				return n
			}
		}
	}
	testkit.Equal(t, "browsed", browse(), 25)
	got, err := alice.topics.GetMessage(t.Context(), &topicv1.GetMessageRequest{Topic: "news", MessageId: "0-7"})
	alice.must(err)
	if m := got.GetMessage(); m.GetPosition() != 7 || m.GetMessage().GetPublishTime() == nil {
		t.Error(m)
	}
	m := &member{userClients: alice, topic: "news", group: "a", name: "m"}
	testkit.Equal(t, "pulled", len(m.pull(10, 0).GetDeliveries()[0].GetMessages()), 10)
	testkit.Equal(t, "group b gets", (&member{userClients: alice, topic: "news", group: "b", name: "m"}).drain(), 25)
	purged, err := alice.topics.PurgeMessages(t.Context(), &topicv1.PurgeMessagesRequest{Topic: "news",
		Before: &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}})
	alice.must(err)
	if p := purged.GetPurges(); len(p) != 1 || p[0].GetFrom() != 0 || p[0].GetTo() != 25 {
		t.Error(p)
	}
	if g := purged.GetGroups(); len(g) != 1 || g[0].GetGroup() != "a" || g[0].GetMessages() != 25 {
		t.Error(g)
	}
	testkit.Equal(t, "browsed after it", browse(), 0)
	if refused := m.ack(&topicv1.Positions{Base: 0, Count: 10}); len(refused) > 0 {
		t.Errorf("a late acknowledgement is refused: %v", refused)
	}
	alice.publish("news", 5)
	testkit.Equal(t, "group a gets", m.drain(), 5)
	sub, err := alice.subscriptions.GetSubscription(t.Context(),
		&topicv1.GetSubscriptionRequest{Topic: "news", Group: "a"})
	alice.must(err)
	testkit.Equal(t, "forced", sub.GetSubscription().GetReleased().GetForced(), 25)
}

// HQ-A05: there are queues and topics, and nothing else.
func TestOtherSemantics(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	_, err := alice.topics.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "x",
		Config: &topicv1.TopicConfig{Semantics: 7}})
	testkit.Equal(t, "code", connect.CodeOf(err), connect.CodeInvalidArgument)
	testkit.Equal(t, "reason", reason(err), "INVALID_ARGUMENT")
}

// HQ-A06: what is configured is read back.
func TestConfigurationIsReadBack(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	for name, c := range map[string]*topicv1.TopicConfig{
		"queue":   {Semantics: asQueue},
		"pub-sub": {Semantics: pubSub, MessageRetention: durationpb.New(7 * 24 * time.Hour)},
	} {
		made, err := alice.topics.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: name, Config: c})
		must(t, err)
		testkit.Equal(t, name+" is new", made.GetCreated(), true)
		got, err := alice.topics.GetTopic(t.Context(), &topicv1.GetTopicRequest{Topic: name})
		must(t, err)
		testkit.Equal(t, name, got.GetTopic().GetConfig().GetSemantics(), c.GetSemantics())
		if c.MessageRetention != nil {
			testkit.Equal(t, name+" is kept", got.GetTopic().GetConfig().GetMessageRetention().AsDuration(), 7*24*time.Hour)
		}
	}
}

// HQ-A07: consumers of a queue notice nothing of topics with groups beside it.
func TestQueuesAsBefore(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	run := func(name string) (log []string) {
		alice.topic(name, asQueue)
		alice.publish(name, 5)
		m := &member{userClients: alice, topic: name, group: "$queue", name: "m"}
		res := m.pull(3, 0)
		log = append(log, fmt.Sprint(positions(res)), fmt.Sprint(m.ack(positions(res)...)))
		res = m.pull(10, 0)
		_, err := m.consumers.Nack(t.Context(), &topicv1.NackRequest{Session: m.session, Set: &topicv1.NackSet{
			Positions: positions(res), Delay: durationpb.New(0)}})
		must(t, err)
		res = m.pull(10, 10*time.Second)
		log = append(log, fmt.Sprint(positions(res), res.GetDeliveries()[0].GetAttempts()),
			fmt.Sprint(m.ack(positions(res)...)))
		return append(log, fmt.Sprint(messages(m.pull(10, 0))))
	}
	before := run("before")
	alice.topic("news", pubSub, "a", "b")
	alice.publish("news", 100)
	after := run("after")
	testkit.Equal(t, "after", strings.Join(after, "\n"), strings.Join(before, "\n"))
}

// HQ-A10: names have 255 characters and not one more.
func TestLengthOfNames(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	long := strings.Repeat("n", 255)
	alice.topic(long, pubSub, long)
	_, err := alice.topics.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: long + "n"})
	testkit.Equal(t, "a longer topic", reason(err), "INVALID_ARGUMENT")
	_, err = alice.subscriptions.CreateSubscription(t.Context(),
		&topicv1.CreateSubscriptionRequest{Topic: long, Group: long + "n"})
	testkit.Equal(t, "a longer group", reason(err), "INVALID_ARGUMENT")
}

// HQ-D08: an acknowledgement that is not the last of a message's is no failure.
func TestFirstOfThreeAcknowledgements(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub, "a", "b", "c")
	alice.publish("news", 1)
	for i, group := range []string{"a", "b", "c"} {
		m := &member{userClients: alice, topic: "news", group: group, name: "m"}
		testkit.Equal(t, "refused to "+group, len(m.ack1(t)), 0)
		res, err := alice.topics.GetMessageStatus(t.Context(), &topicv1.GetMessageStatusRequest{Topic: "news",
			MessageId: "0-0"})
		must(t, err)
		want := topicv1.MessageStatus_MESSAGE_STATUS_PENDING
		if i == 2 {
			want = topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED
		}
		testkit.Equal(t, "after "+group, res.GetStatus(), want)
	}
}

// ack1 pulls and acknowledges all that comes at once.
func (m *member) ack1(t *testing.T) []*topicv1.Refusal {
	t.Helper()
	return m.ack(positions(m.pull(1000, 0))...)
}

// HQ-D09: a thousand messages are acknowledged by one call, by range or one by one.
func TestManyAcknowledgementsInOneCall(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub, "range", "single", "bitmap")
	alice.publish("news", 1000)
	for _, group := range []string{"range", "single", "bitmap"} {
		m := &member{userClients: alice, topic: "news", group: group, name: "m"}
		got := 0
		for got < 1000 {
			n := messages(m.pull(1000, 0))
			if n == 0 {
				t.Fatalf("%s: %d messages", group, got)
			}
			got += n
		}
		all := []*topicv1.Positions{{Count: 1000}}
		switch group {
		case "single":
			all = nil
			for i := range int64(1000) {
				all = append(all, &topicv1.Positions{Base: i})
			}
		case "bitmap":
			all[0].Bitmap = make([]byte, 125)
			for i := range all[0].Bitmap {
				all[0].Bitmap[i] = 0xff
			}
		}
		testkit.Equal(t, group+": refused", len(m.ack(all...)), 0)
		sub, err := alice.subscriptions.GetSubscription(t.Context(),
			&topicv1.GetSubscriptionRequest{Topic: "news", Group: group})
		must(t, err)
		testkit.Equal(t, group+": floor", sub.GetSubscription().GetPartitions()[0].GetFloor(), int64(1000))
	}
}

// HQ-G06: a call brings as many messages as it asks for at most.
func TestLimitOfACall(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub, "a")
	alice.publish("news", 2000)
	m := &member{userClients: alice, topic: "news", group: "a", name: "m"}
	for want, limit := range map[int]int32{1: 1, 10: 10, 100: 0, 1000: 5000} {
		res := m.pull(limit, 0)
		if n := messages(res); n > want || n == 0 {
			t.Errorf("%d messages for a limit of %d", n, limit)
		}
		m.ack(positions(res)...)
	}
}

// A request of Publish has one limit, in bytes of its messages as they are encoded, and one text
// that names it.
func TestSizeOfAPublish(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("work", asQueue)
	publish := func(messages, payload int) error {
		list := make([]*topicv1.TopicMessage, messages)
		for i := range list {
			list[i] = &topicv1.TopicMessage{Payload: make([]byte, payload)} // and 4 bytes around it
		}
		_, err := alice.topics.Publish(t.Context(), &topicv1.PublishRequest{Topic: "work", Messages: list})
		return err
	}
	must(t, publish(4, 999_996))
	for payload, bytes := range map[int]string{999_997: "4000004", 1_048_570: "4194296", 1_048_576: "4194320"} {
		err := publish(4, payload)
		testkit.Equal(t, bytes+" bytes: reason", reason(err), "TOO_LARGE")
		if want := "the messages have " + bytes + " bytes in all, more than 4000000"; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// HQ-G07: what a call reads does not grow with what is kept.
func TestCostOfACall(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	reads := map[int]int64{}
	for _, kept := range []int{1_000, 30_000} {
		name := fmt.Sprint("news-", kept)
		alice.topic(name, pubSub, "a")
		alice.publish(name, kept)
		m := &member{userClients: alice, topic: name, group: "a", name: "m"}
		testkit.Equal(t, "taken", m.drain(), kept)
		alice.publish(name, 100)
		before := w.reads.Load()
		testkit.Equal(t, "taken at the end", m.drain(), 100)
		reads[kept] = w.reads.Load() - before
	}
	if reads[30_000] > 2*reads[1_000]+10 {
		t.Errorf("records read: %v", reads)
	}
}

// HQ-H03, HQ-H04: two members of one name are not both in a group; another one begins to
// receive when it comes.
func TestMembers(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub, "a")
	first := &member{userClients: alice, topic: "news", group: "a", name: "m"}
	first.pull(1, 0)
	_, err := alice.consumers.Pull(t.Context(), &topicv1.PullRequest{Topic: "news", Group: "a", Member: "m"})
	testkit.Equal(t, "code", connect.CodeOf(err), connect.CodeAlreadyExists)
	testkit.Equal(t, "reason", reason(err), "MEMBER_EXISTS")
	alice.publish("news", 10)
	testkit.Equal(t, "the first gets", messages(first.pull(4, 0)), 4)
	second := &member{userClients: alice, topic: "news", group: "a", name: "n"}
	testkit.Equal(t, "the second gets", messages(second.pull(10, 0)), 6)
}

// A poll that gets nothing because the group is stalled says so: the second message of a key waits for the
// first one, which its member extends.
func TestPollOfAStalledGroup(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub)
	alice.subscribe("news", "a", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY,
		Retry: &topicv1.RetryPolicy{Lease: durationpb.New(time.Second)}})
	m := &member{userClients: alice, topic: "news", group: "a", name: "m"}
	alice.publish("news", 2, "k")
	testkit.Equal(t, "messages of the key", messages(m.pull(10, time.Second)), 1)
	testkit.Eventually(t, "a poll says that the group is stalled", func() bool {
		_, err := alice.consumers.Extend(t.Context(), &topicv1.ExtendRequest{Session: m.session})
		must(t, err)
		res := m.pull(10, 0)
		testkit.Equal(t, "messages", messages(res), 0)
		stalls := res.GetStalls()
		return len(stalls) == 1 && stalls[0].GetReason() == topicv1.StallReason_STALL_REASON_KEYS_HELD
	})
}

// A stream that gets nothing because the group is stalled says so with the next heartbeat.
func TestStreamOfAStalledGroup(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub)
	alice.subscribe("news", "a", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY,
		Retry: &topicv1.RetryPolicy{Lease: durationpb.New(time.Second)}})
	alice.publish("news", 2, "k")
	stream, err := alice.consumers.Consume(t.Context(),
		&topicv1.ConsumeRequest{Attach: &topicv1.Attach{Topic: "news", Group: "a"}})
	must(t, err)
	defer stream.Close()
	must(t, stream.Err())
	testkit.Equal(t, "the first frame", stream.Receive(), true)
	session := stream.Msg().GetAttached().GetSession()
	stop := make(chan struct{})
	var working sync.WaitGroup
	defer working.Wait()
	defer close(stop)
	working.Go(func() { // the member works on the first message
		for tick := time.Tick(300 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick:
				if _, err := alice.consumers.Extend(t.Context(), &topicv1.ExtendRequest{Session: session}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for stream.Receive() {
		if a := stream.Msg().GetAlive(); a != nil {
			stalls := a.GetStalls()
			if len(stalls) != 1 || stalls[0].GetReason() != topicv1.StallReason_STALL_REASON_KEYS_HELD {
				t.Errorf("%v", stalls)
			}
			return
		}
	}
	t.Fatal(stream.Err())
}

// HQ-X4: a key whose hash is the smallest number has a member like any other, always the same.
func TestSmallestHash(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub)
	alice.subscribe("news", "a", &topicv1.SubscriptionConfig{Selection: topicv1.Selection_SELECTION_HASH})
	members := []*member{}
	for _, name := range []string{"k", "l", "m"} {
		m := &member{userClients: alice, topic: "news", group: "a", name: name}
		m.pull(1, 0)
		members = append(members, m)
	}
	alice.publish("news", 10, "polygenelubricants")
	var got []int
	for _, m := range members {
		got = append(got, messages(m.pull(100, 0)))
	}
	if n := got[0] + got[1] + got[2]; n != 10 || max(got[0], got[1], got[2]) != 10 {
		t.Errorf("messages by member: %v", got)
	}
}

// HQ-X5, HQ-H02: the last member of a group may leave. A group without members loses
// nothing; what the filters of all its members reject counts as processed, and only then.
func TestNoMembers(t *testing.T) {
	t.Parallel()
	alice := newFixture(t).as("alice")
	alice.topic("news", pubSub, "a")
	last := &member{userClients: alice, topic: "news", group: "a", name: "last"}
	last.pull(1, 0)
	alice.publish("news", 10)
	testkit.Equal(t, "taken by the last", messages(last.pull(4, 0)), 4)
	_, err := alice.consumers.Detach(t.Context(), &topicv1.DetachRequest{Session: last.session})
	must(t, err)
	see := func() *topicv1.Subscription {
		res, err := alice.subscriptions.GetSubscription(t.Context(),
			&topicv1.GetSubscriptionRequest{Topic: "news", Group: "a"})
		must(t, err)
		return res.GetSubscription()
	}
	if s := see(); s.GetState() != topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE || s.GetFiltered() != 0 ||
		s.GetProcessed() != 0 || s.GetPartitions()[0].GetPending() != 10 || s.GetPartitions()[0].GetInFlight() != 0 {
		t.Errorf("without members: %v", s)
	}
	res, err := alice.consumers.Pull(t.Context(), &topicv1.PullRequest{Topic: "news", Group: "a", Member: "m",
		Filter: &topicv1.Filter{Clauses: []*topicv1.FilterClause{{Operator: topicv1.FilterClause_OPERATOR_IN,
			Values: []string{"urgent"}}}}})
	must(t, err)
	testkit.Equal(t, "delivered", messages(res), 0)
	testkit.Eventually(t, "all to count as processed", func() bool {
		s := see()
		return s.GetFiltered() == 10 && s.GetProcessed() == 10 && s.GetPartitions()[0].GetPending() == 0
	})
}
