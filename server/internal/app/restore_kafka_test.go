package app_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
)

// eventTopics have the events of chats.
var eventTopics = []string{kafka.MessagesPersisted, kafka.MembershipsChanged, kafka.ChatsCreated}

// lastRead is the last record of a partition that an integrator has applied.
type lastRead struct {
	offset    int64
	published string
}

// integrator reads the events of chats as server/docs/schemas.md says, with a database of its own, and
// knows nothing else of the server. Its group, if it has one, keeps its offsets on the server.
type integrator struct {
	t       *testing.T
	options []kafka.Option
	addr    string
	group   string
	every   time.Duration // between two comparisons

	mu       sync.Mutex // of its database, which it changes in one transaction for each record
	last     map[kafka.Partition]lastRead
	next     map[string]int64
	held     map[string]map[int64]event.Event
	messages map[string][]*eventv1.MessagePersisted
	restarts int // how often it has discarded all that
	asked    int // how often a comparison was asked for
	answered int // how many of these are over
}

// errPutBack says that the log is not the one that was read.
var errPutBack = errors.New("the log was put back")

func newIntegrator(t *testing.T, dir, addr, group string) *integrator {
	in := &integrator{t: t, options: asReader(t, dir), addr: addr, group: group, every: time.Second}
	in.discard()
	in.restarts = 0
	return in
}

// discard forgets all that came from the log, and where it was read.
func (in *integrator) discard() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last, in.next, in.held = map[kafka.Partition]lastRead{}, map[string]int64{}, map[string]map[int64]event.Event{}
	in.messages = map[string][]*eventv1.MessagePersisted{}
	in.restarts++
}

// run reads until ctx ends.
func (in *integrator) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := in.read(ctx); errors.Is(err, errPutBack) {
			in.discard()
		} else if err != nil && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond) // the server is down
		}
	}
}

// read reads on from where the database is until the log was put back.
func (in *integrator) read(ctx context.Context) error {
	c, err := in.open(ctx)
	if err != nil {
		return err
	}
	defer c.CloseAllowingRebalance()
	compared := time.Time{}
	for ctx.Err() == nil {
		if time.Since(compared) >= in.every {
			if err := in.compareAll(ctx); err != nil {
				return err
			}
			compared = time.Now()
		}
		poll, cancel := context.WithTimeout(ctx, in.every)
		fetches := c.PollFetches(poll)
		cancel()
		for _, e := range fetches.Errors() {
			if errors.Is(e.Err, kerr.OffsetOutOfRange) {
				return errPutBack
			}
			if !errors.Is(e.Err, context.DeadlineExceeded) && ctx.Err() == nil {
				return e.Err
			}
		}
		records := fetches.Records()
		for _, r := range records {
			if err := in.take(ctx, r); err != nil {
				return err
			}
		}
		if in.group != "" && len(records) > 0 {
			commit, cancel := context.WithTimeout(ctx, in.every)
			_ = c.CommitRecords(commit, records...) // otherwise they come again
			cancel()
		}
	}
	return ctx.Err()
}

// open makes the client that reads on.
func (in *integrator) open(ctx context.Context) (*kgo.Client, error) {
	options := append(slices.Clone(in.options), kgo.SeedBrokers(in.addr), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond))
	if in.group != "" {
		return kgo.NewClient(append(options, kgo.ConsumerGroup(in.group), kgo.ConsumeTopics(eventTopics...),
			kgo.DisableAutoCommit(), kgo.HeartbeatInterval(100*time.Millisecond),
			kgo.AdjustFetchOffsetsFn(in.assigned))...)
	}
	spans, err := in.spans(ctx)
	if err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{}
	last := in.lastRead()
	for p := range spans {
		if from[p.Topic] == nil {
			from[p.Topic] = map[int32]kgo.Offset{}
		}
		if at, read := last[p]; read {
			from[p.Topic][p.ID] = kgo.NewOffset().At(at.offset + 1)
		} else {
			from[p.Topic][p.ID] = kgo.NewOffset().AtStart()
		}
	}
	return kgo.NewClient(append(options, kgo.ConsumePartitions(from))...)
}

// assigned reads on from where the database is. The group may be behind it, because it commits later, and
// ahead of it, if the log was put back and the reader died before it had committed anything again.
func (in *integrator) assigned(
	_ context.Context, from map[string]map[int32]kgo.Offset,
) (map[string]map[int32]kgo.Offset, error) {
	last := in.lastRead()
	for topic, parts := range from {
		for id := range parts {
			parts[id] = kgo.NewOffset().AtStart()
			if at, read := last[kafka.Partition{Topic: topic, ID: id}]; read {
				parts[id] = kgo.NewOffset().At(at.offset + 1)
			}
		}
	}
	return from, nil
}

