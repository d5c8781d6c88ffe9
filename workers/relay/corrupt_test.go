package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// An outbox row that cannot be read is quarantined: it stays, with the reason, it is counted
// and logged, and it stops its own chat at most. Its chat resumes when it is repaired or
// removed.
func TestCorruptRowIsQuarantined(t *testing.T) {
	count := func(n int64) store.Item {
		return table.Outbox{Count: n, CreatedAt: 1}.Item()
	}
	text := store.NewItem(store.Attr{Name: "count", Value: store.String("two")})
	for name, tt := range map[string]struct {
		sk     func(chat string) string
		item   store.Item
		says   string
		stops  bool // the chat whose id is in the key
		beside bool // the row is in another shard than its chat
	}{
		"no key": {func(string) string { return "nonsense" }, count(1), "not a key", false, false},
		"no chat": {func(string) string { return "#" + table.Number(1) }, count(1), "not one of the outbox", false,
			false},
		"no version": {func(c string) string { return c + "#first" }, count(1), "not a number", true, false},
		"version zero": {func(c string) string { return c + "#" + table.Number(0) }, count(1), "none of one plan", true,
			false},
		"no count": {func(c string) string { return c + "#" + table.Number(2) }, store.NewItem(), "none of one plan",
			true, false},
		"count is text": {func(c string) string { return c + "#" + table.Number(2) }, text, "none of one plan", true,
			false},
		"negative count": {func(c string) string { return c + "#" + table.Number(2) }, count(-1), "none of one plan", true,
			false},
		"count too large": {func(c string) string { return c + "#" + table.Number(2) }, count(1 << 62), "none of one plan",
			true, false},
		"no such events": {func(c string) string { return c + "#" + table.Number(900) }, count(3), "0 of 3 events exist",
			false, false},
		"a bad replay": {func(c string) string { return c + "#" + table.Number(2) + "r" }, count(0), "none of one plan",
			false, false},
		"another shard": {func(c string) string { return c + "#" + table.Number(2) }, count(1), "belongs to shard", false,
			true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			var log bytes.Buffer
			re := r.relay()
			re.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			one := r.group()
			r.rest(re)
			shard := event.Shard(one)
			if tt.beside {
				shard = (shard + 1) % event.Shards
			}
			key := store.Key{Table: store.Outbox, PK: table.ShardKey(shard), SK: tt.sk(one)}
			r.must(r.store.Transact(r.ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: tt.item}}}))
			others := []string{one}
			for shards := map[int]bool{shard: false}; len(others) < 60 || !shards[shard]; { // the same shard, too
				id := r.group()
				others = append(others, id)
				shards[event.Shard(id)] = true
			}
			before := len(r.log)
			for _, id := range others {
				r.send(id)
				re.Nudge(r.commits[len(r.commits)-1])
			}
			for range 20 {
				r.rest(re)
			}
			next := r.relay() // which has no memory of the chats
			r.send(one)
			r.rest(next)
			seen := map[string]int{}
			for _, e := range r.log[before:] {
				seen[e.GetChatId()]++
			}
			if tt.stops != (seen[one] == 0) {
				t.Errorf("%d events of the row's chat were published; expected it to stop: %v", seen[one], tt.stops)
			}
			for _, id := range others[1:] {
				if seen[id] < 3 {
					t.Fatalf("%d events of another chat were published, expected at least 3", seen[id])
				}
			}
			item, err := r.store.Get(r.ctx, key, store.Strong)
			r.must(err)
			if got := item.Get("last_error").Str(); item == nil || !strings.Contains(got, tt.says) {
				t.Errorf("the row's last_error is %q, expected it to contain %q", got, tt.says)
			}
			// Three minutes have passed for the first relay; the second has reported once.
			if n := item.Get("attempts").Int64(); n < 3 || n > 6 {
				t.Errorf("the row has %d attempts, expected 3 to 6", n)
			}
			if n := strings.Count(log.String(), "is quarantined"); n < 2 || n > 5 || !strings.Contains(log.String(), key.SK) {
				t.Errorf("quarantine is logged %d times, expected 2 to 5 with %q:\n%s", n, key.SK, log.String())
			}
			for _, re := range []*Relay{re, next} {
				if n := re.Stats().Poisoned; n != 1 {
					t.Errorf("%d rows are quarantined, expected 1", n)
				}
			}
			r.must(r.store.Transact(r.ctx, store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: key}}}))
			r.rest(next)
			r.check(true)
			if n := next.Stats().Poisoned; n != 0 {
				t.Errorf("%d rows are quarantined after the deletion, expected 0", n)
			}
		})
	}
}

// The time from a chat's creation to its publication is reported once (L-165).
func TestCreationIsTimed(t *testing.T) {
	r := newFixture(t)
	took := map[string][]time.Duration{}
	re := r.relay()
	re.cfg.Created = func(e *eventv1.ChatCreated, d time.Duration) { took[e.GetChatId()] = append(took[e.GetChatId()], d) }
	one := r.group()
	r.now = r.now.Add(3 * time.Second)
	two := r.group()
	r.rest(re)
	r.send(one)
	for _, c := range r.commits {
		re.Nudge(c)
	}
	r.rest(re)
	again := table.Outbox{Shard: event.Shard(one), AggregateID: one, FirstVersion: 1, Count: 1, CreatedAt: 1, Replay: true}
	r.must(r.store.BatchWrite(r.ctx, []store.Write{{Op: store.OpPut, Key: again.Key(), Item: again.Item()}}))
	r.rest(re)
	if a, b := took[one], took[two]; len(took) != 2 || len(a) != 1 || len(b) != 1 || a[0] != 3*time.Second || b[0] != 0 {
		t.Fatalf("reported durations: %v, expected 3 s for %s and 0 s for %s", took, one, two)
	}
}

// An event too large for its topic, or for the topic of dead letters, is quarantined before
// it is published: a broker's refusal would stop everything in the same transaction.
func TestTooLargeEventIsQuarantined(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	message := func(size int) []event.Event {
		md := event.Metadata{Type: event.TypeMessagePersisted, ID: "evt_1", ChatID: "chat_1", At: r.now,
			Origin: event.Origin{Generation: "g", Producer: "p"}, Version: 1}.Proto()
		return []event.Event{&eventv1.MessagePersisted{Metadata: md, ChatId: "chat_1", Content: strings.Repeat("x", size)}}
	}
	if _, err := re.planOf(store.Key{}, "chat_1", 1, message(kafka.MaxEvent), nil); !errors.Is(err, ErrPoison) {
		t.Errorf("an event beyond the limit: %v, expected %v", err, ErrPoison)
	}
	if _, err := re.planOf(store.Key{}, "chat_1", 1, message(kafka.MaxEvent-1024), nil); err != nil {
		t.Errorf("an event within the limit: %v", err)
	}
}
