package relay

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store/table"
)

// The documented reader: server/docs/schemas.md shows the lines between the two marks, and
// TestDocumentedReader compares them.

// documented: begin

// reader applies the events of chats, each once and in the order of its chat's versions.
type reader struct {
	chats map[string]*position
	apply func(event.Event)
}

// position is how far the events of a chat are applied.
type position struct {
	next int64                 // version that is applied next
	held map[int64]event.Event // later versions, which wait for those before them
}

// receive takes a record's event, from any of the three topics.
func (r *reader) receive(e event.Event) {
	chat, version := e.GetChatId(), e.GetMetadata().GetVersion()
	p := r.chats[chat]
	if p == nil {
		p = &position{next: 1, held: map[int64]event.Event{}}
		r.chats[chat] = p
	}
	if version >= p.next { // otherwise it was applied before
		p.held[version] = e
	}
	for e := p.held[p.next]; e != nil; e = p.held[p.next] {
		r.apply(e)
		delete(p.held, p.next)
		p.next++
	}
}

// documented: end

// clone is what the reader has stored.
func (r *reader) clone() *reader {
	out := &reader{chats: map[string]*position{}, apply: r.apply}
	for chat, p := range r.chats {
		out.chats[chat] = &position{p.next, maps.Clone(p.held)}
	}
	return out
}

// key is what identifies an event.
type key struct {
	generation, chat string
	version          int64
}

func keyOf(e event.Event) key {
	return key{e.GetMetadata().GetGeneration(), e.GetChatId(), e.GetMetadata().GetVersion()}
}

// arrival is an event as it comes to a reader.
type arrival struct {
	topic string
	event.Event
}

// publishMixed publishes chats of messages and changes of members to a broker. Some transactions are
// written twice, one event comes late, as from a row that an operator has repaired, and at the end a
// part comes again, as from a replay. It returns the records of each partition, in their order.
func publishMixed(t *testing.T, r *fixture, b *kafkatest.Broker) (partitions [][]arrival) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	mark := b.Mark(t)
	var late, all []*kafka.Record
	written := 0
	var send func(context.Context, []*kafka.Record) error
	re := r.onKafka(b, b.Name("relay"), func(c *Config, client *kafka.Client) {
		c.MaxBatch = 20
		send = func(ctx context.Context, records []*kafka.Record) error {
			var copies []*kafka.Record // the client fills them in
			for _, rec := range records {
				copies = append(copies, &kafka.Record{Topic: rec.Topic, Partition: rec.Partition, Key: rec.Key, Value: rec.Value,
					Headers: rec.Headers})
			}
			written += len(copies)
			return kafka.Transact(ctx, client, copies)
		}
		c.Publish = Flatten(func(ctx context.Context, records []*kafka.Record) error {
			all = append(all, records...)
			if late == nil && len(all) > 60 {
				late = records[:1]
				records = records[1:]
			}
			for range 1 + rng.IntN(2) {
				if err := send(ctx, records); err != nil {
					return err
				}
			}
			return nil
		})
	})
	r.must(r.chats.EnsureUser(r.ctx, "carol"))
	for range 6 {
		id := r.group()
		for n := range 6 {
			for range 3 {
				r.send(id)
			}
			op := []chat.Operation{chat.OpAdd, chat.OpRemove}[n%2]
			_, err := r.chats.Change(r.ctx, op,
				chat.MemberChange{Caller: "alice", ChatID: id, UserID: "carol", Role: table.Member})
			r.must(err)
		}
	}
	r.rest(re)
	r.must(send(r.ctx, late))
	r.must(send(r.ctx, all[:len(all)/2]))
	read := 0
	byPartition := map[kafka.Partition][]arrival{}
	b.Read(t, mark, func(rec *kafka.Record) bool {
		e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
		r.must(err)
		id := kafka.Partition{Topic: rec.Topic, ID: rec.Partition}
		byPartition[id] = append(byPartition[id], arrival{rec.Topic, e})
		read++
		return read == written
	})
	return slices.Collect(maps.Values(byPartition))
}

