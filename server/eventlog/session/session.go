// Package session reads the event log in the store as a consumer group does: what package
// consume needs of a session, without a broker and without members.
//
// It owns the position in each partition, which partitions have a turn, and how long a poll
// waits. It owns neither the log nor the committed offsets, which are interfaces here, nor what
// becomes of records (package consume).
//
// # Rules
//
// The one member has all partitions of its topics. A partition is read from the offset that its
// group has committed: from the start of the partition if there is none, or if the records there
// are trimmed, and from its end if the offset is beyond it. A topic that the log does not have yet
// is assigned once it does. Topics do not leave the log while it is open.
//
// As a fetch from Kafka, a poll ends with MinFetch bytes, or once MaxWait has passed since the
// poll before it ended; each partition gets kafka.FetchPartitionBytes at most, all together
// kafka.FetchBytes, and the next poll begins behind the partition that had the last turn. That is
// also all that a session keeps in memory, and a record of each partition.
//
// Records are read by the goroutine that polls. Nothing is read while they are handled, and no
// goroutine remains after Close.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
)

// Log is what a session needs of the event log. The methods may be called from any goroutine.
type Log interface {
	// Topics returns all topics: the same slice until there is another topic.
	Topics() []kafka.Topic
	// Bounds returns the offset of the first record, and the offset after the last one.
	Bounds(ctx context.Context, p kafka.Partition) (start, end int64, err error)
	// Read returns records from an offset on, or from the first that is not trimmed: at least
	// one if there is one, then as many as have about maxBytes. They must not be changed.
	Read(ctx context.Context, p kafka.Partition, from int64, maxBytes int) ([]*kafka.Record, error)
	// Wait returns nil once the end of one of the partitions is greater than its offset here, and
	// an error once ctx ends.
	Wait(ctx context.Context, beyond []kafka.Position) error
}

// Offsets are the committed offsets of groups: for each partition that of the next record.
type Offsets interface {
	Committed(ctx context.Context, group string) (map[kafka.Partition]int64, error)
	// Commit stores offsets, durably. Those of other partitions stay.
	Commit(ctx context.Context, group string, next map[kafka.Partition]int64) error
}

// Session is the only member of a group. Its methods belong to one goroutine, but for Ends,
// which any goroutine may call until Close.
type Session struct {
	log     Log
	offsets Offsets
	cfg     kafka.SessionConfig

	topics     []kafka.Topic // of the log, when partitions were assigned last
	partitions map[kafka.Partition]*partition
	order      []*partition // in which they have turns
	turn       int          // of the next one
	size       int          // bytes that are fetched and not polled
	began      time.Time    // when the present fetch began
	beyond     []kafka.Position
	closed     atomic.Bool
}

// partition is where a session is in a partition.
type partition struct {
	id      kafka.Partition
	next    int64           // offset of the next record to fetch
	records []*kafka.Record // fetched and not polled
	size    int             // bytes of these
	end     int64           // of the partition, when it was read last
	paused  bool
}

// Join makes a session. Its first poll assigns the partitions. Of cfg it uses Group, Topics,
// MinFetch, MaxWait and the callbacks, which run in the calls of Poll, Fetched and Close.
func Join(log Log, offsets Offsets, cfg kafka.SessionConfig) *Session {
	cfg.MinFetch = max(1, cfg.MinFetch)
	cfg.MaxWait = cmp.Or(cfg.MaxWait, kafka.FetchMaxWait)
	return &Session{log: log, offsets: offsets, cfg: cfg, partitions: map[kafka.Partition]*partition{}, began: time.Now()}
}

// Poll returns all that has been fetched, by partition; if that is nothing, it waits until
// something is, or ctx ends. An error is about some partitions, or about new topics: the batches
// of other partitions are returned beside it, and the next poll tries again.
func (s *Session) Poll(ctx context.Context) (map[kafka.Partition]kafka.Batch, error) {
	for !s.closed.Load() {
		batches, err := s.poll(ctx)
		if ctx.Err() != nil {
			err = nil // that of the next poll says more
		}
		if len(batches) > 0 || err != nil || ctx.Err() != nil {
			return batches, err
		}
		if err := s.wait(ctx); err != nil {
			return nil, fmt.Errorf("event log: wait: %w", err)
		}
	}
	return nil, nil
}

