package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Slot is the part of all topics that a Catalog has: those whose names lead to it. The zero
// Slot has all topics. An installation of one process uses it, because there is no other
// process to fence.
type Slot struct {
	Number int
	Of     int // how many there are; 0: not divided
}

// SlotOf is the slot of a topic among so many. A topic and its dead letters are together.
func SlotOf(topic string, of int) int {
	h := fnv.New32a()
	h.Write([]byte(strings.TrimSuffix(topic, DeadLetterSuffix))) // cannot fail
	n := h.Sum32()
	return int((n ^ n>>16) * 0x45d9f3b >> 8 % uint32(of))
}

func (s Slot) has(topic string) bool { return s.Of == 0 || SlotOf(topic, s.Of) == s.Number }

// TopicNumber makes of how many topics the slot has made the number of the newest one, which no
// topic of another slot has.
func (s Slot) TopicNumber(made int64) uint64 {
	if s.Of == 0 {
		return uint64(made)
	}
	return uint64(made)*uint64(s.Of) + uint64(s.Number)
}

// FixSlots makes the number of slots what it is for good, and returns an error if it was
// another one: topics would be looked for in other slots than they are in.
func FixSlots(ctx context.Context, s store.Store, slots int) error {
	key := table.TopicSlotsKey()
	err := s.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: key, Cond: store.Absent(), Name: "slots",
		Item: store.NewItem(store.Attr{Name: table.AttrTopicNumber, Value: store.Int(int64(slots))}),
	}}})
	var failed *store.ConditionError
	if err != nil && !errors.As(err, &failed) {
		return fmt.Errorf("number of slots: %w", err)
	}
	it, err := s.Get(ctx, key, store.Strong)
	if err != nil {
		return fmt.Errorf("number of slots: %w", err)
	}
	if n := it.Get(table.AttrTopicNumber).Int64(); n != int64(slots) {
		return fmt.Errorf("the topics of this installation are in %d slots, which cannot change, not in %d", n, slots)
	}
	return nil
}

// Installation returns the id of the installation that a store belongs to, the same for good.
// The first call makes it.
func Installation(ctx context.Context, s store.Store) (string, error) {
	key := table.TopicInstallationKey()
	err := s.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: key, Cond: store.Absent(), Name: "installation",
		Item: store.NewItem(store.Attr{Name: table.AttrInstallation, Value: store.String(rand.Text())}),
	}}})
	var failed *store.ConditionError
	if err != nil && !errors.As(err, &failed) {
		return "", fmt.Errorf("id of the installation: %w", err)
	}
	it, err := s.Get(ctx, key, store.Strong)
	if err != nil {
		return "", fmt.Errorf("id of the installation: %w", err)
	}
	return it.Get(table.AttrInstallation).Str(), nil
}

// SessionPrefix begins the ids of sessions: the slot, by which calls find their owner, and
// the epoch.
func (c *Catalog) SessionPrefix() string { return fmt.Sprintf("%d-%d-", c.slot.Number, c.epoch) }

// SessionSlot is the slot that the id of a session leads to.
func SessionSlot(session string) (int, bool) {
	number, _, ok := strings.Cut(session, "-")
	n, err := strconv.Atoi(number)
	return n, ok && err == nil && n >= 0
}

// Store is the store that the topics' rows are written to: it refuses what this process
// writes after another one took them over.
func (c *Catalog) Store() store.Store { return c.store }

// Lost is closed when another process has the topics, or when the copy may not be what the
// store holds; nil where there is one process only.
func (c *Catalog) Lost() <-chan struct{} {
	if f, ok := c.store.(*fencedStore); ok {
		return f.Lost()
	}
	return nil
}

// transact makes a change that the copy then shows. The change completes even if the caller
// stops waiting for it. If its outcome is not known, this owner ends.
func (c *Catalog) transact(ctx context.Context, writes ...store.Write) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CallTimeout)
	defer cancel()
	err := c.store.Transact(ctx, store.Plan{Writes: writes})
	if f, ok := c.store.(*fencedStore); ok && errors.Is(err, store.ErrAmbiguous) {
		f.End()
	}
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// loaders bounds the topics of a slot that are read at once.
const loaders = 32

// rows reads all rows of topics that the catalog has.
func (c *Catalog) rows(ctx context.Context, use func(store.Row) error) error {
	if c.slot.Of == 0 {
		for row, err := range store.ScanAll(ctx, c.store, store.Scan{Table: store.Topics, Segments: 1}) {
			if err == nil && !table.OfNoTopic(row.Key) {
				err = use(row)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	var names []string
	list := store.Query{Table: store.Topics, PK: table.TopicListPartition(c.slot.Number), Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, c.store, list) {
		if err != nil {
			return err
		}
		names = append(names, row.Key.SK)
	}
	return c.each(ctx, names, use)
}

// each reads the rows of topics, several at once. use is called by one goroutine at a time.
func (c *Catalog) each(ctx context.Context, names []string, use func(store.Row) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan string)
	var wg sync.WaitGroup
	var mu sync.Mutex
	read := func(name string) error {
		q := store.Query{Table: store.Topics, PK: name, Consistency: store.Strong}
		for row, err := range store.QueryAll(ctx, c.store, q) {
			if err != nil {
				return err
			}
			mu.Lock()
			err = use(row)
			mu.Unlock()
			if err != nil {
				return err
			}
		}
		return nil
	}
	for range min(loaders, len(names)) {
		wg.Go(func() {
			for name := range next {
				if err := read(name); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for _, name := range names {
		select {
		case next <- name:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
