package relay

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// K-016: the record of an event that waited in the outbox for ten days has the time of its
// publication, so that it is kept for the seven days of the topic; the event has its own time.
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
		found := false
		b.Read(t, from, func(rec *kafka.Record) bool {
			if string(rec.Key) != id {
				return false
			}
			found = true
			if rec.Timestamp.Before(began.Add(-time.Minute)) || rec.Timestamp.After(time.Now().Add(time.Minute)) {
				t.Errorf("the record's time is %s, expected that of the publication, %s", rec.Timestamp, began)
			}
			e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
			r.must(err)
			if age := began.Sub(e.GetMetadata().GetEventTime().AsTime()); age < 10*24*time.Hour-time.Minute {
				t.Errorf("the event is %s old, expected ten days", age)
			}
			return true
		})
		if !found {
			t.Error("the record is not in the topic, expected it to be readable")
		}
	})
}
