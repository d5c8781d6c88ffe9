package app_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// slowSockets opens connections that send a part of a request each, with a valid token, and no more.
func slowSockets(tb testing.TB, addr, token string, n int) []net.Conn {
	tb.Helper()
	all := make([]net.Conn, n)
	for i := range all {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = c.Close() })
		request := "POST /parley.message.v1.MessageService/SendMessage HTTP/1.1\r\nHost: localhost\r\n"
		if i%2 == 0 { // the others have not even all headers
			request += fmt.Sprintf("Authorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
				token)
		}
		if _, err := io.WriteString(c, request); err != nil {
			tb.Fatal(err)
		}
		all[i] = c
	}
	return all
}

// Two thousand sockets that stop in the middle of a request are cut within 20 s, and nobody else
// is refused meanwhile (S-27).
func TestSec_S_27_SlowSocketsAreCut(t *testing.T) {
	t.Parallel()
	y := newBenchFixture(t)
	ann, bob := y.user("ann", true), y.user("bob", false)
	chat := y.group(ann, "bob")
	tok := testkit.Value(y.key.Issue("eve", time.Now(), time.Hour))(t)
	conns := slowSockets(t, y.p.addr, tok, 2_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 200 {
			u := []*user{ann, bob}[i%2]
			if _, err := u.messages.SendMessage(t.Context(),
				&messagev1.SendMessageRequest{ChatId: chat, Content: "x"}); err != nil {
				t.Error(err)
			}
		}
	})
	end := time.Now().Add(time.Minute) // a busy machine is slow to close so many
	for i, c := range conns {
		_ = c.SetReadDeadline(end)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("socket %d of %d is open", i, len(conns))
		}
	}
	wg.Wait()
}
