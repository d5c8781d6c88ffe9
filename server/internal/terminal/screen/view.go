package screen

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/client/device"
)

const (
	listWidth = 24
	minWidth  = listWidth + 20
	minHeight = 4
	prompt    = "> "
)

// rows is how many lines messages have.
func (m *Model) rows() int { return m.height - 2 }

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView("")
	v.AltScreen, v.WindowTitle = true, "Parley: "+m.user
	if m.width < minWidth || m.height < minHeight {
		v.SetContent(ansi.Truncate("this window is too small", m.width, ""))
		return v
	}
	left, right := m.list(), m.conversation()
	var b strings.Builder
	for i := range m.rows() {
		b.WriteString(fit(at(left, i), listWidth) + "│ " + at(right, i) + "\n")
	}
	before, x := m.written()
	b.WriteString(prompt + before + "\n" + m.status())
	v.SetContent(b.String())
	v.Cursor = tea.NewCursor(len(prompt)+x, m.height-2)
	return v
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// fit makes text exactly so wide.
func fit(s string, width int) string {
	s = ansi.Truncate(s, width, "…")
	return s + strings.Repeat(" ", width-ansi.StringWidth(s))
}

// list is the user's chats, as many as fit around the one that is shown.
func (m *Model) list() (lines []string) {
	first := max(m.index()-m.rows()+1, 0)
	for _, v := range m.chats[first:min(first+m.rows(), len(m.chats))] {
		text := m.title(v)
		if v.Unread > 0 {
			text = fit(text, listWidth-6) + fmt.Sprintf(" (%d)", v.Unread)
		}
		if v.ChatID == m.chosen {
			text = ansi.NewStyle().Reverse(true).Styled(fit(text, listWidth))
		}
		lines = append(lines, text)
	}
	return lines
}

// title is what a chat is called: the other one's name in a direct chat.
func (m *Model) title(v device.View) string {
	if v.Chat.GetType() != chatv1.ChatType_CHAT_TYPE_DIRECT {
		return printable(v.Chat.GetName())
	}
	for _, id := range v.Chat.GetDirectUserIds() {
		if id != m.user {
			return printable(id)
		}
	}
	return printable(m.user)
}

// conversation is what can be seen of the messages.
func (m *Model) conversation() []string {
	v, ok := m.shown()
	if !ok {
		return []string{"No chat yet. /with USER makes one."}
	}
	all := m.messages(v)
	end := max(len(all)-m.up, 0)
	lines := all[max(end-m.rows(), 0):end]
	return append(make([]string, m.rows()-len(lines)), lines...) // the newest stands at the bottom
}

// messages are all lines of a chat: what was sent, and what is on its way.
func (m *Model) messages(v device.View) (lines []string) {
	day := ""
	if v.HasOlder {
		lines = append(lines, "… older: page up")
	}
	for _, msg := range v.Messages {
		t := msg.GetCreatedAt().AsTime().In(m.zone)
		if d := t.Format("Monday, 2 January 2006"); d != day {
			day = d
			lines = append(lines, "── "+d+" ──")
		}
		lines = append(lines, m.wrapped(t.Format("15:04 ")+printable(msg.GetSenderId())+": ", msg.GetContent())...)
	}
	if n := len(v.Messages); n > 0 && v.Messages[n-1].GetSenderId() == m.user &&
		v.Messages[n-1].GetSequence() <= v.PeerRead {
		lines = append(lines, "      ✓ read")
	}
	for _, u := range v.Outbox {
		lines = append(lines, m.wrapped("  …   "+m.user+": ", u.Content)...)
	}
	return lines
}

// wrapped is a text of perhaps many lines behind a head.
func (m *Model) wrapped(head, text string) (lines []string) {
	for part := range strings.SplitSeq(text, "\n") {
		lines = append(lines, strings.Split(ansi.Wrap(head+printable(part), m.width-listWidth-2, ""), "\n")...)
		head = strings.Repeat(" ", 6)
	}
	return lines
}

// written is the part of the line that fits, and where the cursor stands in it.
func (m *Model) written() (text string, x int) {
	width := m.width - len(prompt) - 1
	before := string(m.line.text[:m.line.at])
	if x = ansi.StringWidth(before); x > width {
		before = ansi.TruncateLeft(before, x-width, "")
		x = ansi.StringWidth(before)
	}
	return ansi.Truncate(before+string(m.line.text[m.line.at:]), width, ""), x
}

func (m *Model) status() string {
	text := m.user + ", connecting"
	if m.connected {
		text = m.user
	}
	if m.polling {
		text += ", messages come late: a proxy holds streams back"
	}
	if m.note != "" {
		text += " · " + printable(strings.ReplaceAll(m.note, "\n", " "))
	} else {
		text += " · ↑ ↓ chats · page up, down · /with USER · /group NAME USER… · ctrl+c"
	}
	return ansi.Truncate(text, m.width, "…")
}
