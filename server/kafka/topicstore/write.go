package topicstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
	"github.com/parley-chat/parley/server/store"
)

// write writes what is submitted, one transaction after another.
func (l *Log) write(ctx context.Context) {
	for list := l.take(ctx); list != nil; list = l.take(ctx) {
		l.commit(ctx, list)
	}
}

// plan is a transaction.
type plan struct {
	list    []*submission // what is written
	pieces  []piece
	records []*kafka.Record                 // of the pieces
	windows map[state.Key]*producers.Window // as they become
	times   map[commitlog.Partition]int64   // of the last batches
	removed int                             // so many of the log's keys are removed
}

// piece is an append that is written, or that repeats one of the same transaction.
type piece struct {
	s      *submission
	at     int // index in the submission
	first  int // index of its first record
	key    state.Key
	window *producers.Window // nil without a producer
	slot   byte
	// published is what the window remembers of it, once it has its positions.
	published producers.Published
	repeats   int // index of the piece that it repeats; -1: none
}

func (x *piece) onlyNumber() bool { return x.s.appends[x.at].OnlyNumber() }

// maxCommits is how often a group is written again of which a broker says that it is out of
// order.
const maxCommits = 3

// noPosition is the base of what has no position yet.
const noPosition = -1

// errInterleaved says that others wrote between the messages of one append.
var errInterleaved = errors.New("topicstore: messages of others stand between those of a publish")

// commit writes submissions, without those that cannot be, and answers all.
func (l *Log) commit(ctx context.Context, list []*submission) {
	for tries := 1; ; tries++ {
		p := l.prepare(ctx, list)
		if list = p.list; len(list) == 0 {
			return
		}
		began := time.Now()
		err := l.transact(ctx, p)
		if err == nil {
			l.cfg.Counters.committed(len(p.records), time.Since(began))
			l.settle(p)
			return
		}
		l.cfg.Counters.Refused.Add(1)
		if errors.Is(err, errInterleaved) && len(list) > 1 { // alone, each is one batch of Kafka's
			for _, s := range list {
				l.commit(ctx, []*submission{s})
			}
			return
		}
		// A broker has lost track of the producer. The transaction was aborted, and the client
		// restarted.
		if errors.Is(err, kerr.OutOfOrderSequenceNumber) && tries < maxCommits && !errors.Is(err, commitlog.ErrFenced) {
			continue
		}
		var partial *kafka.PartitionError
		rest := list[:0:0]
		if errors.As(err, &partial) {
			rest = p.without(partial)
		}
		if len(rest) == len(list) {
			rest = nil
		}
		for _, s := range list {
			if !slices.Contains(rest, s) {
				l.settleOne(s, l.explain(err))
			}
		}
		list = rest
	}
}

// without returns the submissions that write to none of the partitions that refused.
func (p *plan) without(partial *kafka.PartitionError) []*submission {
	bad := map[*submission]bool{}
	for _, x := range p.pieces {
		switch {
		case x.repeats >= 0:
			bad[x.s] = bad[x.s] || bad[p.pieces[x.repeats].s]
			continue
		case x.onlyNumber():
			continue
		}
		r := p.records[x.first]
		bad[x.s] = bad[x.s] || slices.Contains(partial.Partitions, kafka.Partition{Topic: r.Topic, ID: r.Partition})
	}
	return slices.DeleteFunc(slices.Clone(p.list), func(s *submission) bool { return bad[s] })
}

// settleOne answers a submission that was not written, or whose outcome is unknown.
func (l *Log) settleOne(s *submission, err error) {
	l.mu.Lock()
	s.settled = true
	l.mu.Unlock()
	s.answer(err)
}

