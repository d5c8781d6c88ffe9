package operations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// ErrDeadLetterGone is returned if no group could receive the dead letter, or if the dead letter no
// longer exists.
var ErrDeadLetterGone = errors.New("topic: the group does not take messages, or the letter is gone")

// ErrNoServer is returned to a process that asks others for dead letters, if none answers.
var ErrNoServer = errors.New("topic: no server that has topics answers")

// readBytes is how much of a log is read at once.
const readBytes = 1 << 20

// DeadLetterStore finds the dead letters of all topics.
type DeadLetterStore struct{ engine *serving.Engine }

// NewDeadLetterStore makes a DeadLetterStore.
func NewDeadLetterStore(e *serving.Engine) *DeadLetterStore { return &DeadLetterStore{e} }

// DeadLetterSelection selects dead letters; an empty field selects all.
type DeadLetterSelection struct {
	Topic     string // of the messages
	Group     string
	Positions []DeadLetterPosition
	Logs      map[string]bool               // in which they stand; nil: all
	Dead      bool                          // none that are parked
	After     map[commitlog.Partition]int64 // where to begin in partitions of dead letters
}

// wants reports whether dead letters that are meant may stand in a topic.
func (s *DeadLetterSelection) wants(log string) bool {
	return (s.Logs == nil || s.Logs[log]) &&
		(s.Topic == "" || s.Topic == log || s.Topic == strings.TrimSuffix(log, storage.DeadLetterSuffix)) &&
		(len(s.Positions) == 0 || slices.ContainsFunc(s.Positions, func(p DeadLetterPosition) bool { return p.Log == log }))
}

// has reports whether the dead letter at a position is meant, as far as the position says so.
func (s *DeadLetterSelection) has(p DeadLetterPosition) bool {
	return len(s.Positions) == 0 || slices.Contains(s.Positions, p)
}

// from is where reading a partition of a topic begins; false if there is nothing to read.
func (s *DeadLetterSelection) from(
	log string, part commitlog.Partition, after DeadLetterPosition) (position int64, ok bool,
) {
	position = s.After[part]
	if after.Log == log {
		if after.Parked || part.Number < after.Partition {
			return 0, false
		}
		if part.Number == after.Partition {
			position = max(position, after.Position)
		}
	}
	if len(s.Positions) == 0 {
		return position, true
	}
	first := int64(-1)
	for _, p := range s.Positions {
		if p.Log == log && !p.Parked && p.Partition == part.Number && (first < 0 || p.Position < first) {
			first = p.Position
		}
	}
	return max(position, first), first >= 0
}

// Scan passes the dead letters that are meant to f, from a position on: by topic, those of one
// partition in the order in which they failed, then those that are parked. An error of f
// ends it.
func (s *DeadLetterStore) Scan(
	ctx context.Context, sel DeadLetterSelection, from DeadLetterPosition, f func(DeadLetter) error,
) error {
	topics := s.engine.Catalog.Topics("", s.engine.Catalog.Count(), func(t *storage.Topic) bool {
		return t.Name >= from.Log && !t.View().Deleting && sel.wants(t.Name)
	})
	for _, t := range topics {
		if strings.HasSuffix(t.Name, storage.DeadLetterSuffix) {
			for n := range t.View().Config.GetPartitions() {
				part := commitlog.Partition{Topic: t.Number, Number: n}
				if at, ok := sel.from(t.Name, part, from); ok {
					if err := s.scanDead(ctx, &sel, t, part, at, f); err != nil {
						return err
					}
				}
			}
		}
		if err := s.scanParked(ctx, &sel, t, from, f); err != nil {
			return err
		}
	}
	return nil
}

