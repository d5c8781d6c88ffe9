package welcome

import (
	"fmt"
	"io"
	"strings"
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

// Steps are the lines in their order, to print behind the users' tokens.
func Steps(w io.Writer, base string) {
	for _, step := range []struct{ what, lines string }{
		{"Open bob's stream, in a terminal of its own", streamLines(base)},
		{"Alice makes a group and says hello", sendLines(base)}, {"Bob reads it", readLines(base)},
	} {
		fmt.Fprintf(w, "\n%s:\n\n  %s\n", step.what, strings.ReplaceAll(step.lines, "\n", "\n  "))
	}
}
