package delivery

import (
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
)

// Frame is one frame, shared by all streams that get it. It is immutable and
// encoded at most once in each encoding, by the first sender that needs it.
type Frame struct {
	pb       *deliveryv1.Frame
	sequence int64 // of the message in it; 0 if there is none
	size     int   // about how much memory it holds, in bytes

	wireOnce, jsonOnce sync.Once
	wire, json         []byte
	wireErr, jsonErr   error
}

// frameOverhead is about what a frame costs besides its text.
const frameOverhead = 256

func newFrame(pb *deliveryv1.Frame, text int) *Frame {
	return &Frame{pb: pb, sequence: pb.GetMessage().GetSequence(), size: frameOverhead + text}
}

// Proto returns the frame as a message, which must not be changed.
func (f *Frame) Proto() *deliveryv1.Frame { return f.pb }

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

// JSON returns the frame as an encoded JSON object.
func (f *Frame) JSON() ([]byte, error) {
	f.jsonOnce.Do(func() { f.json, f.jsonErr = protojson.Marshal(f.pb) })
	return f.json, f.jsonErr
}

// effect is what a change does to the membership of its target.
type effect uint8

const (
	none effect = iota
	added
	removed
)

func effectOf(e event.Event) (target string, _ effect) {
	switch e := e.(type) {
	case *eventv1.ChatCreated: // the creator is a member from the start
		return e.GetCreatedBy(), added
	case *eventv1.MembershipChanged:
		switch e.GetChangeType() {
		case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED:
			return e.GetUserId(), added
		case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED:
			return e.GetUserId(), removed
		}
	}
	return "", none
}

// change is one event on its way to the streams.
type change struct {
	version           int64
	membershipVersion int64
	membership        bool // the event changed membership_version
	target            string
	effect            effect
	event             event.Event
	shared            *Frame
}

func newChange(e event.Event) *change {
	c := &change{
		version:           e.GetMetadata().GetVersion(),
		membershipVersion: e.GetMetadata().GetMembershipVersion(),
		event:             e,
	}
	_, message := e.(*eventv1.MessagePersisted)
	c.membership = !message
	c.target, c.effect = effectOf(e)
	return c
}

// frame returns the change's frame, the same one for all streams. Callers hold
// Hub.mu.
func (c *change) frame() *Frame {
	if c.shared == nil {
		c.shared = frameOf(c.event, c.version-1)
	}
	return c.shared
}

// frameOf makes the frame of an event as it was, following on a version.
func frameOf(e event.Event, after int64) *Frame {
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
		}}
	case *eventv1.MembershipChanged:
		role := chatv1.MemberRole(e.GetRole())
		if e.GetChangeType() == eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED {
			role = chatv1.MemberRole_MEMBER_ROLE_UNSPECIFIED
		}
		pb.Body = &deliveryv1.Frame_Membership{Membership: &messagev1.MembershipChange{
			UserId:      e.GetUserId(),
			Kind:        messagev1.MembershipChange_Kind(e.GetChangeType()),
			Role:        role,
			ChangedBy:   e.GetChangedBy(),
			MemberCount: e.GetMemberCountAfter(),
			ChangedAt:   e.GetChangedAt(),
			Version:     pb.Version,
		}}
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
	return newFrame(pb, text)
}

func directUsers(e *eventv1.ChatCreated) []string {
	if e.GetChatType() != eventv1.ChatType_CHAT_TYPE_DIRECT {
		return nil
	}
	return e.GetInitialMembers()
}

// headFrame tells a stream that a chat has come to a version; overview may be nil.
func headFrame(chatID string, version, sequence int64, overview *chatv1.ChatOverview) *Frame {
	return newFrame(&deliveryv1.Frame{
		ChatId: chatID,
		Body:   &deliveryv1.Frame_Head{Head: &deliveryv1.Head{Version: version, Sequence: sequence, Chat: overview}},
	}, 256)
}

// leftFrame tells a stream that its user is not a member of a chat since a
// version; 0 where none is known.
func leftFrame(chatID, user string, version int64) *Frame {
	return newFrame(&deliveryv1.Frame{
		ChatId:  chatID,
		Version: version,
		Body: &deliveryv1.Frame_Membership{Membership: &messagev1.MembershipChange{
			UserId:  user,
			Kind:    messagev1.MembershipChange_KIND_REMOVED,
			Version: version,
		}},
	}, 0)
}

func resetFrame(chatID string, version int64) *Frame {
	return newFrame(&deliveryv1.Frame{
		ChatId: chatID,
		Body:   &deliveryv1.Frame_Reset_{Reset_: &deliveryv1.Reset{Version: version}},
	}, 0)
}
