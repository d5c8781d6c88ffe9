package device

import (
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// Result handles the end of a call: with a response, or with a failure. history is what the answer
// says of the store's history; empty if it says nothing.
func (m *Machine) Result(call int64, res proto.Message, history string, why *Failure) {
	m.step++
	p := m.calls[call]
	if p == nil {
		return
	}
	delete(m.calls, call)
	switch p.kind {
	case GetChat, ListMembers, ListMessages, ListChanges:
		m.reads--
	}
	if why == nil && history != "" {
		why = m.answered(p.asked, history)
	}
	m.unnamed = m.unnamed || why == nil && history == "" && m.session.Generation == "" && p.kind != Refresh
	m.refused(p.asked, why)
	if why != nil && p.kind != SendMessage {
		m.failed(why)
	}
	switch p.kind {
	case Refresh:
		m.refreshed(why)
	case Sync:
		if call == m.sync.call {
			m.synced(res, history, why)
		}
	case Ack:
		m.acknowledged(call, p, res, why)
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
		m.expires(r)
		return
	}
	s.extendAt = m.cfg.Clock().Add(lastBackoff)
}

// synced applies a page of a synchronisation.
func (m *Machine) synced(res proto.Message, history string, why *Failure) {
	s := &m.sync
	s.call = 0
	r, ok := res.(*deliveryv1.SyncResponse)
	if why != nil || !ok {
		m.syncFailed(why)
		return
	}
	s.tries = 0
	if history == "" {
		m.generation(r.GetGeneration())
	}
	for _, ov := range r.GetOverviews() {
		c := m.chats[ov.GetChat().GetChatId()]
		s.news = s.news || c == nil || ov.GetHead().GetVersion() > c.Newest // some come again
		m.overview(ov, true)
	}
	for _, l := range r.GetLeftChats() {
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
	m.poll.polled(m, s.news)
}

func (m *Machine) syncFailed(why *Failure) {
	s := &m.sync
	switch {
	case why == nil:
	case why.Code == connect.CodeInvalidArgument && s.page != "":
		s.page = "" // a page token of long ago
	case why.Reason == reasonInvalidToken && s.token != "":
		m.resync()
	}
	wait := m.backoff(s.tries)
	if why != nil {
		wait = max(wait, why.RetryAfter)
	}
	s.at = m.cfg.Clock().Add(wait)
	s.tries++
	if why == nil || why.Reason == "" && why.Code != connect.CodeUnauthenticated { // else the server has answered
		m.poll.failed(m)
	}
}

func (m *Machine) chatResult(call int64, p *pendingCall, res proto.Message, why *Failure) {
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
	c.seen = m.step
	switch r := res.(type) {
	case *chatv1.GetChatResponse:
		m.overview(r.GetOverview(), false)
		if r.GetOverview().GetHead().GetVersion() < p.newest { // older than what existed when it was requested
			c.pause(&Failure{})
		}
	case *chatv1.ListMembersResponse:
		c.membersPage(r)
	case *messagev1.ListMessagesResponse:
		c.page(r, p.older)
	case *messagev1.ListChangesResponse:
		c.changes(p.after, r)
	case *messagev1.MarkReadResponse:
		c.decided(p.marks[0], r.GetState())
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

func (m *Machine) chatFailed(c *chat, p *pendingCall, why *Failure) {
	switch {
	case why.Reason == reasonNotAMember:
		m.notAMember(c, p.newest)
		return
	case p.kind == MarkRead && definite(why):
		c.decided(p.marks[0], nil)
	case p.kind == ListMembers:
		c.pages, c.pageToken = nil, "" // from the first page
	case p.older:
		c.wantOlder = true // as long as it has not been read
	}
	c.pause(why)
}

// pause lets the chat wait before it retries.
func (c *chat) pause(why *Failure) {
	c.retryAt = c.m.cfg.Clock().Add(max(why.RetryAfter, c.m.backoff(c.tries)))
	c.tries++
}
