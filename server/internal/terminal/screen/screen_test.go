package screen_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/internal/terminal/screen"
)

// people is a client that has what a test gives it and records the calls to it.
type people struct {
	views map[string]device.View
	calls []string
	fails error
}

func (p *people) List() (ids []string) {
	for id := range p.views {
		ids = append(ids, id)
	}
	return ids
}
func (p *people) View(id string) (device.View, bool) { v, ok := p.views[id]; return v, ok }
func (p *people) Open(id string)                     { p.calls = append(p.calls, "open "+id) }
func (p *people) LoadOlder(id string)                { p.calls = append(p.calls, "older "+id) }
func (p *people) MarkRead(id string, n int64) {
	p.calls = append(p.calls, fmt.Sprint("read ", id, " ", n))
	v := p.views[id]
	v.Unread = 0
	p.views[id] = v
}
func (p *people) Send(id, content string) string {
	v := p.views[id]
	v.Outbox = append(v.Outbox, device.OutboxEntry{ChatID: id, Content: content})
	p.views[id] = v
	return "1"
}

func (p *people) Start(name string, others []string) (string, error) {
	p.calls = append(p.calls, fmt.Sprint("start ", name, others))
	p.views["new"] = chat("new", name, 30)
	return "new", p.fails
}

func chat(id, name string, minute int, texts ...string) device.View {
	at := func(minute int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2030, 1, 2, 15, minute, 0, 0, time.UTC))
	}
	v := device.View{}
	v.ChatID, v.Head = id, &chatv1.ChatHead{ChangedAt: at(minute)}
	v.Chat = &chatv1.Chat{ChatId: id, Name: name, Type: chatv1.ChatType_CHAT_TYPE_GROUP}
	if name == "" {
		v.Chat = &chatv1.Chat{ChatId: id, Type: chatv1.ChatType_CHAT_TYPE_DIRECT, DirectUserIds: []string{"alice", "bob"}}
	}
	for i, text := range texts {
		v.Messages = append(v.Messages, &messagev1.Message{SenderId: "bob", Sequence: int64(i + 1), Content: text,
			CreatedAt: at(i)})
	}
	return v
}

func press(m *screen.Model, keys ...string) (last tea.Cmd) {
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k}
		switch k {
		case "enter":
			msg = tea.KeyPressMsg{Code: tea.KeyEnter}
		case "up":
			msg = tea.KeyPressMsg{Code: tea.KeyUp}
		case "down":
			msg = tea.KeyPressMsg{Code: tea.KeyDown}
		case "pgup":
			msg = tea.KeyPressMsg{Code: tea.KeyPgUp}
		case "left":
			msg = tea.KeyPressMsg{Code: tea.KeyLeft}
		case "backspace":
			msg = tea.KeyPressMsg{Code: tea.KeyBackspace}
		case "ctrl+w":
			msg = tea.KeyPressMsg{Code: 'w', Mod: tea.ModCtrl}
		case "ctrl+c":
			msg = tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
		}
		_, last = m.Update(msg)
	}
	return last
}

func content(m *screen.Model) string { return ansi.Strip(m.View().Content) }

// Below the last message stands that it was read, if it is an own one that was.
func TestScreenSaysWhatWasRead(t *testing.T) {
	for _, c := range []struct {
		sender string
		read   int64
		says   bool
	}{{"alice", 0, false}, {"alice", 1, false}, {"alice", 2, true}, {"bob", 2, false}} {
		v := chat("b", "", 10, "Hello", "Hello?")
		v.Messages[1].SenderId, v.PeerRead = c.sender, c.read
		m := screen.New(&people{views: map[string]device.View{"b": v}}, "alice", time.UTC)
		m.Update(tea.WindowSizeMsg{Width: 60, Height: 10})
		if text := content(m); strings.Contains(text, "✓ read") != c.says || !strings.Contains(text, "Hello?") {
			t.Errorf("%+v:\n%s", c, text)
		}
	}
}

