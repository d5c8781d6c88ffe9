// Package device holds the rules of a client: it keeps one device's copy of a
// user's chats equal to the store, whatever happens to its connections.
//
// A [Machine] knows which frame is applied and which only tells that there is
// something newer, what is asked for, when a token is stored, what the end of a
// stream means, when a message is sent again. It has no goroutine, no connection,
// no disk and no clock of its own, so that it can be stepped through every order
// of events. Package client runs it over real connections; whoever builds a
// client in another language ports the Machine.
//
// The package owns what a device keeps ([Record], [Storage]) and asks for
// ([Call]). It does not own how calls are made or what is shown.
//
// # Concurrency
//
// A Machine is used by one goroutine at a time.
package device

import (
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// Limits that the server sets or that spare it.
const (
	maxKnown     = 100                // chats named in one request
	maxReads     = 8                  // chats' reads under way
	sendMemory   = 7 * 24 * time.Hour // how long the server remembers a message's id
	sendMargin   = time.Hour
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// ownGrace is how long the stream may take to bring what this device sent
	// before it is asked for.
	ownGrace = time.Second
)

// Config sets up a Machine. Clock, Rand and NewID are required.
type Config struct {
	UserID string           // whose device it is
	Clock  func() time.Time // any clock that goes on
	Rand   func() float64   // in [0, 1), for waits
	NewID  func() string    // makes client_message_ids, UUIDs

	PageSize       int32         // messages and changes asked for at a time; 0: the server's default
	SubscribeFirst bool          // without a token, let the stream list the chats instead of Sync
	Silence        time.Duration // a stream that says nothing for so long is given up; 50 s
	AckEvery       time.Duration // least time between two Acks; 1 s
	ExtendBefore   time.Duration // how long before a stream's end it is extended; 60 s
}

// Machine is one device of one user.
type Machine struct {
	cfg      Config
	session  Session
	chats    map[string]*chat
	left     map[string]int64               // answers about a chat that are older than this come from before it was left
	early    map[string]*chatv1.MemberState // of chats in left: the newest that a receipt brought
	outbox   []*Unsent                      // oldest first
	sending  map[string]*sending
	stream   stream
	sync     syncing
	calls    map[int64]*pending
	lastCall int64
	tick     int64 // number of the input being handled
	reads    int   // chats' reads under way

	refreshing   int64 // call, 0 for none
	needRefresh  bool
	refreshTries int
	refreshAt    time.Time
	stopped      bool

	todo         []*chat // may want something
	dirty        []*chat // changed since the last Take
	gone         []string
	newUnsent    []Unsent
	done         []string
	sessionDirty bool
	out          []Call
	events       []Event
}

// sending is the state of a chat's part of the outbox.
type sending struct {
	call  int64 // under way, 0 for none
	tries int
	at    time.Time
}

// syncing is the state of synchronising by pages.
type syncing struct {
	need  bool
	call  int64 // under way, 0 for none
	page  string
	began int64 // tick of the first page's request
	tries int
	at    time.Time
}

// Kind names a call that a Machine wants made.
type Kind uint8

// The kinds of calls. Request and response are those of the RPC of that name.
const (
	Subscribe    Kind = iota + 1 // open a stream; frames go to Frames, its end to StreamEnded
	CloseStream                  // close the stream of the Subscribe call named by Stream; has no result
	Refresh                      // get a new bearer token; its response is nil
	Extend                       // with the newest bearer token
	Sync                         //
	Ack                          //
	GetChat                      //
	ListMembers                  //
	ListMessages                 //
	ListChanges                  //
	SendMessage                  //
	MarkRead                     //
)

// Call is something to be done for a Machine. Every call but Subscribe and
// CloseStream ends with one [Machine.Result].
type Call struct {
	ID      int64
	Kind    Kind
	Request proto.Message // nil for CloseStream and Refresh
	Stream  int64         // CloseStream: ID of the Subscribe call
}

// pending is a call under way.
type pending struct {
	kind   Kind
	chat   *chat
	newest int64 // of the chat, when the call was made
	after  int64 // ListChanges
	older  bool  // ListMessages of an older page
	unsent *Unsent
}

// Failure is why a call or a stream failed.
type Failure struct {
	Code       connect.Code
	Reason     string // of the error's ErrorInfo; empty if it has none
	RetryAfter time.Duration
	Err        error
}

// Error tells code, reason and cause.
func (f *Failure) Error() string { return fmt.Sprintf("%v %s %v", f.Code, f.Reason, f.Err) }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Reasons that the Machine acts on.
const (
	reasonNotAMember     = "NOT_A_MEMBER"
	reasonInvalidToken   = "INVALID_TOKEN"
	reasonSessionRevoked = "SESSION_REVOKED"
)

// Event tells the app that something happened. Exactly one field is set.
type Event struct {
	Changed    string      // this chat, or its place in the list
	Removed    string      // this chat is not one of the user's any more
	SendFailed *SendFailed // a message was given up
	Connected  bool        // the stream is open and has brought everything
	Stopped    *Failure    // the device does nothing more until Resume
}

// SendFailed is a message that was given up, and why.
type SendFailed struct {
	Unsent Unsent
	Why    *Failure
}

// New makes the Machine of a device from what it stored.
func New(cfg Config, kept *Snapshot) *Machine {
	if cfg.Silence == 0 {
		cfg.Silence = 50 * time.Second
	}
	if cfg.AckEvery == 0 {
		cfg.AckEvery = time.Second
	}
	if cfg.ExtendBefore == 0 {
		cfg.ExtendBefore = time.Minute
	}
	m := &Machine{cfg: cfg, chats: map[string]*chat{}, left: map[string]int64{}, early: map[string]*chatv1.MemberState{}, sending: map[string]*sending{}, calls: map[int64]*pending{}}
	if kept != nil {
		m.session = kept.Session
		ids := make([]string, 0, len(kept.Chats))
		for id := range kept.Chats {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			m.restore(kept.Chats[id], kept.Messages[id])
		}
		for _, u := range kept.Unsent {
			m.outbox = append(m.outbox, &u)
		}
	}
	m.sync.need = m.session.Token == "" && !cfg.SubscribeFirst
	return m
}

// Open asks for a chat's messages to be loaded and kept up to date.
func (m *Machine) Open(chatID string) {
	m.tick++
	c := m.chats[chatID]
	if c == nil {
		c = m.add(chatID)
	}
	if !c.Open {
		c.Open = true
		c.changed()
	}
}

// Evict drops a chat's messages; it stays in the list.
func (m *Machine) Evict(chatID string) {
	m.tick++
	if c := m.chats[chatID]; c != nil {
		c.Open = false
		c.restart()
	}
}

// Older asks for the page of messages before those that are loaded.
func (m *Machine) Older(chatID string) {
	m.tick++
	if c := m.chats[chatID]; c != nil && c.Loaded && c.HasOlder {
		c.wantOlder = true
		c.wake()
	}
}

// Send queues a message and returns its client_message_id.
func (m *Machine) Send(chatID, content string) string {
	m.tick++
	u := &Unsent{ClientMessageID: m.cfg.NewID(), ChatID: chatID, Content: content, CreatedAt: m.cfg.Clock()}
	m.outbox = append(m.outbox, u)
	m.newUnsent = append(m.newUnsent, *u)
	return u.ClientMessageID
}

// MarkRead says that the user has read a chat up to a sequence.
func (m *Machine) MarkRead(chatID string, sequence int64) {
	m.tick++
	if c := m.chats[chatID]; c != nil && sequence > max(c.State.GetReadSequence(), c.ReadTo) {
		c.ReadTo = sequence
		c.changed()
	}
}

// Learn takes note of a chat that the app got from the server, for example by
// creating it.
func (m *Machine) Learn(overview *chatv1.ChatOverview) {
	m.tick++
	m.overview(overview, false)
}

// Resume starts a stopped device again, with a new bearer token.
func (m *Machine) Resume() {
	m.tick++
	m.stopped, m.needRefresh = false, true
	m.stream.retry(m.cfg.Clock(), 0)
}

// Take returns what there is to store and then, once it is stored, to call.
func (m *Machine) Take() (Batch, []Call) {
	m.tick++
	m.plan()
	b := Batch{Gone: nil, Unsent: m.newUnsent, Done: m.done}
	for _, id := range m.gone {
		if m.chats[id] == nil {
			b.Gone = append(b.Gone, id)
		}
	}
	for _, c := range m.dirty {
		if m.chats[c.ChatID] == c {
			b.Chats = append(b.Chats, ChatChange{Record: c.Record, Clear: c.clear, Messages: c.fresh})
		}
		c.dirty, c.clear, c.fresh = false, false, nil
	}
	if m.sessionDirty {
		s := m.session
		b.Session = &s
	}
	calls := m.out
	m.gone, m.dirty, m.newUnsent, m.done, m.sessionDirty, m.out = nil, m.dirty[:0], nil, nil, false, nil
	return b, calls
}

// Events returns what happened since the last call.
func (m *Machine) Events() []Event {
	e := m.events
	m.events = nil
	return e
}

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
	for _, c := range m.todo {
		add(c.retryAt)
		if c.Loaded && c.Version < c.Newest {
			add(c.askAt)
		}
	}
	for _, u := range m.outbox {
		if f := m.sending[u.ChatID]; f != nil && f.call == 0 {
			add(f.at)
		}
	}
	if m.sync.need && m.sync.call == 0 {
		add(m.sync.at)
	}
	s := &m.stream
	switch {
	case s.id == 0 && m.sync.need:
	case s.id == 0:
		add(s.connectAt)
	default:
		add(s.heard.Add(m.cfg.Silence))
		if s.acked < s.position && s.ackCall == 0 {
			add(s.ackAt)
		}
		if !s.extendAt.IsZero() && s.extendCall == 0 {
			add(s.extendAt)
		}
	}
	return at, ok
}

