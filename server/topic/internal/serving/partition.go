package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// PartitionConfig holds the dependencies of a Partition.
type PartitionConfig struct {
	Store   store.Store
	Log     commitlog.Reader
	Flusher *Flusher
	Memory  *Memory
	Clock   func() time.Time
	// Wall is the clock that the log stores messages by; nil: Clock. Expiries are measured
	// by it.
	Wall func() time.Time
	// Known counts the ids of messages that are known, of all topics; nil: of the partition.
	Known  *atomic.Int64
	Logger *slog.Logger
	// Released is called when messages that were due to a group are taken from it. It does not wait.
	Released func(machine.Cause, int64)
}

// Partition owns a partition.
type Partition struct {
	Address commitlog.Partition

	cfg PartitionConfig

	mu        sync.Mutex
	machine   *machine.Machine
	resident  resident
	saved     map[string]*saved
	machined  uint64  // version of the machine's own state that is stored
	ids       idIndex // has a lock of its own
	postponed postponed
	dirty     bool // it stands in the flusher's list
	closed    bool // its rows are being removed
}

// saved is what of a group is stored.
type saved struct {
	version  uint64
	progress int64     // see machine.GroupState.ProgressMark
	movedAt  time.Time // when it moved last
	refused  bool      // the store did not take it when it was to be written last
}

// noProgress is no mark of progress.
const noProgress = math.MinInt64

// OpenPartition loads a partition with its groups. Its machine is to be reconciled before anything else is asked of it.
func OpenPartition(
	ctx context.Context, cfg PartitionConfig, address commitlog.Partition, groups []StoredGroup) (*Partition, error,
) {
	start, end, err := cfg.Log.Bounds(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("bounds of %s: %w", address, err)
	}
	p := &Partition{Address: address, cfg: cfg, saved: map[string]*saved{}}
	p.ids = newIDIndex(cfg.Known)
	p.postponed = postponed{counting: make(chan struct{}, 1), next: -1}
	p.resident.end = end
	p.resident.tail.memory, p.resident.cached.memory = cfg.Memory, cfg.Memory
	p.machine = machine.New(address.Number, start, end, &p.resident)
	p.machine.OnRelease(cfg.Released)
	cursors, err := p.load(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		key := table.CursorKey(int64(address.Topic), address.Number, g.Config.Name, g.Config.Generation).SK
		cursor, ok := cursors[key]
		if !ok {
			return nil, fmt.Errorf("%w: cursor %s of %s is missing", store.ErrCorrupt, key, address)
		}
		if _, err := p.machine.Restore(g.Config, g.State, cursor.State); err != nil {
			return nil, fmt.Errorf("cursor %s of %s: %w", key, address, err)
		}
		s := &saved{progress: noProgress, movedAt: time.UnixMilli(cursor.MovedAt)}
		if h := p.machine.Group(g.Config.Name); h.State() == g.State {
			s.progress = h.ProgressMark()
		}
		p.saved[g.Config.Name] = s
	}
	return p, nil
}

