package relay

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// K-016: an event that waited in the outbox for ten days is published under the time
// of its publication, so that it can be read for the seven days that topics keep; its own
// time is in the event.
func TestOldEventsAreReadable(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r := newFixture(t)
		r.run = b.Name("S")[2:]
		began := time.Now()
		r.now = began.Add(-10 * 24 * time.Hour)
		id := r.group()
		r.send(id)
		from := b.Mark(t, kafka.MessagesPersisted)
		re := r.onKafka(b, b.Name("stamp"), nil)
		r.now = began
		r.must(re.Cycle(r.ctx))
		if b.Embedded != nil {
			if _, err := b.Embedded.Trim(); err != nil {
				t.Fatal(err)
			}
		}
		found := false
		b.Read(t, from, func(rec *kafka.Record) bool {
			if string(rec.Key) != id {
				return false
			}
			found = true
			if rec.Timestamp.Before(began.Add(-time.Minute)) || rec.Timestamp.After(time.Now().Add(time.Minute)) {
				t.Errorf("the record is of %s", rec.Timestamp)
			}
			e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
			r.must(err)
			if age := began.Sub(e.GetMetadata().GetEventTime().AsTime()); age < 10*24*time.Hour-time.Minute {
				t.Errorf("the event is %s old", age)
			}
			return true
		})
		if !found {
			t.Error("it cannot be read")
		}
	})
}