// What comes is shown, and what is written is sent: as in testdata/chat.txt.
func TestScreen(t *testing.T) {
	p := &people{views: map[string]device.View{
		"a": chat("a", "Tea \x1b[31m& cake", 20, "The kettle is on.\nWho comes?",
			"It is a long way from here to there, by foot."),
		"b": chat("b", "", 10, "Hello"),
	}}
	for _, id := range []string{"a", "b"} {
		v := p.views[id]
		v.Unread = 1
		p.views[id] = v
	}
	m := screen.New(p, "alice", time.UTC)
	m.Update(tea.WindowSizeMsg{Width: 60, Height: 10})
	m.Update(screen.Event{Connected: true})
	press(m, "I", " ", "n", "o", "ctrl+w", "d", "o", "x", "backspace", "!", "enter", "a", "b", "left", "-")
	m.Update(tea.PasteMsg{Content: "\x1b[2Jpasted\nlines"})
	want, err := os.ReadFile(filepath.Join("testdata", "chat.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.SplitSeq(content(m), "\n") {
		got.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	if got.String() != string(want) {
		t.Errorf("\n%s\nexpected\n%s", got.String(), want)
	}
	if strings.Join(p.calls[:2], ", ") != "open a, read a 2" {
		t.Error(p.calls)
	}
	press(m, "down")
	if text := content(m); !strings.Contains(text, "Hello") || strings.Contains(text, "kettle") {
		t.Error(text)
	}
}

// The status line says that messages come late.
func TestPolling(t *testing.T) {
	m := screen.New(&people{}, "alice", time.UTC)
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 10})
	for _, polling := range []bool{false, true, false} {
		m.Update(screen.Event{Connected: true, Polling: polling})
		if got := strings.Contains(content(m), "come late"); got != polling {
			t.Errorf("polling %t: %q", polling, content(m))
		}
	}
}

// Older messages are loaded at the top, and chats are started by commands.
func TestKeys(t *testing.T) {
	v := chat("a", "Tea", 1, strings.Split(strings.Repeat("x,", 60), ",")...)
	v.HasOlder = true
	p := &people{views: map[string]device.View{"a": v}}
	m := screen.New(p, "alice", time.UTC)
	press(m, "pgup")
	if p.calls[len(p.calls)-1] == "older a" {
		t.Error("loaded before the top")
	}
	press(m, "pgup", "pgup")
	if p.calls[len(p.calls)-1] != "older a" {
		t.Error(p.calls)
	}
	press(m, "/dance", "enter")
	if !strings.Contains(content(m), "there are /with") {
		t.Error(content(m))
	}
	m.Update(press(m, "/group Cake bob carol", "enter")())
	if p.calls[len(p.calls)-1] != "open new" || !strings.Contains(content(m), "Cake") {
		t.Error(p.calls)
	}
	p.fails = errors.New("no such user")
	m.Update(press(m, "/with nobody", "enter")())
	if !strings.Contains(content(m), "no such user") {
		t.Error(content(m))
	}
	if press(m, "ctrl+c") == nil {
		t.Error("ctrl+c does not end it")
	}
	if _, end := m.Update(screen.Stopped{Err: p.fails}); end == nil || m.Err() == nil {
		t.Error("the end of the client does not end it")
	}
}

// No window is too small, nothing is broken by what does not fit.
func TestSizes(t *testing.T) {
	p := &people{views: map[string]device.View{"a": chat("a", strings.Repeat("茶", 40), 1, strings.Repeat("word ", 400))}}
	m := screen.New(p, "alice", time.UTC)
	press(m, strings.Repeat("茶", 100))
	for width := range 120 {
		for height := range 30 {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			lines := strings.Split(content(m), "\n")
			if len(lines) > max(height, 1) {
				t.Fatalf("%d lines in %d", len(lines), height)
			}
			for _, l := range lines {
				if ansi.StringWidth(l) > width {
					t.Fatalf("%d by %d: %q", width, height, l)
				}
			}
		}
	}
}