// HasUndeliverable reports whether groups of a partition that is not open have messages that an earlier
// process was to store as dead letters and did not. Open makes dead letters of them.
func HasUndeliverable(
	ctx context.Context, s store.Store, address commitlog.Partition, groups []StoredGroup) (bool, error,
) {
	of := map[string]*StoredGroup{}
	for i := range groups {
		c := &groups[i].Config
		of[table.CursorKey(int64(address.Topic), address.Number, c.Name, c.Generation).SK] = &groups[i]
	}
	q := store.Query{
		Table: store.Subscriptions, PK: table.CursorPartition(int64(address.Topic), address.Number),
		Consistency: store.Strong,
	}
	for row, err := range store.QueryAll(ctx, s, q) {
		if err != nil {
			return false, fmt.Errorf("cursors of %s: %w", address, err)
		}
		g := of[row.Key.SK]
		if g == nil {
			continue
		}
		has, err := machine.HasUndeliverable(&g.Config, g.State, table.CursorFrom(row.Item).State)
		if has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// StoredGroup is a group as its row has it.
type StoredGroup struct {
	Config machine.Config
	State  machine.State
}

// StoredGroupOf converts a subscription.
func StoredGroupOf(s *storage.Subscription, pausePins bool) (StoredGroup, error) {
	c, err := config(s, pausePins)
	return StoredGroup{c, machine.State(s.State)}, err
}

// load reads the cursors and the machine's own state.
func (p *Partition) load(ctx context.Context) (map[string]table.Cursor, error) {
	pk := table.CursorPartition(int64(p.Address.Topic), p.Address.Number)
	cursors := map[string]table.Cursor{}
	q := store.Query{Table: store.Subscriptions, PK: pk, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, p.cfg.Store, q) {
		if err != nil {
			return nil, fmt.Errorf("cursors of %s: %w", p.Address, err)
		}
		c := table.CursorFrom(row.Item)
		if row.Key != table.MachineKey(int64(p.Address.Topic), p.Address.Number) {
			cursors[row.Key.SK] = c
		} else if err := p.machine.RestoreState(c.State); err != nil {
			return nil, fmt.Errorf("state of %s: %w", p.Address, err)
		}
	}
	p.machined = p.machine.Version()
	return cursors, nil
}

// Do calls f with the machine, alone.
func (p *Partition) Do(f func(m *machine.Machine)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.machine)
}

// Change calls f, which changes a group, alone, and sees to it that the change is stored.
func (p *Partition) Change(group string, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if g := p.machine.Group(group); g != nil {
		p.markLocked(g)
	}
}

// Begun adds a batch that has its positions and is not durable yet: it belongs to the log for
// what changes a group, and is not delivered.
func (p *Partition) Begun(b *commitlog.Batch) {
	p.mu.Lock()
	p.resident.begun(b)
	p.machine.Published(b.End())
	if b.Delays() {
		p.elapsedLocked()
		p.machine.Note(b)
	}
	fresh := p.resident.tail.touch()
	p.mu.Unlock()
	p.cfg.Memory.count(p, &p.resident.tail, fresh)
}

// Durable says that what lies before a position is on stable storage, and can be
// delivered.
func (p *Partition) Durable(end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if end > p.resident.end {
		p.resident.end = end
		p.machine.Published(end)
	}
	if p.closed { // while it was being written
		p.resident.give(&p.resident.tail)
	}
}

// OldestDue returns the lowest position that is due to a group, and since when; zero if that is not in memory. It
// returns false for a group that does not receive, or has nothing to do.
func (p *Partition) OldestDue(group string) (position int64, since time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.machine.Group(group)
	if g == nil || g.State() != machine.Active {
		return 0, since, false
	}
	p.elapsedLocked()
	position, since = g.OldestDue()
	_, end := p.machine.Bounds()
	return position, since, position < end
}

// Note notes the messages of a batch that are not due.
func (p *Partition) Note(b *commitlog.Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.elapsedLocked()
	p.machine.Note(b)
}

// Bounds returns the first position that is kept, and that behind the last, durable or not.
func (p *Partition) Bounds() (start, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.machine.Bounds()
}

// Idle frees memory that was not used since the last call.
func (p *Partition) Idle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resident.idle()
}

// maxFetches bounds the reads of one Next.
const maxFetches = 16

// FetchResult is what Next found beside the messages that it delivered.
type FetchResult struct {
	Wait          machine.Wait
	Wake          time.Time               // when the group's Wake has something to do; zero: never
	Undeliverable []machine.Undeliverable // of messages that had failed too often before a restart
}

// Next wakes a group and delivers its messages, which it reads from the log if they are not in
// memory. lost is called with what members have lost by that, and use with the pieces after
// it, both under the lock.
func (p *Partition) Next(
	ctx context.Context, group string, limit int, lost func([]machine.Lost), use func([]machine.Piece),
) (h FetchResult, err error) {
	var pieces []machine.Piece
	reading := false
	defer func() {
		if reading {
			p.read(-1)
		}
	}()
	for range maxFetches {
		p.mu.Lock()
		g := p.machine.Group(group)
		if g == nil {
			p.mu.Unlock()
			return h, nil
		}
		now := p.cfg.Clock()
		p.elapsedLocked()
		g.Wake(now)
		if list := p.machine.TakeLost(nil); len(list) > 0 {
			lost(list)
		}
		pieces, h.Wait = g.Next(now, limit, pieces[:0])
		if len(pieces) > 0 {
			use(pieces)
		}
		h.Wake, h.Undeliverable = g.Wake(now).Next, g.TakeUndeliverable(h.Undeliverable)
		p.markLocked(g)
		p.mu.Unlock()
		if h.Wait.Reason != machine.Fetch || len(pieces) > 0 {
			return h, nil
		}
		if !reading {
			p.read(1)
			reading = true
		}
		if err := p.fetch(ctx, h.Wait.Position); err != nil {
			return h, err
		}
	}
	return h, nil
}