func (m *Machine) call(k Kind, req proto.Message, p pending) int64 {
	m.lastCall++
	p.kind = k
	if p.chat != nil {
		p.newest = p.chat.Newest
	}
	m.calls[m.lastCall] = &p
	m.out = append(m.out, Call{ID: m.lastCall, Kind: k, Request: req})
	return m.lastCall
}

func (m *Machine) setToken(token string) {
	if m.session.Token != token {
		m.session.Token, m.sessionDirty = token, true
	}
}

// syncAnew forgets the token: all chats are listed again.
func (m *Machine) syncAnew() {
	m.setToken("")
	m.sync = syncing{need: true, tries: m.sync.tries, at: m.sync.at}
}

// dropVersions forgets all that belongs to versions of chats, because they are of
// another generation of the store or were called invalid.
func (m *Machine) dropVersions() {
	clear(m.left)
	clear(m.early)
	clear(m.sending)
	m.sync.call, m.sync.page = 0, ""
	for _, c := range m.sorted() {
		c.restart()
		c.Newest, c.KnownAt, c.Head = 0, 0, nil
		c.State = nil // marks only go up, but not from one store to another
		if c.Chat != nil {
			c.Chat = withCount(c.Chat, c.Chat.GetMemberCount(), c.Chat.GetUpdatedAt(), 0)
		}
		c.chatCall, c.readCall = 0, 0
		c.changed()
	}
}

