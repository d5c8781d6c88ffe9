package blackbox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// fewest is how many of the newest messages a client must show of a chat that is open.
const fewest = 20

// always returns what must not be shown at any moment; empty if there is nothing of it.
func always(got *Shown) string {
	seen := map[string]bool{}
	for _, c := range got.Chats {
		if seen[c.Chat] {
			return fmt.Sprintf("chat %s is shown twice", c.Chat)
		}
		seen[c.Chat] = true
		texts := map[string]bool{}
		for i, m := range c.Messages {
			if i > 0 && m.Sequence <= c.Messages[i-1].Sequence {
				return fmt.Sprintf("chat %s: message %d is shown after message %d", name(c), m.Sequence, c.Messages[i-1].Sequence)
			}
			if texts[m.Text] {
				return fmt.Sprintf("chat %s: %q is shown twice", name(c), m.Text)
			}
			texts[m.Text] = true
		}
	}
	return ""
}

// difference returns the first difference between what a client shows and what the store has; empty if there is none.
func difference(got *Shown, want Shown, open map[string]bool) string {
	if d := always(got); d != "" {
		return d
	}
	shown := map[string]ShownChat{}
	for _, c := range got.Chats {
		shown[c.Chat] = c
	}
	for _, w := range want.Chats {
		g, ok := shown[w.Chat]
		if !ok {
			return fmt.Sprintf("chat %s is not shown", name(w))
		}
		delete(shown, w.Chat)
		if d := differenceOf(g, w, open[w.Chat]); d != "" {
			return fmt.Sprintf("chat %s: %s", name(w), d)
		}
	}
	for _, c := range shown {
		return fmt.Sprintf("chat %s is shown, but is not a chat of the user", name(c))
	}
	if len(got.Outbox) > 0 {
		return fmt.Sprintf("outbox: got %q, want it empty", got.Outbox)
	}
	return ""
}

func name(c ShownChat) string { return strings.TrimSpace(c.Title + " " + c.Chat) }

func differenceOf(got, want ShownChat, open bool) string {
	if got.Title != want.Title {
		return fmt.Sprintf("title: got %q, want %q", got.Title, want.Title)
	}
	for _, n := range []struct {
		name      string
		got, want int64
	}{
		{"head", got.Head, want.Head}, {"read", got.Read, want.Read}, {"unread", got.Unread, want.Unread},
		{"peerRead", got.PeerRead, want.PeerRead},
	} {
		if n.got != n.want {
			return fmt.Sprintf("%s: got %d, want %d", n.name, n.got, n.want)
		}
	}
	if !open {
		return ""
	}
	if d := differenceOfMessages(got.Messages, want.Messages); d != "" {
		return d
	}
	byUser := func(a, b ShownMember) int { return cmp.Compare(a.User, b.User) }
	g, w := slices.SortedFunc(slices.Values(got.Members), byUser), slices.SortedFunc(slices.Values(want.Members), byUser)
	if !slices.Equal(g, w) {
		return fmt.Sprintf("members: got %v, want %v", g, w)
	}
	return ""
}

// differenceOfMessages compares the newest messages. A client may show more or fewer older ones.
func differenceOfMessages(got, want []ShownMessage) string {
	least := min(fewest, len(want))
	if len(got) < least {
		return fmt.Sprintf("got %d messages%s, want at least the newest %d%s", len(got), span(got), least, span(want))
	}
	if len(got) > len(want) {
		return fmt.Sprintf("got %d messages%s, want %d%s", len(got), span(got), len(want), span(want))
	}
	newest := want[len(want)-len(got):]
	for i, m := range got {
		if m != newest[i] {
			return fmt.Sprintf("message: got %d %q of %s, want %d %q of %s", m.Sequence, m.Text, m.Sender, newest[i].Sequence,
				newest[i].Text, newest[i].Sender)
		}
	}
	return ""
}

func span(list []ShownMessage) string {
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d to %d)", list[0].Sequence, list[len(list)-1].Sequence)
}