// prepare looks up what was stored before, and makes the records of the rest. It answers the
// submissions that are not written.
func (l *Log) prepare(ctx context.Context, list []*submission) *plan {
	p := &plan{windows: map[state.Key]*producers.Window{}, times: map[commitlog.Partition]int64{}}
	for _, s := range list {
		if s.forget != "" {
			l.writer.PurgeTopicsFromClient(s.forget)
		}
		var err error
		for i := 0; i < len(s.appends) && err == nil; i++ {
			err = l.load(ctx, s.appends[i].Partition)
		}
		l.mu.Lock()
		written := false
		if err == nil {
			written, err = p.add(l, s)
		}
		l.mu.Unlock()
		if err != nil || !written {
			l.settleOne(s, err)
		} else {
			p.list = append(p.list, s)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.removed = len(l.removed)
	return p
}

// add adds a submission as a whole, or not at all; false if all of it was stored before. The
// log's lock is held.
func (p *plan) add(l *Log, s *submission) (bool, error) {
	if s.gone != nil {
		l.removed = append(l.removed, l.memory.DropIf(s.gone)...)
	}
	written := len(s.state) > 0 || s.gone != nil
	windows := map[state.Key]*producers.Window{}
	pieces, records := p.pieces, p.records
	clear(s.appended) // of an earlier try
	for i := range s.appends {
		a := &s.appends[i]
		x := piece{s: s, at: i, first: len(records), repeats: -1, key: state.Key{Partition: a.Partition, ID: a.Producer.ID}}
		if x.key.ID != "" {
			if windows[x.key] == nil {
				windows[x.key] = p.window(l, x.key)
			}
			x.window = windows[x.key]
			stored, err := x.find(pieces)
			if err != nil {
				return false, err
			}
			if stored {
				continue
			}
		}
		if x.repeats < 0 && !a.OnlyNumber() {
			list, err := p.recordsOf(l, s, i)
			if err != nil {
				return false, err
			}
			records = append(records, list...)
		}
		pieces, written = append(pieces, x), true
	}
	if err := commitlog.CheckWhole(s.appends, s.appended); err != nil {
		return false, err
	}
	p.pieces, p.records = pieces, records
	for k, w := range windows {
		p.windows[k] = w
	}
	return written, nil
}

// find looks for the piece's number among those that are remembered, and remembers it if it is
// new. If it was stored before, or is about to be by another piece of the transaction, the
// submission's answer says so.
func (x *piece) find(pieces []piece) (stored bool, err error) {
	a := &x.s.appends[x.at]
	old, found := x.window.Find(a.Producer.Number)
	if !found {
		if a.OnlyNumber() && commitlog.RepeatsBefore(x.s.appends, x.s.appended, x.at) {
			x.s.appended[x.at] = commitlog.Appended{Replayed: true, Same: true}
			return true, nil
		}
		now := producers.Published{Number: a.Producer.Number, Base: noPosition, Count: int32(len(a.Messages)),
			Hash: a.Request}
		if x.slot, err = x.window.Add(now); err != nil {
			err = fmt.Errorf("%w: %d is %w", commitlog.ErrProducerNumber, a.Producer.Number, err)
		}
		return false, err
	}
	if x.s.appended[x.at], err = a.Repeat(old); err != nil {
		return false, err
	}
	if old.Base == noPosition {
		x.repeats = slices.IndexFunc(pieces, func(y piece) bool {
			return y.key == x.key && y.repeats < 0 && y.s.appends[y.at].Producer.Number == old.Number
		})
	}
	return old.Base != noPosition, nil
}

// window is a copy of what is remembered of a producer, with what the plan adds.
func (p *plan) window(l *Log, k state.Key) *producers.Window {
	w := p.windows[k]
	if w == nil {
		w = l.memory.Window(k)
	}
	if w == nil {
		return &producers.Window{}
	}
	return w.Clone()
}

// recordsOf makes the records of an append. Its time is not before that of what is there.
func (p *plan) recordsOf(l *Log, s *submission, i int) ([]*kafka.Record, error) {
	a, b := &s.appends[i], s.batches[i]
	last := max(p.times[a.Partition], l.parts[a.Partition].time)
	if b.Time < last { // another publisher was faster, or clocks differ
		var err error
		if b, err = commitlog.NewBatch(0, time.UnixMilli(last), a.Messages); err != nil {
			return nil, err
		}
		s.batches[i] = b
	}
	p.times[a.Partition] = b.Time
	name := l.memory.Topics[a.Partition.Topic].Name
	list := make([]*kafka.Record, len(a.Messages))
	for n, m := range a.Messages {
		list[n] = record.Of(name, a.Partition.Number, b.Time, m, a.Producer)
	}
	return list, nil
}

// transact writes a plan. After an error nothing of it is stored, but with ErrAmbiguous, and
// after ErrFenced the log has ended.
func (l *Log) transact(ctx context.Context, p *plan) error {
	if err := l.step("begin"); err != nil {
		return l.fatal(err)
	}
	tx, err := transaction.Begin(ctx, l.writer, p.records)
	var partial *kafka.PartitionError
	if errors.As(err, &partial) {
		return err
	}
	if err != nil {
		return l.fatal(err)
	}
	if len(p.records) > 0 {
		err = tx.Produce(ctx, p.records)
	}
	if stepped := l.step("messages"); stepped != nil {
		return l.fatal(stepped)
	}
	if err == nil {
		err = p.assignPositions(l)
	}
	if err == nil {
		if list := p.state(l); len(list) > 0 {
			err = tx.Produce(ctx, list)
		}
	}
	if stepped := l.step("state"); stepped != nil {
		return l.fatal(stepped)
	}
	if errors.Is(err, kafka.ErrFenced) {
		return l.fatal(err)
	}
	if ended := tx.End(ctx, err == nil); ended != nil {
		return l.fatal(fmt.Errorf("%w: %w", store.ErrAmbiguous, errors.Join(err, ended)))
	}
	if stepped := l.step("end"); stepped != nil {
		return l.fatal(stepped)
	}
	return err
}

// fatal ends the log: only a process that reopens it knows what is stored.
func (l *Log) fatal(err error) error {
	err = fmt.Errorf("%w: %w: %w", commitlog.ErrFenced, store.ErrUnavailable, err)
	if l.end(err) {
		l.cfg.Counters.Ended.Add(1)
		l.cfg.Logger.Warn("the log of topics ends", "slot", l.cfg.Slot, "error", err)
	}
	return err
}

// assignPositions gives the pieces the positions that their records got. A number without messages gets
// the end of its partition.
func (p *plan) assignPositions(l *Log) error {
	for i := range p.pieces {
		x := &p.pieces[i]
		if x.repeats >= 0 {
			continue
		}
		a := &x.s.appends[x.at]
		now := producers.Published{Number: a.Producer.Number, Count: int32(len(a.Messages)), Hash: a.Request}
		if x.onlyNumber() {
			l.mu.Lock()
			now.Base, now.Time = l.parts[a.Partition].end, l.cfg.Clock().UnixMilli()
			l.mu.Unlock()
		} else {
			now.Base = p.records[x.first].Offset
			for n := range a.Messages {
				if p.records[x.first+n].Offset != now.Base+int64(n) {
					return errInterleaved
				}
			}
			b := x.s.batches[x.at]
			b.Base, b.Producer = now.Base, a.Producer
			if a.Producer.ID == "" {
				b.Producer = commitlog.Producer{}
			}
			now.Time = b.Time
		}
		if x.window != nil {
			x.published = now
			p.windows[x.key].Set(now)
		}
	}
	return nil
}

// state makes the records of state.Name, removals first: a removed key may be there again.
func (p *plan) state(l *Log) []*kafka.Record {
	l.mu.Lock()
	list := l.tombstones(l.removed[:p.removed])
	l.mu.Unlock()
	for _, s := range p.list {
		list = append(list, s.state...)
	}
	for _, x := range p.pieces {
		if x.window != nil && x.repeats < 0 {
			list = append(list, l.published(x.key.Slot(x.slot), x.published))
		}
	}
	return list
}

// base is where a piece that was written stands.
func (x *piece) base() int64 {
	if b := x.s.batches[x.at]; b != nil {
		return b.Base
	}
	return x.published.Base
}

// settle makes a transaction that was committed known, and answers.
func (l *Log) settle(p *plan) {
	g := &group{}
	l.mu.Lock()
	for i := range p.pieces {
		x := &p.pieces[i]
		a := &x.s.appends[x.at]
		switch {
		case x.repeats >= 0:
			x.s.appended[x.at].Base = p.pieces[x.repeats].base()
			continue
		case x.onlyNumber():
			x.s.appended[x.at] = commitlog.Appended{Base: x.base()}
			continue
		}
		b := x.s.batches[x.at]
		at := l.parts[a.Partition]
		done := commitlog.Appended{Batch: b, Base: b.Base, Count: b.Count()}
		if t := l.known[a.Partition.Topic]; t != nil && t.Shared {
			done.Batch = nil // others may have written before it
		} else {
			b.Gap = b.Base - at.end
		}
		at.end, at.time = max(at.end, b.End()), b.Time
		x.s.appended[x.at] = done
		if x.s.left {
			l.moved[a.Partition] = at.end
		}
	}
	for k, w := range p.windows {
		l.memory.Put(k, w)
	}
	l.removed = append(slices.Clone(l.removed[p.removed:]), l.memory.Excess()...)
	for _, s := range p.list {
		if s.start > 0 {
			l.memory.Starts[s.part] = max(l.memory.Starts[s.part], s.start)
			l.trimmed[s.part] = l.memory.Starts[s.part]
		}
		s.settled = true
		if !s.left && len(s.appends) > 0 {
			s.group = g
			g.others.Add(1)
		}
	}
	l.mu.Unlock()
	l.news()
	for _, s := range p.list {
		s.answer(nil)
	}
}
