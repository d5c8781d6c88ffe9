package device

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// chat is one chat of the user. What it shows in the list is known at KnownAt;
// if it is loaded, its messages are known at Version. Either goes on with frames
// that follow on it, and with reads where something is missing.
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
	fresh                []*messagev1.Message // changed since the last Take
}

func (m *Machine) add(chatID string) *chat {
	c := &chat{Record: Record{ChatID: chatID, State: m.early[chatID]}, m: m, seen: m.tick, clear: true}
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

// changed notes that the chat must be stored and shown.
func (c *chat) changed() {
	if !c.dirty {
		c.dirty = true
		c.m.dirty = append(c.m.dirty, c)
		c.m.events = append(c.m.events, Event{Changed: c.ChatID})
	}
	c.wake()
}

// wake has the next Take look at what the chat wants.
func (c *chat) wake() {
	if !c.queued {
		c.queued = true
		c.m.todo = append(c.m.todo, c)
	}
}

// restart drops the messages and members; they are loaded anew if the chat is
// open.
func (c *chat) restart() {
	c.Loaded, c.Version, c.Base, c.First, c.HasOlder = false, 0, 0, 0, false
	c.Members, c.MembersLoaded = nil, false
	c.messages, c.fresh, c.clear = nil, nil, true
	c.contentCall, c.membersCall, c.wantOlder = 0, 0, false
	c.pages, c.pageToken = nil, ""
	c.changed()
}

// leave drops the chat: the user is not a member as of a version.
func (m *Machine) leave(chatID string, version int64) {
	m.left[chatID] = max(m.left[chatID], version)
	if m.chats[chatID] != nil {
		delete(m.chats, chatID)
		m.gone = append(m.gone, chatID)
		m.events = append(m.events, Event{Removed: chatID})
	}
}

// removed handles a removal of the user in a version. Every version that the
// device heard of, it heard of as of a chat of the user: a removal that is not
// newer was followed by an addition.
func (m *Machine) removed(chatID string, version int64) {
	if c := m.chats[chatID]; c == nil || version > c.Newest {
		m.leave(chatID, version)
	}
}

// notAMember handles the answer to a read or a subscription that was asked for
// when newest was the newest version. A user who has been added since became a
// member again in a version newer than that.
func (m *Machine) notAMember(c *chat, newest int64) {
	if c.Newest > newest {
		c.wake()
		return
	}
	// The removal itself has a version that is not known here, at least the next.
	m.leave(c.ChatID, c.Newest+1)
}

// member returns the chat, because something of it reached the device that only
// members get; nil if that is older than the removal that the device knows of.
// listed says whether it came by a list or a stream, not as an answer about this
// chat.
func (m *Machine) member(chatID string, version int64, listed bool) *chat {
	c := m.chats[chatID]
	if c == nil {
		if left, ok := m.left[chatID]; ok {
			if version < left {
				return nil
			}
			delete(m.left, chatID)
		}
		c = m.add(chatID)
	}
	c.seen, c.askAt = m.tick, time.Time{}
	if listed {
		c.listed = m.tick
	}
	c.raise(version)
	return c
}

// raise notes that there is a version.
func (c *chat) raise(version int64) {
	if version > c.Newest {
		c.Newest = version
		c.changed()
	}
}

// overview takes a chat in as it was read for the list.
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
		// What was applied since Base is in Chat and Head already.
		c.KnownAt = max(c.KnownAt, version, c.Version)
	}
	c.changed()
}

// head takes in a newer head.
func (c *chat) head(h *chatv1.ChatHead) {
	if h.GetVersion() > c.Head.GetVersion() {
		c.Head = h
		c.changed()
	}
}

// metadata takes in newer metadata.
func (c *chat) metadata(chat *chatv1.Chat) {
	if c.Chat == nil || chat.GetVersion() > c.Chat.GetVersion() {
		c.Chat = chat
		c.changed()
	}
}

