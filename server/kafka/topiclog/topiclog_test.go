package topiclog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topiclog"
	"github.com/parley-chat/parley/server/store"
)

const (
	number    = 42 // of the topic
	partition = 3
)

// writer publishes to a partition and keeps what must be in it.
type writer struct {
	*kgo.Client
	stored []commitlogtest.Stored
	made   int
}

func (w *writer) records(count int, at time.Time) (list []*kgo.Record) {
	for n := range count {
		w.made++
		list = append(list, &kgo.Record{Topic: kafka.ChatsCreated, Partition: partition,
			Key: []byte(fmt.Sprint("chat ", w.made)), Value: []byte(fmt.Sprint("event ", w.made)),
			Timestamp: at.Add(time.Duration(n/2) * time.Millisecond),
			Headers: []kgo.RecordHeader{{Key: kafka.HeaderEventType, Value: []byte("made")},
				{Key: kafka.HeaderEventID, Value: []byte("id")}, {Key: "binary", Value: []byte{0xff, 1}}}})
	}
	return list
}

func (w *writer) transact(t *testing.T, count int, at time.Time, commit bool) {
	t.Helper()
	list := w.records(count, at)
	if err := w.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := w.ProduceSync(t.Context(), list...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := w.EndTransaction(t.Context(), kgo.TransactionEndTry(commit)); err != nil {
		t.Fatal(err)
	}
	if !commit {
		return
	}
	for _, r := range list {
		w.stored = append(w.stored, commitlogtest.Stored{Position: r.Offset, Time: r.Timestamp.UnixMilli(),
			Message: &commitlog.Message{Key: string(r.Key), Type: "made", Payload: r.Value,
				Headers: map[string]string{kafka.HeaderEventID: "id", "binary": "ff01"}}})
	}
}

// A partition of Kafka is read by the contract of logs: between committed records there are
// ends of transactions and aborted ones.
func TestContract(t *testing.T) {
	b := kafkatest.InProcess(t)
	c, err := kafka.NewTransactional(b.Addr, "writer")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reader, err := kafka.NewProducer(b.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	clock := commitlogtest.NewClock()
	log := topiclog.New(topiclog.Config{Client: reader, Clock: clock.Now})
	log.Add(number, kafka.ChatsCreated)
	at := commitlog.Partition{Topic: number, Number: partition}
	for range 2 {
		if log.InUse() {
			t.Error("a log of which nobody asks anything is in use")
		}
		if _, _, err := log.Bounds(t.Context(), at); err != nil || !log.InUse() {
			t.Error("a log that is asked is not in use", err)
		}
		clock.Advance(3 * time.Second)
	}
	commitlogtest.Reader(t, log, at, 0, 0, nil)
	w := &writer{Client: c}
	begin := time.Now().Add(-15 * time.Second).Truncate(time.Millisecond)
	for n := range 6 {
		w.transact(t, 1+n, begin.Add(time.Duration(n)*time.Second), n%3 != 1)
	}
	end := int64(1 + 2 + 3 + 4 + 5 + 6 + 6) // records, and six ends
	commitlogtest.Reader(t, log, at, 0, end, w.stored)
	w.transact(t, 3, begin.Add(10*time.Second), false)
	commitlogtest.Reader(t, log, at, 0, end+4, w.stored) // only positions that do not exist are new
	// What a leader does not know of yet is not taken for what does not exist.
	if _, err := log.ReadTo(t.Context(), at, end, end+5, 1<<20); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a read up to what the leader does not know: %v", err)
	}
	if list, err := log.ReadTo(t.Context(), at, end, end+4, 1<<20); err != nil || len(list) > 0 {
		t.Errorf("a read up to the end: %v, %v", list, err)
	}
	starts, ends, err := log.AllBounds(t.Context(), number)
	if err != nil || len(starts) != 16 || len(ends) != 16 || starts[partition] != 0 || ends[partition] != end+4 {
		t.Errorf("bounds %v %v, %v", starts, ends, err)
	}

	offsets := kadm.Offsets{}
	offsets.AddOffset(kafka.ChatsCreated, partition, 10, -1)
	if got, err := kadm.NewClient(reader).DeleteRecords(t.Context(), offsets); err != nil || got.Error() != nil {
		t.Fatal(err, got.Error())
	}
	for len(w.stored) > 0 && w.stored[0].Position < 10 {
		w.stored = w.stored[1:]
	}
	commitlogtest.Reader(t, log, at, 10, end+4, w.stored)
	log.Remove(number)
	if _, _, err := log.Bounds(t.Context(), at); !errors.Is(err, commitlog.ErrInvalid) {
		t.Error("a topic that was removed can be read: ", err)
	}
}

// What is not Kafka's, or is not there, is refused.
func TestUnknown(t *testing.T) {
	b := kafkatest.InProcess(t)
	c, err := kafka.NewProducer(b.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	log := topiclog.New(topiclog.Config{Client: c})
	log.Add(1, kafka.ChatsCreated)
	for name, want := range map[string]int32{kafka.ChatsCreated: 16, "chats.created.v2": 0, "other": 0} {
		if n, err := log.Partitions(t.Context(), name); err != nil || n != want {
			t.Errorf("%s has %d partitions, %v", name, n, err)
		}
	}
	for name, want := range map[string]bool{kafka.MessagesPersisted: true, "messages.persisted.v2": true,
		kafka.DeadLetters: false, "other": false} {
		if log.Named(name) != want {
			t.Errorf("%s is a topic of events: %v", name, !want)
		}
	}
	for _, p := range []commitlog.Partition{{Topic: 2}, {Topic: 1, Number: 99}} {
		_, _, err := log.Bounds(t.Context(), p)
		_, read := log.Read(t.Context(), p, 0, 1)
		_, position := log.PositionAt(t.Context(), p, time.Now())
		for _, err := range []error{err, read, position} {
			if !errors.Is(err, commitlog.ErrInvalid) || strings.Contains(err.Error(), "\n") {
				t.Errorf("partition %s: %v", p, err)
			}
		}
	}
}
