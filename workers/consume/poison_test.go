package consume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/registry"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// The kinds of records that a consumer of events cannot process: six that are malformed, and
// two on which the handler fails.
var poisons = []string{"text", "foreign schema", "foreign message", "cut off", "invalid", "foreign key", "panic",
	"failure"}

type poisoner struct {
	t     testing.TB
	serde *event.Serde
	ids   map[string]int
}

func newPoisoner(t testing.TB, r *fixture) *poisoner {
	t.Helper()
	ids, err := registry.New(r.store).Events(t.Context())
	testkit.Must(t, err)
	serde, err := event.NewSerde(ids, nil)
	testkit.Must(t, err)
	return &poisoner{t, serde, ids}
}

// record makes the n-th message of a chat, or a record of a kind in poisons.
func (p *poisoner) record(chatID string, n int64, kind string) *kafka.Record {
	p.t.Helper()
	at := time.UnixMilli(1_700_000_000_000 + n)
	e := &eventv1.MessagePersisted{
		Metadata: event.Metadata{
			Type: event.TypeMessagePersisted, ID: fmt.Sprint("evt_", n), ChatID: chatID, At: at,
			Origin: event.Origin{Generation: "g", Producer: "p"},
			Cause:  event.Cause{Actor: "user_1"}.Complete("evt_1"), Version: n, MembershipVersion: 1,
		}.Proto(),
		ChatId: chatID, MessageId: fmt.Sprint("msg_", n), Sequence: n, SenderId: "user_1", Content: "hello",
		ClientMessageId: "c",
		ContentType:     eventv1.ContentType_CONTENT_TYPE_TEXT, CreatedAt: timestamppb.New(at),
	}
	key := chatID
	switch kind {
	case "invalid":
		e.Sequence = 0
	case "foreign key":
		key = "chat_other"
	case "panic", "failure":
		e.Content = kind
	}
	value, err := p.serde.Encode(e)
	testkit.Must(p.t, err)
	switch kind {
	case "text":
		value = []byte(`{"chat_id":"` + chatID + `"}`)
	case "foreign schema":
		value[1] = 0x7f
	case "foreign message":
		value[5] = 2 // an index of one, which is a nested message
	case "cut off":
		value = value[:len(value)-5]
	}
	return &kafka.Record{
		Topic:     kafka.MessagesPersisted,
		Partition: int32(event.Partition(chatID, int(kafka.Partitions(kafka.MessagesPersisted)))),
		Key:       []byte(key), Value: value,
		Headers: []kafka.Header{{Key: "n", Value: []byte(fmt.Sprint(n))}, {Key: "n", Value: nil}},
	}
}

type position struct {
	partition int32
	offset    int64
}

// One in a hundred records cannot be processed. Exactly these become dead letters, byte for
// byte. Everything else is handled once, and in order within a chat. A partition pauses for a
// failed record as often as it is retried, and no more (K-116…K-118, K-123, K-127, K-130,
// K-144…K-148, EV33, EV35).
// PARLEY_RECORDS sets the number of records, or the time for them.
func TestPoison(t *testing.T) { both(t, each, testPoison) }

