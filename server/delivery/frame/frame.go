// Package frame makes the frames of streams from events, and encodes each once for
// all streams that get it.
//
// It owns the form of a frame and what an event does to a membership; it does not own the
// recipients of a frame (package delivery). A Frame is immutable and safe for concurrent
// use.
package frame

import (
	"sync"
	"time"
	"unique"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
)

// Chat stands for the id of a chat in the space of a pointer: code that keeps many frames
// shares one copy of the id.
type Chat = unique.Handle[string]

// Frame is one frame, shared by all streams that get it. It is immutable and
// encoded at most once in each encoding, by the first sender that needs it.
type Frame struct {
	pb   *deliveryv1.Frame
	size int
	chat Chat  // of a message
	seq  int64 // of a message

	wireOnce, jsonOnce sync.Once
	wire, json         []byte
	wireErr, jsonErr   error
}

// overhead is about what a frame costs besides its text.
const overhead = 256

// New makes a frame; text is about how many bytes of text it holds.
func New(pb *deliveryv1.Frame, text int) *Frame {
	f := &Frame{pb: pb, size: overhead + text}
	if m := pb.GetMessage(); m != nil {
		f.chat, f.seq = unique.Make(pb.GetChatId()), m.GetSequence()
	}
	return f
}

// Message returns chat and sequence of the message that the frame brings; without
// one, the sequence is 0.
func (f *Frame) Message() (chat Chat, sequence int64) {
	return f.chat, f.seq
}

// Proto returns the frame as a message, which must not be changed.
func (f *Frame) Proto() *deliveryv1.Frame { return f.pb }

// Size is about how much memory the frame holds, in bytes.
func (f *Frame) Size() int { return f.size }

// EndCode is the code of an end frame; unspecified for other frames.
func (f *Frame) EndCode() deliveryv1.EndCode { return f.pb.GetEnd().GetCode() }

// framesField is the number of SubscribeResponse.frames.
const framesField = 2

// Wire returns the frame as an encoded element of SubscribeResponse.frames.
func (f *Frame) Wire() ([]byte, error) {
	f.wireOnce.Do(func() {
		size := proto.Size(f.pb)
		b := make([]byte, 0, protowire.SizeTag(framesField)+protowire.SizeBytes(size))
		b = protowire.AppendTag(b, framesField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
		f.wire, f.wireErr = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, f.pb)
	})
	return f.wire, f.wireErr
}

// JSON returns the frame as an encoded JSON object, zeros shown.
func (f *Frame) JSON() ([]byte, error) {
	f.jsonOnce.Do(func() { f.json, f.jsonErr = protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(f.pb) })
	return f.json, f.jsonErr
}

// Effect is what an event does to the membership of its target.
type Effect uint8

// The effects.
const (
	None Effect = iota
	Added
	Removed
)

// EffectOf says whose membership an event begins or ends; None for other events.
func EffectOf(e event.Event) (target string, _ Effect) {
	switch e := e.(type) {
	case *eventv1.ChatCreated: // the creator is a member from the start
		return e.GetCreatedBy(), Added
	case *eventv1.MembershipChanged:
		switch e.GetChangeType() {
		case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED:
			return e.GetUserId(), Added
		case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED:
			return e.GetUserId(), Removed
		}
	}
	return "", None
}

// Of makes the frame of an event as it was, following on a version.
func Of(e event.Event, after int64) *Frame {
	pb := &deliveryv1.Frame{ChatId: e.GetChatId(), AfterVersion: after, Version: e.GetMetadata().GetVersion()}
	text := 0
	switch e := e.(type) {
	case *eventv1.MessagePersisted:
		text = len(e.GetContent())
		pb.Body = &deliveryv1.Frame_Message{Message: &messagev1.Message{
			MessageId:       e.GetMessageId(),
			ChatId:          e.GetChatId(),
			Sequence:        e.GetSequence(),
			SenderId:        e.GetSenderId(),
			Content:         e.GetContent(),
			ContentType:     messagev1.ContentType(e.GetContentType()),
			ClientMessageId: e.GetClientMessageId(),
			CreatedAt:       e.GetCreatedAt(),
			Version:         pb.Version,
			ServiceId:       e.GetMetadata().GetServiceId(),
		}}
	case *eventv1.MembershipChanged:
		pb.Body = &deliveryv1.Frame_MembershipChange{MembershipChange: membershipChange(e, pb.Version)}
	case *eventv1.ChatCreated:
		pb.Body = &deliveryv1.Frame_Chat{Chat: &chatv1.Chat{
			ChatId:        e.GetChatId(),
			Type:          chatv1.ChatType(e.GetChatType()),
			Name:          e.GetName(),
			Status:        chatv1.ChatStatus(e.GetStatus()),
			History:       chatv1.HistoryMode(e.GetHistory()),
			CreatedBy:     e.GetCreatedBy(),
			MemberCount:   e.GetMemberCount(),
			DirectUserIds: directUsers(e),
			CreatedAt:     e.GetCreatedAt(),
			UpdatedAt:     e.GetCreatedAt(),
			Version:       pb.Version,
		}}
	case *eventv1.ChatUpdated:
		pb.Body = &deliveryv1.Frame_Chat{Chat: &chatv1.Chat{
			ChatId:      e.GetChatId(),
			Type:        chatv1.ChatType(e.GetChatType()),
			Name:        e.GetName(),
			Status:      chatv1.ChatStatus(e.GetStatus()),
			History:     chatv1.HistoryMode(e.GetHistory()),
			CreatedBy:   e.GetCreatedBy(),
			MemberCount: e.GetMemberCount(),
			CreatedAt:   e.GetCreatedAt(),
			UpdatedAt:   e.GetUpdatedAt(),
			Version:     pb.Version,
		}}
	}
	return New(pb, text)
}

