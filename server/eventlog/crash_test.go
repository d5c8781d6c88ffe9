package eventlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

const (
	crashChats  = 4
	crashRelays = 2  // each has the chats of its shard
	crashWrites = 10 // of each chat between two losses of power
	crashLosses = 3  // of one disk, one after the other
)

// crashed is a log with its store on a disk, and what was promised of them.
type crashed struct {
	fixture

	mu     sync.Mutex
	next   [crashChats]int64            // version that comes next
	stored map[string]bool              // events that were acknowledged to their writer
	done   map[string]bool              // events that Publish has acknowledged
	seen   map[kafka.Partition][]string // records as readers got them, by offset
}

func openCrashed(t *testing.T, disk *embeddedtest.Disk, bug func(store.Records) store.Records) *crashed {
	t.Helper()
	c := &crashed{fixture: fixture{disk: disk}, stored: map[string]bool{}, done: map[string]bool{},
		seen: map[kafka.Partition][]string{}}
	c.open(t, func(cfg *Config) { cfg.Log = commitlog.NewLocal(bug(records.Of(c.store)), time.Now) })
	c.tail.limit = 5000 // readers meet both the tail and the store
	return c
}

func eventName(chat string, version int64) string { return fmt.Sprintf("%s %d", chat, version) }

// write stores the next events of a chat, with the row that announces them.
func (c *crashed) write(t *testing.T, chat, count int) error {
	c.mu.Lock()
	first := c.next[chat] + 1
	c.next[chat] += int64(count)
	c.mu.Unlock()
	id := fmt.Sprint("chat_", chat)
	o := table.Outbox{Shard: chat % crashRelays, AggregateID: id, FirstVersion: first, Count: int64(count), CreatedAt: 1}
	plan := store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}}}
	for v := first; v < first+int64(count); v++ {
		plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut, Key: table.EventKey(id, v),
			Item: eventRow(t, id, v, "text").Item()})
	}
	if err := c.store.Transact(t.Context(), plan); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := first; v < first+int64(count); v++ {
		c.stored[eventName(id, v)] = true
	}
	return nil
}

// publish publishes some rows of a shard, as they are visible, and a search event with each.
func (c *crashed) publish(t *testing.T, shard, limit int) (rows int, err error) {
	ctx := t.Context()
	page, err := c.store.Query(ctx, store.Query{Table: store.Outbox, PK: table.ShardKey(shard), Limit: limit})
	if err != nil {
		return 0, err
	}
	var list []Publication
	var names []string
	for _, row := range page.Rows {
		o, err := table.OutboxFrom(row)
		if err != nil {
			return 0, err
		}
		p := Publication{Row: row.Key, Chat: o.AggregateID, Last: o.FirstVersion + o.Count - 1}
		to := kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf(o.AggregateID, 2)} // several chats in one
		for v := o.FirstVersion; v <= p.Last; v++ {
			it, err := c.store.Get(ctx, table.EventKey(o.AggregateID, v), store.Strong)
			if err != nil || it == nil {
				return 0, fmt.Errorf("event %d of %s, which a row announces: %w", v, o.AggregateID, err)
			}
			e, err := table.EventFrom(store.Row{Key: table.EventKey(o.AggregateID, v), Item: it})
			if err != nil {
				return 0, err
			}
			r := published(t, e, to)
			if v%5 == 0 { // a copy between references
				r.Headers = append(r.Headers, kafka.Header{Key: "more"})
			}
			p.Records = append(p.Records, r)
			names = append(names, eventName(o.AggregateID, v))
		}
		list = append(list, p, Publication{Records: []*kafka.Record{plain(searchTopic, 0, names[len(names)-1])}})
	}
	if err := c.Publish(ctx, list); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		c.done[n] = true
	}
	return len(page.Rows), nil
}

// watch reads a partition until ctx ends.
func (c *crashed) watch(ctx context.Context, p kafka.Partition) error {
	for next := int64(0); ; {
		list, err := c.Read(ctx, p, next, 2000)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is no failure
		case err != nil:
			return err
		}
		c.mu.Lock()
		for _, r := range list {
			if c.seen[p] = append(c.seen[p], show(r)); r.Offset != next {
				err = fmt.Errorf("%s, offset %d is expected", show(r), next)
			}
			next++
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
		if err := c.Wait(ctx, []kafka.Position{{Partition: p, Offset: next}}); err != nil {
			return nil //nolint:nilerr // the end of the round
		}
	}
}

