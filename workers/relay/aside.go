package relay

import (
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/table"
)

// A row of a stream (Config.Load) has records for several topics, which have no order between
// them. While a partition refuses records, the relay publishes the others of the row and remembers
// which are left. The row remains in the outbox until all are published. After a crash nothing
// is remembered and the whole row is published again.
//
// Records of one stream stay in order within a partition. The relay takes what is left of earlier
// rows before it takes later rows, and once a record has to wait, every later one of the stream
// for that partition waits until the next pass. Otherwise a backoff could end between the two,
// and the later record would be published first.

// rest is what is left of a row.
type rest struct {
	stream string
	left   []leftRecord
	since  int64 // unix ms: when the row was written
	sweep  int64 // the last one that found the row
}

// leftRecord is a record that is not published.
type leftRecord struct {
	index     int // in its row
	partition kafka.Partition
}

// lane is a stream's part of a partition.
type lane struct {
	stream    string
	partition kafka.Partition
}

// waits reports whether a record of a row is not published. Of a row that was not set aside none is.
func (s *rest) waits(index int) bool {
	return s == nil || slices.ContainsFunc(s.left, func(l leftRecord) bool { return l.index == index })
}

// add adds a record to a plan of a stream.
func (p *plan) add(rec *kafka.Record, index int) {
	p.records, p.index = append(p.records, rec), append(p.index, index)
	p.size += len(rec.Value)
}

// beginPass begins a sweep, or the publication of nudges.
func (r *Relay) beginPass() {
	clear(r.deferred)
	clear(r.held)
}

// isHeld reports whether records of a stream for a partition wait, at least until the next pass.
func (r *Relay) isHeld(stream string, p kafka.Partition) bool {
	l := lane{stream, p}
	if !r.held[l] && r.cfg.Clock().Before(r.outages[p].until) {
		r.held[l] = true
	}
	return r.held[l]
}

// setAside returns the plans of streams with the records that can be published now. Rows of
// which records remain are remembered.
func (r *Relay) setAside(plans []plan) []plan {
	if len(r.outages) == 0 && len(r.held) == 0 {
		return plans
	}
	out := plans[:0:0]
	for _, p := range plans {
		now := plan{key: p.key, chatID: p.chatID, last: p.last, replay: p.replay, stored: p.stored, since: p.since}
		for i, rec := range p.records {
			if !r.isHeld(p.chatID, kafka.Partition{Topic: rec.Topic, ID: rec.Partition}) {
				now.add(rec, p.index[i])
			}
		}
		switch {
		case len(now.records) == len(p.records):
			out = append(out, p)
			continue
		case !r.remember(p):
			for _, rec := range p.records { // the whole row waits, so nothing may overtake it
				r.held[lane{p.chatID, kafka.Partition{Topic: rec.Topic, ID: rec.Partition}}] = true
			}
			continue
		case len(now.records) > 0:
			out = append(out, now)
		case !p.replay: // later reads of the stream do not load the row while its partitions refuse
			r.lastPublished[p.chatID] = max(p.last, r.lastPublished[p.chatID])
		}
	}
	return out
}

// remember sets a row aside with all records of its plan, of which the ones that are published are
// removed later. It reports false if there are too many such rows.
func (r *Relay) remember(p plan) bool {
	if r.aside[p.key] != nil {
		return true
	}
	if len(r.aside) >= r.cfg.MaxAside {
		return false
	}
	s := &rest{stream: p.chatID, since: p.since, sweep: r.sweeps}
	for i, rec := range p.records {
		s.left = append(s.left, leftRecord{p.index[i], kafka.Partition{Topic: rec.Topic, ID: rec.Partition}})
	}
	r.aside[p.key] = s
	return true
}

// completes reports whether nothing of a plan's row is left once the plan is published.
func (r *Relay) completes(p plan) bool {
	s := r.aside[p.key]
	return s == nil || !slices.ContainsFunc(s.left, func(l leftRecord) bool { return !slices.Contains(p.index, l.index) })
}

// recordRest removes the records of a published plan from what is left of its row. It reports
// whether nothing is.
func (r *Relay) recordRest(p plan) bool {
	s := r.aside[p.key]
	if s == nil {
		return true
	}
	s.left = slices.DeleteFunc(s.left, func(l leftRecord) bool { return slices.Contains(p.index, l.index) })
	if len(s.left) > 0 {
		s.left = slices.Clone(s.left) // most of a row is published the first time
		return false
	}
	delete(r.aside, p.key)
	return true
}

// allRefused reports whether a row was set aside, and all that is left of it has to wait.
func (r *Relay) allRefused(row table.Outbox) bool {
	s := r.aside[row.Key()]
	return s != nil && !slices.ContainsFunc(s.left, func(l leftRecord) bool { return !r.isHeld(s.stream, l.partition) })
}

// reportAside forgets the rows that a complete sweep did not find, for example because an operator
// dropped them, and reports since when the records of each topic wait. It returns the oldest
// of these times, in unix ms; 0 if there is none.
func (r *Relay) reportAside() (oldest int64) {
	waiting := map[string]int64{}
	for key, s := range r.aside {
		if s.sweep < r.sweeps {
			delete(r.aside, key)
			continue
		}
		for _, l := range s.left {
			if at, ok := waiting[l.partition.Topic]; !ok || s.since < at {
				waiting[l.partition.Topic] = s.since
			}
		}
		if oldest == 0 || s.since < oldest {
			oldest = s.since
		}
	}
	r.waitingSince.Store(&waiting)
	return oldest
}

// Waiting returns how long the oldest record of each topic has been waiting because its partition
// refuses records, as of the last sweep. Only streams of Config.Load are reported.
func (r *Relay) Waiting() map[string]time.Duration {
	list := map[string]time.Duration{}
	if waiting := r.waitingSince.Load(); waiting != nil {
		for topic, at := range *waiting {
			list[topic] = max(0, r.cfg.Clock().Sub(time.UnixMilli(at)))
		}
	}
	return list
}
