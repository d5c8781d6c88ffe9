package device

import (
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// Kind names a call that a Machine wants made.
type Kind uint8

// The kinds of calls. Request and response are those of the RPC of that name.
const (
	Subscribe    Kind = iota + 1 // open a stream; frames go to Frames, its end to StreamEnded
	CloseStream                  // close the stream of the Subscribe call named by Stream; has no result
	Refresh                      // get a new bearer token; its response is nil
	Extend                       // with the newest bearer token
	Sync                         //
	Ack                          //
	GetChat                      //
	ListMembers                  //
	ListMessages                 //
	ListChanges                  //
	SendMessage                  //
	MarkRead                     //
)

// Call is something to be done for a Machine. Every call but Subscribe and
// CloseStream ends with one [Machine.Result].
type Call struct {
	ID      int64
	Kind    Kind
	Request proto.Message // nil for CloseStream and Refresh
	Stream  int64         // CloseStream: ID of the Subscribe call
	History string        // the header Parley-History; none if it is empty
}

// pendingCall is a call under way.
type pendingCall struct {
	kind   Kind
	asked  string // the history that the call said
	chat   *chat
	newest int64 // of the chat, when the call was made
	after  int64 // ListChanges
	older  bool  // ListMessages of an older page
	entry  *OutboxEntry
	marks  []mark // Ack and MarkRead
}

// Failure is why a call or a stream failed.
type Failure struct {
	Code       connect.Code
	Reason     string // of the error's ErrorInfo; empty if it has none
	RetryAfter time.Duration
	Err        error
}

// Error names code, reason and cause.
func (f *Failure) Error() string { return fmt.Sprintf("%v %s %v", f.Code, f.Reason, f.Err) }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Reasons that the Machine acts on.
const (
	reasonNotAMember     = "NOT_A_MEMBER"
	reasonInvalidToken   = "INVALID_TOKEN"
	reasonSessionRevoked = "SESSION_REVOKED"
	reasonHistory        = "HISTORY_CHANGED"
)

// Event is something that happened, for the app. Exactly one field is set, but for Polling.
type Event struct {
	Changed    string      // this chat, or its place in the list
	Removed    string      // this chat is not one of the user's any more
	SendFailed *SendFailed // a message was given up
	Connected  bool        // the device has everything, and gets what follows
	Polling    bool        // with Connected: by polls, up to 15 s late, because streams bring nothing
	Stopped    *Failure    // the device does nothing more until Resume
}

// SendFailed is a message that was given up, and why.
type SendFailed struct {
	Entry OutboxEntry
	Why   *Failure
}

func (m *Machine) call(k Kind, req proto.Message, p pendingCall) int64 {
	m.lastCall++
	p.kind = k
	if k != Refresh {
		p.asked = m.session.history()
	}
	if p.chat != nil {
		p.newest = p.chat.Newest
	}
	m.calls[m.lastCall] = &p
	m.out = append(m.out, Call{ID: m.lastCall, Kind: k, Request: req, History: p.asked})
	return m.lastCall
}
