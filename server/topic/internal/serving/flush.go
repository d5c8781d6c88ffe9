package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of the Flusher.
const (
	// Interval is the longest time for which a change that no caller waits for stays in
	// memory.
	Interval = time.Second
	// Changes is the number of acknowledgements without a waiting caller that make it write
	// at once.
	Changes = 1000
	// MaxWaiting bounds the acknowledgements that are under way.
	MaxWaiting = 10_000
	// maxBehind bounds the acknowledgements without a waiting caller, while writes fail.
	maxBehind = 1_000_000

	firstPause = 50 * time.Millisecond // after a write that failed
	lastPause  = 5 * time.Second
	planBytes  = 2 << 20
)

// Flusher writes the cursors of all partitions: those that changed meanwhile go together.
type Flusher struct {
	store  store.Store
	epoch  int64
	clock  func() time.Time
	logger *slog.Logger
	mirror commitlog.Mirror // nil: the log mirrors no positions

	mu      sync.Mutex
	dirty   []*Partition
	waiting []chan error
	callers int   // that were admitted
	behind  int64 // acknowledgements since the last write that no caller waits for
	lost    error // another process has the topics
	wake    chan struct{}
	writing sync.Mutex // held while rows are written
}

// NewFlusher makes a Flusher that writes under an epoch. Run writes.
func NewFlusher(s store.Store, epoch int64, clock func() time.Time, logger *slog.Logger) *Flusher {
	return &Flusher{store: s, epoch: epoch, clock: clock, logger: logger, wake: make(chan struct{}, 1)}
}

// Show makes a log show how far groups have come, by what is stored of it. It is called
// before the Flusher is used.
func (f *Flusher) Show(l commitlog.Log) { f.mirror, _ = l.(commitlog.Mirror) }

// markLocked puts the partition on the list if a group has changed. The caller holds the
// partition's lock.
func (p *Partition) markLocked(g *machine.GroupState) {
	if s := p.saved[g.Config().Name]; s == nil || s.version != g.Version() || p.machine.Version() != p.machined {
		p.listLocked()
	}
}

func (p *Partition) listLocked() {
	if !p.dirty {
		p.dirty = true
		p.cfg.Flusher.add(p)
	}
}

// MarkState puts the partition on the list if what it has beside the groups has changed, and
// reports whether it has.
func (p *Partition) MarkState() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.machine.Version() != p.machined
	if changed {
		p.listLocked()
	}
	return changed
}

// Mark puts the partition on the list, to be written within Interval.
func (p *Partition) Mark(group string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.machine.Group(group); g != nil {
		p.markLocked(g)
	}
}

func (f *Flusher) add(p *Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = append(f.dirty, p)
}

// Admit refuses an acknowledgement that there is no room for: writes fail or are slow.
// Done follows one that was admitted.
func (f *Flusher) Admit() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.callers >= MaxWaiting || f.behind >= maxBehind {
		return refusal.New(refusal.Overloaded, "acknowledgements cannot be stored as fast as they come: try again later")
	}
	if f.lost == nil {
		f.callers++
	}
	return f.lost
}

// Done says that an admitted acknowledgement is answered.
func (f *Flusher) Done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.callers--
}

// Count adds n acknowledgements that no caller waits for.
func (f *Flusher) Count(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.behind += n; f.behind >= Changes {
		f.nowLocked()
	}
}

// nowLocked makes Run write. The caller holds the lock, as write does when it takes the
// marked partitions: these need no other write.
func (f *Flusher) nowLocked() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Wait returns once all that is marked now is stored. The caller has changed a group in
// some partitions; it gets no error because rows of others are set aside.
func (f *Flusher) Wait(ctx context.Context, group string, parts ...*Partition) error {
	done := make(chan error, 1)
	f.mu.Lock()
	if f.lost != nil {
		f.mu.Unlock()
		return f.lost
	}
	f.waiting = append(f.waiting, done)
	f.nowLocked()
	f.mu.Unlock()
	select {
	case err := <-done:
		for _, p := range parts {
			err = errors.Join(err, p.refusal(group))
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refusal is the answer to a caller whose change of a group was set aside.
func (p *Partition) refusal(group string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return refusal.New(refusal.Overloaded, "the topic was closed meanwhile: try again")
	}
	if s := p.saved[group]; s == nil || !s.refused {
		return nil
	}
	return refusal.New(refusal.Overloaded, "the subscription's position in partition %d cannot be stored",
		p.Address.Number)
}

// Run writes until the context ends, and once more then.
func (f *Flusher) Run(ctx context.Context) error {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return f.last(context.WithoutCancel(ctx))
		case <-tick.C:
		case <-f.wake:
		}
		for n := 0; ; n++ {
			err := f.write(ctx)
			if err == nil {
				break
			}
			if errors.Is(err, storage.ErrFenced) {
				return err
			}
			if n == 0 {
				f.logger.Warn("positions of subscriptions cannot be stored, trying again", "error", err)
			}
			if wait.For(ctx, wait.Doubled(firstPause, lastPause, n)) != nil {
				return f.last(context.WithoutCancel(ctx))
			}
		}
	}
}

