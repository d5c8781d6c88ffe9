package serving

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// A message with an id is stored once: a partition stores no second one with its id within IDWindow. The ids are in
// the log, with their messages. A partition reads them from there when a message with an id is published to it first,
// and nothing else is stored of them.
//
// A publish claims its ids before it appends. Those that are new belong to it until it has ended, and another publish
// with such an id waits for that. In a partition a publish claims all of its ids or none, and it claims partitions in
// the order of their numbers, so no two publishes wait for each other.

// IDWindow is how long an id is known, from when its message was stored.
const IDWindow = 5 * time.Minute

// MaxIDs and MaxAllIDs are how many ids are known, of a partition and of all topics of the process. One takes about
// 100 bytes.
const (
	MaxIDs    = 100_000
	MaxAllIDs = 500_000
)

// scanBytes is how many bytes of the log are read at once.
const scanBytes = 1 << 20

// idHash is the hash of an id: ids of any length take the same memory.
type idHash [16]byte

func hashOf(id string) (h idHash) {
	sum := sha256.Sum256([]byte(id))
	copy(h[:], sum[:])
	return h
}

// identified is a message with an id.
type identified struct {
	content  [16]byte
	position int64         // once it is stored
	at       int64         // when it was, unix ms
	ended    chan struct{} // closed when the publish has ended that stores it; nil: it is stored
}

// idIndex is what is known of the ids of a partition.
type idIndex struct {
	all     *atomic.Int64 // ids that are known, of all topics
	loading chan struct{} // full while the log is read, from next on
	next    int64         // -1: it is to be read from the beginning of the window

	mu     sync.Mutex
	loaded bool
	round  int // counts what was forgotten
	known  map[idHash]*identified
	order  []idHash // of those that are stored, the oldest first
}

func newIDIndex(all *atomic.Int64) idIndex {
	return idIndex{all: cmp.Or(all, new(atomic.Int64)), loading: make(chan struct{}, 1), next: -1}
}

// valid reports whether the id of a message that is stored is known at a time. A clock that was set back, or that of
// an earlier owner, does not keep it for longer.
func (m *identified) valid(now int64) bool {
	window := IDWindow.Milliseconds()
	return m.at > now-window && m.at < now+window
}

// storedLocked notes that a message with an id is stored.
func (o *idIndex) storedLocked(h idHash, m *identified) {
	if _, ok := o.known[h]; !ok {
		o.all.Add(1)
	}
	o.known[h] = m
	o.order = append(o.order, h)
}

// dropLocked forgets the ids of messages that are stored, from the oldest on, as long as old says so.
func (o *idIndex) dropLocked(old func(*identified) bool) {
	n := 0
	for ; n < len(o.order); n++ {
		m := o.known[o.order[n]]
		if m == nil || m.ended != nil { // it was dropped, or is published again
			continue
		}
		if !old(m) {
			break
		}
		delete(o.known, o.order[n])
		o.all.Add(-1)
	}
	o.order = slices.Delete(o.order, 0, n)
}

// expire forgets the ids whose window is over.
func (o *idIndex) expire(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked(func(m *identified) bool { return !m.valid(now.UnixMilli()) })
}

// forget forgets all that is stored: the log is read again.
func (o *idIndex) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked(func(*identified) bool { return true })
	o.loaded = false
	o.round++
}

