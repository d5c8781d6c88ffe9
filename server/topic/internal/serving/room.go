package serving

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// measureEvery is the time between two looks at how large a topic is, which others may make
// smaller: trims, and brokers.
const measureEvery = time.Second

// topicSize is how many bytes the messages of a topic take: as the log said when it was asked, and
// what was let in since. A publish that fails counts until the next look.
type topicSize struct {
	mu    sync.Mutex
	known bool
	at    time.Time // of the last look, by the steady clock
	bytes int64
}

// admit reports whether n more bytes have room below most, and counts them if they have.
func (s *topicSize) admit(n, most int64, now time.Time, look func() (int64, error)) (ok bool, bytes int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || s.bytes+n > most && now.Sub(s.at) >= measureEvery {
		if s.bytes, err = look(); err != nil {
			return false, 0, err
		}
		s.known, s.at = true, now
	}
	if s.bytes+n > most {
		return false, s.bytes, nil
	}
	s.bytes += n
	return true, s.bytes, nil
}

// Admit refuses a publish of so many bytes to a topic that has as many as it may, on a disk that is short, where
// the rest is for chats, and of messages that wait behind as many as may wait. A request whose number the topic
// remembers stores nothing and is let through, so that its sender learns what became of it.
func (p *Publisher) Admit(ctx context.Context, l *OpenTopic, appends []commitlog.Append, n int64) error {
	full, err := p.full(ctx, l, n)
	if full == nil && err == nil {
		full = p.waiting(l, appends)
	}
	if full == nil || err != nil {
		return err
	}
	if known, err := p.Remembers(ctx, appends); known || err != nil {
		return err
	}
	if full.Reason != refusal.TooMany {
		p.engine.Counters.Full.Add(1)
	}
	return full
}

// waiting says why no more messages may wait for their time in a partition; nil if they may. Those that are stored at
// the same time may be more by as many.
func (p *Publisher) waiting(l *OpenTopic, appends []commitlog.Append) *refusal.Error {
	for _, a := range appends {
		n, now := 0, p.engine.Clock().UnixMilli()
		for _, m := range a.Messages {
			if commitlog.Delivery(m, now) != 0 {
				n++
			}
		}
		if n > 0 && l.Parts[a.Partition.Number].Postponed()+n > machine.MaxPostponed {
			return refusal.New(refusal.TooMany, "in partition %d of topic %q up to %d messages may wait for their time, and "+
				"nothing of this is stored: publish without delay, later, or with keys of other partitions",
				a.Partition.Number, l.Name, machine.MaxPostponed)
		}
	}
	return nil
}

// Remembers reports whether the topic remembers the number of a request, which then stores nothing.
func (p *Publisher) Remembers(ctx context.Context, appends []commitlog.Append) (bool, error) {
	producer := appends[0].Producer
	if producer.ID == "" {
		return false, nil
	}
	known, err := p.engine.Log.Remembered(ctx, appends[0].Partition, producer.ID)
	for _, x := range known {
		if x.Number == producer.Number {
			return true, err
		}
	}
	return false, err
}

// full says why a publish of so many bytes has no room; nil if it has.
func (p *Publisher) full(ctx context.Context, l *OpenTopic, n int64) (*refusal.Error, error) {
	if p.engine.DiskShort() {
		return refusal.New(refusal.StorageLow, "the disk is nearly full, and what is left is for chats: nothing is stored; "+
			"consume and delete topics, or free some of the disk"), nil
	}
	most := l.MaxBytes(p.engine.MaxBytes)
	if most == 0 {
		return nil, nil
	}
	ok, bytes, err := l.size.admit(n, most, p.engine.Steady(), func() (int64, error) {
		return p.engine.Log.Size(ctx, l.Number, int32(len(l.Parts)))
	})
	if err != nil || ok {
		return nil, err
	}
	l.refused.Store(true)
	return refusal.New(refusal.TopicFull, "topic %q has %d of %d bytes, and nothing of this is stored: let its groups "+
		"acknowledge what they have, shorten its retention, or have max_bytes raised", l.Name, bytes, most), nil
}