// Fetched returns what Poll does, and does not wait.
func (s *Session) Fetched() (map[kafka.Partition]kafka.Batch, error) {
	if s.closed.Load() {
		return nil, nil
	}
	return s.poll(context.Background())
}

// Block does nothing: partitions are assigned by Poll and Fetched only, on their goroutine.
func (*Session) Block() {}

// Done does nothing, see Block.
func (*Session) Done() {}

// poll continues the present fetch, and returns its records once it is complete.
func (s *Session) poll(ctx context.Context) (map[kafka.Partition]kafka.Batch, error) {
	if s.size == 0 { // a fetch that ended without records was followed by the next one
		s.began = s.began.Add(time.Since(s.began).Truncate(s.cfg.MaxWait))
	}
	// A read is not cut off where the poll ends: one that takes longer than a poll would never succeed.
	err := s.fetch(context.WithoutCancel(ctx))
	if err == nil && !s.complete() {
		return nil, nil
	}
	return s.take(), err
}

// fetch reads what there is of each partition, up to the bounds.
func (s *Session) fetch(ctx context.Context) error {
	failed := s.assign(ctx)
	for range s.order {
		if s.size >= kafka.FetchBytes {
			break
		}
		p := s.order[s.turn%len(s.order)]
		s.turn = (s.turn + 1) % len(s.order)
		if err := s.read(ctx, p); err != nil && failed == nil {
			failed = fmt.Errorf("event log: read %s: %w", p.id, err)
		}
	}
	return failed
}

// assign assigns the partitions of topics that the log did not have before.
func (s *Session) assign(ctx context.Context) error {
	topics := s.log.Topics()
	if len(topics) == len(s.topics) && (len(topics) == 0 || &topics[0] == &s.topics[0]) {
		return nil
	}
	var fresh []kafka.Partition
	for _, t := range topics {
		for id := range t.Partitions {
			p := kafka.Partition{Topic: t.Name, ID: id}
			if s.partitions[p] == nil && slices.Contains(s.cfg.Topics, t.Name) {
				fresh = append(fresh, p)
			}
		}
	}
	if err := s.start(ctx, fresh); err != nil {
		return err // the next poll assigns them
	}
	s.topics = topics
	return nil
}

// start starts to read partitions where the group has committed.
func (s *Session) start(ctx context.Context, fresh []kafka.Partition) error {
	if len(fresh) == 0 {
		return nil
	}
	committed, err := s.offsets.Committed(ctx, s.cfg.Group)
	if err != nil {
		return fmt.Errorf("event log: committed offsets of %s: %w", s.cfg.Group, err)
	}
	list := make([]*partition, 0, len(fresh))
	for _, id := range fresh {
		start, end, err := s.log.Bounds(ctx, id)
		if err != nil {
			return fmt.Errorf("event log: bounds of %s: %w", id, err)
		}
		p := &partition{id: id, next: start, end: end}
		if at, ok := committed[id]; ok {
			p.next = min(at, end) // Read continues at the start if it is trimmed
		}
		list = append(list, p)
	}
	for _, p := range list {
		s.partitions[p.id] = p
	}
	s.order = append(s.order, list...)
	s.cfg.Assigned(fresh)
	return nil
}

// read fetches what there is of a partition.
func (s *Session) read(ctx context.Context, p *partition) error {
	if p.paused || p.full() {
		return nil
	}
	_, end, err := s.log.Bounds(ctx, p.id)
	if err != nil || end <= p.next {
		return err
	}
	records, err := s.log.Read(ctx, p.id, p.next, kafka.FetchPartitionBytes-p.size)
	if err != nil {
		return err
	}
	p.next = max(p.next, end) // without records there is nothing but a gap up to the end
	if n := len(records); n > 0 {
		p.next = records[n-1].Offset + 1
	}
	p.records, p.end = append(p.records, records...), max(end, p.next)
	for _, r := range records {
		p.size += sizeOf(r)
		s.size += sizeOf(r)
	}
	return nil
}