func (in *integrator) lastRead() map[kafka.Partition]lastRead {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.last)
}

// spans are where partitions begin and end.
func (in *integrator) spans(ctx context.Context) (map[kafka.Partition]lag.Span, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	all := map[kafka.Partition]lag.Span{}
	for _, topic := range eventTopics {
		list, err := lag.Spans(ctx, in.addr, topic, in.options...)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			all[s.Partition] = s
		}
	}
	return all, nil
}

// ask has it compare what it has read with the log, by a comparison that begins after this.
func (in *integrator) ask() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked++
}

// waits says so until the comparison that was asked for has found no difference.
func (in *integrator) waits() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.answered < in.asked {
		return "it has not compared what it has read with the log"
	}
	return ""
}

// compareAll compares all that was read, and answers what was asked before it began.
func (in *integrator) compareAll(ctx context.Context) error {
	in.mu.Lock()
	asked, last := in.asked, maps.Clone(in.last)
	in.mu.Unlock()
	if err := in.compare(ctx, last); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.answered = asked
	return nil
}

// compare reads the last record of partitions once more: it is still there if the log was not put
// back, or only to what has it.
func (in *integrator) compare(ctx context.Context, last map[kafka.Partition]lastRead) error {
	if len(last) == 0 {
		return nil
	}
	spans, err := in.spans(ctx)
	if err != nil {
		return err
	}
	at := map[string]map[int32]kgo.Offset{}
	for p, read := range last {
		if spans[p].To <= read.offset {
			return fmt.Errorf("%w: %v ends at %d, %d was read", errPutBack, p, spans[p].To, read.offset)
		}
		if at[p.Topic] == nil {
			at[p.Topic] = map[int32]kgo.Offset{}
		}
		at[p.Topic][p.ID] = kgo.NewOffset().At(read.offset)
	}
	c, err := kgo.NewClient(append(slices.Clone(in.options), kgo.SeedBrokers(in.addr),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset().AtStart()),
		kgo.ConsumePartitions(at), kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(1))...)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for open := maps.Clone(last); len(open) > 0; {
		fetches := c.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			if errors.Is(e.Err, kerr.OffsetOutOfRange) {
				return errPutBack
			}
			return e.Err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := kafka.Partition{Topic: r.Topic, ID: r.Partition}
			read, waits := open[p]
			delete(open, p)
			if waits && (r.Offset != read.offset || header(r, "published_in") != read.published) {
				err = fmt.Errorf("%w: %v has another record at %d", errPutBack, p, read.offset)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// take applies a record, with what it held up.
func (in *integrator) take(ctx context.Context, r *kgo.Record) error {
	p, published := kafka.Partition{Topic: r.Topic, ID: r.Partition}, header(r, "published_in")
	last, read := in.lastRead()[p]
	if read && published != last.published {
		if err := in.compare(ctx, map[kafka.Partition]lastRead{p: last}); err != nil {
			return err
		}
	}
	e, err := event.Unmarshal(header(r, "event_type"), r.Value[6:])
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last[p] = lastRead{r.Offset, published}
	chat, version := e.GetChatId(), e.GetMetadata().GetVersion()
	if in.held[chat] == nil {
		in.held[chat], in.next[chat] = map[int64]event.Event{}, 1
	}
	if version >= in.next[chat] {
		in.held[chat][version] = e
	}
	for e := in.held[chat][in.next[chat]]; e != nil; e = in.held[chat][in.next[chat]] {
		if m, ok := e.(*eventv1.MessagePersisted); ok {
			in.messages[chat] = append(in.messages[chat], m)
		}
		delete(in.held[chat], in.next[chat])
		in.next[chat]++
	}
	return nil
}

// differs says where the database has another chat than the store.
func (in *integrator) differs(ctx context.Context, r *restorer) string {
	for _, id := range r.chats {
		stored := history(ctx, in.t, r.reader, id)
		in.mu.Lock()
		got := in.messages[id]
		in.mu.Unlock()
		if len(got) != len(stored) {
			return fmt.Sprintf("%s: %d messages of Kafka, the store has %d", id, len(got), len(stored))
		}
		for i, m := range stored {
			if e := got[i]; e.GetMessageId() != m.GetMessageId() || e.GetContent() != m.GetContent() ||
				e.GetSequence() != m.GetSequence() {
				return fmt.Sprintf("%s: Kafka had %v, the store has %v", id, e, m)
			}
		}
	}
	return ""
}

// starts is how often it started over.
func (in *integrator) starts() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.restarts
}