// scanDead reads a partition of a topic of dead letters.
func (s *DeadLetterStore) scanDead(
	ctx context.Context, sel *DeadLetterSelection, t *storage.Topic, address commitlog.Partition, at int64,
	f func(DeadLetter) error,
) error {
	log := s.engine.Sources.Reader(t)
	for {
		start, end, err := log.Bounds(ctx, address)
		if err != nil {
			return err
		}
		if at = max(at, start); at >= end {
			return nil
		}
		batches, err := log.Read(ctx, address, at, readBytes)
		var corrupt *commitlog.CorruptError
		switch {
		case errors.As(err, &corrupt):
			s.engine.Logger.Error("dead letters cannot be read and are passed over", "topic", t.Name, "partition",
				address.Number, "from", corrupt.From, "to", corrupt.To-1, "error", err)
			at = corrupt.To
			continue
		case errors.Is(err, commitlog.ErrTrimmed):
			continue // the next round begins where the log does
		case errors.Is(err, commitlog.ErrBeyondEnd) || (err == nil && len(batches) == 0):
			return nil
		case err != nil:
			return err
		}
		for _, b := range batches {
			if err := s.batch(sel, t, address.Number, b, at, f); err != nil {
				return err
			}
			at = b.End()
		}
	}
}

// batch passes the dead letters of a batch on.
func (s *DeadLetterStore) batch(
	sel *DeadLetterSelection, t *storage.Topic, n int32, b *commitlog.Batch, from int64, f func(DeadLetter) error,
) error {
	for i := int(max(0, from-b.Base)); i < b.Count(); i++ {
		p := DeadLetterPosition{Log: t.Name, Partition: n, Position: b.Base + int64(i)}
		if !sel.has(p) {
			continue
		}
		if group, _ := b.Header(i, HeaderGroup); sel.Group != "" && group != sel.Group {
			continue
		}
		m, err := b.Message(i)
		if err != nil {
			s.engine.Logger.Error("a dead letter cannot be read and is passed over", "id", p.ID(), "error", err)
			continue
		}
		l, err := parseDeadLetter(p, t.Number, m)
		if err != nil || (sel.Topic != "" && l.Topic != sel.Topic) {
			continue // it says nothing of itself, or was of another topic
		}
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}

// scanParked passes on the messages that are parked in a topic.
func (s *DeadLetterStore) scanParked(
	ctx context.Context, sel *DeadLetterSelection, t *storage.Topic, from DeadLetterPosition, f func(DeadLetter) error,
) error {
	if sel.Dead || (sel.Topic != "" && sel.Topic != t.Name) {
		return nil
	}
	groups := parking(t, sel.Group)
	if len(groups) == 0 {
		return nil
	}
	l, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		if t.View().Deleting {
			return nil
		}
		return err
	}
	defer l.Release()
	for n, p := range l.Parts {
		var list []DeadLetter
		p.Do(func(m *machine.Machine) {
			for _, name := range groups {
				g := m.Group(name)
				if g == nil {
					continue
				}
				for _, at := range g.Stopped(nil) {
					position := DeadLetterPosition{Log: t.Name, Parked: true, Partition: int32(n), Position: at.Position, Group: name}
					if sel.has(position) && position.Compare(from) >= 0 {
						list = append(list, DeadLetter{LogPosition: position, Number: t.Number, Topic: t.Name, Partition: int32(n),
							Position: at.Position, Group: name, Attempts: at.Attempts})
					}
				}
			}
		})
		slices.SortFunc(list, func(a, b DeadLetter) int { return a.LogPosition.Compare(b.LogPosition) })
		for _, deadLetter := range list {
			if deadLetter.Message, err = readMessage(ctx, s.engine.Sources.Reader(t), p.Address,
				deadLetter.Position); err != nil {
				return err
			}
			if deadLetter.Message == nil {
				continue
			}
			if err := f(deadLetter); err != nil {
				return err
			}
		}
	}
	return nil
}

// parking lists the groups of a topic that park keys and may have messages, all or one.
func parking(t *storage.Topic, only string) (groups []string) {
	defer t.Reading().End()
	for _, sub := range t.Subscriptions() {
		if sub.Config.GetExhausted() == topicv1.Exhausted_EXHAUSTED_PARK_KEY && storage.Receives(sub.State) &&
			(only == "" || only == sub.Group) {
			groups = append(groups, sub.Group)
		}
	}
	return groups
}

