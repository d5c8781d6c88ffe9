package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// A transaction that one partition refuses is aborted as a whole. The relay then leaves the
// partition out for a while, longer each time, together with the chats that have records for
// it: no later event of a chat may be published earlier. Other chats are published. A stream of
// other rows (Config.Load) has an order only within a partition, so only its records for that
// partition wait: see aside.go.

// Backoff of a partition that refuses records. An attempt may take as long as a transaction,
// and the other chats of the slot wait for it.
const (
	firstOutage = 2 * time.Second
	maxOutage   = time.Minute
)

// outage is the backoff of a partition that refuses records.
type outage struct {
	until time.Time
	wait  time.Duration
}

// recordOutages records the partitions that an error of publishing names. It reports whether
// everything else may be published at once.
func (r *Relay) recordOutages(err error) bool {
	var refused *kafka.PartitionError
	if !errors.As(err, &refused) || refused.All && !r.expectsAll(refused) {
		return false
	}
	for _, p := range refused.Partitions {
		o := r.outages[p]
		o.wait = min(max(2*o.wait, firstOutage), maxOutage)
		o.until = r.cfg.Clock().Add(o.wait)
		r.outages[p] = o
		r.cfg.Logger.Warn("relay: a partition refuses records, which wait in the outbox", "topic", p.Topic, "partition",
			p.ID, "retry_after", o.wait, "error", refused.Err)
	}
	r.unavailable.Store(int64(len(r.outages)))
	return true
}

// expectsAll reports whether the partitions of an error are to be left out although none of several
// accepted its records. If Kafka is away as a whole, all refuse, and then the cycle is repeated
// instead: it waits 5 s at most, a partition a minute. But a transaction also has nothing else if
// so many records wait for a few partitions that they fill it; it would be repeated at once, and
// everything behind it would wait. Of chats this is known of partitions that refused before. A
// relay that has just started knows of none. So each partition of streams is left out, whose records
// may wait for the minute.
func (r *Relay) expectsAll(refused *kafka.PartitionError) bool {
	return r.cfg.Load != nil || !slices.ContainsFunc(refused.Partitions, func(p kafka.Partition) bool {
		_, before := r.outages[p]
		return !before
	})
}

// clearOutages ends the outages of the partitions that took records.
func (r *Relay) clearOutages(records []*kafka.Record) {
	if len(r.outages) == 0 {
		return
	}
	for _, rec := range records {
		delete(r.outages, kafka.Partition{Topic: rec.Topic, ID: rec.Partition})
	}
	r.unavailable.Store(int64(len(r.outages)))
}

// publishable returns the plans that can be published now: none of a chat with a partition
// that is left out. The cached version of such a chat is dropped, so that the outbox is
// queried for it later.
func (r *Relay) publishable(plans []plan) []plan {
	if r.cfg.Load != nil {
		return r.setAside(plans)
	}
	if len(r.outages) == 0 && len(r.deferred) == 0 && !r.route.frozen() && r.route.isRenewed() {
		return plans
	}
	var out []plan
	for _, p := range plans {
		if r.isDeferred(p.chatID) || r.waitsForTopic(p) {
			delete(r.lastPublished, p.chatID)
			continue
		}
		out = append(out, p)
	}
	return out
}

// isDeferred reports whether a chat waits for a partition. It then waits until the next sweep
// or the next nudges, also if the backoff of the partition ends earlier: the plans that
// follow in this pass come after plans of the chat that were dropped.
func (r *Relay) isDeferred(chatID string) bool {
	if !r.deferred[chatID] && (r.route.frozenChats[chatID] || r.hasOutage(chatID)) {
		r.deferred[chatID] = true
	}
	return r.deferred[chatID]
}

// hasOutage reports whether a partition of a chat is left out at present.
func (r *Relay) hasOutage(chatID string) bool {
	if r.cfg.Load != nil { // only its records for that partition wait
		return false
	}
	now := r.cfg.Clock()
	for p, o := range r.outages {
		if now.Before(o.until) && r.route.leadsTo(chatID, p) {
			return true
		}
	}
	return false
}
