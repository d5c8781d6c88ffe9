package serving

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// The log says how many messages of a partition wait for their time, as far as a group has not acknowledged them: no
// group waits for a message that all have acknowledged. The partition reads this count when a message that waits is
// first published after it was opened. Without the count each restart would let in as many again while no member reads
// them, and a group would exceed its limit of open messages.
type postponed struct {
	counting chan struct{} // full while the log is read, from next on
	next     int64         // -1: it is to be read from the first open message

	// The partition's lock guards these.
	counted  bool
	reserved int // that are being stored
}

// CountPostponed reads which messages wait, unless that has been done. If the caller gives up, the next one continues.
// One that waited for another finds nothing left to read.
func (p *Partition) CountPostponed(ctx context.Context) error {
	w := &p.postponed
	p.mu.Lock()
	counted := w.counted
	p.mu.Unlock()
	if counted {
		return nil
	}
	select {
	case w.counting <- struct{}{}:
		defer func() { <-w.counting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	if w.next < 0 {
		w.next = p.machine.FirstOpen()
	}
	_, end := p.machine.Bounds()
	p.mu.Unlock()
	if err := commitlog.Scan(ctx, p.cfg.Log, p.Address, &w.next, end, scanBytes, p.Note); err != nil {
		return fmt.Errorf("reading which messages wait: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.counted = true // messages stored meanwhile were counted then
	return nil
}

// reserve reports whether so many more messages may wait. If they may, settled follows.
func (p *Partition) reserve(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.elapsedLocked()
	if p.machine.Postponed()+p.postponed.reserved+n > machine.MaxPostponed {
		return false
	}
	p.postponed.reserved += n
	return true
}

// settled says that messages for which reserve made room are noted, or not stored.
func (p *Partition) settled(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.postponed.reserved -= n
}

// waiting counts the messages of each append that wait. It prepares postpone, and may read the log.
func (p *Publisher) waiting(ctx context.Context, l *OpenTopic, appends []commitlog.Append) ([]int, error) {
	counts, now := make([]int, len(appends)), p.engine.Clock().UnixMilli()
	for i, a := range appends {
		for _, m := range a.Messages {
			if commitlog.Delivery(m, now) != 0 {
				counts[i]++
			}
		}
		if counts[i] > 0 {
			if err := l.Parts[a.Partition.Number].CountPostponed(ctx); err != nil {
				return nil, err
			}
		}
	}
	return counts, nil
}

// postpone makes room for so many messages of each append that wait, until done is called, or refuses them. A request
// that the topic remembers stores nothing, and needs none.
func (p *Publisher) postpone(
	ctx context.Context, l *OpenTopic, appends []commitlog.Append, counts []int,
) (done func(), err error) {
	var undo []func()
	done = func() {
		for _, f := range undo {
			f()
		}
	}
	for i, a := range appends {
		part, n := l.Parts[a.Partition.Number], counts[i]
		if n == 0 {
			continue
		}
		if part.reserve(n) {
			undo = append(undo, func() { part.settled(n) })
			continue
		}
		if known, err := p.Remembers(ctx, l, appends); known || err != nil {
			return done, err
		}
		return done, refusal.New(refusal.TooMany, "in partition %d of topic %q up to %d messages may wait for their time, "+
			"and nothing of this is stored: publish without delay, later, or with keys of other partitions",
			a.Partition.Number, l.Name, machine.MaxPostponed)
	}
	return done, nil
}
