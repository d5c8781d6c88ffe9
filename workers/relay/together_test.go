package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/kafka"
)

// The events of a command go out in one transaction, each in a record of its own, however many
// there are and whatever a transaction holds otherwise; also when transactions fail and are
// tried again (EV11, EV12).
func TestEventsOfACommandGoTogether(t *testing.T) {
	r := newFixture(t)
	var members []string
	for i := range 30 {
		members = append(members, fmt.Sprint("user_", i))
		r.must(r.chats.EnsureUser(r.ctx, members[i]))
	}
	for range 3 {
		_, err := r.chats.CreateGroup(r.ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: members})
		r.must(err)
		r.send(r.group())
	}
	calls := 0
	var transactions []map[string]bool // ids of events
	re, err := New(Config{
		Store: r.store, Serde: r.serde, Clock: func() time.Time { return r.now }, Logger: discard, MaxBatch: 7,
		Publish: Flatten(func(_ context.Context, records []*kafka.Record) error {
			if calls++; calls < 12 && calls%3 == 1 {
				return errors.New("not this time")
			}
			ids := map[string]bool{}
			for _, rec := range records {
				e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
				r.must(err)
				ids[e.GetMetadata().GetEventId()] = true
			}
			if len(ids) != len(records) {
				t.Errorf("%d records have %d events, expected one each", len(records), len(ids))
			}
			transactions = append(transactions, ids)
			return nil
		}),
		Flush: func(context.Context) error { return nil },
	})
	r.must(err)
	for range 40 {
		_ = re.Cycle(r.ctx) // fails at first
		r.now = r.now.Add(3 * time.Second)
	}
	r.checkOutbox()
	highest := 0
	for _, c := range r.commits {
		highest = max(highest, len(c.Events))
		in := map[int]int{}
		for _, e := range c.Events {
			for i, ids := range transactions {
				if ids[e.GetMetadata().GetEventId()] {
					in[i]++
				}
			}
		}
		for i, n := range in {
			if n != len(c.Events) {
				t.Errorf("transaction %d has %d of the %d events of a command, expected all", i, n, len(c.Events))
			}
		}
		if len(in) == 0 {
			t.Errorf("a command's %d events are not published, expected all", len(c.Events))
		}
	}
	if highest <= 7 {
		t.Fatalf("a command has %d events at most, expected more than a batch", highest)
	}
}
