package topicstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/topic"
)

var operator = topic.Caller{Principal: "operator", Operator: true}

// service is a Service with its log, of which several may be one after the other.
type service struct {
	*topic.Service
	log *topicstore.Log
	run chan error
	end context.CancelFunc
}

func serve(t *testing.T, b *kafkatest.Broker, disk *embeddedtest.Disk) (s *service, stop func()) {
	t.Helper()
	engine := disk.Open(t, time.Now)
	s = &service{log: open(t, b, 0, time.Now), run: make(chan error, 1)}
	var err error
	s.Service, err = topic.New(t.Context(), topic.Config{
		Store: engine, Log: s.log, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Resident: 1 << 20,
		Audit: func(context.Context, string, string, string) (func(string, string), error) {
			return func(string, string) {}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	go func() { s.run <- s.Run(ctx, func() {}) }()
	return s, func() {
		s.end()
		if err := <-s.run; err != nil {
			t.Error(err)
		}
		s.log.Close()
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (s *service) publish(t *testing.T, name string, from, n int) {
	t.Helper()
	for i := range n {
		_, err := s.Publish(t.Context(), operator, &topicv1.PublishRequest{Topic: name,
			Messages: []*topicv1.TopicMessage{{Payload: fmt.Append(nil, from+i)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// consume acknowledges n messages of a group.
func (s *service) consume(t *testing.T, name, group string, n int) {
	t.Helper()
	x, err := s.Attach(t.Context(), operator, &topicv1.Attach{Topic: name, Group: group, Member: "m"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for n > 0 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		e, err := x.Receive(ctx, 1000)
		cancel()
		if err != nil || e.Gone != "" {
			t.Fatalf("%d are missing: %v %s", n, err, e.Gone)
		}
		for _, d := range e.Deliveries {
			if n == 0 {
				break
			}
			set := &topicv1.AckSet{}
			for i := range min(d.Count, n) {
				at := d.Base + int64(i)
				if d.Offsets != nil {
					at = d.Base + int64(d.Offsets[i])
				}
				set.Positions = append(set.Positions, &topicv1.Positions{Partition: d.Partition, Base: at})
			}
			if refused, err := x.Ack(t.Context(), set); err != nil || len(refused) > 0 {
				t.Fatal(err, refused)
			}
			n -= len(set.GetPositions())
		}
	}
	if err := x.Detach(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

func (s *service) pending(t *testing.T, name, group string) (n int64) {
	t.Helper()
	sub, err := s.Subscription(t.Context(), operator, name, group)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range sub.GetPartitions() {
		n += p.GetPending()
	}
	return n
}

// Ends of transactions are positions without messages. They keep no group behind, not where
// a new owner finds them at the end of the log either, and nobody reads the log because of
// them.
func TestServiceOnKafka(t *testing.T) {
	b, c := kafkatest.Fake(t)
	disk := embeddedtest.NewDisk(nil)
	s, stop := serve(t, b, disk)
	name := b.Name("orders")
	_, err := s.Configure(t.Context(), operator, &topicv1.ConfigureTopicRequest{Topic: name,
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"a", "b"} {
		if _, err := s.CreateSubscription(t.Context(), operator,
			&topicv1.CreateSubscriptionRequest{Topic: name, Group: group}); err != nil {
			t.Fatal(err)
		}
	}
	var fetches atomic.Int64
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		fetches.Add(1)
		return nil, nil, false
	})
	const n = 30
	s.publish(t, name, 0, n)
	s.consume(t, name, "a", n)
	if got := s.pending(t, name, "a"); got != 0 {
		t.Errorf("%d messages are pending", got)
	}
	if got := fetches.Load(); got > 2 {
		t.Errorf("%d reads of the log for %d publishes", got, n)
	}
	s.consume(t, name, "b", n-5)
	stop()

	s, stop = serve(t, b, disk)
	if got := s.pending(t, name, "a"); got != 0 {
		t.Errorf("%d messages are pending for a new owner", got)
	}
	if got := s.pending(t, name, "b"); got < 5 || got > 10 { // with the ends of five transactions
		t.Errorf("%d messages are pending for a new owner", got)
	}
	s.consume(t, name, "b", 5)
	s.publish(t, name, n, 3)
	s.consume(t, name, "a", 3)
	s.consume(t, name, "b", 3)
	for _, group := range []string{"a", "b"} {
		testkit.Eventually(t, "nothing is pending", func() bool { return s.pending(t, name, group) == 0 })
	}
	stop()
}

// A topic in Kafka is browsed and purged like any other: a purge ends at any message, takes what members have,
// removes records from Kafka, and holds for a new owner. Its ends of transactions are no messages.
func TestBrowseAndPurgeOnKafka(t *testing.T) { each(t, testBrowseAndPurge) }

func testBrowseAndPurge(t *testing.T, b *kafkatest.Broker) {
	if err := open(t, b, 0, time.Now).Delete(t.Context(), 1); err != nil { // what an earlier test has left
		t.Fatal(err)
	}
	disk := embeddedtest.NewDisk(nil)
	s, stop := serve(t, b, disk)
	defer func() { stop() }()
	_, err := s.Configure(t.Context(), operator, &topicv1.ConfigureTopicRequest{Topic: "orders",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	testkit.Must(t, err)
	_, err = s.CreateSubscription(t.Context(), operator, &topicv1.CreateSubscriptionRequest{Topic: "orders", Group: "g"})
	testkit.Must(t, err)
	s.publish(t, "orders", 0, 10)
	s.consume(t, "orders", "g", 2)
	all := s.browse(t, "orders", 3)
	if len(all) != 10 {
		t.Fatalf("%d messages", len(all))
	}
	for i, m := range all {
		got, err := s.Message(t.Context(), operator, "orders", m.GetMessageId())
		testkit.Must(t, err)
		if !proto.Equal(got, m) || string(got.GetMessage().GetPayload()) != fmt.Sprint(i) ||
			got.GetMessage().GetPublishTime() == nil {
			t.Errorf("%d is %v, and %v in a page", i, got, m)
		}
	}
	member, err := s.Attach(t.Context(), operator, &topicv1.Attach{Topic: "orders", Group: "g", Member: "m"}, false)
	testkit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = member.Receive(ctx, 5)
	testkit.Must(t, err)
	purge := &topicv1.PurgeMessagesRequest{Topic: "orders",
		Before: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: all[7].GetMessageId()}}}
	did, err := s.Purge(t.Context(), operator, purge)
	testkit.Must(t, err)
	lost := did.GetGroups()[0].GetMessages()
	if lost < 5 || lost > 12 || did.GetPurges()[0].GetTo() != all[7].GetPosition() { // with the ends of transactions
		t.Errorf("it did %v", did)
	}
	did, err = s.Purge(t.Context(), operator, purge)
	testkit.Must(t, err)
	if did.GetGroupCount() != 0 || did.GetPurges()[0].GetFrom() != all[7].GetPosition() {
		t.Errorf("again it did %v", did)
	}
	starts, err := kadm.NewClient(b.Client(t)).ListStartOffsets(t.Context(), "parley.t.orders")
	testkit.Must(t, err)
	if o, _ := starts.Lookup("parley.t.orders", 0); o.Offset != all[7].GetPosition() {
		t.Errorf("Kafka has it from %d on", o.Offset)
	}
	testkit.Must(t, member.Detach(t.Context(), false))
	stop()
	s, stop = serve(t, b, disk)
	if left := s.browse(t, "orders", 100); len(left) != 3 || left[0].GetMessageId() != all[7].GetMessageId() {
		t.Errorf("a new owner has %v", left)
	}
	sub, err := s.Subscription(t.Context(), operator, "orders", "g")
	testkit.Must(t, err)
	testkit.Equal(t, "forced", sub.GetReleased().GetForced(), lost)
	testkit.Equal(t, "removed before", sub.GetReleased().GetRetention(), 0)
	s.consume(t, "orders", "g", 3)
	testkit.Eventually(t, "nothing is pending", func() bool { return s.pending(t, "orders", "g") == 0 })
}

// browse returns what a topic has, page by page.
func (s *service) browse(t *testing.T, name string, page int32) (list []*topicv1.StoredMessage) {
	t.Helper()
	r := &topicv1.BrowseMessagesRequest{Topic: name, MaxMessages: page}
	for {
		p, err := s.Browse(t.Context(), operator, r)
		testkit.Must(t, err)
		list = append(list, p.GetMessages()...)
		if r.PageToken = p.GetNextPageToken(); r.GetPageToken() == "" {
			return list
		}
	}
}

// How far groups have come is seen in offsets of Kafka's, where the usual tools look; that
// consumers use the same name is no error.
func TestOffsetsAreSeenInKafka(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	s, stop := serve(t, b, embeddedtest.NewDisk(nil))
	defer stop()
	if _, err := s.Configure(t.Context(), operator, &topicv1.ConfigureTopicRequest{Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	s.publish(t, "orders", 0, 3)
	s.consume(t, "orders", "$queue", 3)
	admin := kadm.NewClient(b.Client(t))
	testkit.Eventually(t, "the offset is there", func() bool {
		all, err := admin.FetchOffsets(t.Context(), topicstore.Group("orders", "$queue"))
		if err != nil {
			return false
		}
		ends, err := admin.ListCommittedOffsets(t.Context(), "parley.t.orders")
		if err != nil {
			return false
		}
		at, ok := all.Lookup("parley.t.orders", 0)
		end, _ := ends.Lookup("parley.t.orders", 0)
		return ok && at.At == end.Offset // no lag
	})
}

// What producers of Kafka write into a shared topic is delivered like what is published, and
// whoever reads Kafka sees what is published as records.
func TestSharedTopic(t *testing.T) { each(t, testSharedTopic) }

func testSharedTopic(t *testing.T, b *kafkatest.Broker) {
	if err := open(t, b, 0, time.Now).Delete(t.Context(), 1); err != nil { // what an earlier test has left
		t.Fatal(err)
	}
	s, stop := serve(t, b, embeddedtest.NewDisk(nil))
	defer stop()
	_, err := s.Configure(t.Context(), operator, &topicv1.ConfigureTopicRequest{Topic: "orders",
		Config: &topicv1.TopicConfig{Source: topicv1.Source_SOURCE_SHARED}})
	if err != nil {
		t.Fatal(err)
	}
	s.publish(t, "orders", 0, 1) // which makes it
	from := map[string]map[int32]kgo.Offset{"parley.t.orders": {0: kgo.NewOffset().AtStart()}}
	c := b.Client(t, kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for n := range 5 {
		r := &kgo.Record{Topic: "parley.t.orders", Key: []byte("k"), Value: fmt.Append(nil, "foreign ", n),
			Headers: []kgo.RecordHeader{{Key: "parley-type", Value: []byte("made")}, {Key: "a", Value: []byte{0xff}}}}
		if err := c.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		s.publish(t, "orders", 1+n, 1)
	}
	s.consume(t, "orders", "$queue", 11)
	r := &kgo.Record{Topic: "parley.t.orders", Value: []byte("the last")}
	if err := c.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	s.consume(t, "orders", "$queue", 1) // though nothing is published any more
	if got := s.pending(t, "orders", "$queue"); got != 0 {
		t.Errorf("%d messages are pending", got)
	}
	_, err = s.Publish(t.Context(), operator, &topicv1.PublishRequest{Topic: "orders", Messages: []*topicv1.TopicMessage{
		{Key: "key", Type: "type", CorrelationId: "id", Headers: map[string]string{"h": "v"}, Payload: []byte("payload")}}})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 13 {
		c.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			seen = append(seen, fmt.Sprintf("%s %s %s", r.Key, r.Value, r.Headers))
		})
	}
	if want := "key payload [{parley-type type} {parley-correlation-id id} {h v}]"; seen[12] != want {
		t.Errorf("the last record is %q, want %q", seen[12], want)
	}
}

// fails nacks the next message of a group.
func (s *service) fails(t *testing.T, name, group, want string) {
	t.Helper()
	x, err := s.Attach(t.Context(), operator, &topicv1.Attach{Topic: name, Group: group, Member: "m"}, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := x.Receive(ctx, 1)
	if err != nil || len(e.Deliveries) != 1 {
		t.Fatal(e, err)
	}
	d := e.Deliveries[0]
	var got topicv1.Delivery
	if err := proto.Unmarshal(bytes.Join(d.Pieces, nil), &got); err != nil || len(got.GetMessages()) != 1 ||
		string(got.GetMessages()[0].GetPayload()) != want {
		t.Fatalf("%v (%v), not %s", &got, err, want)
	}
	_, err = x.Nack(t.Context(), &topicv1.NackSet{Positions: []*topicv1.Positions{{Partition: d.Partition, Base: d.Base}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Detach(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

func (s *service) deadLetters(t *testing.T) (list []topic.DeadLetter) {
	t.Helper()
	all, first := topic.DeadLetterSelection{}, topic.DeadLetterPosition{}
	err := s.DeadLetters().Scan(t.Context(), all, first, func(l topic.DeadLetter) error {
		list = append(list, l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A dead letter that goes back is for its group alone, also for an owner that has to read it
// from Kafka; what becomes of it then knows when it failed first.
func TestRedriveOnKafka(t *testing.T) { each(t, testRedriveOnKafka) }

func testRedriveOnKafka(t *testing.T, b *kafkatest.Broker) {
	disk := embeddedtest.NewDisk(nil)
	for number := uint64(1); number <= 3; number++ { // what an earlier test has left
		if err := open(t, b, 0, time.Now).Delete(t.Context(), number); err != nil {
			t.Fatal(err)
		}
	}
	s, stop := serve(t, b, disk)
	_, err := s.Configure(t.Context(), operator, &topicv1.ConfigureTopicRequest{Topic: "orders",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"fails", "other"} {
		if _, err := s.CreateSubscription(t.Context(), operator, &topicv1.CreateSubscriptionRequest{Topic: "orders",
			Group: group, Config: &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	s.publish(t, "orders", 0, 1)
	s.consume(t, "orders", "other", 1)
	s.fails(t, "orders", "fails", "0")
	testkit.Eventually(t, "the letter is there", func() bool { return len(s.deadLetters(t)) == 1 })
	l := s.deadLetters(t)[0]
	for range 2 { // as after a crash
		if err := s.DeadLetters().Redrive(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	s.publish(t, "orders", 1, 1)
	stop()

	s, stop = serve(t, b, disk)
	defer stop()
	s.fails(t, "orders", "fails", "0")
	testkit.Eventually(t, "its next letter is there", func() bool { return len(s.deadLetters(t)) == 2 })
	if again := s.deadLetters(t)[1]; !again.First.Equal(l.First) {
		t.Errorf("it failed first at %v, not %v", again.First, l.First)
	}
	s.fails(t, "orders", "other", "1") // and not what was for the other group
	s.consume(t, "orders", "fails", 1)
	for _, group := range []string{"fails", "other"} {
		testkit.Eventually(t, "nothing is pending", func() bool { return s.pending(t, "orders", group) == 0 })
	}
}

// A service whose log another one has opened ends by itself.
func TestServiceEndsWithItsLog(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	s, _ := serve(t, b, embeddedtest.NewDisk(nil))
	next := open(t, b, 0, time.Now)
	if _, err := s.Configure(t.Context(), operator, &topicv1.ConfigureTopicRequest{Topic: "orders"}); err != nil {
		t.Fatal(err) // a row; the log is made with the first use
	}
	_, err := s.Publish(t.Context(), operator, &topicv1.PublishRequest{Topic: "orders",
		Messages: []*topicv1.TopicMessage{{}}})
	if err == nil {
		t.Error("it publishes")
	}
	if err := <-s.run; !errors.Is(err, topic.ErrFenced) {
		t.Errorf("it ends with %v", err)
	}
	select {
	case <-next.Fenced():
		t.Error("the later owner is fenced")
	default:
	}
}
