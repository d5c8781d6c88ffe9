package topicrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

func TestMain(m *testing.M) {
	testkit.Waiting()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { client.CloseIdleConnections() }))
}

// reason is the reason of an error, and whether it says when to try again.
func reason(err error) (why string, retry bool) {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return fmt.Sprint(err), false
	}
	for _, d := range ce.Details() {
		switch v, _ := d.Value(); v := v.(type) {
		case *errdetails.ErrorInfo:
			why = v.GetReason()
		case *errdetails.RetryInfo:
			retry = true
		}
	}
	return why, retry
}

// Whichever server a client comes to, it finds its topic: every call, in both formats, with
// its caller, its answer and its error, is what it would be at the owner.
func TestAnyServerTakesAnyClient(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	one := w.start("one")
	two := w.start("two")
	w.spread(one, two)
	ctx := t.Context()
	for _, owner := range []*server{one, two} {
		for i, through := range []*server{one, two} {
			name := w.named(owner, fmt.Sprintf("%s-%d-", owner.Name, i))
			w.make(through, name, "g")
			for _, o := range [][]connect.ClientOption{nil, {connect.WithProtoJSON()}, {connect.WithGRPC()}} {
				got, err := through.topics("maker", o...).GetTopic(ctx, &topicv1.GetTopicRequest{Topic: name})
				testkit.Must(t, err)
				testkit.Equal(t, "name", got.GetTopic().GetName(), name)
				testkit.Equal(t, "partitions", len(got.GetTopic().GetPartitions()), 1)
			}
			_, err := through.topics("stranger").GetTopic(ctx, &topicv1.GetTopicRequest{Topic: name})
			if why, _ := reason(err); connect.CodeOf(err) != connect.CodePermissionDenied || why != "TOPIC_FORBIDDEN" {
				t.Errorf("a stranger: %v, %s", err, why)
			}
			_, err = through.topics("maker").Publish(ctx, &topicv1.PublishRequest{Topic: name})
			if why, _ := reason(err); why != "INVALID_ARGUMENT" {
				t.Errorf("a publish of nothing: %v", err)
			}
			published, err := publish(ctx, through, name, "hello", nil)
			testkit.Must(t, err)
			id := published.GetResults()[0].GetMessageId()
			stored, err := through.topics("maker").GetMessage(ctx, &topicv1.GetMessageRequest{Topic: name, MessageId: id})
			testkit.Must(t, err)
			testkit.Equal(t, "message", stored.GetMessage().GetMessageId(), id)
			page, err := through.topics("maker").BrowseMessages(ctx, &topicv1.BrowseMessagesRequest{Topic: name})
			testkit.Must(t, err)
			testkit.Equal(t, "messages", len(page.GetMessages()), 1)
			w.poll(through, name, id)
			purged, err := through.topics("maker").PurgeMessages(ctx, &topicv1.PurgeMessagesRequest{Topic: name,
				Before: &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}})
			testkit.Must(t, err)
			testkit.Equal(t, "purged to", purged.GetPurges()[0].GetTo(), 1)
			_, err = through.topics("maker").GetMessage(ctx, &topicv1.GetMessageRequest{Topic: name, MessageId: id})
			if why, _ := reason(err); why != "MESSAGE_NOT_FOUND" {
				t.Errorf("a message that was purged: %v", err)
			}
		}
	}
	for _, id := range []string{"1-1-NOBODY", "nonsense", "99-1-X"} {
		_, err := one.consumers("maker").Ack(ctx, &topicv1.AckRequest{Session: id, Set: &topicv1.AckSet{
			Positions: []*topicv1.Positions{{Base: 1}}}})
		if why, _ := reason(err); why != "SESSION_GONE" {
			t.Errorf("session %s: %v", id, err)
		}
	}
}

