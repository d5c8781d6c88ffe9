package serving

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// measureEvery is the time between two checks of how large a topic is, which others may make
// smaller: trims, and brokers.
const measureEvery = time.Second

// topicSize is how many bytes the messages of a topic take: as the log said when it was asked, and
// what was let in since. A publish that fails counts until the next check.
type topicSize struct {
	mu    sync.Mutex
	known bool
	at    time.Time // of the last check, by the steady clock
	bytes int64
}

// admit reports whether n more bytes have room below most, and counts them if they have.
func (s *topicSize) admit(
	n, limit int64, now time.Time, measure func() (int64, error),
) (ok bool, bytes int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || s.bytes+n > limit && now.Sub(s.at) >= measureEvery {
		if s.bytes, err = measure(); err != nil {
			return false, 0, err
		}
		s.known, s.at = true, now
	}
	if s.bytes+n > limit {
		return false, s.bytes, nil
	}
	s.bytes += n
	return true, s.bytes, nil
}

// Admit refuses a publish of so many bytes to a topic that has as many as it may, and on a disk that is short: there
// the rest is for chats. A request that the topic remembers stores nothing and is let through, so that its sender
// learns what became of it.
func (p *Publisher) Admit(ctx context.Context, l *OpenTopic, appends []commitlog.Append, n int64) error {
	full, err := p.full(ctx, l, n)
	if full == nil || err != nil {
		return err
	}
	if known, err := p.Remembers(ctx, l, appends); known || err != nil {
		return err
	}
	p.engine.Counters.Full.Add(1)
	return full
}

// Remembers reports whether the topic remembers the number of a request, or the ids of all its messages: then it
// stores nothing.
func (p *Publisher) Remembers(ctx context.Context, l *OpenTopic, appends []commitlog.Append) (bool, error) {
	producer := appends[0].Producer
	if producer.ID == "" {
		return p.knowsAll(ctx, l, appends)
	}
	known, err := p.engine.Log.Remembered(ctx, appends[0].Partition, producer.ID)
	for _, x := range known {
		if x.Number == producer.Number {
			return true, err
		}
	}
	return false, err
}

// knowsAll reports whether all messages have ids that are known.
func (p *Publisher) knowsAll(ctx context.Context, l *OpenTopic, appends []commitlog.Append) (bool, error) {
	now := p.engine.Clock()
	for _, a := range appends {
		if slices.ContainsFunc(a.Messages, func(m *commitlog.Message) bool { return m.GetDeduplicationId() == "" }) {
			return false, nil
		}
		o := &l.Parts[a.Partition.Number].ids
		if err := o.load(ctx, p.engine.Log, a.Partition, now); err != nil {
			return false, err
		}
		if !o.knows(a.Messages, now.UnixMilli()) {
			return false, nil
		}
	}
	return true, nil
}

// full says why a publish of so many bytes has no room; nil if it has.
func (p *Publisher) full(ctx context.Context, l *OpenTopic, n int64) (*refusal.Error, error) {
	if p.engine.DiskShort() {
		return refusal.New(refusal.StorageLow, "the disk is nearly full, and what is left is for chats: nothing is stored; "+
			"consume and delete topics, or free some of the disk"), nil
	}
	limit := l.MaxBytes(p.engine.MaxBytes)
	if limit == 0 {
		return nil, nil
	}
	ok, bytes, err := l.size.admit(n, limit, p.engine.Steady(), func() (int64, error) {
		return p.engine.Log.Size(ctx, l.Number, int32(len(l.Parts)))
	})
	if err != nil || ok {
		return nil, err
	}
	l.refused.Store(true)
	return refusal.New(refusal.TopicFull, "topic %q has %d of %d bytes, and nothing of this is stored: let its groups "+
		"acknowledge what they have, shorten its retention, or have max_bytes raised", l.Name, bytes, limit), nil
}