func (c *crashed) snapshot() *crashed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &crashed{stored: maps.Clone(c.stored), done: maps.Clone(c.done), seen: maps.Clone(c.seen)}
}

// run writes, publishes and reads at the same time until the power fails, and returns what is left
// on the disk, and what was promised by then.
func (c *crashed) run(t *testing.T, rng *rand.Rand) (left *embeddedtest.Disk, promised *crashed, err error) {
	var mu sync.Mutex // of the loss and of errors
	until := rng.IntN(crashChats*crashWrites + 10)
	step := func(e error) (failed bool) {
		mu.Lock()
		defer mu.Unlock()
		err = errors.Join(err, e)
		if until--; until < 0 && left == nil {
			promised = c.snapshot() // must be on the disk now
			left = c.disk.PowerLoss(rng)
		}
		return left != nil || err != nil
	}
	seed := rng.Uint64()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers, relays, readers sync.WaitGroup
	done := make(chan struct{})
	for chat := range crashChats {
		own := rand.New(rand.NewPCG(seed, uint64(chat)))
		writers.Go(func() {
			for range crashWrites {
				if step(c.write(t, chat, 1+own.IntN(3))) {
					return
				}
			}
		})
	}
	for shard := range crashRelays {
		own := rand.New(rand.NewPCG(seed, 100+uint64(shard)))
		relays.Go(func() {
			for {
				rows, e := c.publish(t, shard, 1+own.IntN(4))
				if rows > 0 || e != nil {
					step(e)
				}
				select {
				case <-done:
					if rows == 0 {
						return
					}
				default:
					runtime.Gosched()
				}
			}
		})
	}
	for _, p := range []kafka.Partition{{Topic: chatsTopic}, {Topic: chatsTopic, ID: 1}, {Topic: searchTopic}} {
		readers.Go(func() {
			if e := c.watch(ctx, p); e != nil {
				step(e)
			}
		})
	}
	writers.Wait()
	close(done)
	relays.Wait()
	cancel()
	readers.Wait()
	if left == nil {
		until = 0
		step(nil)
	}
	return left, promised, err
}

// logged reads the log: which events it has, in the order of each chat and none twice, and whether
// the search event that was published with each row is there, too.
func (c *crashed) logged(ctx context.Context) (map[string]bool, error) {
	all, search := map[string]bool{}, map[string]bool{}
	last := map[string]int64{}
	for _, p := range []kafka.Partition{{Topic: searchTopic}, {Topic: chatsTopic}, {Topic: chatsTopic, ID: 1}} {
		_, end, err := c.Bounds(ctx, p)
		if err != nil {
			return nil, err
		}
		for next := int64(0); next < end; {
			list, err := c.Read(ctx, p, next, 5000)
			if err != nil || len(list) == 0 {
				return nil, fmt.Errorf("%s has nothing at %d of %d: %w", p, next, end, err)
			}
			for _, r := range list {
				if r.Offset != next {
					return nil, fmt.Errorf("%s, offset %d is expected", show(r), next)
				}
				if next++; p.Topic == searchTopic {
					search[string(r.Value)] = true
					continue
				}
				chat, version := string(r.Key), last[string(r.Key)]+1
				if md, ok := metadataOf(r.Value[6:]); !ok || int64(md.version) != version {
					return nil, fmt.Errorf("%s, version %d is expected", show(r), version)
				}
				last[chat] = version
				all[eventName(chat, version)] = true
			}
		}
	}
	for name := range search {
		if !all[name] {
			return nil, fmt.Errorf("the search event with %s is there, the event is not", name)
		}
	}
	return all, nil
}