// readMessage reads a message. It returns nil if the message is gone or unreadable.
func readMessage(
	ctx context.Context, log commitlog.Reader, p commitlog.Partition, position int64,
) (*topicv1.TopicMessage, error) {
	batches, err := log.Read(ctx, p, position, 1)
	var corrupt *commitlog.CorruptError
	switch {
	case errors.As(err, &corrupt), errors.Is(err, commitlog.ErrTrimmed), errors.Is(err, commitlog.ErrBeyondEnd):
		return nil, nil
	case err != nil:
		return nil, err
	case len(batches) == 0 || batches[0].Base > position:
		return nil, nil
	}
	return batches[0].Message(int(position - batches[0].Base))
}

// There reports of each dead letter whether the topic in which it stands is the one in which it
// was found.
func (s *DeadLetterStore) There(_ context.Context, list []DeadLetter) ([]bool, error) {
	there := make([]bool, len(list))
	for i, l := range list {
		t := s.engine.Catalog.Topic(l.LogPosition.Log)
		there[i] = t != nil && t.Number == l.Number && !t.View().Deleting
	}
	return there, nil
}

// Taken reports whether the group of a dead letter would take its message again.
func (s *DeadLetterStore) Taken(_ context.Context, l DeadLetter) (bool, error) {
	return s.taker(l) != nil, nil
}

// taker returns the topic of a dead letter, nil if the group there does not take messages.
// Clients cannot publish to the events of chats, so only parked messages return there.
func (s *DeadLetterStore) taker(l DeadLetter) *storage.Topic {
	t := s.engine.Catalog.Topic(l.Topic)
	if t == nil || t.View().Deleting || (!l.LogPosition.Parked && storage.OfChats(t.View().Config)) {
		return nil
	}
	defer t.Reading().End()
	if sub := t.Subscription(l.Group); sub == nil || !storage.Receives(sub.State) {
		return nil
	}
	return t
}

// Redrive gives a message to the group that gave it up, and to no other one, and returns when that is
// durable. However often that is repeated, it is stored once. Its position in the order of its key is
// behind what was published meanwhile; a parked message keeps its position. The topic's schema is not
// asked: the topic took the message once, and its payload did not change. Error: ErrDeadLetterGone.
func (s *DeadLetterStore) Redrive(ctx context.Context, l DeadLetter) error {
	t := s.taker(l)
	if t == nil {
		return ErrDeadLetterGone
	}
	to, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return err
	}
	defer to.Release()
	if l.LogPosition.Parked {
		return s.parked(ctx, to, l, (*machine.GroupState).UnparkAt)
	}
	n := l.Partition
	if int(n) >= len(to.Parts) { // the topic was made again, with fewer
		n = int32(uint64(l.Position) % uint64(len(to.Parts)))
		if key := l.Message.GetKey(); key != "" {
			n = commitlog.PartitionOf(key, int32(len(to.Parts)))
		}
	}
	_, err = s.engine.Publisher.Append(ctx, to, []commitlog.Append{{
		Partition: to.Parts[n].Address, Messages: []*topicv1.TopicMessage{l.back()},
		Producer: commitlog.Redriven(l.Group, fmt.Sprintf("%d/%s", l.Number, l.LogPosition.ID())),
	}}, nil)
	return err
}

// Discard gives a message up for its group. A dead letter needs nothing for that: it stays
// in its topic. Error: ErrDeadLetterGone.
func (s *DeadLetterStore) Discard(ctx context.Context, l DeadLetter) error {
	if !l.LogPosition.Parked {
		return nil
	}
	t := s.taker(l)
	if t == nil {
		return ErrDeadLetterGone
	}
	of, err := s.engine.Topics.Open(ctx, t)
	if err != nil {
		return err
	}
	defer of.Release()
	return s.parked(ctx, of, l, (*machine.GroupState).DiscardAt)
}

// parked does something about a parked message.
func (s *DeadLetterStore) parked(
	ctx context.Context, of *serving.OpenTopic, l DeadLetter, do func(*machine.GroupState, int64) bool,
) error {
	g := of.Group(l.Group)
	if g == nil || int(l.Partition) >= len(of.Parts) || of.Number != l.Number {
		return ErrDeadLetterGone
	}
	is := false
	_ = g.DoIn(int(l.Partition), func(h *machine.GroupState) error { // its error is that of the function
		is = do(h, l.Position)
		return nil
	})
	if !is {
		return ErrDeadLetterGone
	}
	return s.engine.Stored(ctx, of, l.Group)
}
