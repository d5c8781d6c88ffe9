package topicrpc

import (
	"errors"
	"strconv"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// EventsPath is the path that serves ConsumeProcedure as server-sent events.
const EventsPath = "/api/v1/topics/{topic}/subscriptions/{group}/stream"

// EventsRequest is the request of Consume for server-sent events, and its parameters: the member, and
// messages and bytes of the credits. The credits of acknowledged messages are renewed.
func EventsRequest(path func(name string) string) (proto.Message, map[string]func(value string) error) {
	a := &topicv1.Attach{Topic: path("topic"), Group: path("group"), RenewCredits: true, Credits: &topicv1.Credits{}}
	number := func(field *int64) func(value string) error {
		return func(v string) (err error) {
			if *field, err = strconv.ParseInt(v, 10, 64); err != nil {
				return errNoNumber
			}
			return nil
		}
	}
	return &topicv1.ConsumeRequest{Attach: a}, map[string]func(value string) error{
		"member":   func(v string) error { a.Member = v; return nil },
		"messages": number(&a.Credits.Messages),
		"bytes":    number(&a.Credits.Bytes),
	}
}

var errNoNumber = errors.New("is not a number")
