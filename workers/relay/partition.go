package relay

import (
	"errors"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// A transaction that a single partition refuses is aborted as a whole. The partition is
// left out for a while then, longer with every time, and with it the chats that have
// records for it: nothing later of a chat may go before. The rest of the slot goes on.

// Waits before a partition that took nothing is tried again. An attempt may last as long
// as a transaction, and the slot's other chats wait for its end.
const (
	firstOutage = 2 * time.Second
	maxOutage   = time.Minute
)

// outage is a partition that takes nothing.
type outage struct {
	until time.Time
	wait  time.Duration
}

// holdBack notes the partitions that an error of publishing is about. It reports whether
// all else may be published without them at once.
func (r *Relay) holdBack(err error) bool {
	var refused *kafka.PartitionError
	if !errors.As(err, &refused) {
		return false
	}
	for _, p := range refused.Partitions {
		o := r.outages[p]
		o.wait = min(max(2*o.wait, firstOutage), maxOutage)
		o.until = r.cfg.Clock().Add(o.wait)
		r.outages[p] = o
		r.cfg.Logger.Warn("relay: a partition takes no records; its chats wait", "topic", p.Topic, "partition", p.ID, "retry_after", o.wait, "error", refused.Err)
	}
	r.unavailable.Store(int64(len(r.outages)))
	return true
}

// restore notes that the partitions of records took them.
func (r *Relay) restore(records []*kafka.Record) {
	if len(r.outages) == 0 {
		return
	}
	for _, rec := range records {
		delete(r.outages, kafka.Partition{Topic: rec.Topic, ID: rec.Partition})
	}
	r.unavailable.Store(int64(len(r.outages)))
}

// available returns the plans that can be published now: none of a chat with a partition
// that is left out. Such a chat is forgotten, so that the outbox is asked for it once the
// time has come.
func (r *Relay) available(plans []plan) []plan {
	if len(r.outages) == 0 && len(r.left) == 0 && !r.route.frozen() && r.route.settled() {
		return plans
	}
	var out []plan
	for _, p := range plans {
		if r.leftOut(p.chatID) || r.holds(p) {
			delete(r.last, p.chatID)
			continue
		}
		out = append(out, p)
	}
	return out
}

// leftOut reports whether a chat waits for a partition. Once it does, it does so until the
// next sweep or the next nudges, also when the partition's time comes meanwhile: what
// follows in this pass comes after what was dropped of the chat.
func (r *Relay) leftOut(chatID string) bool {
	if !r.left[chatID] && (r.route.waits[chatID] || r.outOfReach(chatID)) {
		r.left[chatID] = true
	}
	return r.left[chatID]
}

// outOfReach reports whether a partition of a chat is left out at present.
func (r *Relay) outOfReach(chatID string) bool {
	now := r.cfg.Clock()
	for p, o := range r.outages {
		if now.Before(o.until) && r.route.goes(chatID, p) {
			return true
		}
	}
	return false
}
