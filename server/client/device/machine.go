// Package device holds the rules of a client: it keeps one device's copy of a user's chats
// equal to the store, even if its connections fail.
//
// A [Machine] decides which frame is applied and which only shows that there is something
// newer, what is requested, when a token is stored, what the end of a stream means, when a
// message is sent again. It has no goroutine, no connection, no disk and no clock of its
// own, so that it can be stepped through every order of events. Package client runs it over
// real connections; the author of a client in another language ports the Machine.
//
// The package owns what a device stores ([Record], [Storage]) and requests
// ([Call]). It does not own how calls are made or what is shown.
//
// # Files
//
// machine.go has the Machine and what the app does with it, call.go the calls that it makes,
// plan.go decides which. Their answers go through results.go, frames and ends of the stream
// through stream.go. chat.go is one chat as it stands in the list, change.go applies what
// changed, content.go the messages and members of a chat that is open, membership.go decides
// whether the user is in it, outbox.go sends, marks.go reports what was read. history.go holds
// the place in the store's history, storage.go what is stored, view.go what is shown.
//
// # Concurrency
//
// A Machine is used by one goroutine at a time.
package device

import (
	"cmp"
	"slices"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/history"
)

// Limits that the server sets or that spare it.
const (
	maxKnown     = 100                // chats named in one request
	maxReads     = 8                  // chats' reads under way
	maxMarks     = 64                 // read marks in an Ack
	sendMemory   = 7 * 24 * time.Hour // how long the server remembers a message's id
	sendMargin   = time.Hour
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 30 * time.Second
	// ownGrace is how long the stream may take to bring what this device sent
	// before the device requests it.
	ownGrace = time.Second
)

// Config sets up a Machine. Clock, Rand and NewID are required.
type Config struct {
	UserID string           // whose device it is
	Clock  func() time.Time // time.Now: waits are by its monotonic reading, ages of stored messages by the wall time
	Rand   func() float64   // in [0, 1), for waits
	NewID  func() string    // makes client_message_ids, UUIDs

	PageSize       int32         // messages and changes requested at a time; 0: the server's default
	SubscribeFirst bool          // without a token, let the stream list the chats instead of Sync
	Silence        time.Duration // a stream that sends nothing for so long is closed; 50 s
	AckEvery       time.Duration // least time between two Acks of frames; 1 s
	MarkEvery      time.Duration // least time between two Acks with read marks; 100 ms
	ExtendBefore   time.Duration // how long before a stream's end it is extended; 60 s
}

// Machine is one device of one user.
type Machine struct {
	cfg      Config
	session  Session
	chats    map[string]*chat
	left     map[string]int64               // answers about a chat that are older than this come from before it was left
	early    map[string]*chatv1.MemberState // of chats in left: the newest that a receipt brought
	outbox   []*OutboxEntry                 // oldest first
	sending  map[string]*sending
	stream   stream
	sync     syncing
	poll     polling
	calls    map[int64]*pendingCall
	lastCall int64
	step     int64 // number of the input being handled
	reads    int   // chats' reads under way

	refreshing   int64 // call, 0 for none
	needRefresh  bool
	refreshTries int
	refreshAt    time.Time
	stopped      bool

	pendingChats []*chat // may need a call
	dirty        []*chat // changed since the last Take
	removedChats []string
	newEntries   []OutboxEntry
	done         []string
	sessionDirty bool
	unnamed      bool // there is something from before the first generation
	moved        bool // the session has another commit, which matters once something else is stored
	out          []Call
	events       []Event
}

// syncing is the state of synchronising by pages.
type syncing struct {
	need  bool
	call  int64  // under way, 0 for none
	token string // since which the pages show what changed; empty if they list all chats
	page  string
	news  bool  // a page had a version that was not known
	began int64 // tick of the first page's request
	tries int
	at    time.Time
}