func testPoison(t *testing.T, r *fixture) {
	const round = 4000 // records that are published together
	var mark kafkatest.Mark
	if r.log == nil {
		mark = r.broker.Mark(t, kafka.DeadLetters)
	}
	p := newPoisoner(t, r)
	const chats = 300
	var records []*kafka.Record
	wrong := map[*kafka.Record]string{}
	publish := func() {
		for range round {
			kind := ""
			i := len(records)
			if i%100 == 42 {
				kind = poisons[i/100%len(poisons)]
			}
			rec := p.record(fmt.Sprintf("chat_%d", i%chats), int64(i/chats)+1, kind)
			records = append(records, rec)
			if kind != "" {
				wrong[rec] = kind
			}
		}
		r.publishRecords(records[len(records)-round:]) // which fills in their offsets
	}
	var mu sync.Mutex
	handled := map[position]int{}
	last := map[string]int64{} // version by chat
	latest := map[int32]time.Time{}
	var longest time.Duration
	e := r.engine(func(c *Config) {
		c.Topics = []string{kafka.MessagesPersisted}
		c.WriteDeadLetter = r.deadLetters()
		check := func(rec *kafka.Record) (event.Event, error) {
			e, err := p.serde.Decode(context.Background(), rec.Key, rec.Value)
			if err != nil {
				return nil, Fail(Permanent, err.Error(), err)
			}
			switch e.(*eventv1.MessagePersisted).GetContent() {
			case "panic":
				panic("as planned")
			case "failure":
				return nil, errors.New("as planned")
			}
			return e, nil
		}
		note := func(rec *kafka.Record, e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			handled[position{rec.Partition, rec.Offset}]++
			if v := e.GetMetadata().GetVersion(); v <= last[e.GetChatId()] {
				t.Errorf("%s: version %d after %d, expected rising versions", e.GetChatId(), v, last[e.GetChatId()])
			} else {
				last[e.GetChatId()] = v
			}
			now := time.Now()
			if at, ok := latest[rec.Partition]; ok {
				longest = max(longest, now.Sub(at))
			}
			latest[rec.Partition] = now
		}
		c.Handle = func(_ context.Context, rec *kafka.Record) error {
			e, err := check(rec)
			if err == nil {
				note(rec, e)
			}
			return err
		}
		if !r.batch {
			return
		}
		c.Handle, c.Batch = nil, func(_ context.Context, records []*kafka.Record) (n int, err error) {
			var events []event.Event
			for _, rec := range records {
				e, failed := check(rec)
				if err = failed; err != nil {
					break
				}
				events = append(events, e)
			}
			for i, e := range events {
				note(records[i], e)
			}
			return len(events), err
		}
	})
	stop := func() {}
	defer func() { stop() }()
	for n := range testkit.NewBudget(t, "PARLEY_RECORDS", 1, round).Rounds() {
		if publish(); n == 0 { // the first records are there before the engine
			stop = r.run(e)
		}
		r.await("all records", func() bool {
			s := e.Stats()
			return s.Handled+s.DeadLettered == int64(len(records))
		})
	}
	stop()
	dead := map[position]*kafka.Record{}
	failing := 0
	for rec, kind := range wrong {
		dead[position{rec.Partition, rec.Offset}] = rec
		if kind == "panic" || kind == "failure" {
			failing++
		}
	}
	if len(dead) != len(records)/100 {
		t.Fatalf("%d records cannot be processed, expected %d", len(dead), len(records)/100)
	}
	for _, rec := range records {
		at := position{rec.Partition, rec.Offset}
		want := 1
		if wrong[rec] != "" {
			want = 0
		}
		if handled[at] != want {
			t.Fatalf("%+v was handled %d times, expected %d", at, handled[at], want)
		}
	}
	if s := e.Stats(); s.Pauses > int64(failing*2) || s.Skipped != 0 { // a pause between three attempts
		t.Errorf("%d pauses, expected up to 2 for each of %d failed records; %d skipped, expected 0", s.Pauses, failing,
			s.Skipped)
	}
	r.checkDeadLetters(mark, dead, func(at position) int32 {
		if kind := wrong[dead[at]]; kind == "panic" || kind == "failure" {
			return 3
		}
		return 1
	})
	t.Logf("%d records, %d dead letters; the longest time between two records of a partition was %s", len(records), len(dead),
		longest.Round(time.Millisecond))
}

// checkDeadLetters reads the topic of dead letters and fails unless it has one for each record,
// with the record's bytes, in the partition of its key.
func (r *fixture) checkDeadLetters(
	from kafkatest.Mark, want map[position]*kafka.Record, attempts func(position) int32,
) {
	r.t.Helper()
	seen := map[position]bool{}
	r.readDeadLetters(from, func(rec *kafka.Record) bool {
		var m eventv1.DeadLetter
		testkit.Must(r.t, proto.Unmarshal(rec.Value[6:], &m))
		md, old := m.GetDlqMetadata(), m.GetOriginalRecord()
		if md.GetConsumerGroup() != r.group { // another test's
			return false
		}
		at := position{md.GetOriginalPartition(), md.GetOriginalOffset()}
		orig := want[at]
		if orig == nil || seen[at] {
			r.t.Fatalf("a dead letter of %+v, expected none or only one", at)
		}
		seen[at] = true
		if !bytes.Equal(old.GetKey(), orig.Key) || !bytes.Equal(old.GetValue(), orig.Value) ||
			len(old.GetHeaders()) != len(orig.Headers) {
			r.t.Errorf("%+v: the dead letter differs from the record", at)
		}
		id := fmt.Sprintf("%s/%s/%d/%d", r.group, orig.Topic, at.partition, at.offset)
		if class, _, _ := strings.Cut(md.GetFailureReason(), ":"); md.GetDeadLetterId() != id ||
			md.GetFailureClass().String() != "FAILURE_CLASS_"+strings.ToUpper(class) {
			r.t.Errorf("%+v: id or class is wrong in %v, expected the id %s", at, md, id)
		}
		if md.GetProcessingAttempts() != attempts(at) || md.GetConsumerId() != "me" || md.GetFailureReason() == "" ||
			md.GetOriginalTopic() != orig.Topic {
			r.t.Errorf("%+v: %v, expected %d attempts of consumer me on %s, with a reason", at, md, attempts(at), orig.Topic)
		}
		if p := event.Partition(string(orig.Key), int(kafka.Partitions(kafka.DeadLetters))); int(rec.Partition) != p {
			r.t.Errorf("%+v: the dead letter is in partition %d, expected %d", at, rec.Partition, p)
		}
		return len(seen) == len(want)
	})
}

