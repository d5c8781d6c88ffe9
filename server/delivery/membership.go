package delivery

import (
	"context"

	"github.com/parley-chat/parley/server/infra/bounded"
)

// The hub learns of memberships from the changes themselves. Where one was missed, two
// reads put it right: a membership sync reads the members of a chat and finds the
// streams that should be subscribed to it; a reconciliation reads one user's row and
// subscribes the stream, or sends it that the user has left.

// membershipSync is a read of a member list that is requested or under way.
type membershipSync struct {
	version int64 // membership version that the list must not be older than
}

type subscriptionKey struct {
	stream *Stream
	chatID string
}

// reconciliation is a read of a stream's part in a chat that is requested or under way.
type reconciliation struct {
	running bool
	again   bool  // requested while it ran
	version int64 // that made it necessary
}

// requestMembershipSync requests a read of the member list of a chat, not older than a
// membership version. Callers hold mu.
func (h *Hub) requestMembershipSync(chatID string, version int64) {
	if m := h.membershipSyncs[chatID]; m != nil {
		m.version = max(m.version, version)
		return
	}
	h.membershipSyncs[chatID] = &membershipSync{version: version}
	h.schedule(h.cfg.Clock(), Work{kind: workMembershipSync, chatID: chatID})
}

// syncMembership reads a member list and reconciles the members' streams that are not
// subscribed.
func (h *Hub) syncMembership(ctx context.Context, w Work) error {
	h.mu.Lock()
	m := h.membershipSyncs[w.chatID]
	least := m.version
	h.stats.MembershipReads++
	h.unlock()

	version, users, err := h.cfg.Source.MemberIDs(ctx, w.chatID)

	h.mu.Lock()
	defer h.unlock()
	if err != nil || version < least {
		h.schedule(h.cfg.Clock().Add(retryAfter), w)
		return err
	}
	for _, u := range users {
		h.reconcileUnsubscribed(w.chatID, u, 0)
	}
	h.setVerified(w.chatID, version)
	if m.version > version {
		h.schedule(h.cfg.Clock(), w)
		return nil
	}
	delete(h.membershipSyncs, w.chatID)
	return nil
}

// maxVerified bounds Hub.verified; dropping an entry costs one read.
const maxVerified = 1 << 16

// setVerified records a verified membership version of a chat. Callers hold mu.
func (h *Hub) setVerified(chatID string, version int64) {
	if cs := h.chats[chatID]; cs != nil {
		cs.verified = max(cs.verified, version)
		return
	}
	bounded.Put(h.verified, chatID, max(h.verified[chatID], version), maxVerified)
}

// reconcileUnsubscribed requests a reconciliation for each of a user's streams that is not
// subscribed to a chat, or not yet active in it: the rows that it is about to read may be
// older than the change that brings us here, and end the subscription. version is that of
// the change, or of one after it; streams that know already what it did are skipped. 0
// skips none that is not subscribed. Callers hold mu.
func (h *Hub) reconcileUnsubscribed(chatID, user string, version int64) {
	for _, s := range h.users[user] {
		a := s.subscriptions.Of(chatID)
		if (a == nil && (version == 0 || !h.knowsRemoval(s, chatID, version))) || (a != nil && !a.active) {
			h.requestReconcile(s, chatID, version)
		}
	}
}

// requestReconcile requests a reconciliation of a stream with a chat, because of a
// version of it; 0 where none is known. Callers hold mu.
func (h *Hub) requestReconcile(s *Stream, chatID string, version int64) {
	if s.catchingUp {
		s.pendingChats[chatID] = true
		return
	}
	key := subscriptionKey{s, chatID}
	if r := h.reconciliations[key]; r != nil {
		r.again = r.again || r.running
		r.version = max(r.version, version)
		return
	}
	h.reconciliations[key] = &reconciliation{version: version}
	h.schedule(h.cfg.Clock(), Work{kind: workReconcile, stream: s, chatID: chatID})
}

func (h *Hub) reconcileSubscription(ctx context.Context, w Work) error {
	key := subscriptionKey{w.stream, w.chatID}
	h.mu.Lock()
	r := h.reconciliations[key]
	if h.streams[w.stream.id] != w.stream {
		delete(h.reconciliations, key)
		h.unlock()
		return nil
	}
	r.running, r.again = true, false
	version := r.version
	h.unlock()

	err := w.stream.reconcile(ctx, []string{w.chatID}, version)

	h.mu.Lock()
	defer h.unlock()
	switch {
	case err != nil:
		// A subscription that reconcile made before it failed would stay inactive.
		if a := w.stream.subscriptions.Of(w.chatID); a != nil && !a.active {
			h.unsubscribe(a)
		}
		h.schedule(h.cfg.Clock().Add(retryAfter), w)
	case r.again:
		h.schedule(h.cfg.Clock(), w)
	default:
		delete(h.reconciliations, key)
	}
	r.running = false
	return err
}

// reconcile reads what a stream's user has to do with chats that the stream is not
// subscribed to: it subscribes the stream and sends the head, or sends that the user has
// left. version is one that all of them had before; 0 where none is known.
func (s *Stream) reconcile(ctx context.Context, ids []string, version int64) error {
	h := s.hub
	rows, err := h.cfg.Source.UserChatsOf(ctx, s.owner.UserID, ids)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	var members []catchUpRow
	h.mu.Lock()
	for _, r := range rows {
		switch {
		case r == nil || s.subscriptions.Of(r.ChatID) != nil:
		case r.Left():
			h.sendLeft(s, r.ChatID, r.LeftVersion)
			s.departed.Confirm(r.ChatID, version)
		case h.streams[s.id] == s:
			h.subscribe(s, r.ChatID)
			members = append(members, catchUpRowOf(r))
		}
	}
	h.endOverflowed([]*Stream{s})
	h.unlock()
	if len(members) == 0 {
		return nil
	}
	return s.activateChats(ctx, members, nil)
}