// New makes the Machine of a device from what it stored.
func New(cfg Config, snapshot *Snapshot) *Machine {
	cfg.Silence = cmp.Or(cfg.Silence, 50*time.Second)
	cfg.AckEvery = cmp.Or(cfg.AckEvery, time.Second)
	cfg.MarkEvery = cmp.Or(cfg.MarkEvery, 100*time.Millisecond)
	cfg.ExtendBefore = cmp.Or(cfg.ExtendBefore, time.Minute)
	m := &Machine{
		cfg: cfg, chats: map[string]*chat{}, left: map[string]int64{}, early: map[string]*chatv1.MemberState{},
		sending: map[string]*sending{}, calls: map[int64]*pendingCall{},
	}
	if snapshot != nil {
		m.session = snapshot.Session
		ids := make([]string, 0, len(snapshot.Chats))
		for id := range snapshot.Chats {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			m.restore(snapshot.Chats[id], snapshot.Messages[id])
		}
		now := cfg.Clock()
		for _, u := range snapshot.Outbox {
			// By the monotonic clock from now on. A time in the future is of a clock that was ahead: it counts as now.
			u.CreatedAt = now.Add(-max(now.Sub(u.CreatedAt), 0))
			m.outbox = append(m.outbox, &u)
		}
	}
	m.unnamed = m.session.Generation == "" && len(m.chats) > 0
	m.sync.need = m.session.Token == "" && !cfg.SubscribeFirst
	return m
}

// Open has a chat's messages loaded and kept up to date.
func (m *Machine) Open(chatID string) {
	m.step++
	if c := m.ask(chatID); !c.Open {
		c.Open = true
		c.changed()
	}
}

// Evict drops a chat's messages; it stays in the list.
func (m *Machine) Evict(chatID string) {
	m.step++
	if c := m.chats[chatID]; c != nil {
		c.Open = false
		c.restart()
	}
}

// LoadOlder has the page of messages before those at hand loaded.
func (m *Machine) LoadOlder(chatID string) {
	m.step++
	if c := m.chats[chatID]; c != nil && c.Loaded && c.HasOlder {
		c.wantOlder = true
		c.wake()
	}
}

// Learn adds a chat that the app got from the server, for example by creating it. said is the header
// Parley-History of the answer; it is empty from a server of an earlier release. An answer of another
// generation than the device is in cannot be applied: the device asks for the chat itself.
func (m *Machine) Learn(overview *chatv1.ChatOverview, said string) {
	m.step++
	shows, ok := history.Parse(said)
	if ok && shows.Generation != m.session.Generation {
		m.ask(overview.GetChat().GetChatId())
		return
	}
	if ok && shows.Commit > m.session.Commit {
		m.session.Commit, m.moved = shows.Commit, true
	}
	m.overview(overview, false)
}

// ask has a chat that the device does not know read from the server.
func (m *Machine) ask(chatID string) *chat {
	c := m.chats[chatID]
	if c == nil {
		c = m.add(chatID)
	}
	c.wake()
	return c
}

// Resume starts a stopped device again, with a new bearer token.
func (m *Machine) Resume() {
	m.step++
	m.stopped, m.needRefresh = false, true
	now := m.cfg.Clock()
	m.retry(now, 0)
	m.stream.connectAt = now
	m.poll.up = false
	m.poll.hurry(m)
}

// Take returns what there is to store and then, once it is stored, to call.
func (m *Machine) Take() (Batch, []Call) {
	m.step++
	m.plan()
	b := Batch{Removed: nil, Outbox: m.newEntries, Done: m.done}
	for _, id := range m.removedChats {
		if m.chats[id] == nil {
			b.Removed = append(b.Removed, id)
		}
	}
	for _, c := range m.dirty {
		if m.chats[c.ChatID] == c {
			b.Chats = append(b.Chats, ChatChange{Record: c.Record, Clear: c.clear, Messages: c.changedMessages})
		}
		c.dirty, c.clear, c.changedMessages = false, false, nil
	}
	if m.sessionDirty || m.moved && !b.Empty() {
		s := m.session
		b.Session, m.moved = &s, false
	}
	calls := m.out
	m.removedChats, m.dirty, m.newEntries, m.done, m.sessionDirty, m.out = nil, m.dirty[:0], nil, nil, false, nil
	return b, calls
}

// Events returns what happened since the last call.
func (m *Machine) Events() []Event {
	e := m.events
	m.events = nil
	return e
}

func (m *Machine) setToken(token string) {
	if m.session.Token != token {
		m.session.Token, m.sessionDirty = token, true
	}
}

// resync drops the token: all chats are listed again.
func (m *Machine) resync() {
	m.setToken("")
	m.sync = syncing{need: true, tries: m.sync.tries, at: m.sync.at}
}

// dropVersions drops all that belongs to versions of chats, because they are of
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

// stop does nothing more until Resume.
func (m *Machine) stop(why *Failure) {
	m.stopped = true
	if m.stream.id != 0 {
		m.closeStream(m.cfg.Clock())
	}
	m.events = append(m.events, Event{Stopped: why})
}
