// Package screen is a chat in a terminal: the user's chats on the left, the messages of one
// of them and a line to write on the right.
//
// It owns what is shown and what keys do. It keeps nothing of the chats: it reads a
// Client whenever that says that something has changed. Concurrency: a Model is used by one
// goroutine.
package screen

import (
	"cmp"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/parley-chat/parley/server/client/device"
)

// Client is what the screen needs of package client.
type Client interface {
	List() []string
	View(chatID string) (device.View, bool)
	Open(chatID string)
	LoadOlder(chatID string)
	MarkRead(chatID string, sequence int64)
	Send(chatID, content string) string
	// Start makes a chat with others: a group if it has a name.
	Start(name string, others []string) (chatID string, err error)
}

// Event is what the client's OnEvent received, for Update.
type Event device.Event

// Stopped ends the program: the client does no more.
type Stopped struct{ Err error }

// started is the end of a Start.
type started struct {
	chatID string
	err    error
}

// Model is the screen of one user. It implements tea.Model.
type Model struct {
	client Client
	user   string
	zone   *time.Location

	width, height int
	chats         []device.View // in the order of the list
	chosen        string        // chat that is shown
	up            int           // lines that the messages are scrolled up
	line          line
	connected     bool
	polling       bool   // messages come late
	note          string // what went wrong last
	err           error  // why the client stopped
}

// New makes the screen of a user, with times in a zone.
func New(client Client, user string, zone *time.Location) *Model {
	m := &Model{client: client, user: user, zone: zone, width: 80, height: 24}
	m.refresh()
	return m
}

// Err is why the client stopped by itself, if it did.
func (m *Model) Err() error { return m.err }

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.PasteMsg:
		m.line.insert(msg.Content)
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case Event:
		m.event(device.Event(msg))
	case started:
		if msg.err != nil {
			m.note = msg.err.Error()
		} else {
			m.choose(msg.chatID)
			m.refresh()
		}
	case Stopped:
		m.err = msg.Err
		return m, tea.Quit
	}
	return m, nil
}

func (m *Model) event(e device.Event) {
	switch {
	case e.Connected:
		m.connected, m.polling = true, e.Polling
	case e.SendFailed != nil:
		m.note = "not sent: " + e.SendFailed.Entry.Content + ": " + e.SendFailed.Why.Reason
	}
	m.refresh()
}

// refresh reads the client's chats, newest first.
func (m *Model) refresh() {
	m.chats = m.chats[:0]
	for _, id := range m.client.List() {
		if v, ok := m.client.View(id); ok {
			m.chats = append(m.chats, v)
		}
	}
	slices.SortStableFunc(m.chats, func(a, b device.View) int {
		return cmp.Or(b.Head.GetChangedAt().AsTime().Compare(a.Head.GetChangedAt().AsTime()),
			strings.Compare(a.ChatID, b.ChatID))
	})
	if v, ok := m.shown(); ok {
		m.read(v)
	} else if len(m.chats) > 0 {
		m.choose(m.chats[0].ChatID)
	}
}

// shown is the chat whose messages are shown.
func (m *Model) shown() (device.View, bool) {
	i := m.index()
	if i < 0 {
		return device.View{}, false
	}
	return m.chats[i], true
}

func (m *Model) index() int {
	return slices.IndexFunc(m.chats, func(v device.View) bool { return v.ChatID == m.chosen })
}

func (m *Model) choose(chatID string) {
	m.chosen, m.up = chatID, 0
	m.client.Open(chatID)
	if v, ok := m.client.View(chatID); ok {
		m.read(v)
	}
}

// read says that what can be seen has been read.
func (m *Model) read(v device.View) {
	if n := len(v.Messages); n > 0 && m.up == 0 && v.Unread > 0 {
		m.client.MarkRead(v.ChatID, v.Messages[n-1].GetSequence())
	}
}

// move chooses another chat of the list.
func (m *Model) move(by int) {
	if i := m.index() + by; i >= 0 && i < len(m.chats) {
		m.choose(m.chats[i].ChatID)
	}
}

// scroll shows older or newer messages, and has more loaded at the top.
func (m *Model) scroll(by int) {
	v, ok := m.shown()
	if !ok {
		return
	}
	limit := max(len(m.messages(v))-m.rows(), 0)
	m.up = min(max(m.up+by, 0), limit)
	if m.up == limit && v.HasOlder {
		m.client.LoadOlder(v.ChatID)
	}
	m.read(v)
}

func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	m.note = ""
	switch k.String() {
	case "ctrl+c", "esc":
		return tea.Quit
	case "up", "shift+tab":
		m.move(-1)
	case "down", "tab":
		m.move(1)
	case "pgup":
		m.scroll(m.rows() - 1)
	case "pgdown":
		m.scroll(1 - m.rows())
	case "enter":
		return m.enter(m.line.take())
	default:
		m.line.key(k)
	}
	return nil
}

// enter does what was written: it is a message, or a command.
func (m *Model) enter(text string) tea.Cmd {
	words := strings.Fields(text)
	switch {
	case len(words) == 0:
	case words[0] == "/with" && len(words) == 2:
		return m.start("", words[1:])
	case words[0] == "/group" && len(words) >= 3:
		return m.start(words[1], words[2:])
	case words[0] == "/quit":
		return tea.Quit
	case strings.HasPrefix(words[0], "/"):
		m.note = "there are /with USER, /group NAME USER…, /quit"
	case m.index() < 0:
		m.note = "no chat yet: /with USER makes one"
	default:
		m.up = 0
		m.client.Send(m.chosen, text)
		m.refresh()
	}
	return nil
}

func (m *Model) start(name string, others []string) tea.Cmd {
	return func() tea.Msg {
		id, err := m.client.Start(name, others)
		return started{id, err}
	}
}
