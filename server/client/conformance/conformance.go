// Package conformance has the scenarios that a port of the state machine must pass: its
// inputs, the calls that it must request, and the content that it must show. Package blackbox
// tests clients that are no ports.
//
// A [Scenario] is JSON. Frames, requests and answers in it are in protobuf's JSON mapping, so
// that a test in another language needs its protobuf library and a clock that it sets itself.
// [Play] runs one on the reference machine of package device. A [Recorder] makes one from the
// inputs and outputs of a machine: the explorer of delivery records devices of its worlds,
// and scripts produce the cases that no world has. The set lies in testdata, one scenario a
// line; server/docs/write-a-client.md explains it.
//
// The package owns the format. It owns no rule of a client.
//
// # Concurrency
//
// Nothing here may be used by several goroutines at once.
package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// Random is what a machine draws for its waits in every scenario.
const Random = 0.5

// Scenario is what one device of one user goes through, from an empty storage on.
type Scenario struct {
	Name           string `json:"name"`
	User           string `json:"user"`
	PageSize       int32  `json:"pageSize,omitempty"`
	SubscribeFirst bool   `json:"subscribeFirst,omitempty"`
	Silence        int64  `json:"silence,omitempty"` // milliseconds; 0: the machine's default
	Steps          []Step `json:"steps"`
}

// Step gives the machine inputs at a time and then takes what it wants. Calls, events and
// what is shown must be those of the step, no more and no less.
type Step struct {
	At     int64            `json:"at"` // milliseconds since the beginning of 2030, UTC
	Do     []Input          `json:"do,omitempty"`
	Calls  []Call           `json:"calls,omitempty"` // in any order
	Events []Event          `json:"events,omitempty"`
	Chats  map[string]Patch `json:"chats,omitempty"`  // that changed; null: not known any more
	Outbox *[]string        `json:"outbox,omitempty"` // client_message_ids, if they changed
	// Next is when the machine wants to be asked again if nothing happens, as At; not set
	// if never.
	Next *int64 `json:"next,omitempty"`
}

// Input is one thing that happens: restart, resume, open, evict, loadOlder, markRead, send,
// learn, frames, ended or result.
type Input struct {
	Do       string          `json:"do"`
	Chat     string          `json:"chat,omitempty"`
	Sequence int64           `json:"sequence,omitempty,string"` // markRead
	Content  string          `json:"content,omitempty"`         // send
	ID       string          `json:"id,omitempty"`              // send: client_message_id
	Call     int64           `json:"call,omitempty"`            // frames, ended, result
	Message  json.RawMessage `json:"message,omitempty"`         // learn, frames, result
	History  string          `json:"history,omitempty"`         // learn, result: header Parley-History of the answer
	Failure  *Failure        `json:"failure,omitempty"`         // ended, result
}

// Failure is why a call or stream failed.
type Failure struct {
	Code       string `json:"code"`                 // of Connect, for example unavailable
	Reason     string `json:"reason,omitempty"`     // of the ErrorInfo
	RetryAfter int64  `json:"retryAfter,omitempty"` // milliseconds, of the RetryInfo
}

// Call is what the machine wants. Its number is the scenario's: later inputs name it.
type Call struct {
	Call    int64           `json:"call,omitempty"`
	Kind    string          `json:"kind"`
	Request json.RawMessage `json:"request,omitempty"`
	History string          `json:"history,omitempty"` // header Parley-History
	Stream  int64           `json:"stream,omitempty"`  // closeStream: number of the subscribe call
}

// Event is something for the app besides changed chats. One of connected, stopped and sendFailed is set.
type Event struct {
	Connected  bool   `json:"connected,omitempty"`
	Polling    bool   `json:"polling,omitempty"`    // of connected: by polls
	Stopped    string `json:"stopped,omitempty"`    // reason, or code
	SendFailed string `json:"sendFailed,omitempty"` // client_message_id
	Why        string `json:"why,omitempty"`        // of sendFailed: reason, or code
}

// Patch is what changed of a chat that is shown, by field: chat, head, state, unread, peerRead,
// open, loaded, version, first, hasOlder, members and messages. A field that is null has its
// default. Of messages it has those that were added or replaced; with cleared, all.
type Patch map[string]json.RawMessage

// epoch is when scenarios begin.
func epoch() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }

// kind is the name of a kind of calls, and what answers them.
type kind struct {
	name   string
	answer proto.Message // nil: nothing but a failure
}

var kinds = map[device.Kind]kind{
	device.Subscribe:    {"subscribe", &deliveryv1.SubscribeResponse{}},
	device.CloseStream:  {"closeStream", nil},
	device.Refresh:      {"refresh", nil},
	device.Extend:       {"extend", &deliveryv1.ExtendResponse{}},
	device.Sync:         {"sync", &deliveryv1.SyncResponse{}},
	device.Ack:          {"ack", &deliveryv1.AckResponse{}},
	device.GetChat:      {"getChat", &chatv1.GetChatResponse{}},
	device.ListMembers:  {"listMembers", &chatv1.ListMembersResponse{}},
	device.ListMessages: {"listMessages", &messagev1.ListMessagesResponse{}},
	device.ListChanges:  {"listChanges", &messagev1.ListChangesResponse{}},
	device.SendMessage:  {"sendMessage", &messagev1.SendMessageResponse{}},
	device.MarkRead:     {"markRead", &messagev1.MarkReadResponse{}},
}

// encode is a message in protobuf's JSON mapping, always in the same bytes.
func encode(m proto.Message) json.RawMessage {
	b, err := protojson.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("conformance: %T: %v", m, err)) // a string that is not UTF-8
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		panic(fmt.Sprintf("conformance: %T: %v", m, err))
	}
	return out.Bytes()
}

// answer decodes what answers a call of a kind; nil if nothing does.
func answer(k device.Kind, raw json.RawMessage) (proto.Message, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	of := kinds[k].answer
	if of == nil {
		return nil, fmt.Errorf("call of kind %d has no answer", k)
	}
	res := of.ProtoReflect().New().Interface()
	return res, protojson.Unmarshal(raw, res)
}

// failureOf is a failure as a scenario has it.
func failureOf(why *device.Failure) *Failure {
	if why == nil {
		return nil
	}
	return &Failure{Code: why.Code.String(), Reason: why.Reason, RetryAfter: why.RetryAfter.Milliseconds()}
}

// device is the failure for a machine.
func (f *Failure) device() (*device.Failure, error) {
	if f == nil {
		return nil, nil
	}
	var code connect.Code
	if err := code.UnmarshalText([]byte(f.Code)); err != nil {
		return nil, fmt.Errorf("failure: %w", err)
	}
	return &device.Failure{Code: code, Reason: f.Reason, RetryAfter: time.Duration(f.RetryAfter) * time.Millisecond,
		Err: errors.New("scenario")}, nil
}

// eventsOf are the events that scenarios have, and the chats that the others name.
func eventsOf(list []device.Event) (out []Event, changed map[string]bool) {
	changed = map[string]bool{}
	reason := func(why *device.Failure) string {
		if why.Reason != "" {
			return why.Reason
		}
		return why.Code.String()
	}
	for _, e := range list {
		switch {
		case e.Connected:
			out = append(out, Event{Connected: true, Polling: e.Polling})
		case e.Stopped != nil:
			out = append(out, Event{Stopped: reason(e.Stopped)})
		case e.SendFailed != nil:
			out = append(out, Event{SendFailed: e.SendFailed.Entry.ClientMessageID, Why: reason(e.SendFailed.Why)})
		default:
			changed[e.Changed+e.Removed] = true
		}
	}
	return out, changed
}