func (p *Partition) elapsedLocked() {
	now := p.cfg.Wall
	if now == nil {
		now = p.cfg.Clock
	}
	p.machine.Elapsed(now().UnixNano())
}

// Unpark delivers messages of keys again that are parked, of all without keys, and returns how
// many. Keys that a restart has forgotten are read from the log.
func (p *Partition) Unpark(ctx context.Context, group string, keys []string) (n int, err error) {
	p.read(1)
	defer p.read(-1)
	from, fetched, tries := int64(0), int64(-1), 0
	for {
		some, missing := 0, int64(-1)
		p.Change(group, func() {
			if g := p.machine.Group(group); g != nil {
				some, missing = g.Unpark(from, keys...)
			}
		})
		if n += some; missing < 0 {
			return n, nil
		}
		if tries++; missing != fetched {
			fetched, tries = missing, 0
		}
		if from = missing; tries == maxFetches { // others read as much, again and again
			return n, fmt.Errorf("reading %s at %d: it does not stay in memory", p.Address, missing)
		}
		if err := p.fetch(ctx, missing); err != nil {
			return n, err
		}
	}
}

// read says that a call begins to read from the log, 1, or has used what it read, -1.
func (p *Partition) read(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resident.readers += n
}

// Overdue returns for how long something of a group has been due, as the end of a lease, without
// being done; of any group if its name is empty. More than moments mean that a wake-up was lost.
func (p *Partition) Overdue(group string) (highest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock()
	for _, g := range p.machine.Groups() {
		if group == "" || group == g.Config().Name {
			highest = max(highest, g.Overdue(now))
		}
	}
	return highest
}

// fetch is fetchSome of as much as is read at a time.
func (p *Partition) fetch(ctx context.Context, position int64) error {
	return p.fetchSome(ctx, position, fetchBytes)
}

// fetchSome reads from the log, a batch at least. Corrupt messages cannot be read: fetchSome skips them, like those
// that were trimmed.
func (p *Partition) fetchSome(ctx context.Context, position int64, size int) error {
	p.mu.Lock()
	from, end := p.resident.existing(position), p.resident.end
	p.mu.Unlock()
	batches, err := p.cfg.Log.Read(ctx, p.Address, from, size)
	var corrupt *commitlog.CorruptError
	if errors.As(err, &corrupt) {
		p.cfg.Logger.Error("messages cannot be read and are passed over", "partition", p.Address.String(),
			"from", corrupt.From, "to", corrupt.To, "error", err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.resident.voids = []span{{position, corrupt.To}}
		return nil
	}
	if errors.Is(err, commitlog.ErrTrimmed) {
		start, _, err := p.cfg.Log.Bounds(ctx, p.Address)
		if err == nil {
			p.Trimmed(start)
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("reading %s from %d: %w", p.Address, position, err)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.resident.fetched(position, end, batches)
	fresh := p.resident.cached.touch()
	p.mu.Unlock()
	p.cfg.Memory.count(p, &p.resident.cached, fresh)
	return nil
}

// Trimmed says that what lies before a position is no longer there.
func (p *Partition) Trimmed(start int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.machine.Trimmed(start)
	p.resident.trimmed(start)
	for _, g := range p.machine.Groups() { // the stored acknowledgements are removed, too
		p.markLocked(g)
	}
}

// Stuck reports since when a group's floor has not moved, if it has something to do, or messages in
// hand: the log may be kept for these.
func (p *Partition) Stuck(group string) (since time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, s := p.machine.Group(group), p.saved[group]
	if g == nil || s == nil || !storage.Receives(storage.State(g.State())) {
		return time.Time{}, false
	}
	if st := g.Stats(); st.Pending == 0 && st.InFlight == 0 {
		return time.Time{}, false
	}
	return s.movedAt, g.ProgressMark() == s.progress
}