// state takes a copy of the user's own state in. Copies arrive in any order: marks
// only ever go up, the rest is that of the highest revision. Servers that do not count
// revisions send 0; what they say is taken as it comes.
func (c *chat) state(s *chatv1.MemberState) {
	if s == nil {
		return
	}
	old, newest := c.State, s
	if old != nil && (s.GetRevision() < old.GetRevision() || (s.GetRevision() == old.GetRevision() && s.GetRevision() > 0)) {
		newest = old
	}
	c.State = &chatv1.MemberState{
		ReadSequence:      max(s.GetReadSequence(), old.GetReadSequence()),
		JoinedSequence:    max(s.GetJoinedSequence(), old.GetJoinedSequence()),
		DeliveredSequence: max(s.GetDeliveredSequence(), old.GetDeliveredSequence()),
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

// body is what a change shows: one of the fields, or none that is known here.
type body struct {
	message    *messagev1.Message
	membership *messagev1.MembershipChange
	chat       *chatv1.Chat
	merged     bool // several changes look like this one
}

// change takes in a change that follows on after, if it does follow.
func (c *chat) change(after, version int64, b body) {
	own := b.membership.GetUserId() == c.m.cfg.UserID && b.membership != nil
	switch {
	case c.Loaded && after <= c.Version && c.Version < version:
		if own && b.membership.GetKind() == messagev1.MembershipChange_KIND_ADDED {
			// A new membership, which may hide what the old one showed.
			c.forgetState()
			c.restart()
			return
		}
		c.apply(b)
		c.Version = version
		if c.KnownAt >= c.Base {
			c.KnownAt = max(c.KnownAt, version)
		}
		c.follow(after, version, b)
		if own {
			c.forgetState() // for the role
		}
		c.changed()
	case !c.Loaded && c.KnownAt > 0 && after <= c.KnownAt && c.KnownAt < version:
		c.apply(b)
		c.KnownAt = version
		c.follow(after, version, b)
		if own {
			c.forgetState()
		}
		c.changed()
	default:
		c.wake()
	}
}

// forgetState has the chat read for the list again.
func (c *chat) forgetState() {
	c.KnownAt, c.chatCall = 0, 0
	c.Newest = max(c.Newest, 1) // every chat has a version: so it is asked for
	c.changed()
}

// follow moves the head on by a change.
func (c *chat) follow(after, version int64, b body) {
	h := c.Head
	if h == nil || after > h.GetVersion() || h.GetVersion() >= version {
		return
	}
	next := &chatv1.ChatHead{
		Version: version, Sequence: h.GetSequence(), MembershipVersion: h.GetMembershipVersion(),
		ChangedAt: h.GetChangedAt(), LastMessage: h.GetLastMessage(),
	}
	switch {
	case b.message != nil:
		if msg := b.message; msg.GetSequence() > next.Sequence {
			next.Sequence, next.ChangedAt = msg.GetSequence(), msg.GetCreatedAt()
			next.LastMessage = &chatv1.MessagePreview{Sequence: msg.GetSequence(), SenderId: msg.GetSenderId(), Text: preview(msg.GetContent())}
		}
	case b.membership != nil:
		next.MembershipVersion++
		next.ChangedAt = b.membership.GetChangedAt()
	case b.chat != nil:
		next.MembershipVersion++
		next.ChangedAt = b.chat.GetUpdatedAt()
	}
	c.Head = next
}

// apply keeps what a change shows, each object in its newest version.
func (c *chat) apply(b body) {
	switch {
	case b.message != nil:
		if b.message.GetSenderId() == c.m.cfg.UserID { // whoever sends has read up to there
			c.read(b.message.GetSequence())
		}
		if c.Loaded && b.message.GetSequence() >= c.First {
			c.keep(b.message)
		}
	case b.membership != nil:
		mc := b.membership
		if c.Chat == nil || b.merged || (c.Loaded && c.KnownAt < c.Base) {
			// Nothing to count in, or it cannot be told when the last of several changes
			// was, or what is there lacks earlier ones, a new name perhaps: the chat must be
			// read with this change.
			c.Base = max(c.Base, mc.GetVersion())
		} else if mc.GetVersion() > c.Chat.GetVersion() && mc.GetMemberCount() > 0 {
			c.Chat = withCount(c.Chat, mc.GetMemberCount(), mc.GetChangedAt(), mc.GetVersion())
		}
		if c.Loaded {
			c.memberChanged(mc)
		}
	case b.chat != nil:
		c.metadata(b.chat)
	}
}

func (c *chat) read(sequence int64) {
	if sequence > c.State.GetReadSequence() {
		s := c.State
		c.state(&chatv1.MemberState{
			ReadSequence: sequence, MutedUntil: s.GetMutedUntil(), Archived: s.GetArchived(), Role: s.GetRole(), Revision: s.GetRevision(),
		})
	}
}

// keep adds a message or replaces an older state of it.
func (c *chat) keep(msg *messagev1.Message) {
	i, found := c.find(msg.GetSequence())
	switch {
	case !found:
		c.messages = slices.Insert(c.messages, i, msg)
	case msg.GetVersion() > c.messages[i].GetVersion():
		c.messages[i] = msg
	default:
		return
	}
	c.fresh = append(c.fresh, msg)
	c.changed()
}

func (c *chat) find(sequence int64) (int, bool) {
	n := len(c.messages)
	if n == 0 || c.messages[n-1].GetSequence() < sequence {
		return n, false
	}
	return slices.BinarySearchFunc(c.messages, sequence, func(m *messagev1.Message, s int64) int { return int(m.GetSequence() - s) })
}

// memberChanged keeps a change of the member list.
func (c *chat) memberChanged(mc *messagev1.MembershipChange) {
	i, found := slices.BinarySearchFunc(c.Members, mc.GetUserId(), func(m Member, id string) int { return strings.Compare(m.UserID, id) })
	now := Member{UserID: mc.GetUserId(), Role: mc.GetRole(), Version: mc.GetVersion()}
	switch mc.GetKind() {
	case messagev1.MembershipChange_KIND_ADDED:
		now.JoinedAt = mc.GetChangedAt()
	case messagev1.MembershipChange_KIND_REMOVED:
		now.Removed = true
	default:
		if !found || c.Members[i].Removed { // joined and changed in one answer: when is not known
			c.readMembersAgain()
			return
		}
		now.JoinedAt = c.Members[i].JoinedAt
	}
	members := slices.Clone(c.Members)
	if !found {
		members = slices.Insert(members, i, now)
	} else if now.Version > members[i].Version {
		members[i] = now
	}
	c.Members = members
}

// readMembersAgain has the member list read anew; one that is being read may be older
// than what asks for it.
func (c *chat) readMembersAgain() {
	c.MembersLoaded, c.membersCall, c.pages, c.pageToken = false, 0, nil, ""
	c.wake()
}

// membersRead takes a member list in that is not older than a version. Changes
// that were applied meanwhile win over it by their versions.
func (c *chat) membersRead(list []*chatv1.Member, version int64) {
	known := map[string]Member{}
	for _, m := range c.Members {
		known[m.UserID] = m
	}
	var members []Member
	for _, m := range list {
		now := Member{UserID: m.GetUserId(), Role: m.GetRole(), JoinedAt: m.GetJoinedAt(), Version: m.GetVersion()}
		if old, ok := known[now.UserID]; ok && old.Version > now.Version {
			now = old
		}
		delete(known, now.UserID)
		members = append(members, now)
	}
	for _, old := range known {
		if old.Removed || old.Version > version {
			members = append(members, old)
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.UserID, b.UserID) })
	c.Members, c.MembersLoaded = members, true
	c.changed()
}

// withCount is a chat with another number of members.
func withCount(c *chatv1.Chat, count int32, at *timestamppb.Timestamp, version int64) *chatv1.Chat {
	return &chatv1.Chat{
		ChatId: c.GetChatId(), Type: c.GetType(), Name: c.GetName(), Status: c.GetStatus(), History: c.GetHistory(),
		CreatedBy: c.GetCreatedBy(), MemberCount: count, DirectUserIds: c.GetDirectUserIds(),
		CreatedAt: c.GetCreatedAt(), UpdatedAt: at, Version: version,
	}
}

// maxPreview is how much of a message the list shows, in bytes.
const maxPreview = 128

func preview(text string) string {
	if len(text) <= maxPreview {
		return text
	}
	n := maxPreview
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
