package opsctl_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// events are those of the pages of a list, as chat/version.
func (c *cli) events(out string) (list []string) {
	c.t.Helper()
	for line := range strings.Lines(out) {
		var page struct {
			Events []struct{ ChatID, Version string }
		}
		testkit.Must(c.t, json.Unmarshal([]byte(line), &page))
		for _, e := range page.Events {
			list = append(list, e.ChatID+"/"+e.Version)
		}
	}
	return list
}

// EV52, EV54: events are listed by chat, type, time, cause and status, shown, and folded;
// those whose records became dead letters are there as all others. What users wrote is
// shown to those who ask for it, who are recorded.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	id, other := r.Chat(5), r.Chat(2) // versions 1 to 7, 1 to 4
	r.DeadLetter(opstest.Group, r.Event(id, 3), "permanent: bad")

	out, _ := c.run(0, "events list --chat "+id)
	c.has(out, "CHAT", id+"  1        ChatCreated", "MembershipChanged", "MessagePersisted", "alice", "new",
		"7 events read, 7 shown")
	if strings.Contains(out, other) || strings.Contains(out, opstest.Secret) || strings.Contains(out, "page-token") {
		t.Errorf("too much:\n%s", out)
	}
	first, _ := c.run(0, "events list --limit 4 --from-version 2 --chat "+id)
	_, token, _ := strings.Cut(first, "--page-token ")
	second, _ := c.run(0, "events list --limit 4 --from-version 2 --page-token "+strings.TrimSpace(token)+" --chat "+id)
	for v := 2; v <= 7; v++ {
		if row := fmt.Sprintf("%s  %d  ", id, v); strings.Count(first+second, row) != 1 {
			t.Errorf("version %d is not once on two pages:\n%s%s", v, first, second)
		}
	}
	_, errs := c.run(1, "events list --chat "+other+" --page-token "+token)
	c.has(errs, "not a page token of this list")
	for flags, want := range map[string]int{
		"": 11, "--type MessagePersisted": 7, "--type ChatCreated --type MembershipChanged": 4, "--since 1h": 11,
		"--until 1h": 0, "--actor alice": 11, "--actor bob": 0, "--correlation none": 0, "--to-version 2": 4,
		"--status new": 11, "--status failed,published": 0, "--max-read 5": 5, "--limit 3": 3, "--chat " + other: 4,
		"--id evt_none": 0,
	} {
		out, _ := c.run(0, "events list --json "+flags)
		if n := len(c.events(out)); n != want {
			t.Errorf("%q: %d events, not %d\n%s", flags, n, want, out)
		}
		if strings.Contains(out, opstest.Secret) {
			t.Errorf("%q shows what users wrote", flags)
		}
	}
	out, _ = c.run(0, "events list --max-read 5")
	c.has(out, "5 events read, 5 shown", "there may be more: --page-token ")

	out, _ = c.run(0, "events show "+id+" 3")
	c.has(out, "MessagePersisted", "correlation", "new", `"chatId":"`+id+`"`,
		fmt.Sprintf("[%d bytes]", len(opstest.Secret)+1))
	out, _ = c.run(0, "events fold --version 2 "+id)
	c.has(out, "2, of ", "[3 bytes]", "alice   owner", "bob     member", "messages  0")
	if strings.Contains(out, "last message") || strings.Contains(out, "Tea") {
		t.Errorf("version 2:\n%s", out)
	}
	out, _ = c.run(0, "events fold --json "+id)
	c.has(out, `"version":"7"`, `"sequence":"5"`, `"roleType":"owner"`)
	_, errs = c.run(1, "events fold --at 24h "+id)
	c.has(errs, "the chat has no event of")
	if strings.Contains(r.Log.String(), "call=ListEvents") || strings.Contains(r.Log.String(), "call=FoldChat") {
		t.Errorf("a call that shows nothing is recorded:\n%s", r.Log)
	}

	for line, says := range map[string]string{"list --content --json --chat " + id: opstest.Secret + "4",
		"show --content " + id + " 3": opstest.Secret + "0", "fold --content --at 0s " + id: "Tea"} {
		out, _ := c.run(0, "events "+line)
		c.has(out, says)
	}
	out, _ = c.run(0, "audit")
	for _, call := range []string{"ListEvents", "GetEvent", "FoldChat"} {
		if strings.Count(out, call) != 1 {
			t.Errorf("%s is not recorded once:\n%s", call, out)
		}
	}
}