// Members join and leave continuously. No record is skipped or handled twice, because records
// in work are committed before a partition is revoked, and the records of a key are handled in
// order (K-108…K-112, K-114). PARLEY_REBALANCES sets how often, or how long; K-114 asks for 300.
func TestRebalances(t *testing.T) { both(t, ofMembers, testRebalances) }

func testRebalances(t *testing.T, r *fixture) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t, 5), 5))
	const keys = 60
	var mu sync.Mutex
	last := map[string]int{}
	calls := 0
	handle := func(_ context.Context, rec *kafka.Record) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		n, err := strconv.Atoi(string(rec.Value))
		if err != nil {
			return err
		}
		if seen := last[string(rec.Key)]; n > seen+1 {
			t.Errorf("%s: record %d after %d, expected no gap", rec.Key, n, seen)
		} else {
			last[string(rec.Key)] = max(seen, n)
		}
		return nil
	}
	type member struct {
		stop context.CancelFunc
		done chan error
	}
	var members []member
	names := 0
	join := func() {
		names++
		e := r.engine(func(c *Config) {
			c.Handle, c.Consumer, c.Parallel = handle, fmt.Sprint("m", names), 1+rng.IntN(8)
			c.Expiry = 6 * time.Second // heartbeats, which announce a rebalance, are frequent
		})
		ctx, stop := context.WithCancel(t.Context())
		m := member{stop, make(chan error, 1)}
		go func() { m.done <- e.Run(ctx, func() {}) }()
		members = append(members, m)
	}
	leave := func(i int) {
		members[i].stop()
		if err := <-members[i].done; err != nil {
			t.Fatal(err)
		}
		members = slices.Delete(members, i, i+1)
	}
	sent := 0
	send := func() {
		sent++
		var records []*kafka.Record
		for k := range keys {
			key := fmt.Sprint("chat", k)
			records = append(records, &kafka.Record{
				Topic: topic, Partition: int32(event.Partition(key, 16)), Key: []byte(key), Value: []byte(fmt.Sprint(sent)),
			})
		}
		r.publishRecords(records)
	}
	caughtUp := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if len(last) < keys {
			return false
		}
		for _, n := range last {
			if n < sent {
				return false
			}
		}
		return true
	}
	join()
	for n := range testkit.Rounds(t, "PARLEY_REBALANCES", 10) { // a record of each key before each rebalance
		send()
		if len(members) == 1 || len(members) < 4 && rng.IntN(2) == 0 {
			join()
		} else {
			leave(rng.IntN(len(members)))
		}
		// Sometimes all records are handled before the next rebalance, mostly not.
		if n%4 == 0 {
			testkit.Eventually(t, fmt.Sprintf("%d records of each key, at rebalance %d", sent, n), caughtUp)
		}
	}
	testkit.Eventually(t, fmt.Sprintf("%d records of each key in the end", sent), caughtUp)
	for len(members) > 0 {
		leave(0)
	}
	if len(r.dead) > 0 {
		t.Fatalf("dead letters: %v, expected none", r.dead)
	}
	if calls != sent*keys {
		t.Errorf("%d calls, expected one for each of %d records", calls, sent*keys)
	}
	t.Logf("%d rebalances, %d records", sent, sent*keys)
}

