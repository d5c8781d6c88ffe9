package consume

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume/parked"
)

// parking knows the parked keys of the engine's partitions. Nil: nothing is parked.
type parking struct {
	log    parked.Log
	bounds parked.Bounds

	// adding is held while something is parked: workers of one round share the room, and none
	// may miss what another has just written.
	adding sync.Mutex

	mu   sync.Mutex
	keys map[string]map[string]table.Parked // by declared topic and key
}

// loadClaimed reads the parked keys of topics, once this process owns partitions of them.
func (p *parking) loadClaimed(ctx context.Context, claimed []*portion) error {
	if p == nil {
		return nil
	}
	loaded := map[string]bool{}
	for _, po := range claimed {
		topic := parked.Declared(po.partition.id.Topic)
		if loaded[topic] {
			continue
		}
		if err := p.load(ctx, topic); err != nil {
			return err
		}
		loaded[topic] = true
	}
	return nil
}

// load reads the parked keys of a declared topic. The caller holds adding, or is alone.
func (p *parking) load(ctx context.Context, topic string) error {
	rows, err := p.log.Load(ctx, topic)
	if err != nil {
		return err
	}
	keys := make(map[string]table.Parked, len(rows))
	for _, row := range rows {
		keys[string(row.Key)] = row
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[topic] = keys
	return nil
}

// has reports whether a record's key was parked when it was last checked.
func (p *parking) has(r *kafka.Record) bool {
	if p == nil {
		return false
	}
	_, ok := p.row(r)
	return ok
}

// row returns what was last seen of a record's key.
func (p *parking) row(r *kafka.Record) (table.Parked, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	row, ok := p.keys[parked.Declared(r.Topic)][string(r.Key)]
	return row, ok
}

// set remembers the row of a record's key; nil says that the key is not parked.
func (p *parking) set(r *kafka.Record, row *table.Parked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	topic := parked.Declared(r.Topic)
	if row == nil {
		delete(p.keys[topic], string(r.Key))
		return
	}
	if p.keys[topic] == nil {
		p.keys[topic] = map[string]table.Parked{}
	}
	p.keys[topic][string(r.Key)] = *row
}

// sum adds up what is parked of some partitions.
func (p *parking) sum(in func(kafka.Partition) bool) (total parked.Bounds) {
	if p == nil {
		return total
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, keys := range p.keys {
		for _, row := range keys {
			if in(kafka.Partition{Topic: row.At, ID: int32(row.Partition)}) {
				total.Add(&row)
			}
		}
	}
	return total
}

// errBounds says that as much of a partition is parked as may be.
var errBounds = errors.New("consume: the bounds of what is parked are reached")

// room returns how many of some records of one key can be parked, from the first one on, and
// errBounds if that is not all. Those that were counted before a crash need no more room.
// Others may have released keys meanwhile: it checks again before it refuses.
func (p *parking) room(ctx context.Context, records []*kafka.Record) (int, error) {
	n := p.fitting(records)
	if n == len(records) {
		return n, nil
	}
	if err := p.load(ctx, parked.Declared(records[0].Topic)); err != nil {
		return 0, err
	}
	if n = p.fitting(records); n < len(records) {
		return n, errBounds
	}
	return n, nil
}

// fitting is how many records fit in, as far as is known.
func (p *parking) fitting(records []*kafka.Record) int {
	first := records[0]
	now := p.sum(func(id kafka.Partition) bool { return id.Topic == first.Topic && id.ID == first.Partition })
	row, is := p.row(first)
	if !is && now.Keys >= p.bounds.Keys {
		return 0
	}
	for i, r := range records {
		if parked.Counts(&row, r) {
			continue
		}
		now.Records, now.Bytes = now.Records+1, now.Bytes+parked.Size(r)
		if now.Records > p.bounds.Records || now.Bytes > p.bounds.Bytes {
			return i
		}
	}
	return len(records)
}

// follow counts records of a parked key, from the first one on as many as there is room for,
// and returns its row and their number. The row is nil if the key is not parked any more. An
// error is about the first record that has no room.
func (p *parking) follow(ctx context.Context, records []*kafka.Record) (row *table.Parked, n int, err error) {
	p.adding.Lock()
	defer p.adding.Unlock()
	n, full := p.room(ctx, records)
	if n == 0 {
		return nil, 0, full
	}
	if row, err = p.log.Follow(ctx, records[:n]); err != nil {
		return nil, 0, err
	}
	p.set(records[0], row)
	return row, n, full
}

// begin parks the key of a record that is given up.
func (p *parking) begin(ctx context.Context, r *kafka.Record, f parked.Failure) error {
	p.adding.Lock()
	defer p.adding.Unlock()
	if _, err := p.room(ctx, []*kafka.Record{r}); err != nil {
		return err
	}
	row, err := p.log.Begin(ctx, r, f)
	if err == nil {
		p.set(r, &row)
	}
	return err
}

// follow has records of a parked key follow it to the dead letters. It returns how many have
// done so, and false if the key is not parked any more. An error is about the first that has
// not.
func (e *Engine) follow(ctx context.Context, records []*kafka.Record) (written int, stays bool, err error) {
	if !e.parking.has(records[0]) {
		return 0, false, nil
	}
	row, n, failure := e.parking.follow(ctx, records)
	if failure != nil {
		failure = Fail(Authoritative, "the key's records cannot be parked", failure)
	}
	if row == nil {
		return 0, failure != nil, failure
	}
	for i, r := range records[:n] {
		if err := e.deadLetterOfParked(ctx, r, row); err != nil {
			return i, true, err
		}
	}
	return n, true, failure
}

// deadLetterOfParked writes the dead letter of a record that is not tried. After a crash those
// may come again that were finished before the key was parked: they have none.
func (e *Engine) deadLetterOfParked(ctx context.Context, r *kafka.Record, row *table.Parked) error {
	class := classNamed(row.Class)
	if parked.IsBefore(row, r) { // finished, which was not committed
		e.handled.Add(1)
		return nil
	}
	if parked.IsFirst(row, r) { // that it is finished was not committed
		return e.deadLetter(ctx, r, int(row.Attempts), Fail(class, row.Reason, nil))
	}
	err := e.deadLetter(ctx, r, 1, Fail(class, "waits behind "+row.Failed, nil))
	if err == nil {
		e.parked.Add(1)
	}
	return err
}

// followAll has what is left of a key batch follow its key, and reports whether it does.
func (e *Engine) followAll(ctx context.Context, kb *keyBatch, from int) bool {
	if !e.parking.has(kb.portion.batch.Records[kb.indexes[from]]) {
		return false
	}
	left := kb.indexes[from:]
	records := make([]*kafka.Record, len(left))
	for i, at := range left {
		records[i] = kb.portion.batch.Records[at]
	}
	n, stays, err := e.follow(ctx, records)
	for _, at := range left[:n] {
		kb.portion.done[at] = true
	}
	if err != nil && !ending(ctx) {
		e.logWaiting(records[n], err)
	}
	return stays
}

// giveUp writes the dead letter of a record that will not be tried again. In the mode of
// aggregates its key is parked first, so that no later record goes ahead of it.
func (e *Engine) giveUp(ctx context.Context, r *kafka.Record, attempts int, failure error) error {
	if e.parking != nil && parked.CanPark(r.Key) {
		class := ClassOf(failure).String()
		err := e.parking.begin(ctx, r, parked.Failure{
			Class: class, Reason: strings.TrimPrefix(Reason(failure), class+": "), Attempts: attempts})
		if err != nil {
			return Fail(Authoritative, "the key cannot be parked", err)
		}
	}
	return e.deadLetter(ctx, r, attempts, failure)
}

// classNamed returns the class with a name; Unknown has all other names.
func classNamed(name string) Class {
	for c := Unknown; c <= Ignored; c++ {
		if c.String() == name {
			return c
		}
	}
	return Unknown
}

// waits reports whether a record comes again later because of a failure of a class. Where
// order counts, nothing is left out.
func (e *Engine) waits(c Class) bool {
	return c == Authoritative || c == Downstream && e.parking != nil
}

// parkedNow is what is parked of the partitions that this member has.
func (e *Engine) parkedNow() parked.Bounds {
	have := map[kafka.Partition]bool{}
	for id := range e.partitions {
		have[id] = true
	}
	return e.parking.sum(func(id kafka.Partition) bool { return have[id] })
}
