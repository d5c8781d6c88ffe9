package replay

import (
	"context"
	"log/slog"
	"os"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/check/derive"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
)

// onKafka is a relay that publishes to a broker, and reads what it publishes.
func (r *fixture) onKafka(b *kafkatest.Broker) (*relay.Relay, *event.Serde) {
	r.t.Helper()
	ids, err := registry.New(r.store).Events(r.t.Context())
	r.must(err)
	serde, err := event.NewSerde(ids, nil)
	r.must(err)
	c, err := kafka.NewTransactional(b.Addr, b.Name("slot"))
	r.must(err)
	r.t.Cleanup(c.Close)
	re, err := relay.New(relay.Config{
		Store: r.store, Serde: serde, Clock: func() time.Time { return r.now }, Logger: slog.New(slog.DiscardHandler),
		Publish: relay.Flatten(func(ctx context.Context, records []*kafka.Record) error {
			return kafka.Transact(ctx, c, records)
		}),
	})
	r.must(err)
	return re, serde
}

// drain runs a relay until the outbox is empty.
func (r *fixture) drain(re *relay.Relay) {
	r.t.Helper()
	for {
		r.now = r.now.Add(3 * time.Second)
		r.must(re.Cycle(r.t.Context()))
		page, err := r.store.Scan(r.t.Context(), store.Scan{Table: store.Outbox, Segments: 1, Limit: 1})
		r.must(err)
		if len(page.Rows) == 0 {
			return
		}
	}
}

// recorded is what a consumer has that starts from nothing: the events by chat and version,
// each as it came first.
func (r *fixture) recorded(b *kafkatest.Broker, serde *event.Serde, want int) map[string]map[int64]event.Event {
	r.t.Helper()
	events := map[string]map[int64]event.Event{}
	last := map[string]int64{} // by topic and chat
	n := 0
	b.Read(r.t, kafkatest.Beginning(), func(rec *kafka.Record) bool {
		e, err := serde.Decode(context.Background(), rec.Key, rec.Value)
		r.must(err)
		id, v := e.GetChatId(), e.GetMetadata().GetVersion()
		if events[id] == nil {
			events[id] = map[int64]event.Event{}
		}
		if events[id][v] != nil {
			return false
		}
		if at := rec.Topic + "/" + id; v < last[at] {
			r.t.Fatalf("version %d of %s comes after version %d", v, id, last[at])
		} else {
			last[at] = v
		}
		events[id][v] = e
		n++
		return n == want
	})
	return events
}

// EV55, EV56, EV72, KS19: the event store is what a replay reads. Kafka is emptied, and a consumer that
// starts over gets every event with the id that it always had (KS22): what it makes of them
// is what is stored. PARLEY_TEST_REPLAY_EVENTS sets their number.
func TestReplayIntoAnEmptyKafka(t *testing.T) {
	events := 600
	if s := os.Getenv("PARLEY_TEST_REPLAY_EVENTS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		events = n
	}
	r := newFixture(t)
	const chats = 20
	for len(r.ids) < chats {
		r.ids = append(r.ids, r.group())
	}
	for _, id := range r.ids {
		r.send(id, events/chats-2)
	}
	re, _ := r.onKafka(kafkatest.InProcess(t))
	r.drain(re)

	empty := kafkatest.InProcess(t)
	re, serde := r.onKafka(empty)
	began := time.Now()
	rep := r.run(Filter{}, false)
	if rep.Events != events || rep.Unpublished != 0 || rep.Chats != chats {
		t.Fatalf("%+v", rep)
	}
	r.drain(re)
	took := time.Since(began)
	got := r.recorded(empty, serde, events)
	t.Logf("%d events were published again in %v", events, took)
	for _, id := range r.ids {
		c := derive.New(id)
		for v := int64(1); v <= int64(len(got[id])); v++ {
			e := got[id][v]
			if e == nil {
				t.Fatalf("%s: version %d is missing", id, v)
			}
			it, err := r.store.Get(t.Context(), table.EventKey(id, v), store.Strong)
			r.must(err)
			stored, err := table.EventFrom(store.Row{Key: table.EventKey(id, v), Item: it})
			r.must(err)
			if e.GetMetadata().GetEventId() != stored.EventID {
				t.Fatalf("%s: version %d has the id %s, not %s", id, v, e.GetMetadata().GetEventId(), stored.EventID)
			}
			r.must(c.Apply(e))
		}
		it, err := r.store.Get(t.Context(), table.HeadKey(id), store.Strong)
		r.must(err)
		if want := table.HeadFrom(id, it); !reflect.DeepEqual(c.Head, want) {
			t.Fatalf("the consumer has %+v, stored is %+v", c.Head, want)
		}
	}
	if len(got) != chats {
		t.Errorf("%d chats, not %d", len(got), chats)
	}
}