// check compares what is left with what was promised.
func (c *crashed) check(ctx context.Context, promised *crashed) error {
	logged, err := c.logged(ctx)
	if err != nil {
		return err
	}
	waiting := map[string]bool{}
	for row, err := range store.ScanAll(ctx, c.store, store.Scan{Table: store.Outbox, Segments: 1}) {
		if err != nil {
			return err
		}
		o, err := table.OutboxFrom(row)
		if err != nil {
			return err
		}
		for v := o.FirstVersion; v < o.FirstVersion+o.Count; v++ {
			if waiting[eventName(o.AggregateID, v)] = true; logged[eventName(o.AggregateID, v)] {
				return fmt.Errorf("%s is in the log, and its row waits", eventName(o.AggregateID, v))
			}
			var chat int
			if _, err := fmt.Sscanf(o.AggregateID, "chat_%d", &chat); err != nil {
				return err
			}
			c.next[chat] = max(c.next[chat], v)
		}
	}
	for name := range promised.stored {
		if !waiting[name] && !logged[name] {
			return fmt.Errorf("%s was stored, and neither waits nor is in the log", name)
		}
	}
	for name := range promised.done {
		if !logged[name] {
			return fmt.Errorf("%s was published, and is not in the log", name)
		}
	}
	for p, list := range promised.seen {
		for offset, want := range list {
			got, err := c.Read(ctx, p, int64(offset), 1)
			if err != nil || len(got) == 0 || show(got[0]) != want {
				return fmt.Errorf("a reader has seen %s, which is not there any more: %w", want, err)
			}
		}
	}
	for name := range logged {
		var chat int
		var version int64
		if _, err := fmt.Sscanf(name, "chat_%d %d", &chat, &version); err != nil {
			return err
		}
		c.next[chat] = max(c.next[chat], version)
		c.stored[name], c.done[name] = true, true
	}
	for name := range waiting {
		c.stored[name] = true
	}
	return nil
}

// crashRound lets the power fail several times, on the disk that the last loss has left, and
// publishes at the end what still waits.
func crashRound(t *testing.T, seed uint64, bug func(store.Records) store.Records) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	c := openCrashed(t, embeddedtest.NewDisk(runtime.Gosched), bug)
	for loss := range crashLosses {
		left, promised, err := c.run(t, rng)
		if err == nil {
			c = openCrashed(t, left, bug)
			err = c.check(t.Context(), promised)
		}
		if err != nil {
			return fmt.Errorf("loss %d: %w", loss, err)
		}
	}
	for shard := range crashRelays {
		for rows := 1; rows > 0; {
			var err error
			if rows, err = c.publish(t, shard, 100); err != nil {
				return err
			}
		}
	}
	logged, err := c.logged(t.Context())
	if err == nil && len(logged) != len(c.stored) {
		err = fmt.Errorf("%d events are in the log, %d were stored", len(logged), len(c.stored))
	}
	return err
}

// After any number of losses of power, each event that was stored is in the log once, in the order
// of its chat, or its row waits; what was acknowledged as published, and what a reader has seen, is
// there, at its offset (K-072, K-074).
func TestPowerLoss(t *testing.T) {
	base := testkit.Seed(t, 0)
	for n := range testkit.Rounds(t, "PARLEY_PUBLISH_LOSSES", 20) {
		seed := base + uint64(n)
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { // which closes the round's stores
			testkit.Must(t, crashRound(t, seed, func(r store.Records) store.Records { return r }))
		}) {
			return
		}
	}
}

// hasty is an engine that says that something is durable before it is.
type hasty struct{ store.Records }

func (h hasty) Commit(ctx context.Context, list []store.Record, rows ...store.Key) (func() error, error) {
	wait, err := h.Records.Commit(ctx, list, rows...)
	if err != nil {
		return nil, err
	}
	return func() error {
		go func() { _ = wait() }()
		return nil
	}, nil
}

// apart is an engine that deletes rows in a commit of their own.
type apart struct{ store.Records }

func (a apart) Commit(ctx context.Context, list []store.Record, rows ...store.Key) (func() error, error) {
	one, err := a.Records.Commit(ctx, list)
	if err != nil || len(rows) == 0 {
		return one, err
	}
	runtime.Gosched()
	two, err := a.Records.Commit(ctx, nil, rows...)
	return func() error { return errors.Join(one(), two()) }, err
}

// The same rounds must notice engines that keep no promise.
func TestPowerLossNoticesMistakes(t *testing.T) {
	for name, bug := range map[string]func(store.Records) store.Records{
		"acknowledged before it is durable": func(r store.Records) store.Records { return hasty{r} },
		"rows are deleted later":            func(r store.Records) store.Records { return apart{r} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				if err := crashRound(t, seed, bug); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("every round was passed")
		})
	}
}
