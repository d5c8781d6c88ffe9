package app_test

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// tooMuch is a reserve that no disk of a test has: the store could write, and may not.
const tooMuch = "100000GB"

// A server whose disk has less free space than the reserve starts, also for the first time. It
// says on its first screen that writes are refused, and serves everything that reads. With
// room again it goes on where it was.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startScreened(t, "--listen", "127.0.0.1:0", "--data-dir", dir, "--disk-reserve", tooMuch)
	refuses(t, first, dir)
	if _, err := first.as(t, dir, "alice").chats.CreateChat(t.Context(), group()); !isFull(err) {
		t.Errorf("the first start: a group: %v", err)
	}
	first.stop()

	roomy := startScreened(t, "--listen", "127.0.0.1:0", "--data-dir", dir, "--disk-reserve", "1MB", "--topic-creators",
		"alice")
	if said := roomy.said.String(); strings.Contains(said, "REFUSED") {
		t.Error(said)
	}
	alice := roomy.as(t, dir, "alice")
	roomy.as(t, dir, "bob").list(t)
	created, err := alice.chats.CreateChat(t.Context(), group())
	testkit.Must(t, err)
	chat := created.GetOverview().GetChat().GetChatId()
	send := &messagev1.SendMessageRequest{ChatId: chat, Content: "before"}
	_, err = alice.messages.SendMessage(t.Context(), send)
	testkit.Must(t, err)
	if code, _, errs := run(t.Context(), nil, "--data-dir", dir, "--ops-address", roomy.ops, "topics", "create", "orders",
		"--semantics", "pub-sub"); code != 0 {
		t.Fatal(errs)
	}
	roomy.stop()

	full := startScreened(t, "--listen", "127.0.0.1:0", "--data-dir", dir, "--disk-reserve", tooMuch)
	refuses(t, full, dir)
	alice = full.as(t, dir, "alice")
	page, err := alice.messages.ListMessages(t.Context(), &messagev1.ListMessagesRequest{ChatId: chat})
	if err != nil || len(page.GetMessages()) != 1 || page.GetMessages()[0].GetContent() != "before" {
		t.Errorf("%v, %v", page, err)
	}
	if _, err := alice.messages.SendMessage(t.Context(), send); !isFull(err) {
		t.Errorf("a send: %v", err)
	}
	if code, out, errs := run(t.Context(), nil, "--data-dir", dir, "--ops-address", full.ops, "topics",
		"list"); code != 0 || !strings.Contains(out, "orders") {
		t.Errorf("topics: %d, %s%s", code, out, errs)
	}
	full.stop()

	again := startScreened(t, "--listen", "127.0.0.1:0", "--data-dir", dir, "--disk-reserve", "1MB")
	_, err = again.as(t, dir, "alice").messages.SendMessage(t.Context(), send)
	testkit.Must(t, err)
}

// refuses checks what a server with too little space says of itself.
func refuses(t *testing.T, s *screened, dir string) {
	t.Helper()
	said := s.said.String()
	for _, want := range []string{
		"The disk of " + dir + " is nearly full", "WRITES ARE REFUSED", " free, 100000.0 GB must be", "Free some space",
		"--disk-reserve",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the first screen lacks %q: %s", want, said)
		}
	}
	addr := "127.0.0.1:" + s.port
	if status, body := get(t, "http://"+addr+"/readyz"); status != 200 ||
		!strings.Contains(body, "the disk of "+dir+" is nearly full: writes are refused") {
		t.Errorf("readyz: %d %s", status, body)
	}
	values, err := readMetrics(t.Context(), addr)
	testkit.Must(t, err)
	of := func(metric string) float64 {
		v, ok := values[fmt.Sprintf("parley_disk_%s{dir=%q}", metric, dir)]
		if !ok {
			t.Errorf("there is no metric %s of %s", metric, dir)
		}
		return v
	}
	if full, reserve, free := of("full"), of("reserve_bytes"), of("free_bytes"); full != 1 || reserve != 100000<<30 ||
		free <= 0 || of("hours_left") != 0 {
		t.Errorf("full %v, reserve %v, free %v, %v hours", full, reserve, free, of("hours_left"))
	}
	if log := s.log.String(); strings.Contains(log, "storage full") {
		t.Errorf("something that the start needs was refused in %s: %s", dir, log)
	}
}

// as is a user of a server whose data are in a directory.
func (s *screened) as(t *testing.T, dir, name string) *user {
	t.Helper()
	return newUser(name, token(t, dir, name), "127.0.0.1:"+s.port, newTransport(t, false))
}

// list makes a call, by which a server learns of the user.
func (u *user) list(t *testing.T) {
	t.Helper()
	_, err := u.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
	testkit.Must(t, err)
}

func group() *chatv1.CreateChatRequest {
	return &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}}
}

func isFull(err error) bool {
	return connect.CodeOf(err) == connect.CodeResourceExhausted &&
		(strings.Contains(err.Error(), "storage is full") || strings.Contains(err.Error(), "disk is nearly full"))
}