// stop gives up until Resume.
func (m *Machine) stop(why *Failure) {
	m.stopped = true
	if m.stream.id != 0 {
		m.closeStream(m.cfg.Clock())
	}
	m.events = append(m.events, Event{Stopped: why})
}

// backoff is a wait after a number of failures in a row, with full jitter.
func (m *Machine) backoff(tries int) time.Duration {
	d := firstBackoff
	for ; tries > 0 && d < lastBackoff; tries-- {
		d *= 2
	}
	return time.Duration(m.cfg.Rand() * float64(min(d, lastBackoff)))
}

// plan asks for whatever is wanted now.
func (m *Machine) plan() {
	if m.stopped {
		return
	}
	now := m.cfg.Clock()
	if m.needRefresh {
		if m.refreshing == 0 && !now.Before(m.refreshAt) {
			m.refreshing = m.call(Refresh, nil, pending{})
		}
		return
	}
	if m.sync.need && m.sync.call == 0 && !now.Before(m.sync.at) {
		if m.sync.page == "" {
			m.sync.began = m.tick
		}
		m.sync.call = m.call(Sync, &deliveryv1.SyncRequest{PageToken: m.sync.page, PageSize: m.cfg.PageSize}, pending{})
	}
	m.planStream(now)
	m.planSends(now)
	waiting := m.todo[:0]
	for _, c := range m.todo {
		if m.chats[c.ChatID] == c && !c.plan(now) {
			waiting = append(waiting, c)
			continue
		}
		c.queued = false
	}
	clear(m.todo[len(waiting):])
	m.todo = waiting
}

// planSends sends the oldest message of each chat.
func (m *Machine) planSends(now time.Time) {
	m.outbox = slices.DeleteFunc(m.outbox, func(u *Unsent) bool {
		if f := m.sending[u.ChatID]; now.Sub(u.CreatedAt) < sendMemory-sendMargin || (f != nil && f.call != 0) {
			return false
		}
		m.giveUp(u, &Failure{Code: connect.CodeDeadlineExceeded, Reason: "TOO_OLD"})
		return true
	})
	var busy []string
	for _, u := range m.outbox {
		if slices.Contains(busy, u.ChatID) {
			continue
		}
		busy = append(busy, u.ChatID)
		f := m.sending[u.ChatID]
		if f == nil {
			f = &sending{}
			m.sending[u.ChatID] = f
		}
		if f.call == 0 && !now.Before(f.at) {
			f.call = m.call(SendMessage, &messagev1.SendMessageRequest{
				ChatId: u.ChatID, ClientMessageId: u.ClientMessageID, Content: u.Content,
				ContentType: messagev1.ContentType_CONTENT_TYPE_TEXT,
			}, pending{unsent: u})
		}
	}
}

func (m *Machine) giveUp(u *Unsent, why *Failure) {
	m.done = append(m.done, u.ClientMessageID)
	m.events = append(m.events, Event{SendFailed: &SendFailed{Unsent: *u, Why: why}})
}
