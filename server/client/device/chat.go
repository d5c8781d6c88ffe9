package device

import (
	"math"
	"slices"
	"strings"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// chat is one chat of the user. Its overview in the list is known at KnownAt; if it is
// loaded, its messages are known at Version. Both advance with frames that follow on them,
// and with reads where something is missing.
type chat struct {
	Record
	m        *Machine
	messages []*messagev1.Message // in order of sequence
	// Ticks of the last sign that the user is a member, and of the last list or
	// stream that named the chat.
	seen, listed int64

	// Calls under way, 0 for none. Results of other calls are ignored.
	chatCall, contentCall, membersCall, readCall int64
	wantOlder                                    bool
	tries                                        int // failed reads in a row
	retryAt                                      time.Time
	askAt                                        time.Time // until then the stream may bring what is missing

	pages     []*chatv1.Member // of the member list being read
	pagesHead int64
	pageToken string

	queued, dirty, clear bool
	changedMessages      []*messagev1.Message // changed since the last Take
}

func (m *Machine) add(chatID string) *chat {
	c := &chat{Record: Record{ChatID: chatID, State: m.early[chatID]}, m: m, seen: m.step, clear: true}
	delete(m.early, chatID)
	m.chats[chatID] = c
	c.changed()
	return c
}

func (m *Machine) restore(r Record, messages map[int64]*messagev1.Message) {
	c := &chat{Record: r, m: m}
	for _, msg := range messages {
		c.messages = append(c.messages, msg)
	}
	slices.SortFunc(c.messages, func(a, b *messagev1.Message) int { return int(a.GetSequence() - b.GetSequence()) })
	m.chats[r.ChatID] = c
	c.wake()
}

func (m *Machine) sorted() []*chat {
	list := make([]*chat, 0, len(m.chats))
	for _, c := range m.chats {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *chat) int { return strings.Compare(a.ChatID, b.ChatID) })
	return list
}

// changed records that the chat must be stored and shown.
func (c *chat) changed() {
	if !c.dirty {
		c.dirty = true
		c.m.dirty = append(c.m.dirty, c)
		c.m.events = append(c.m.events, Event{Changed: c.ChatID})
	}
	c.wake()
}

// wake has the next Take plan what the chat needs.
func (c *chat) wake() {
	if !c.queued {
		c.queued = true
		c.m.pendingChats = append(c.m.pendingChats, c)
	}
}

// restart drops the messages and members; they are loaded again if the chat is
// open.
func (c *chat) restart() {
	c.Loaded, c.Version, c.Base, c.First, c.HasOlder = false, 0, 0, 0, false
	c.Members, c.MembersLoaded = nil, false
	c.messages, c.changedMessages, c.clear = nil, nil, true
	c.contentCall, c.membersCall, c.wantOlder = 0, 0, false
	c.pages, c.pageToken = nil, ""
	c.changed()
}

// raise records that a version exists.
func (c *chat) raise(version int64) {
	if version > c.Newest {
		c.Newest = version
		c.changed()
	}
}

// overview applies a chat as it was read for the list.
func (m *Machine) overview(ov *chatv1.ChatOverview, listed bool) {
	version := ov.GetHead().GetVersion()
	c := m.member(ov.GetChat().GetChatId(), version, listed)
	if c == nil {
		return
	}
	if c.Loaded && c.Chat != nil && ov.GetState().GetJoinedSequence() > c.State.GetJoinedSequence() {
		c.restart() // a new membership, which may hide what the old one showed
	}
	c.metadata(ov.GetChat())
	c.head(ov.GetHead())
	c.state(ov.GetState())
	switch {
	case !c.Loaded:
		c.KnownAt = max(c.KnownAt, version)
	case version >= c.Base:
		// Changes that were applied since Base are in Chat and Head already.
		c.KnownAt = max(c.KnownAt, version, c.Version)
	}
	c.changed()
}

// head applies a newer head.
func (c *chat) head(h *chatv1.ChatHead) {
	if h.GetVersion() > c.Head.GetVersion() {
		c.Head = h
		c.changed()
	}
}

// ownUnread is what a state says of the user's own messages after a read position, with those of a later time
// that are here. If this device has counted some, and they may not all be here, the chat is read again. A
// state with a lower position counts too many of them: then those that are here count, and at least the last.
func (c *chat) ownUnread(old, newest *chatv1.MemberState, read int64) (count, last int64) {
	count, last = newest.GetOwnUnreadCount(), newest.GetOwnSequence()
	if newest == old && read == newest.GetReadSequence() {
		return count, last
	}
	from := max(last, read)
	if read > newest.GetReadSequence() {
		passed, found := c.own(read, last)
		if count = passed; last <= read {
			last = 0
		} else if found != last {
			count++ // the last one counts even if it is not here
		}
	}
	later, found := c.own(from, math.MaxInt64)
	if old.GetOwnSequence() > from && (!c.Loaded || c.First > from+1) {
		c.forgetState()
	}
	return count + later, max(last, found)
}

// own counts the user's messages that are here after a sequence, up to another one, and returns the last of them.
func (c *chat) own(after, to int64) (count, last int64) {
	i, _ := c.find(after + 1)
	for _, m := range c.messages[i:] {
		if m.GetSequence() <= to && m.GetSenderId() == c.m.cfg.UserID {
			count, last = count+1, m.GetSequence()
		}
	}
	return count, last
}

// metadata applies newer metadata.
func (c *chat) metadata(chat *chatv1.Chat) {
	if c.Chat == nil || chat.GetVersion() > c.Chat.GetVersion() {
		c.Chat = chat
		c.changed()
	}
}

// state applies a copy of the user's own state. Copies arrive in any order: marks only ever
// go up, the rest is that of the highest revision. Servers that do not count revisions send
// 0; their values are taken in the order of arrival.
func (c *chat) state(s *chatv1.MemberState) {
	if s == nil {
		return
	}
	old, newest := c.State, s
	if old != nil && (s.GetRevision() < old.GetRevision() ||
		(s.GetRevision() == old.GetRevision() && s.GetRevision() > 0)) {
		newest = old
	}
	read := max(s.GetReadSequence(), old.GetReadSequence())
	own, ownLast := c.ownUnread(old, newest, read)
	c.State = &chatv1.MemberState{
		OwnUnreadCount:    own,
		OwnSequence:       ownLast,
		ReadSequence:      read,
		JoinedSequence:    max(s.GetJoinedSequence(), old.GetJoinedSequence()),
		DeliveredSequence: max(s.GetDeliveredSequence(), old.GetDeliveredSequence()),
		PeerReadSequence:  max(s.GetPeerReadSequence(), old.GetPeerReadSequence()),
		MutedUntil:        newest.GetMutedUntil(),
		Archived:          newest.GetArchived(),
		Role:              newest.GetRole(),
		Revision:          newest.GetRevision(),
	}
	if c.ReadTo > 0 && c.State.ReadSequence >= c.ReadTo {
		c.ReadTo = 0
	}
	c.changed()
}
