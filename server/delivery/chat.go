package delivery

import (
	"github.com/parley-chat/parley/server/delivery/frame"
)

// chatState is what the hub has loaded of a chat that at least one stream subscribes
// to, or did when changes came that are not applied yet. It applies the chat's changes
// one by one in version order, so it sees every change of the membership after its
// first position.
type chatState struct {
	changeLog
	id     string
	serial uint64 // distinguishes it from earlier states of the same chat

	// verified is a membership version: each stream of this process whose user
	// was a member at that version is subscribed, or is catching up and will
	// subscribe by itself.
	verified int64

	subscriptions []*subscription // in no order; a subscription has its index
	gap           gap

	invalidation int64 // the head was read after this invalidation of the hub
	headVersion  int64 // version that it had
}

// Deliver takes changes of a chat and queues them for the streams of its members. It
// does not wait for anything.
func (h *Hub) Deliver(d Delivery) {
	h.mu.Lock()
	defer h.unlock()
	if !h.cfg.History.Holds(d.Generation, 0) {
		h.stats.OtherGeneration++
		return
	}
	if len(h.streams) == 0 {
		return
	}
	cs := h.chats[d.ChatID]
	if cs == nil {
		// No stream is subscribed, so there is no position to compare with: a read
		// shows what is to be done. A membership change concerns its targets' streams,
		// any other change those that should be subscribed and are not, because an
		// earlier change of the membership never came.
		for _, user := range d.Targets {
			h.reconcileUnsubscribed(d.ChatID, user, d.Version)
		}
		if h.verified[d.ChatID] < d.MembershipVersion {
			h.requestMembershipSync(d.ChatID, d.MembershipVersion)
		}
		return
	}
	for _, e := range d.Events {
		if !cs.Receive(e) {
			h.stats.Duplicates++
		}
	}
	cs.Newest = max(cs.Newest, d.Version)
	h.applyPending(cs)
	applied := !cs.Started || d.Version <= cs.Version
	if applied || len(d.Events) == 0 {
		// The changes were applied, now or before, or happened before the first
		// subscription: then a target's stream is not subscribed, or subscribed by a
		// later addition. Or they only wait in the buffer of a chat without a position,
		// and are lost with it if the stream that is catching up ends. Of the changes of
		// a repair this may be true of the first ones only.
		for _, user := range d.Targets {
			h.reconcileUnsubscribed(d.ChatID, user, d.Version)
		}
	}
	if applied && cs.verified < d.MembershipVersion {
		h.requestMembershipSync(d.ChatID, d.MembershipVersion)
	}
}

// Applied reports whether Deliver, given d without events, would do nothing: a change that
// affects no membership has reached all streams of this hub that it must.
func (h *Hub) Applied(d Delivery) bool {
	h.mu.Lock()
	defer h.unlock()
	if !h.cfg.History.Holds(d.Generation, 0) || len(d.Targets) > 0 {
		return false
	}
	if len(h.streams) == 0 {
		return true
	}
	cs := h.chats[d.ChatID]
	if cs == nil {
		return h.verified[d.ChatID] >= d.MembershipVersion
	}
	return cs.Started && d.Version <= cs.Version && d.MembershipVersion <= cs.verified
}

// applyPending applies all changes that follow without a gap, and schedules a read of
// what is missing. Callers hold mu.
func (h *Hub) applyPending(cs *chatState) {
	if !cs.Started {
		return
	}
	moved := false
	for c := cs.Next(h.cfg.MaxRecent); c != nil; c = cs.Next(h.cfg.MaxRecent) {
		h.apply(cs, c)
		moved = true
	}
	h.watchGap(cs, moved)
}

// apply applies the next change: frames for the subscribed streams, and the
// membership of the stream's own user. Callers hold mu; c.Version is cs.Version.
func (h *Hub) apply(cs *chatState, c *frame.Change) {
	for _, s := range h.users[c.Target] {
		switch {
		case s.subscriptions.Of(cs.id) != nil:
		case c.Effect == frame.Added:
			// Subscribed at the position before, the stream gets the change itself like
			// all others.
			h.subscribeAdded(s, cs, c)
		case c.Effect == frame.Removed:
			// Never subscribed, because the addition did not come this way; the client
			// may have the chat by other means.
			if !h.knowsRemoval(s, cs.id, c.Version) {
				h.requestReconcile(s, cs.id, c.Version)
			}
		}
	}
	var overflowed []*Stream // a removed member's among them
	// From the end, because deliver may remove the subscription it is given.
	for i := len(cs.subscriptions) - 1; i >= 0; i-- {
		a := cs.subscriptions[i]
		h.deliver(a, c)
		if a.stream.overflowed {
			overflowed = append(overflowed, a.stream)
		}
	}
	h.endOverflowed(overflowed)
	if c.Membership && cs.verified == c.MembershipVersion-1 {
		cs.verified = c.MembershipVersion
	}
	if cs.verified < c.MembershipVersion {
		h.requestMembershipSync(cs.id, c.MembershipVersion)
	}
}

// deliver sends a change to one subscribed stream. Callers hold mu.
func (h *Hub) deliver(a *subscription, c *frame.Change) {
	own := c.Target == a.stream.owner.UserID
	if !a.active {
		// Catching up reads the head and then the user's row; its result at position p
		// covers a removal at or before p.
		if own && c.Effect == frame.Removed {
			a.removedAt = c.Version
		} else if own && c.Effect == frame.Added {
			a.removedAt = 0
		}
		return
	}
	if c.Version <= a.pos {
		return
	}
	if c.Version >= a.minVisible || (own && c.Effect == frame.Removed) {
		h.push(a.stream, c.Frame())
	}
	a.pos = c.Version
	if own && c.Effect == frame.Removed {
		a.stream.departed.Add(a.chat.id, c.Version, a.chat.serial)
		h.unsubscribe(a)
	}
}

// dropIdle drops the state of a chat that no stream is subscribed to. Callers hold mu.
func (h *Hub) dropIdle(cs *chatState) {
	if len(cs.subscriptions) > 0 || h.chats[cs.id] != cs {
		return
	}
	delete(h.chats, cs.id)
	h.setVerified(cs.id, cs.verified)
}