// merge is one way in which the records of partitions can come to a reader: each partition in its
// order, and the partitions in any.
func merge(partitions [][]arrival, rng *rand.Rand, limit int) (out []arrival) {
	left := slices.Clone(partitions)
	for len(left) > 0 {
		i := rng.IntN(len(left))
		n := min(1+rng.IntN(limit), len(left[i]))
		out = append(out, left[i][:n]...)
		if left[i] = left[i][n:]; len(left[i]) == 0 {
			left = slices.Delete(left, i, i+1)
		}
	}
	return out
}

// The reader of the documents meets three topics that are not in step, repetitions, a late event,
// and its own end between two commits: it applies each event once, and the events of a chat in
// order. A reader that keeps one highest version of each chat loses events, against which the page
// warns; one for each topic and chat loses only the late one.
func TestDocumentedReader(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	partitions := publishMixed(t, r, kafkatest.InProcess(t))
	all := map[key]bool{}
	topics := map[string]bool{}
	for _, list := range partitions {
		for _, a := range list {
			all[keyOf(a)], topics[a.topic] = true, true
		}
	}
	testkit.Equal(t, "topics", len(topics), 3)
	testkit.Equal(t, "events", len(all), 6*26)
	lost := 0
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		records := merge(partitions, rng, []int{1, 10, 1000}[seed%3])
		readMerged(t, rng, records, r.heads())

		byChat, byTopic := map[string]int64{}, map[string]int64{}
		kept, keptByTopic := map[key]bool{}, map[key]bool{}
		for _, a := range records {
			v := a.GetMetadata().GetVersion()
			if v > byChat[a.GetChatId()] {
				byChat[a.GetChatId()], kept[keyOf(a)] = v, true
			}
			if at := a.topic + " " + a.GetChatId(); v > byTopic[at] {
				byTopic[at], keptByTopic[keyOf(a)] = v, true
			}
		}
		lost += len(all) - len(kept)
		testkit.Equal(t, "events that come late, and the highest version of each topic and chat loses",
			len(all)-len(keptByTopic), 1)
	}
	if lost == 0 {
		t.Error("the highest version of each chat loses nothing: the page warns against it")
	}
}

// readMerged reads records as the documents say. The process ends at some commits, and continues
// with what it has stored.
func readMerged(t *testing.T, rng *rand.Rand, records []arrival, heads map[string]int64) {
	t.Helper()
	var applied, stored []event.Event
	re := &reader{chats: map[string]*position{}, apply: func(e event.Event) { applied = append(applied, e) }}
	saved, offset := re.clone(), 0
	for i := 0; i < len(records); i++ {
		re.receive(records[i].Event)
		switch rng.IntN(20) {
		case 0:
			saved, stored, offset = re.clone(), slices.Clone(applied), i+1
		case 1:
			re, applied, i = saved.clone(), slices.Clone(stored), offset-1
		}
	}
	next := map[string]int64{}
	for _, e := range applied {
		if next[e.GetChatId()]++; e.GetMetadata().GetVersion() != next[e.GetChatId()] {
			t.Fatalf("%s: version %d is applied, want %d", e.GetChatId(), e.GetMetadata().GetVersion(), next[e.GetChatId()])
		}
	}
	if !maps.Equal(next, heads) {
		t.Fatalf("applied up to %v, want %v", next, heads)
	}
}

// The code of the page is that of this file.
func TestDocumentsShowTheReader(t *testing.T) {
	t.Parallel()
	source := string(testkit.Value(os.ReadFile("reader_test.go"))(t))
	page := string(testkit.Value(os.ReadFile(filepath.Join("..", "..", "server", "docs", "schemas.md")))(t))
	_, code, _ := strings.Cut(source, "// documented: begin\n\n")
	code, _, _ = strings.Cut(code, "\n// documented: end\n")
	if len(code) < 100 || !strings.Contains(page, "```go\n"+code+"```\n") {
		t.Error("server/docs/schemas.md does not show the reader of this file")
	}
}