func membershipChange(e *eventv1.MembershipChanged, version int64) *messagev1.MembershipChange {
	role := chatv1.MemberRole(e.GetRole())
	if e.GetChangeType() == eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED {
		role = chatv1.MemberRole_MEMBER_ROLE_UNSPECIFIED
	}
	return &messagev1.MembershipChange{
		UserId:      e.GetUserId(),
		Kind:        messagev1.MembershipChange_Kind(e.GetChangeType()),
		Role:        role,
		ChangedBy:   e.GetChangedBy(),
		MemberCount: e.GetMemberCountAfter(),
		ChangedAt:   e.GetChangedAt(),
		Version:     version,
		ServiceId:   e.GetMetadata().GetServiceId(),
	}
}

func directUsers(e *eventv1.ChatCreated) []string {
	if e.GetChatType() != eventv1.ChatType_CHAT_TYPE_DIRECT {
		return nil
	}
	return e.GetInitialMembers()
}

// Head says that a chat has reached a version; overview may be nil.
func Head(chatID string, version, sequence int64, overview *chatv1.ChatOverview) *Frame {
	return New(&deliveryv1.Frame{
		ChatId: chatID,
		Body:   &deliveryv1.Frame_Head{Head: &deliveryv1.Head{Version: version, Sequence: sequence, Overview: overview}},
	}, 256)
}

// Left says that the user is not a member of a chat since a version; 0 where none is
// known.
func Left(chatID, user string, version int64) *Frame {
	return New(&deliveryv1.Frame{
		ChatId:  chatID,
		Version: version,
		Body: &deliveryv1.Frame_MembershipChange{MembershipChange: &messagev1.MembershipChange{
			UserId:  user,
			Kind:    messagev1.MembershipChange_KIND_REMOVED,
			Version: version,
		}},
	}, 0)
}

// Reset has a client drop a chat and continue from a version.
func Reset(chatID string, version int64) *Frame {
	return New(&deliveryv1.Frame{
		ChatId: chatID,
		Body:   &deliveryv1.Frame_Reset_{Reset_: &deliveryv1.Reset{Version: version}},
	}, 0)
}

// Hello opens a stream.
func Hello(h *deliveryv1.Hello) *Frame {
	return New(&deliveryv1.Frame{Body: &deliveryv1.Frame_Hello{Hello: h}}, 0)
}

// Heartbeat shows that a stream is alive.
func Heartbeat(token string) *Frame {
	return New(&deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{Heartbeat: &deliveryv1.Heartbeat{Token: token}}}, 0)
}

// Receipt has a user's own state in a chat.
func Receipt(chatID string, state *chatv1.MemberState) *Frame {
	return New(&deliveryv1.Frame{ChatId: chatID, Body: &deliveryv1.Frame_MemberState{MemberState: state}}, 0)
}

// Profile says that a person has a newer profile.
func Profile(user string, version int64) *Frame {
	return New(&deliveryv1.Frame{Body: &deliveryv1.Frame_ProfileChanged{
		ProfileChanged: &deliveryv1.ProfileChanged{UserId: user, Version: version}}}, 0)
}

// End closes a stream.
func End(code deliveryv1.EndCode, after time.Duration, token string) *Frame {
	return New(&deliveryv1.Frame{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{
		Code: code, ReconnectAfter: durationpb.New(after), Token: token,
	}}}, 0)
}