// last writes once more. Callers whose changes it does not store, because they come later or
// because it fails, get an error.
func (f *Flusher) last(ctx context.Context) error {
	err := f.write(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost == nil {
		f.lost = refusal.New(refusal.Overloaded, "the server stops: it is not known what of this is stored")
	}
	for _, w := range f.waiting {
		w <- f.lost
	}
	f.waiting = nil
	return err
}

// write stores what is marked. Callers keep waiting if that fails.
func (f *Flusher) write(ctx context.Context) error {
	f.mu.Lock()
	dirty, waiting, behind := f.dirty, f.waiting, f.behind
	f.dirty, f.waiting, f.behind = nil, nil, 0
	select {
	case <-f.wake:
	default:
	}
	f.mu.Unlock()
	err := f.writeAll(ctx, dirty)
	if err != nil && !errors.Is(err, storage.ErrFenced) {
		f.mu.Lock()
		f.dirty, f.waiting, f.behind = append(dirty, f.dirty...), append(waiting, f.waiting...), f.behind+behind
		f.mu.Unlock()
		return err
	}
	if err != nil {
		f.mu.Lock()
		f.lost = err
		waiting = append(waiting, f.waiting...)
		f.waiting = nil
		f.mu.Unlock()
	}
	for _, w := range waiting {
		w <- err
	}
	return err
}

func (f *Flusher) writeAll(ctx context.Context, dirty []*Partition) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	b := batch{flusher: f}
	seen := make(map[*Partition]bool, len(dirty)) // one that failed may be marked again
	for _, p := range dirty {
		if seen[p] {
			continue
		}
		seen[p] = true
		if err := p.save(ctx, &b); err != nil {
			return err
		}
	}
	return b.flush(ctx)
}

// batch collects the writes of one plan.
type batch struct {
	flusher *Flusher
	changes []change
	bytes   int
}

// change is a row to be written.
type change struct {
	of    *Partition
	group string // whose cursor it is; empty: the machine's state
	write store.Write
	done  func() // called once it is stored
}

func (b *batch) add(ctx context.Context, c change) error {
	n := c.write.Item.Size()
	if len(b.changes) == storage.MaxPlanWrites || b.bytes+n > planBytes {
		if err := b.flush(ctx); err != nil {
			return err
		}
	}
	b.changes, b.bytes = append(b.changes, c), b.bytes+n
	return nil
}

// flush stores the plan. If the store does not take it as it is, each row goes alone, and those
// that it does not take are set aside: the other partitions' are stored.
func (b *batch) flush(ctx context.Context) error {
	if len(b.changes) == 0 {
		return nil
	}
	err := b.store(ctx, b.changes)
	if errors.Is(err, store.ErrInvalid) {
		err = nil
		for i := range b.changes {
			one := b.changes[i : i+1]
			refused := b.store(ctx, one)
			if errors.Is(refused, store.ErrInvalid) {
				one[0].of.refuse(one[0].group, refused)
			} else if refused != nil {
				return refused
			}
		}
	}
	if err == nil {
		b.changes, b.bytes = b.changes[:0], 0
	}
	return err
}

func (b *batch) store(ctx context.Context, changes []change) error {
	ctx, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	plan := store.Plan{Writes: make([]store.Write, len(changes))}
	for i, c := range changes {
		plan.Writes[i] = c.write
	}
	err := b.flusher.store.Transact(ctx, plan)
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", storage.ErrFenced, err)
	}
	if err != nil {
		return err
	}
	for _, c := range changes {
		c.done()
	}
	return nil
}

