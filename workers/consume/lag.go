package consume

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// How far a consumer is behind has two parts: what it has fetched and not finished, which
// it knows to the record, and what Kafka has beyond that, which it asks for: while a
// handler hangs nothing is fetched. Kafka counts in offsets, and the markers of
// transactions have offsets too: what several polls find nothing of is no record.

// lag is how far a partition is behind in what was fetched of it.
type lag struct {
	records int64
	oldest  time.Time // when the next record was published, as far as is known
}

// unread is what a partition has beyond what was fetched.
type unread struct {
	records int64
	since   time.Time // when it was seen first
	polls   int       // that found nothing of it since
}

const (
	watchEvery  = 5 * time.Second
	unreadAfter = 10 * time.Second // longer than a poll that finds nothing takes
	emptyPolls  = 4
)

// watch asks Kafka for the ends of the partitions until ctx ends. An answer that fails
// leaves what is known as it is: the age of the oldest record grows by itself.
func (e *Engine) watch(ctx context.Context, s *kafka.Session, topics []string) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		ask, cancel := context.WithTimeout(ctx, watchEvery)
		ends, err := s.Ends(ask, topics)
		cancel()
		if err == nil {
			e.compare(ends)
		}
	}
}

// compare notes what partitions have beyond what was fetched.
func (e *Engine) compare(ends map[kafka.Partition]int64) {
	now := e.cfg.Clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for p, end := range ends {
		if !e.open[p] && !e.fresh[p] {
			continue
		}
		fetched, known := e.fetchedTo[p]
		if !known { // nothing has come yet: it may all be read already
			e.fetchedTo[p] = end
			continue
		}
		u, seen := e.beyond[p]
		switch {
		case end <= fetched:
			delete(e.beyond, p)
		case seen:
			u.records = end - fetched
			e.beyond[p] = u
		default:
			e.beyond[p] = unread{records: end - fetched, since: now}
		}
	}
}

// caughtUp notes that all that was fetched is finished: partitions that a poll
// brought nothing of are not behind, unless they wait.
func (e *Engine) caughtUp(batch map[kafka.Partition]kafka.Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for part := range e.lags {
		st := e.stocks[part]
		if _, came := batch[part]; !came && (st == nil || !st.held) {
			delete(e.lags, part)
		}
	}
}

// fetched notes up to where the records of a poll go.
func (e *Engine) fetched(batch map[kafka.Partition]kafka.Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for part, u := range e.beyond {
		if st := e.stocks[part]; st != nil && (st.paused || len(st.records) > 0) {
			continue
		}
		if u.polls++; u.polls >= emptyPolls && e.cfg.Clock().Sub(u.since) >= time.Second {
			e.fetchedTo[part] += u.records // markers, or what was aborted
			delete(e.beyond, part)
			continue
		}
		e.beyond[part] = u
	}
	for part, b := range batch {
		if next := b.Records[len(b.Records)-1].Offset + 1; next > e.fetchedTo[part] {
			e.fetchedTo[part] = next
			delete(e.beyond, part)
		}
	}
}

// measure notes how far a partition is behind.
func (e *Engine) measure(sh *share) {
	i := 0
	for i < len(sh.done)-1 && sh.done[i] {
		i++
	}
	r := sh.batch.Records[i]
	l := lag{records: sh.batch.End - r.Offset, oldest: r.Timestamp}
	if sh.done[i] {
		l.records--
		if l.records <= 1 { // it is the end of a transaction, or about to come
			l.records = 0
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[sh.part] || e.fresh[sh.part] {
		e.lags[sh.part] = l
	}
}