func sizeOf(r *kafka.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// full reports whether no more of a partition is fetched before the next poll.
func (p *partition) full() bool { return p.size >= kafka.FetchPartitionBytes }

// complete reports whether the present fetch is: with all that it may bring of a partition, of all
// of them, or that it waits for, or because its time is over.
func (s *Session) complete() bool {
	switch {
	case s.size == 0:
		return false
	case s.size >= min(int(s.cfg.MinFetch), kafka.FetchBytes), time.Since(s.began) >= s.cfg.MaxWait:
		return true
	}
	return slices.ContainsFunc(s.order, (*partition).full)
}

// take returns what was fetched, and begins the next fetch.
func (s *Session) take() map[kafka.Partition]kafka.Batch {
	out := map[kafka.Partition]kafka.Batch{}
	for _, p := range s.order {
		if len(p.records) > 0 {
			out[p.id] = kafka.Batch{Records: p.records, End: p.end}
			p.records, p.size = nil, 0
		}
	}
	s.size, s.began = 0, time.Now()
	return out
}

// wait waits until there may be more to fetch, the present fetch is over, or ctx ends.
func (s *Session) wait(ctx context.Context) error {
	s.beyond = s.beyond[:0]
	for _, p := range s.order {
		if !p.paused {
			s.beyond = append(s.beyond, kafka.Position{Partition: p.id, Offset: p.next})
		}
	}
	if s.size > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, s.began.Add(s.cfg.MaxWait))
		defer cancel()
	}
	if err := s.log.Wait(ctx, s.beyond); ctx.Err() == nil {
		return err
	}
	return nil
}

// Of a commit that fails: how long it is repeated, and the first pause, which doubles.
const (
	commitTimeout    = 10 * time.Second
	firstCommitPause = 100 * time.Millisecond
)

// Commit commits the offsets of the next records, durably. It retries for 10 s, also if ctx ends.
func (s *Session) Commit(ctx context.Context, next map[kafka.Partition]int64) error {
	if len(next) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	for pause := firstCommitPause; ; pause *= 2 {
		err := s.offsets.Commit(ctx, s.cfg.Group, next)
		if err == nil {
			return nil
		}
		if wait.For(ctx, pause) != nil {
			return fmt.Errorf("event log: commit offsets of %s: %w", s.cfg.Group, err)
		}
	}
}

// Rewind has the record at an offset come next, also if it came before.
func (s *Session) Rewind(id kafka.Partition, offset int64) {
	if p := s.partitions[id]; p != nil {
		s.drop(p)
		p.next = offset
	}
}

// Pause has nothing come of a partition until Resume. The others continue.
func (s *Session) Pause(id kafka.Partition) {
	if p := s.partitions[id]; p != nil {
		s.drop(p)
		p.paused = true
	}
}

// Resume ends a Pause.
func (s *Session) Resume(id kafka.Partition) {
	if p := s.partitions[id]; p != nil {
		p.paused = false
	}
}

// drop drops what was fetched of a partition and not polled, so that it is fetched again.
func (s *Session) drop(p *partition) {
	if len(p.records) > 0 {
		p.next = p.records[0].Offset
	}
	s.size -= p.size
	p.records, p.size = nil, 0
}

// Ends returns the offsets at which the partitions of topics end. Topics that the log does not
// have are left out.
func (s *Session) Ends(ctx context.Context, topics []string) (map[kafka.Partition]int64, error) {
	ends := map[kafka.Partition]int64{}
	var failed error
	for _, t := range s.log.Topics() {
		if !slices.Contains(topics, t.Name) {
			continue
		}
		for id := range t.Partitions {
			p := kafka.Partition{Topic: t.Name, ID: id}
			_, end, err := s.log.Bounds(ctx, p)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("event log: bounds of %s: %w", p, err))
				continue
			}
			ends[p] = end
		}
	}
	return ends, failed
}

// Close gives up the partitions.
func (s *Session) Close() {
	if s.closed.Swap(true) || len(s.order) == 0 {
		return
	}
	gone := make([]kafka.Partition, len(s.order))
	for i, p := range s.order {
		gone[i] = p.id
	}
	s.cfg.Gone(gone, false)
}
