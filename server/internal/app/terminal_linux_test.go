package app_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// pseudoTerminal makes a terminal of 24 lines of 80 columns, and the end at which somebody
// sits.
func pseudoTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	raw, err := person.SyscallConn()
	testkit.Must(t, err)
	number := 0
	testkit.Must(t, raw.Control(func(fd uintptr) {
		number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		if err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
		if err == nil {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
		}
	}))
	testkit.Must(t, err)
	terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	return person, terminal
}

// Alice sits at a terminal: she starts a chat, writes, sees what Bob answers, also after
// the server was killed, and leaves.
func TestChatOnATerminal(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	bob := newUser("bob", token(t, dir, "bob"), p.addr, newTransport(t, false))
	_, err := call(t.Context(), bob.chats.ListChats, &chatv1.ListChatsRequest{}) // from now on there is a Bob
	testkit.Must(t, err)

	person, terminal := pseudoTerminal(t)
	cmd := exec.Command(binary(t), "--data-dir", dir, "--listen", p.addr, "chat", "alice")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.Env = append(os.Environ(), "TERM=xterm-256color")
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	seen := &output{}
	go func() {
		for b := make([]byte, 4<<10); ; {
			n, err := person.Read(b)
			if err != nil {
				return
			}
			_, _ = seen.Write(b[:n])
		}
	}()
	types := func(text string) {
		t.Helper()
		_, err := person.WriteString(text)
		testkit.Must(t, err)
	}
	sees := func(text string) {
		t.Helper()
		testkit.Eventually(t, "the screen shows "+text, func() bool { return strings.Contains(seen.String(), text) })
	}
	sees("/with USER")
	types("/with bob\r")
	id := ""
	testkit.Eventually(t, "there is a chat", func() bool {
		res, err := bob.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		if err == nil && len(res.GetOverviews()) > 0 {
			id = res.GetOverviews()[0].GetChat().GetChatId()
		}
		return id != ""
	})
	answers := func(text string) {
		t.Helper()
		_, err := call(t.Context(), bob.messages.SendMessage, &messagev1.SendMessageRequest{
			ChatId: id, ClientMessageId: uuid.NewString(), Content: text})
		testkit.Must(t, err)
	}
	answers("coming-now")
	sees("coming-now")
	p.kill()
	types("is-there-tea\r") // while nobody listens
	launch(t, dir, p.addr)
	testkit.Eventually(t, "what was written has come", func() bool {
		res, err := bob.messages.ListMessages(t.Context(), &messagev1.ListMessagesRequest{ChatId: id})
		return err == nil && len(res.GetMessages()) == 2 && res.GetMessages()[1].GetContent() == "is-there-tea"
	})
	answers("plenty-of-it")
	sees("plenty-of-it")
	types("\x03")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v, %q", err, seen.tail(500))
	}
}