// load reads the ids of the window from the log, unless that has been done. A publish without ids may append
// meanwhile; one with ids waits here. If the caller gives up, the next one continues where it was.
func (o *idIndex) load(ctx context.Context, log commitlog.Reader, p commitlog.Partition, now time.Time) error {
	select {
	case o.loading <- struct{}{}:
		defer func() { <-o.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	o.mu.Lock()
	loaded, round := o.loaded, o.round
	if o.known == nil {
		o.known = map[idHash]*identified{}
	}
	o.mu.Unlock()
	if loaded {
		return nil
	}
	err := func() (err error) {
		if o.next < 0 {
			if o.next, err = log.PositionAt(ctx, p, now.Add(-IDWindow)); err != nil {
				return err
			}
		}
		return commitlog.Scan(ctx, log, p, &o.next, machine.NoEnd, scanBytes, func(b *commitlog.Batch) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.noteLocked(b)
		})
	}()
	if err != nil {
		return fmt.Errorf("reading the ids of messages: %w", err)
	}
	o.next = -1
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loaded = o.round == round // if not, what was read was forgotten meanwhile, and is read again
	return nil
}

// noteLocked notes the ids of a batch.
func (o *idIndex) noteLocked(b *commitlog.Batch) {
	for i := range b.Count() {
		if id := b.ID(i); id == "" || b.Address() != "" { // a message that is driven again is not published
			continue
		} else if m, err := b.Message(i); err == nil {
			o.storedLocked(hashOf(id), &identified{
				content: commitlog.ContentOf(m), position: b.Base + int64(i), at: b.Time,
			})
		}
	}
}

// knows reports whether all messages of an append have ids that are known, with the same content: they are stored.
func (o *idIndex) knows(messages []*commitlog.Message, now int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loaded && len(messages) > 0 && !slices.ContainsFunc(messages, func(m *commitlog.Message) bool {
		was := o.known[hashOf(m.GetDeduplicationId())]
		return was == nil || was.ended != nil || !was.valid(now) || was.content != commitlog.ContentOf(m)
	})
}

// MessagePosition is where a message of a publish stands. Replayed: it was stored before.
type MessagePosition struct {
	Position int64
	Replayed bool
}

// claim is what a publish has claimed.
type claim struct {
	ended chan struct{}
	ids   []claimed
}

// claimed is an id that belongs to a claim.
type claimed struct {
	of      *idIndex
	hash    idHash
	message *identified
}

// end ends the claim: a message with a position is stored, and one without was not.
func (c *claim) end() {
	for _, id := range c.ids {
		id.of.mu.Lock()
		switch id.message.ended = nil; {
		case id.of.known[id.hash] != id.message: // it was read from the log meanwhile
		case id.message.position < 0:
			delete(id.of.known, id.hash)
			id.of.all.Add(-1)
		default:
			id.of.order = append(id.of.order, id.hash)
		}
		id.of.mu.Unlock()
	}
	close(c.ended)
}

// take claims the ids of the messages of a partition that are new. It returns for each message the one of which it is a
// repetition, nil if it is none, or has no id; and for each of these that is claimed what is to get its position.
func (c *claim) take(
	ctx context.Context, o *idIndex, messages []*commitlog.Message, now int64,
) (copies, own []*identified, err error) {
	for {
		var wait <-chan struct{}
		if copies, own, wait, err = c.tryTake(o, messages, now); wait == nil {
			return copies, own, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// tryTake is take that claims nothing if an id belongs to another claim, and returns what to wait for.
func (c *claim) tryTake(
	o *idIndex, messages []*commitlog.Message, now int64,
) (copies, own []*identified, wait <-chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.loaded {
		return nil, nil, nil, errNotLoaded
	}
	copies, own = make([]*identified, len(messages)), make([]*identified, len(messages))
	fresh, replaced := map[idHash]*identified{}, 0
	for i, m := range messages {
		if m.GetDeduplicationId() == "" {
			continue
		}
		h, content := hashOf(m.GetDeduplicationId()), commitlog.ContentOf(m)
		was := cmp.Or(fresh[h], o.known[h])
		if was != nil && was.ended == nil && !was.valid(now) {
			was, replaced = nil, replaced+1
		}
		switch {
		case was == nil:
			own[i] = &identified{content: content, position: -1, ended: c.ended}
			fresh[h] = own[i]
		case was.ended != nil && was.ended != c.ended:
			return nil, nil, was.ended, nil
		case was.content != content:
			return nil, nil, nil, refusal.New(refusal.DeduplicationIDReused,
				"the deduplication_id %.128q was used for another message within the last %s: nothing of this request is "+
					"stored",
				m.GetDeduplicationId(), IDWindow)
		default:
			copies[i] = was
		}
	}
	more := len(fresh) - replaced
	if more > 0 && (len(o.known)+more > MaxIDs || o.all.Load()+int64(more) > MaxAllIDs) {
		return nil, nil, nil, errManyIDs
	}
	o.all.Add(int64(more))
	for h, m := range fresh {
		o.known[h] = m
		c.ids = append(c.ids, claimed{o, h, m})
	}
	return copies, own, nil, nil
}

// errNotLoaded says that what was known has been forgotten.
var errNotLoaded = errors.New("the ids of messages are not known")

var errManyIDs = refusal.New(refusal.TooMany, "more messages with a deduplication_id were published within the last %s "+
	"than are remembered, which are %d of a partition: publish to more partitions, or number the requests of a producer",
	IDWindow, MaxIDs)

// Publish is Append that returns where each message of each batch stands. A message whose id is known is not stored
// again.
func (p *Publisher) Publish(
	ctx context.Context, l *OpenTopic, appends []commitlog.Append, terms *Terms,
) ([][]MessagePosition, error) {
	hasID := func(m *commitlog.Message) bool { return m.GetDeduplicationId() != "" }
	if slices.ContainsFunc(appends, func(a commitlog.Append) bool { return slices.ContainsFunc(a.Messages, hasID) }) {
		return p.publishIDs(ctx, l, appends, terms)
	}
	done, err := p.Append(ctx, l, appends, terms)
	if err != nil {
		return nil, err
	}
	positions := make([][]MessagePosition, len(appends))
	for i, a := range appends {
		positions[i] = make([]MessagePosition, len(a.Messages))
		for j := range positions[i] {
			positions[i][j] = MessagePosition{done[i].Base + int64(j), done[i].Replayed}
		}
	}
	return positions, nil
}

func (p *Publisher) publishIDs(
	ctx context.Context, l *OpenTopic, appends []commitlog.Append, terms *Terms,
) ([][]MessagePosition, error) {
	c := &claim{ended: make(chan struct{})}
	defer c.end()
	copies, own := make([][]*identified, len(appends)), make([][]*identified, len(appends))
	order := make([]int, len(appends))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Compare(appends[i].Partition.Number, appends[j].Partition.Number)
	})
	for _, i := range order {
		var err error
		if copies[i], own[i], err = p.claim(ctx, c, l, appends[i]); err != nil {
			return nil, err
		}
	}
	var rest []commitlog.Append // what is not stored
	for i, a := range appends {
		a.Messages = nil
		for j, m := range appends[i].Messages {
			if copies[i][j] == nil {
				a.Messages = append(a.Messages, m)
			}
		}
		if len(a.Messages) > 0 {
			rest = append(rest, a)
		}
	}
	var done []commitlog.Appended
	if len(rest) > 0 {
		var err error
		// The ids stay claimed until it is certain what became of their messages.
		if done, err = p.Append(context.WithoutCancel(ctx), l, rest, terms); err != nil {
			if !errors.As(err, new(*refusal.Error)) && !errors.Is(err, ErrSchemaChanged) {
				for _, a := range rest {
					l.Parts[a.Partition.Number].ids.forget() // perhaps they are stored: the log says it
				}
			}
			return nil, err
		}
	}
	return positionsOf(copies, own, done, p.engine.Clock().UnixMilli()), nil
}

// positionsOf says where messages stand: those that were stored now, by batch, and those that are repetitions.
func positionsOf(copies, own [][]*identified, done []commitlog.Appended, now int64) [][]MessagePosition {
	positions := make([][]MessagePosition, len(copies))
	for i := range copies {
		positions[i] = make([]MessagePosition, len(copies[i]))
		var next int64
		for j, m := range own[i] {
			if copies[i][j] != nil {
				continue
			}
			positions[i][j].Position = done[0].Base + next
			if next++; m != nil {
				m.position, m.at = positions[i][j].Position, now
			}
		}
		if next > 0 {
			done = done[1:]
		}
		for j, m := range copies[i] {
			if m != nil {
				positions[i][j] = MessagePosition{m.position, true}
			}
		}
	}
	return positions
}

// claim claims the ids of a batch. When too many ids are cached, it drops the expired ids of all topics. Those of
// topics without publishes are dropped only here, and when the topics are closed.
func (p *Publisher) claim(
	ctx context.Context, c *claim, l *OpenTopic, a commitlog.Append,
) (copies, own []*identified, err error) {
	o, expiredAll := &l.Parts[a.Partition.Number].ids, false
	for {
		now := p.engine.Clock()
		if err := o.load(ctx, p.engine.Log, a.Partition, now); err != nil {
			return nil, nil, err
		}
		o.expire(now)
		copies, own, err = c.take(ctx, o, a.Messages, now.UnixMilli())
		switch {
		case errors.Is(err, errNotLoaded):
		case errors.Is(err, errManyIDs) && !expiredAll:
			expiredAll = true
			for _, other := range p.engine.Topics.All() {
				for _, part := range other.Parts {
					part.ids.expire(now)
				}
			}
		default:
			return copies, own, err
		}
	}
}
