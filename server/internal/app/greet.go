package app

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// greeting shows a newcomer the whole way of a message with nothing but curl, also
// one that is too old for --json. The stream's request is one JSON message in
// Connect's envelope: a zero byte and the length in four.
const greeting = `Parley is listening on http://%[6]s, data in %[2]s
The REST API is described at http://%[1]s/docs
Every change is on Kafka at %[5]s
Its schemas are in the registry at http://%[7]s

Two users to try it with, their tokens are valid for a day:

  ALICE=%[3]s
  BOB=%[4]s

Open bob's stream, in a terminal of its own:

  printf '\0\0\0\0\2{}' | curl -sN http://%[1]s/parley.delivery.v1.DeliveryService/Subscribe \
    -H "Authorization: Bearer $BOB" -H 'Content-Type: application/connect+json' --data-binary @-

Alice makes a group and says hello:

  CHAT=$(curl -s http://%[1]s/parley.chat.v1.ChatService/CreateChat -H "Authorization: Bearer $ALICE" \
    -H 'Content-Type: application/json' -d '{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}' | grep -o 'chat_[0-9A-Z]*' | head -1)
  curl -s http://%[1]s/parley.message.v1.MessageService/SendMessage -H "Authorization: Bearer $ALICE" \
    -H 'Content-Type: application/json' -d "{\"chatId\":\"$CHAT\",\"content\":\"Hello, Bob\"}"

Bob reads it:

  curl -s http://%[1]s/parley.message.v1.MessageService/ListMessages -H "Authorization: Bearer $BOB" \
    -H 'Content-Type: application/json' -d "{\"chatId\":\"$CHAT\"}"

`

// demoUsers are there for a newcomer. Where many processes run, nobody reads a greeting,
// and tokens in a collected log would be a way in.
func (p *program) demoUsers() []string {
	if p.cfg.Engine.Distributed() {
		return nil
	}
	return demoUsers
}

func (p *program) greet(stdout io.Writer, addr net.Addr) {
	if p.cfg.Engine.Distributed() {
		fmt.Fprintf(stdout, "Parley is listening on http://%s\n", addr)
		return
	}
	tokens := make([]any, 0, len(demoUsers))
	for _, user := range demoUsers {
		t, err := p.key.Issue(user, time.Now(), tokenTTL)
		if err != nil {
			t = "(" + err.Error() + ")"
		}
		tokens = append(tokens, t)
	}
	fmt.Fprintf(stdout, greeting, append(append([]any{local(addr), p.cfg.DataDir}, tokens...), p.eng.KafkaAddr(), addr, p.durable.schemas.Addr())...)
}

// local is an address to reach a listener at from this machine: one that listens
// on all of its addresses has no address of its own.
func local(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}