// A dead letter contains any record byte for byte (K-144).
// PARLEY_RECORDS sets the number of records, or the time for them.
func TestDeadLettersOfRandomRecords(t *testing.T) {
	rng := rand.New(rand.NewPCG(144, testkit.Seed(t, 1)))
	random := func(n int) []byte {
		if n == 0 {
			return nil
		}
		b := make([]byte, rng.IntN(n))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for range testkit.Rounds(t, "PARLEY_RECORDS", 20_000) {
		rec := &kafka.Record{
			Topic: topic, Partition: rng.Int32N(64), Offset: rng.Int64(), Timestamp: time.UnixMilli(rng.Int64N(1 << 41)),
			Key: random(rng.IntN(2) * 40), Value: random(rng.IntN(4) * 100),
		}
		for range rng.IntN(3) {
			rec.Headers = append(rec.Headers, kafka.Header{Key: fmt.Sprint("k", rng.IntN(2)), Value: random(rng.IntN(2) * 10)})
		}
		d := DeadLetter{Record: rec, Group: "g", Consumer: "c", Reason: "r", FailedAt: time.Now(), Attempts: 1}
		b, err := d.Encode()
		testkit.Must(t, err)
		var m eventv1.DeadLetter
		testkit.Must(t, proto.Unmarshal(b, &m))
		o, md := m.GetOriginalRecord(), m.GetDlqMetadata()
		if !same(o.Key, rec.Key) || !same(o.Value, rec.Value) || len(o.GetHeaders()) != len(rec.Headers) ||
			md.GetOriginalOffset() != rec.Offset || md.GetOriginalPartition() != rec.Partition ||
			!md.GetOriginalTimestamp().AsTime().Equal(rec.Timestamp) {
			t.Fatalf("the dead letter of %+v is %v, expected the same bytes", rec, &m)
		}
		for i, h := range o.GetHeaders() {
			if h.GetKey() != rec.Headers[i].Key || !same(h.Value, rec.Headers[i].Value) {
				t.Fatalf("the dead letter of %+v is %v, expected the same bytes", rec, &m)
			}
		}
	}
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// Nothing is committed past an unfinished record, wherever in a batch it is (K-103, K-104,
// K-106). Records that are finished beyond it are not handled again.
func TestCommitStopsAtTheUnfinished(t *testing.T) {
	records := make([]*kafka.Record, 500)
	for i := range records {
		records[i] = &kafka.Record{Offset: int64(3 * i)} // with gaps, as control records leave them
	}
	for bad := range records {
		ahead := map[int64]bool{}
		po := &portion{batch: kafka.Batch{Records: records}, partition: &partition{finishedOutOfOrder: ahead},
			done: make([]bool, len(records))}
		for i := range po.done {
			po.done[i] = i != bad
		}
		next, wait := po.result()
		if !wait || next != records[bad].Offset || len(ahead) != len(records)-1-bad {
			t.Fatalf("record %d is unfinished: next is %d, wait %v, %d finished out of order; expected %d, true, %d", bad, next, wait,
				len(ahead), records[bad].Offset, len(records)-1-bad)
		}
		po.done[bad] = true
		if next, wait := po.result(); wait || next != records[len(records)-1].Offset+1 || len(ahead) != 0 {
			t.Fatalf("record %d is finished: next is %d, wait %v, %d finished out of order; expected %d, false, 0", bad, next, wait,
				len(ahead), records[len(records)-1].Offset+1)
		}
	}
}

// Records of paused partitions beyond the buffer's limit are fetched again, and nothing is lost
// or handled twice.
func TestLargePartitionsThatWait(t *testing.T) { both(t, each, testLargePartitionsThatWait) }

func testLargePartitionsThatWait(t *testing.T, r *fixture) {
	var records []*kafka.Record
	for i := range 60 {
		value := append([]byte(fmt.Sprintf("chat%d ok %d ", i%3, i)), make([]byte, 240<<10)...)
		records = append(records, &kafka.Record{Topic: topic, Partition: 5, Key: []byte(fmt.Sprint("chat", i%3)),
			Value: value})
	}
	for chunk := range slices.Chunk(records, 20) {
		r.publishRecords(chunk)
	}
	var mu sync.Mutex
	tries, handled := 0, map[int64]int{}
	e := r.engine(func(c *Config) {
		c.Handle = func(_ context.Context, rec *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if rec.Offset == records[2].Offset && tries < 4 {
				tries++
				return Fail(Authoritative, "the store is unavailable", nil)
			}
			handled[rec.Offset]++
			return nil
		}
	})
	r.until(e, "all records", func() bool { return e.Stats().Handled == int64(len(records)) && e.Stats().Commits > 0 })
	for _, rec := range records {
		if handled[rec.Offset] != 1 {
			t.Fatalf("offset %d was handled %d times, expected once", rec.Offset, handled[rec.Offset])
		}
	}
	if tries != 4 {
		t.Fatalf("%d failures, expected 4", tries)
	}
}