// poll reads and acknowledges a message with calls, of which each may be made anywhere.
func (w *fixture) poll(through *server, name, id string) {
	w.t.Helper()
	ctx := w.t.Context()
	pulled, err := through.consumers("maker").Pull(ctx, &topicv1.PullRequest{Topic: name, Group: "g",
		Wait: durationpb.New(5 * time.Second)})
	testkit.Must(w.t, err)
	d := pulled.GetDeliveries()
	if len(d) != 1 || string(d[0].GetMessages()[0].GetPayload()) != "hello" {
		w.t.Fatalf("pulled %v", pulled)
	}
	_, err = w.servers["two"].consumers("other").Ack(ctx, &topicv1.AckRequest{Session: pulled.GetSession(),
		Set: &topicv1.AckSet{Positions: []*topicv1.Positions{{Base: d[0].GetBase()}}}})
	if why, _ := reason(err); why != "SESSION_GONE" {
		w.t.Errorf("another user's session: %v", err)
	}
	_, err = w.servers["one"].consumers("maker").Ack(ctx, &topicv1.AckRequest{Session: pulled.GetSession(),
		Set: &topicv1.AckSet{Positions: []*topicv1.Positions{{Base: d[0].GetBase()}}}})
	testkit.Must(w.t, err)
	status, err := w.servers["two"].topics("maker").GetMessageStatus(ctx,
		&topicv1.GetMessageStatusRequest{Topic: name, MessageId: id})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "status", status.GetStatus(), topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED)
}

// A list has the topics of all slots, in order, over as many pages as it takes, and only those
// that the caller may see.
func TestListsAreMerged(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	one, two := w.start("one"), w.start("two")
	w.spread(one, two)
	var want []string
	for i := range 23 {
		name := fmt.Sprintf("topic-%02d", i)
		want = append(want, name)
		w.make(one, name, "g")
	}
	for _, through := range []*server{one, two} {
		for _, size := range []int32{5, 23, 100} {
			var got []string
			req := &topicv1.ListTopicsRequest{PageSize: size}
			for {
				page, err := through.topics("maker").ListTopics(t.Context(), req)
				testkit.Must(t, err)
				for _, of := range page.GetTopics() {
					got = append(got, of.GetName())
				}
				if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
					break
				}
				testkit.Equal(t, "topics on a full page", len(page.GetTopics()), int(size))
			}
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d through %s: %v", size, through.Name, got)
			}
		}
	}
	page, err := two.topics("stranger").ListTopics(t.Context(), &topicv1.ListTopicsRequest{})
	testkit.Must(t, err)
	testkit.Equal(t, "topics of a stranger", len(page.GetTopics()), 0)
}

// Streams pass in both directions, also as JSON; they end as at the owner, when the client has
// sent all, and with the reason when either server goes down.
func TestStreamsPass(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	one, two := w.start("one"), w.start("two")
	w.spread(one, two)
	name := w.named(two, "streamed-")
	w.make(one, name, "g")
	for _, o := range [][]connect.ClientOption{nil, {connect.WithProtoJSON()}, {connect.WithGRPC()}} {
		stream, err := one.consumers("maker", o...).ConsumeBidi(t.Context())
		testkit.Must(t, err)
		testkit.Must(t, stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{
			Attach: &topicv1.Attach{Topic: name, Group: "g"}}}))
		first, err := stream.Receive()
		testkit.Must(t, err)
		if first.GetAttached().GetSession() == "" {
			t.Fatalf("the first response is %v", first)
		}
		_, err = publish(t.Context(), two, name, "hello", nil)
		testkit.Must(t, err)
		d, err := stream.Receive()
		testkit.Must(t, err)
		if got := d.GetDelivery().GetMessages(); len(got) != 1 || string(got[0].GetPayload()) != "hello" {
			t.Fatalf("received %v", d)
		}
		testkit.Must(t, stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{
			Positions: []*topicv1.Positions{{Base: d.GetDelivery().GetBase()}}}}}))
		settled, err := stream.Receive()
		testkit.Must(t, err)
		testkit.Equal(t, "requests settled", settled.GetSettled().GetRequests(), int64(2))
		testkit.Must(t, stream.CloseRequest())
		if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
			t.Errorf("the end of a stream: %v", err)
		}
	}
	_, err := refused(one, "stranger", name)
	if why, _ := reason(err); why != "TOPIC_FORBIDDEN" {
		t.Errorf("a stranger's stream: %v", err)
	}
	for _, down := range []*server{one, two} {
		stream, err := one.consumers("maker").Consume(t.Context(), &topicv1.ConsumeRequest{
			Attach: &topicv1.Attach{Topic: name, Group: "g"}})
		testkit.Must(t, err)
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		down.streams.Drain()
		gone := ""
		for stream.Receive() {
			gone = stream.Msg().GetGone().GetReason()
		}
		why, retry := reason(stream.Err())
		if gone != "DRAINING" || why != "DRAINING" || !retry {
			t.Errorf("%s goes down: %q, %v", down.Name, gone, stream.Err())
		}
		testkit.Must(t, stream.Close())
		if down == one { // takes no further stream; the other one does
			one = w.start("three")
			w.spread(w.servers["one"], two, one)
			name = w.named(two, "again-")
			w.make(one, name, "g")
		}
	}
}

