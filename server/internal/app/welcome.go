package app

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The lines with which a newcomer sees the whole way of a message with nothing but curl,
// also one that is too old for --json. The stream's request is one JSON message in
// Connect's envelope: a zero byte and the length in four.

// streamLines open bob's stream.
func streamLines(base string) string {
	return `printf '\0\0\0\0\2{}' | curl -sN ` + base + `/parley.delivery.v1.DeliveryService/Subscribe \
  -H "Authorization: Bearer $BOB" -H 'Content-Type: application/connect+json' --data-binary @-`
}

// sendLines make a group and send to it.
func sendLines(base string) string {
	return `CHAT=$(curl -s ` + base + `/parley.chat.v1.ChatService/CreateChat -H "Authorization: Bearer $ALICE" \
  -H 'Content-Type: application/json' -d '{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}' | grep -o 'chat_[0-9A-Z]*' | head -1)
curl -s ` + base + `/parley.message.v1.MessageService/SendMessage -H "Authorization: Bearer $ALICE" \
  -H 'Content-Type: application/json' -d "{\"chatId\":\"$CHAT\",\"content\":\"Hello, Bob\"}"`
}

// readLines read what was sent.
func readLines(base string) string {
	return `curl -s ` + base + `/parley.message.v1.MessageService/ListMessages -H "Authorization: Bearer $BOB" \
  -H 'Content-Type: application/json' -d "{\"chatId\":\"$CHAT\"}"`
}

// demoUsers exist for a newcomer. Where many processes run, nobody reads a welcome,
// and tokens in a collected log would be a way in. Beyond this machine they would be one, too.
func (p *program) demoUsers() []string {
	if p.cfg.distributed() || !p.cfg.DemoUsers || p.cfg.exposed() {
		return nil
	}
	return []string{"alice", "bob"}
}

// printWelcome says where everything is, and how to try it.
func (p *program) printWelcome(stdout io.Writer, addr net.Addr) {
	if p.cfg.distributed() {
		fmt.Fprintf(stdout, "Parley is listening on http://%s\n", addr)
		return
	}
	var b strings.Builder
	base := "http://" + localAddr(addr)
	fmt.Fprintf(&b, "Parley is listening on http://%s, data in %s\n", addr, absolute(p.cfg.DataDir))
	fmt.Fprintf(&b, "Open %s/ in a browser for what is there, %[1]s/docs for the REST API\n", base)
	fmt.Fprintf(&b, "Every change is on Kafka at %s\nIts schemas are in the registry at http://%s\n\n", p.backend.KafkaAddr(), p.registry)
	if users := p.demoUsers(); users != nil {
		p.printDemo(&b, base, users)
	}
	_, _ = io.WriteString(stdout, b.String()) // nobody may be reading
}

// printDemo says how to try it, with users whose tokens are printed.
func (p *program) printDemo(b *strings.Builder, base string, users []string) {
	fmt.Fprint(b, "Two users to try it with, their tokens are valid for a day:\n\n")
	for _, user := range users {
		t, err := p.key.Issue(user, time.Now(), tokenTTL)
		if err != nil {
			t = "(" + err.Error() + ")"
		}
		fmt.Fprintf(b, "  %s=%s\n", strings.ToUpper(user), t)
	}
	for _, step := range []struct{ what, lines string }{
		{"Open bob's stream, in a terminal of its own", streamLines(base)}, {"Alice makes a group and says hello", sendLines(base)}, {"Bob reads it", readLines(base)},
	} {
		fmt.Fprintf(b, "\n%s:\n\n  %s\n", step.what, strings.ReplaceAll(step.lines, "\n", "\n  "))
	}
	fmt.Fprintln(b)
}

// absolute is where a directory is, for whoever does not know where the program was
// started.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// localAddr is an address to reach a listener at from this machine: one that listens
// on all of its addresses has no address of its own.
func localAddr(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}
