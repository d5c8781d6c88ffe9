package device

import (
	"cmp"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// plan asks for what the chat wants. It returns false if the chat must be looked
// at again although nothing new comes.
func (c *chat) plan(now time.Time) (settled bool) {
	m := c.m
	if now.Before(c.retryAt) {
		return false
	}
	c.retryAt = time.Time{}
	read := func(slot *int64, wanted bool, kind Kind, p pending, req func() proto.Message) {
		if !wanted || *slot != 0 {
			return
		}
		if m.reads >= maxReads {
			settled = false
			return
		}
		m.reads++
		p.chat = c
		*slot = m.call(kind, req(), p)
	}
	settled = true
	known := c.Newest
	if c.Loaded { // changes are then read with the messages
		known = c.Base
	}
	read(&c.chatCall, c.Chat == nil || c.KnownAt < known, GetChat, pending{}, func() proto.Message {
		return &chatv1.GetChatRequest{ChatId: c.ChatID}
	})
	switch {
	case !c.Open:
	case !c.Loaded:
		read(&c.contentCall, true, ListMessages, pending{}, func() proto.Message {
			return &messagev1.ListMessagesRequest{ChatId: c.ChatID, PageSize: min(m.cfg.PageSize, 100)}
		})
	default:
		behind := c.Version < c.Newest
		if behind && now.Before(c.askAt) {
			behind, settled = false, false
		}
		read(&c.contentCall, behind, ListChanges, pending{after: c.Version}, func() proto.Message {
			return &messagev1.ListChangesRequest{ChatId: c.ChatID, AfterVersion: c.Version, PageSize: min(m.cfg.PageSize, 100)}
		})
		read(&c.contentCall, c.wantOlder && c.HasOlder, ListMessages, pending{older: true}, func() proto.Message {
			c.wantOlder = false
			return &messagev1.ListMessagesRequest{ChatId: c.ChatID, PageSize: min(m.cfg.PageSize, 100), BeforeSequence: c.First}
		})
		read(&c.membersCall, !c.MembersLoaded, ListMembers, pending{}, func() proto.Message {
			return &chatv1.ListMembersRequest{ChatId: c.ChatID, PageSize: min(m.cfg.PageSize, 100), PageToken: c.pageToken}
		})
	}
	if c.ReadTo > c.State.GetReadSequence() && c.readCall == 0 {
		c.readCall = m.call(MarkRead, &messagev1.MarkReadRequest{ChatId: c.ChatID, Sequence: c.ReadTo}, pending{chat: c})
	}
	return settled
}

// Result takes in how a call ended: with a response, or with a failure.
func (m *Machine) Result(call int64, res proto.Message, why *Failure) {
	m.tick++
	p := m.calls[call]
	if p == nil {
		return
	}
	delete(m.calls, call)
	switch p.kind {
	case GetChat, ListMembers, ListMessages, ListChanges:
		m.reads--
	}
	if why != nil && p.kind != SendMessage {
		m.failed(why)
	}
	switch p.kind {
	case Refresh:
		m.refreshed(why)
	case Sync:
		if call == m.sync.call {
			m.synced(res, why)
		}
	case Ack:
		if call == m.stream.ackCall {
			// After a failure a later Ack covers what this one should have.
			m.stream.ackCall = 0
		}
	case Extend:
		m.extended(call, res, why)
	case SendMessage:
		m.sent(call, p, res, why)
	default:
		m.chatResult(call, p, res, why)
	}
}

func (m *Machine) refreshed(why *Failure) {
	m.refreshing = 0
	switch {
	case why == nil:
		m.needRefresh, m.refreshTries = false, 0
	case why.Code == connect.CodeUnauthenticated || why.Code == connect.CodePermissionDenied:
		m.stop(why)
	default:
		m.refreshAt = m.cfg.Clock().Add(max(why.RetryAfter, m.backoff(m.refreshTries)))
		m.refreshTries++
	}
}

func (m *Machine) extended(call int64, res proto.Message, why *Failure) {
	s := &m.stream
	if call != s.extendCall {
		return
	}
	s.extendCall = 0
	if r, ok := res.(*deliveryv1.ExtendResponse); ok && why == nil {
		m.expires(r.GetExpiresAt())
		return
	}
	s.extendAt = m.cfg.Clock().Add(lastBackoff)
}

// synced takes a page of a synchronisation in.
func (m *Machine) synced(res proto.Message, why *Failure) {
	s := &m.sync
	s.call = 0
	r, ok := res.(*deliveryv1.SyncResponse)
	if why != nil || !ok {
		if why != nil && why.Code == connect.CodeInvalidArgument {
			s.page = "" // a page token of long ago
		}
		s.at = m.cfg.Clock().Add(m.backoff(s.tries))
		s.tries++
		return
	}
	s.tries = 0
	m.generation(r.GetGeneration())
	for _, ov := range r.GetChats() {
		m.overview(ov, true)
	}
	for _, l := range r.GetLeft() {
		m.removed(l.GetChatId(), l.GetVersion())
	}
	if s.page = r.GetNextPageToken(); s.page != "" {
		return
	}
	if r.GetFull() {
		m.dropUnlisted(s.began)
	}
	s.need = false
	m.setToken(r.GetToken())
}

func (m *Machine) chatResult(call int64, p *pending, res proto.Message, why *Failure) {
	c := p.chat
	if m.chats[c.ChatID] != c {
		return
	}
	slot := c.slot(p.kind)
	if *slot != call {
		return // the chat was started over since
	}
	*slot = 0
	c.wake()
	if why != nil {
		m.chatFailed(c, p, why)
		return
	}
	c.tries = 0
	c.seen = m.tick
	switch r := res.(type) {
	case *chatv1.GetChatResponse:
		m.overview(r.GetChat(), false)
		if r.GetChat().GetHead().GetVersion() < p.newest { // older than what was heard of before it was asked for
			c.pause(&Failure{})
		}
	case *chatv1.ListMembersResponse:
		c.membersPage(r)
	case *messagev1.ListMessagesResponse:
		c.page(r, p.older)
	case *messagev1.ListChangesResponse:
		c.changes(p.after, r)
	case *messagev1.MarkReadResponse:
		c.ReadTo = 0
		c.state(r.GetState())
	}
}

// slot is where the chat keeps the call of a kind that is under way.
func (c *chat) slot(k Kind) *int64 {
	switch k {
	case GetChat:
		return &c.chatCall
	case ListMembers:
		return &c.membersCall
	case MarkRead:
		return &c.readCall
	default:
		return &c.contentCall
	}
}

func (m *Machine) chatFailed(c *chat, p *pending, why *Failure) {
	switch {
	case why.Reason == reasonNotAMember:
		m.notAMember(c, p.newest)
		return
	case p.kind == MarkRead && definite(why):
		c.ReadTo = 0
		c.changed()
	case p.kind == ListMembers:
		c.pages, c.pageToken = nil, "" // from the first page
	}
	c.pause(why)
}

// pause lets the chat wait before it asks again.
func (c *chat) pause(why *Failure) {
	c.retryAt = c.m.cfg.Clock().Add(max(why.RetryAfter, c.m.backoff(c.tries)))
	c.tries++
}

// membersPage takes a page of the member list in. The whole list is as old as
// its first page, and must not be older than what loading began with.
func (c *chat) membersPage(r *chatv1.ListMembersResponse) {
	if c.pageToken == "" {
		c.pages, c.pagesHead = nil, r.GetHead().GetVersion()
	}
	c.pages = append(c.pages, r.GetMembers()...)
	c.head(r.GetHead())
	c.raise(r.GetHead().GetVersion())
	if c.pageToken = r.GetNextPageToken(); c.pageToken != "" {
		return
	}
	if c.pagesHead >= c.Base {
		c.membersRead(c.pages, c.pagesHead)
	} else {
		c.pause(&Failure{})
	}
	c.pages = nil
}

// page takes a page of messages in: the newest, or an older one.
func (c *chat) page(r *messagev1.ListMessagesResponse, older bool) {
	if !older {
		c.load(r.GetHead(), r.GetHead().GetVersion(), r.GetMessages())
	} else {
		if msgs := r.GetMessages(); len(msgs) > 0 {
			c.First = msgs[0].GetSequence()
		}
		for _, msg := range r.GetMessages() {
			c.keep(msg)
		}
	}
	c.HasOlder = r.GetHasMore()
	c.raise(r.GetHead().GetVersion())
	c.changed()
}

// load begins with the newest page of messages, as of a version.
func (c *chat) load(head *chatv1.ChatHead, version int64, messages []*messagev1.Message) {
	c.Loaded, c.Version, c.Base = true, version, version
	c.First = head.GetSequence() + 1
	if len(messages) > 0 {
		c.First = messages[0].GetSequence()
	}
	for _, msg := range messages {
		c.apply(body{message: msg})
	}
	c.head(head)
}

// changes takes an answer of ListChanges in.
func (c *chat) changes(after int64, r *messagev1.ListChangesResponse) {
	c.raise(r.GetHead().GetVersion())
	if r.GetReset_() {
		c.restart()
		c.load(r.GetHead(), r.GetVersion(), r.GetMessages())
		c.HasOlder = len(r.GetMessages()) > 0 && c.First > 1
		return
	}
	merged := int64(len(r.GetChanges())) < r.GetVersion()-after
	for _, ch := range r.GetChanges() {
		b := body{message: ch.GetMessage(), membership: ch.GetMembership(), chat: ch.GetChat(), merged: merged}
		if own := b.membership != nil && b.membership.GetUserId() == c.m.cfg.UserID; own && ch.GetVersion() > c.Version {
			c.forgetState()
			if b.membership.GetKind() != messagev1.MembershipChange_KIND_REMOVED {
				// A new membership, which may hide what the old one showed, or a change of
				// role that a removal and an addition may be merged into.
				c.restart()
				return
			}
		}
		c.apply(b)
		if b.membership.GetKind() == messagev1.MembershipChange_KIND_ROLE_CHANGED {
			c.readMembersAgain() // a removal and an addition may be merged into it
		}
	}
	if r.GetVersion() > c.Version {
		c.Version = r.GetVersion()
		if c.KnownAt >= c.Base {
			c.KnownAt = max(c.KnownAt, c.Version)
		}
		c.head(r.GetHead())
	} else if r.GetVersion() <= after { // nothing new, although something newer was heard of
		c.pause(&Failure{})
	}
	c.changed()
}

// sent takes the answer to a send in.
func (m *Machine) sent(call int64, p *pending, res proto.Message, why *Failure) {
	u := p.unsent
	f := m.sending[u.ChatID]
	if f == nil || f.call != call {
		return // of another generation: it is sent again
	}
	f.call = 0
	if why != nil && !definite(why) {
		m.failed(why)
		f.at = m.cfg.Clock().Add(max(why.RetryAfter, m.backoff(f.tries)))
		f.tries++
		return
	}
	delete(m.sending, u.ChatID)
	m.outbox = slices.DeleteFunc(m.outbox, func(v *Unsent) bool { return v == u })
	r, ok := res.(*messagev1.SendMessageResponse)
	if why != nil || !ok {
		m.giveUp(u, cmp.Or(why, &Failure{Code: connect.CodeInternal}))
		if c := m.chats[u.ChatID]; c != nil && why != nil && why.Reason == reasonNotAMember {
			c.forgetState()
		}
		return
	}
	m.done = append(m.done, u.ClientMessageID)
	m.events = append(m.events, Event{Changed: u.ChatID}) // the message may be there already
	behind := m.chats[u.ChatID] != nil && m.chats[u.ChatID].Newest < r.GetVersion()-1
	c := m.member(u.ChatID, r.GetVersion(), false)
	if c == nil {
		return
	}
	if behind && m.stream.complete {
		c.askAt = m.cfg.Clock().Add(ownGrace)
	}
	c.change(r.GetVersion()-1, r.GetVersion(), body{message: &messagev1.Message{
		MessageId: r.GetMessageId(), ChatId: u.ChatID, Sequence: r.GetSequence(), SenderId: m.cfg.UserID, Content: u.Content,
		ContentType: messagev1.ContentType_CONTENT_TYPE_TEXT, ClientMessageId: r.GetClientMessageId(), CreatedAt: r.GetCreatedAt(), Version: r.GetVersion(),
	}})
}

// definite reports whether repeating a call cannot help.
func definite(why *Failure) bool {
	switch why.Code {
	case connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeNotFound, connect.CodeAlreadyExists,
		connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeUnimplemented:
		return true
	}
	return false
}