func refused(s *server, who, name string) (bool, error) {
	stream, err := s.consumers(who).Consume(context.Background(), &topicv1.ConsumeRequest{
		Attach: &topicv1.Attach{Topic: name, Group: "g"}})
	if err != nil {
		return false, err
	}
	got := stream.Receive()
	return got, errors.Join(stream.Err(), stream.Close())
}

// The server refuses a call at its address for servers that no other server has forwarded.
func TestRelayedCallsAreForServers(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	one := w.start("one")
	for name, headers := range map[string]map[string]string{
		"nothing": {}, "no caller": {"Parley-Slot": "1"}, "no such slot": {"Parley-Caller": "e30", "Parley-Slot": "-1"},
		"no JSON": {"Parley-Caller": "xxxx", "Parley-Slot": "1"}, "a user": {"User": "maker"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+one.others+"/parley.topic.v1.TopicService/ListTopics", strings.NewReader("{}"))
		testkit.Must(t, err)
		r.Header.Set("Content-Type", "application/json")
		for k, v := range headers {
			r.Header.Set(k, v)
		}
		res, err := client.Do(r)
		testkit.Must(t, err)
		testkit.Must(t, res.Body.Close())
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: answered with %d", name, res.StatusCode)
		}
	}
}

// Servers start and go down, in order and like a machine that is gone, while clients publish
// and consume through those that are left. What was answered for comes, publishes of a
// producer are stored once, and clients learn when to try again.
func TestChurn(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.TTL = 600 * time.Millisecond // a slot that is lost for it is one more that changes hands
	entry := w.start("entry")      // has slots, too, and stays
	testkit.Eventually(t, "a first server", func() bool { return len(entry.Services()) == slots })
	var names []string
	for slot := range slots {
		for i := 0; len(names) == slot; i++ {
			name := fmt.Sprintf("churn-%d-%d", slot, i)
			if w.slotOf(name) == slot {
				names = append(names, name)
				w.make(entry, name, "g")
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	all := make([]*load, len(names))
	for i, name := range names {
		all[i] = &load{server: entry, topic: name, received: map[string]int{}, stored: map[int64]bool{}}
		wg.Go(func() { all[i].publish(ctx) })
		wg.Go(func() { all[i].consume(ctx) })
	}
	for round := range 3 {
		other := w.start(fmt.Sprint("other-", round))
		testkit.Eventually(t, "the other has slots", func() bool { return len(other.Services()) > 0 })
		time.Sleep(300 * time.Millisecond)
		if round == 1 {
			other.Gate.Set(true) // hangs: it can neither store nor stop
			other.cut()
			testkit.Eventually(t, "the slots are taken", func() bool { return len(entry.Services()) == slots })
			other.Gate.Set(false)
		}
		other.Stop()
		testkit.Eventually(t, "all is back", func() bool { return len(entry.Services()) == slots })
	}
	testkit.Eventually(t, "ten messages of each topic", func() bool {
		return !slices.ContainsFunc(all, func(l *load) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.published < 10
		})
	})
	cancel()
	wg.Wait()
	rest, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	for _, l := range all {
		l.drain(rest)
		l.mu.Lock()
		for n := range l.published {
			if payload := fmt.Sprint(n); l.received[payload] == 0 {
				t.Errorf("%s: %s was published and did not come", l.topic, payload)
			}
		}
		if len(l.stored) != l.published {
			t.Errorf("%s: %d messages were published and stand at %d positions", l.topic, l.published, len(l.stored))
		}
		l.mu.Unlock()
	}
}