// A failed row is found by the status of its events, and new again after a replay, which is
// recorded with its operator (EV66, KS21).
func TestReplayOfFailedEvents(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	id := r.Chat(4) // versions 1 to 6
	for row, err := range outbox.Rows(t.Context(), r.Store, id) {
		testkit.Must(t, err)
		testkit.Must(t, r.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: row.Key}}))
	}
	o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: 5, Count: 2, CreatedAt: 1_700_000_000_000}
	testkit.Must(t, r.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: o.Key(),
		Item: store.NewItem(append(o.Item(), store.Attr{Name: "attempts", Value: store.Int(2)},
			store.Attr{Name: "last_error", Value: store.String("no schema\x1b[31m")})...)}}))
	statuses := func() string {
		t.Helper()
		var counts []string
		for _, s := range []string{"new", "failed", "published"} {
			out, _ := c.run(0, "events list --json --status "+s)
			counts = append(counts, fmt.Sprint(s, " ", len(c.events(out))))
		}
		return strings.Join(counts, ", ")
	}
	testkit.Equal(t, "statuses", statuses(), "new 0, failed 2, published 4")
	out, _ := c.run(0, "events list --status failed")
	c.has(out, id+"  5  ", id+"  6  ", `failed, recorded 2 times: "no schema\x1b[31m"`)

	out, _ = c.run(0, "replay --all-chats --status failed --type MessagePersisted")
	c.has(out, "2 events would be published again", "nothing was changed")
	testkit.Equal(t, "after a dry run", statuses(), "new 0, failed 2, published 4")
	c.run(0, "replay --all-chats --status failed --type ChatUpdated --execute")
	testkit.Equal(t, "after a replay of others", statuses(), "new 0, failed 2, published 4")
	out, _ = c.run(0, "replay --execute --limit 500 --status failed --type MessagePersisted --chat "+id)
	c.has(out, "2 events are published again")
	testkit.Equal(t, "after the replay", statuses(), "new 2, failed 0, published 4")
	c.has(r.Log.String(), "call=ReplayEvents by=ada execute=true")
	_, errs := c.run(2, "replay --all-chats --status new")
	c.has(errs, "must be of failed, published")
	out, _ = c.run(0, "audit --call ReplayEvents")
	if strings.Count(out, "EVENT_STATUS_FAILED") != 2 {
		t.Errorf("the audit:\n%s", out)
	}
}

// A fold of events that are not whole shows what they say, and fails with the reason.
func TestFoldOfLostEvents(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	id := r.Chat(4)
	testkit.Must(t, r.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: table.EventKey(id, 4)}}))
	out, errs := c.run(1, "events fold "+id)
	c.has(out, "3, of ", "messages      1")
	c.has(errs, "the events are whole up to version 3 only: it is version 5 of the chat, not 4")
	_, errs = c.run(1, "events show "+id+" 4")
	c.has(errs, "has no version 4")
}

// Wrong command lines of the event store are answered in one line.
func TestUsageOfEvents(t *testing.T) {
	t.Parallel()
	c := unreachable(t)
	for line, says := range map[string]string{
		"events":                          "events needs fold, list or show",
		"events list x":                   `takes no arguments, not "x"`,
		"events list --status lost":       "must be of new, failed, published",
		"events list --max-read 0":        "max-read must be at least 1",
		"events list --since x":           "must be a time",
		"events show x":                   "needs a chat and a version",
		"events show x y":                 `"y" is no version`,
		"events fold":                     "needs one chat",
		"events fold --version 1 --at 1h": "needs one chat",
	} {
		out, errs := c.run(2, line)
		if c.has(errs, says); out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %q %q", line, out, errs)
		}
	}
	_, errs := c.run(2, "events fold --version 1 --at 1h x")
	c.has(errs, "--version or --at, not both")
	out, _ := c.run(0, "events fold --help")
	c.has(out, "workers [flags] events fold CHAT", "--content", "--json", "--at")
}

// The page about the event store has command lines that there are: they fail only because
// nobody answers.
func TestPageOfEvents(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../server/docs/events.md")
	testkit.Must(t, err)
	c := unreachable(t)
	n := 0
	for line := range strings.Lines(string(page)) {
		if line, ok := strings.CutPrefix(line, "server "); ok {
			line, _, _ = strings.Cut(line, "#")
			_, errs := c.run(1, line)
			c.has(errs, "no server answers operators")
			n++
		}
	}
	if n < 8 {
		t.Errorf("%d command lines", n)
	}
}
