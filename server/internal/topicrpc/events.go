package topicrpc

import (
	"fmt"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// EventsPath is the path that serves ConsumeProcedure as server-sent events.
const EventsPath = "/api/v1/topics/{topic}/subscriptions/{group}/stream"

// EventsRequest is the request of Consume for server-sent events. The query may have the fields
// member, and messages and bytes of the credits. The credits of acknowledged messages are renewed.
// Other parameters are ignored, as unknown fields are.
func EventsRequest(path func(name string) string, query url.Values) (proto.Message, error) {
	a := &topicv1.Attach{Topic: path("topic"), Group: path("group"), RenewCredits: true, Credits: &topicv1.Credits{}}
	for name, set := range map[string]func(string) error{
		"member":   func(v string) error { a.Member = v; return nil },
		"messages": func(v string) (err error) { a.Credits.Messages, err = strconv.ParseInt(v, 10, 64); return err },
		"bytes":    func(v string) (err error) { a.Credits.Bytes, err = strconv.ParseInt(v, 10, 64); return err },
	} {
		switch values := query[name]; {
		case len(values) > 1:
			return nil, fmt.Errorf("%s is given twice", name)
		case len(values) == 1:
			if err := set(values[0]); err != nil {
				return nil, fmt.Errorf("%s is not a number", name)
			}
		}
	}
	return &topicv1.ConsumeRequest{Attach: a}, nil
}
