package app_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// operatorRuns runs a command of operators against a server, and returns what it prints.
func operatorRuns(t *testing.T, p *process, dir string, args ...string) (out string, ok bool) {
	t.Helper()
	code, stdout, stderr := run(t.Context(), map[string]string{"PARLEY_OPERATOR": "ada"},
		append([]string{"--data-dir", dir, "--ops-address", opsOf(t, p)}, args...)...)
	return stdout + stderr, code == 0
}

// release lets go of a chat that the projector has parked. Where kills hit its first record four
// times in a row, it takes that for one that crashes it, and waits for operators.
func release(t *testing.T, p *process, dir, id string) {
	t.Helper()
	out, _ := operatorRuns(t, p, dir, "parked", "list", "--key", id)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "projector-workers" && f[2] == id {
			said, _ := operatorRuns(t, p, dir, "parked", "release", "--execute", f[0], f[1], f[2])
			t.Logf("%s was parked: %s", id, said)
		}
	}
}

// checkActivity waits until a chat's activity is what its messages say.
func checkActivity(t *testing.T, p *process, dir, id string, stored []*messagev1.Message) {
	t.Helper()
	want := map[string]int64{}
	senders := map[string]bool{}
	for _, m := range stored {
		day := m.GetCreatedAt().AsTime().Format(time.DateOnly)
		want[day]++
		if who := day + m.GetSenderId(); !senders[who] {
			senders[who] = true
			want[day+" senders"]++
		}
	}
	var got map[string]int64
	for until := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		release(t, p, dir, id)
		out, ok := operatorRuns(t, p, dir, "activity", "--json", id)
		if got = map[string]int64{}; ok {
			var res struct {
				Days []struct {
					Day               string
					Messages, Senders json.Number
				}
			}
			testkit.Must(t, json.Unmarshal([]byte(out), &res))
			for _, d := range res.Days {
				messages, err := d.Messages.Int64()
				testkit.Must(t, err)
				senders, err := d.Senders.Int64()
				testkit.Must(t, err)
				got[d.Day], got[d.Day+" senders"] = messages, senders
			}
		}
		switch {
		case fmt.Sprint(got) == fmt.Sprint(want):
			return
		case time.Now().After(until):
			t.Fatalf("%s: the projection says %v, the messages say %v: %s", id, got, want, out)
		}
	}
}

// EV72: the server keeps projections of what is said in it, and makes them again while it
// runs; they are there after it was killed.
func TestProjections(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	alice := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	newUser("bob", token(t, dir, "bob"), p.addr, newTransport(t, false))
	res, err := alice.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	testkit.Must(t, err)
	id := res.GetOverview().GetChat().GetChatId()
	send := func(n int) {
		t.Helper()
		for range n {
			_, err := alice.messages.SendMessage(t.Context(),
				&messagev1.SendMessageRequest{ChatId: id, ClientMessageId: uuid.NewString(), Content: "hello"})
			testkit.Must(t, err)
		}
	}
	send(20)
	checkActivity(t, p, dir, id, history(t.Context(), t, alice, id))
	p.kill()
	p = launch(t, dir, p.addr)
	send(20)
	out, ok := operatorRuns(t, p, dir, "projections", "rebuild", "--execute", "chat_activity")
	if !ok || !strings.Contains(out, "chat_activity: build 2 is live") {
		t.Fatal(out)
	}
	checkActivity(t, p, dir, id, history(t.Context(), t, alice, id))
	if out, ok := operatorRuns(t, p, dir, "groups", "describe", "projector-workers"); !ok ||
		!strings.Contains(out, "projector-workers is Stable") {
		t.Error(out)
	}
}
