package device

import (
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/wait"
)

// Deadline returns the time at which Take may have something new without any
// other input; ok is false if there is no such time.
func (m *Machine) Deadline() (at time.Time, ok bool) {
	add := func(t time.Time) {
		if !t.IsZero() && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	if m.stopped {
		return at, false
	}
	if m.needRefresh && m.refreshing == 0 {
		add(m.refreshAt)
		return at, ok
	}
	for _, c := range m.pendingChats {
		add(c.retryAt)
		if c.Loaded && c.Version < c.Newest {
			add(c.askAt)
		}
		if s := &m.stream; c.unmarked() && s.takesMarks() && s.ackCall == 0 && !c.retryAt.After(s.markAt) {
			add(s.markAt)
		}
	}
	for _, u := range m.outbox {
		if f := m.sending[u.ChatID]; f != nil && f.call == 0 {
			add(f.at)
		}
	}
	if at, ok := m.syncAt(); ok {
		add(at)
	}
	s := &m.stream
	switch {
	case s.id == 0 && m.sync.need:
	case s.id == 0:
		add(s.connectAt)
	default:
		add(s.heard.Add(m.silence()))
		if s.acked < s.position && s.ackCall == 0 {
			add(s.ackAt)
		}
		if !s.extendAt.IsZero() && s.extendCall == 0 {
			add(s.extendAt)
		}
	}
	return at, ok
}

// backoff is a wait after a number of failures in a row, with full jitter.
func (m *Machine) backoff(tries int) time.Duration {
	return time.Duration(m.cfg.Rand() * float64(wait.Doubled(firstBackoff, lastBackoff, tries)))
}

// plan makes the calls that are needed now.
func (m *Machine) plan() {
	if m.stopped {
		return
	}
	now := m.cfg.Clock()
	if m.needRefresh {
		if m.refreshing == 0 && !now.Before(m.refreshAt) {
			m.refreshing = m.call(Refresh, nil, pendingCall{})
		}
		return
	}
	m.planStream(now)
	m.planSync(now)
	m.planSends(now)
	waiting := m.pendingChats[:0]
	for _, c := range m.pendingChats {
		if m.chats[c.ChatID] == c && !c.plan(now) {
			waiting = append(waiting, c)
			continue
		}
		c.queued = false
	}
	clear(m.pendingChats[len(waiting):])
	m.pendingChats = waiting
}

// syncAt returns when the next page of chats is due, if one is.
func (m *Machine) syncAt() (at time.Time, ok bool) {
	s := &m.sync
	switch {
	case s.call != 0:
		return at, false
	case s.need, s.page != "":
		return s.at, true
	case m.poll.on && m.poll.at.After(s.at):
		return m.poll.at, true
	}
	return s.at, m.poll.on
}

// planSync requests a page: of all chats, or in a poll of those that changed.
func (m *Machine) planSync(now time.Time) {
	at, ok := m.syncAt()
	if !ok || now.Before(at) {
		return
	}
	s := &m.sync
	if s.page == "" {
		s.began, s.news, s.token = m.step, false, m.session.Token
	}
	req := &deliveryv1.SyncRequest{Token: s.token, PageToken: s.page, PageSize: m.cfg.PageSize}
	s.call = m.call(Sync, req, pendingCall{})
}

// plan makes the calls that the chat needs. It returns false if the chat must be planned
// again although nothing new comes.
func (c *chat) plan(now time.Time) (done bool) {
	m := c.m
	if now.Before(c.retryAt) {
		return false
	}
	c.retryAt = time.Time{}
	read := func(slot *int64, wanted bool, kind Kind, p pendingCall, req func() proto.Message) {
		if !wanted || *slot != 0 {
			return
		}
		if m.reads >= maxReads {
			done = false
			return
		}
		m.reads++
		p.chat = c
		*slot = m.call(kind, req(), p)
	}
	done = true
	known := c.Newest
	if c.Loaded { // changes are then read with the messages
		known = c.Base
	}
	read(&c.chatCall, c.Chat == nil || c.KnownAt < known, GetChat, pendingCall{}, func() proto.Message {
		return &chatv1.GetChatRequest{ChatId: c.ChatID}
	})
	switch {
	case !c.Open:
	case !c.Loaded:
		read(&c.contentCall, true, ListMessages, pendingCall{}, func() proto.Message {
			return &messagev1.ListMessagesRequest{ChatId: c.ChatID, PageSize: min(m.cfg.PageSize, 100)}
		})
	default:
		behind := c.Version < c.Newest
		if behind && now.Before(c.askAt) {
			behind, done = false, false
		}
		read(&c.contentCall, behind, ListChanges, pendingCall{after: c.Version}, func() proto.Message {
			return &messagev1.ListChangesRequest{ChatId: c.ChatID, AfterVersion: c.Version, PageSize: min(m.cfg.PageSize, 100)}
		})
		read(&c.contentCall, c.wantOlder && c.HasOlder, ListMessages, pendingCall{older: true}, func() proto.Message {
			c.wantOlder = false
			return &messagev1.ListMessagesRequest{ChatId: c.ChatID, PageSize: min(m.cfg.PageSize, 100), BeforeSequence: c.First}
		})
		read(&c.membersCall, !c.MembersLoaded, ListMembers, pendingCall{}, func() proto.Message {
			return &chatv1.ListMembersRequest{ChatId: c.ChatID, PageSize: min(m.cfg.PageSize, 100), PageToken: c.pageToken}
		})
	}
	return c.planMark() && done
}