// refuse says that the store does not take a group's cursor. It is tried again with the next
// change.
func (p *Partition) refuse(group string, err error) {
	p.mu.Lock()
	first := true
	if s := p.saved[group]; s != nil {
		first, s.refused = !s.refused, true
	}
	p.mu.Unlock()
	if first {
		p.cfg.Logger.Error("the position of a group cannot be stored", "partition", p.Address.String(), "group", group,
			"error", err)
	}
}

// save adds what has changed to a batch. The partition is off the list from then on, and a
// change that cannot be stored is found again.
func (p *Partition) save(ctx context.Context, b *batch) error {
	var changes []change
	p.mu.Lock()
	p.dirty = false
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	now := p.cfg.Clock()
	for _, g := range p.machine.Groups() {
		if w, done, ok := p.cursor(g, b.flusher.epoch, now); ok {
			changes = append(changes, change{p, g.Config().Name, w, done})
		}
	}
	if v := p.machine.Version(); v != p.machined {
		row := table.Cursor{Epoch: b.flusher.epoch, State: p.machine.AppendState(nil), At: now.UnixMilli()}
		changes = append(changes, change{
			p, "", store.Write{
				Op: store.OpPut, Key: table.MachineKey(int64(p.Address.Topic), p.Address.Number), Item: row.Item(),
				Name: "machine",
			},
			func() { p.mu.Lock(); p.machined = v; p.mu.Unlock() },
		})
	}
	p.mu.Unlock()
	for _, c := range changes {
		if err := b.add(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// cursor is the write of a group's cursor, if it has changed. The caller holds the lock.
// The row exists as long as the group does. If it is missing or of a later epoch, another
// process has the topics.
func (p *Partition) cursor(g *machine.GroupState, epoch int64, now time.Time) (store.Write, func(), bool) {
	c := g.Config()
	s, version := p.saved[c.Name], g.Version()
	if s == nil || s.version == version {
		return store.Write{}, nil, false
	}
	moved, progress, floor := s.movedAt, g.ProgressMark(), g.Floor()
	if progress != s.progress {
		moved = now
	}
	row := table.Cursor{Epoch: epoch, State: g.AppendCursor(nil), At: now.UnixMilli(), MovedAt: moved.UnixMilli()}
	return store.Write{
			Op:   store.OpPut,
			Key:  table.CursorKey(int64(p.Address.Topic), p.Address.Number, c.Name, c.Generation),
			Item: row.Item(), Cond: store.Exists().Le(table.AttrEpoch, store.Int(epoch)), Name: "cursor",
		}, func() {
			if m := p.cfg.Flusher.mirror; m != nil {
				m.Reached(c.Name, p.Address, floor)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			s.version, s.progress, s.movedAt, s.refused = version, progress, moved, false
		}, true
}

// First is the write of a new group's first cursor, to be stored before its row is. Adopt
// follows.
func (p *Partition) First(group string) store.Write {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, now := p.machine.Group(group), p.cfg.Clock()
	row := table.Cursor{
		Epoch: p.cfg.Flusher.epoch, State: g.AppendCursor(nil), At: now.UnixMilli(), MovedAt: now.UnixMilli(),
	}
	p.saved[group] = &saved{version: g.Version(), progress: g.ProgressMark(), movedAt: now}
	return store.Write{
		Op: store.OpPut, Item: row.Item(), Name: "cursor",
		Key: table.CursorKey(int64(p.Address.Topic), p.Address.Number, group, g.Config().Generation),
	}
}

// Close says that the partition's rows are being removed: none is written any more.
func (p *Partition) Close() {
	p.mu.Lock()
	p.closed = true
	p.resident.give(&p.resident.tail)
	p.resident.give(&p.resident.cached)
	p.mu.Unlock()
	p.ids.forget()
	p.cfg.Memory.forget(p)
	p.cfg.Flusher.Quiesce()
}

// Quiesce waits until the writes under way end: no row of a group that is no longer there is written after it.
func (f *Flusher) Quiesce() {
	f.writing.Lock()
	defer f.writing.Unlock()
}

// Forget takes a group out whose cursor is to be removed, or was never stored: it is not
// written any more.
func (p *Partition) Forget(group string) error {
	defer p.cfg.Flusher.Quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.saved, group)
	g := p.machine.Group(group)
	if g == nil {
		return nil
	}
	if s := g.State(); s != machine.Cancelled && s != machine.Dead {
		if err := g.Cancel(); err != nil {
			return err
		}
	}
	if _, err := g.Release(); err != nil {
		return err
	}
	err := p.machine.Remove(g)
	p.listLocked()
	return err
}
