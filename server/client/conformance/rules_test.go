package conformance_test

import (
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/client/device"
)

// rule is one of a client's, with a mistake that breaks it.
type rule struct {
	rule    string
	page    string // what the page says of it
	mistake conformance.Mistake
}

// eachFrame is a mistake with frames, one by one.
func eachFrame(change func(p *conformance.Player, f *deliveryv1.Frame)) conformance.Mistake {
	return conformance.Mistake{Frames: func(p *conformance.Player, res *deliveryv1.SubscribeResponse) {
		for _, f := range res.GetFrames() {
			change(p, f)
		}
	}}
}

// inAnswer is a mistake with answers of one kind.
func inAnswer[M proto.Message](change func(M)) conformance.Mistake {
	return conformance.Mistake{Result: func(_ *conformance.Player, _ device.Kind, res proto.Message, why *device.Failure,
	) (proto.Message, *device.Failure) {
		if r, ok := res.(M); ok {
			change(r)
		}
		return res, why
	}}
}

// inFailure is a mistake with failures of calls.
func inFailure(change func(k device.Kind, why *device.Failure)) conformance.Mistake {
	return conformance.Mistake{Result: func(_ *conformance.Player, k device.Kind, res proto.Message, why *device.Failure,
	) (proto.Message, *device.Failure) {
		if why != nil {
			change(k, why)
		}
		return res, why
	}}
}

func inCalls(change func(calls []device.Call) []device.Call) conformance.Mistake {
	return conformance.Mistake{Calls: func(_ *conformance.Player, calls []device.Call) []device.Call {
		return change(calls)
	}}
}

func inBatch(change func(b *device.Batch)) conformance.Mistake {
	return conformance.Mistake{Batch: func(_ *conformance.Player, b *device.Batch) { change(b) }}
}

// without is a client that never makes calls of a kind.
func without(k device.Kind) conformance.Mistake {
	return inCalls(func(calls []device.Call) []device.Call {
		return slices.DeleteFunc(calls, func(c device.Call) bool { return c.Kind == k })
	})
}

// takenFor is a client that takes one end code for another.
func takenFor(code, other deliveryv1.EndCode) conformance.Mistake {
	return eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
		if f.GetEnd().GetCode() == code && f.GetEnd() != nil {
			f.GetEnd().Code = other
		}
	})
}

func rules() []rule {
	return slices.Concat(frameRules(), streamRules(), answerRules(), storageRules())
}

func frameRules() []rule {
	return []rule{
		{"a change that does not follow is not applied", "after_version ≤ own < version",
			eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) { f.AfterVersion = 0 })},
		{"a change that was applied is not applied again", "after_version ≤ own < version",
			eachFrame(func(p *conformance.Player, f *deliveryv1.Frame) {
				if v, ok := p.Machine.View(f.GetChatId()); ok && f.GetVersion() > 0 && f.GetVersion() <= v.Version {
					f.AfterVersion, f.Version = v.Version, v.Version+1
				}
			})},
		{"a frame with an unknown body counts", "A body that you do not know counts", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetBody() == nil {
					f.Version = 0
				}
			})},
		{"a head says that there is something newer", "newest seen", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetHead() != nil && f.GetHead().GetOverview() == nil {
					f.GetHead().Version = 0
				}
			})},
		{"a reset of a chat drops it", "reset` with a chat", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetReset_() != nil && f.GetChatId() != "" {
				f.Body = &deliveryv1.Frame_Head{Head: &deliveryv1.Head{Version: f.GetReset_().GetVersion()}}
			}
		})},
		{"a reset without a chat drops all versions", "reset` without a chat", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetReset_() != nil && f.GetChatId() == "" {
					f.Body = nil
				}
			})},
		{"a removal of the user ends the chat", "removal of the user", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetMembershipChange().GetKind() == messagev1.MembershipChange_KIND_REMOVED && f.GetVersion() > 0 {
					f.GetMembershipChange().Kind = messagev1.MembershipChange_KIND_ROLE_CHANGED
				}
			})},
		{"a known chat may not be the user's any more", "with version 0", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetMembershipChange() != nil && f.GetVersion() == 0 {
					f.Body = nil
				}
			})},
		{"members are counted", "member_count", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetMembershipChange() != nil {
				f.GetMembershipChange().MemberCount = 0
			}
		})},
		{"the user's addition starts the chat over", "addition of the user", eachFrame(
			func(p *conformance.Player, f *deliveryv1.Frame) {
				if m := f.GetMembershipChange(); m.GetKind() == messagev1.MembershipChange_KIND_ADDED {
					m.UserId += "?"
				}
			})},
		{"receipts are applied", "receipt", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetMemberState() != nil {
				f.Body = nil
			}
		})},
		{"what the other person has read is shown", "peer_read_sequence", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetMemberState() != nil {
					f.GetMemberState().PeerReadSequence = 0
				}
			})},
		{"of two states the higher revision stands", "revision", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetMemberState() != nil {
					f.GetMemberState().Revision = 0
				}
			})},
	}
}

func streamRules() []rule {
	type end = deliveryv1.EndCode
	const resync = deliveryv1.EndCode_END_CODE_RESYNC
	list := []rule{
		{"a full list replaces the client's", "full", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetHello() != nil {
				f.GetHello().Full = false
			}
		})},
		{"another generation drops all versions", "generation", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetHello() != nil {
					f.GetHello().Generation = ""
				}
			})},
		{"the heartbeat's token is stored", "heartbeat", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetHeartbeat() != nil {
				f.GetHeartbeat().Token = "mine"
			}
		})},
		{"the end's token is stored", "token", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetEnd() != nil {
				f.GetEnd().Token = ""
			}
		})},
		{"the server says when to come back", "reconnect_after", eachFrame(
			func(_ *conformance.Player, f *deliveryv1.Frame) {
				if f.GetEnd() != nil {
					f.GetEnd().ReconnectAfter = nil
				}
			})},
		{"a stream is extended before it ends", "Extend", eachFrame(func(_ *conformance.Player, f *deliveryv1.Frame) {
			if f.GetHello() != nil {
				f.GetHello().ExpiresAt = nil
			}
		})},
		{"a hole in positions ends the stream", "first_position", conformance.Mistake{
			Frames: func(p *conformance.Player, res *deliveryv1.SubscribeResponse) { res.FirstPosition = p.Position + 1 }}},
		{"a stream that is silent is closed", "50 s", without(device.CloseStream)},
		{"frames are acknowledged", "Ack", without(device.Ack)},
		{"a refused token is made anew, once", "UNAUTHENTICATED", without(device.Refresh)},
		{"loaded chats are named", "known", inCalls(func(calls []device.Call) []device.Call {
			for _, c := range calls {
				if r, ok := c.Request.(*deliveryv1.SubscribeRequest); ok {
					r.KnownChats = nil
				}
			}
			return calls
		})},
		{"a sync token that is refused is dropped", "INVALID_TOKEN", conformance.Mistake{
			Ended: func(_ *conformance.Player, why *device.Failure) *device.Failure {
				if why != nil {
					why.Reason = ""
				}
				return why
			}}},
		{"waits grow", "500 ms", conformance.Mistake{Ended: func(_ *conformance.Player, why *device.Failure) *device.Failure {
			if why != nil {
				why.RetryAfter = max(why.RetryAfter, time.Second)
			}
			return why
		}}},
	}
	for code, other := range map[end]end{
		deliveryv1.EndCode_END_CODE_DRAIN: resync, deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED: resync,
		deliveryv1.EndCode_END_CODE_SESSION_REVOKED: resync, deliveryv1.EndCode_END_CODE_REPLACED: resync,
		deliveryv1.EndCode_END_CODE_SLOW: deliveryv1.EndCode_END_CODE_DRAIN, resync: deliveryv1.EndCode_END_CODE_DRAIN,
	} {
		name := code.String()[len("END_CODE_"):]
		list = append(list, rule{"what " + name + " means", name, takenFor(code, other)})
	}
	return list
}

func answerRules() []rule {
	return []rule{
		{"NOT_A_MEMBER ends the chat", "NOT_A_MEMBER", inFailure(func(k device.Kind, why *device.Failure) {
			if why.Reason == "NOT_A_MEMBER" && k != device.SendMessage {
				why.Reason = ""
			}
		})},
		{"what is not in the store's history is dropped", "HISTORY_CHANGED", inFailure(
			func(_ device.Kind, why *device.Failure) {
				if why.Reason == "HISTORY_CHANGED" {
					why.Reason = ""
				}
			})},
		{"a call says what was shown", "Parley-History", inCalls(func(calls []device.Call) []device.Call {
			for i := range calls {
				calls[i].History = ""
			}
			return calls
		})},
		{"a revoked session stops the client", "SESSION_REVOKED", inFailure(func(_ device.Kind, why *device.Failure) {
			if why.Reason == "SESSION_REVOKED" {
				why.Reason = ""
			}
		})},
		{"the server says how long to wait", "RetryInfo", inFailure(func(_ device.Kind, why *device.Failure) {
			why.RetryAfter = 0
		})},
		{"a message that is refused is given up", "refused", inFailure(func(k device.Kind, why *device.Failure) {
			if k == device.SendMessage {
				why.Code = connect.CodeUnavailable
			}
		})},
		{"a message is sent until it is answered", "same `client_message_id`", inFailure(
			func(k device.Kind, why *device.Failure) {
				if k == device.SendMessage {
					why.Code = connect.CodeInvalidArgument
				}
			})},
		{"changes may be a reset", "reset", inAnswer(func(r *messagev1.ListChangesResponse) { r.Reset_ = false })},
		{"changes are asked for until they are all there", "again", inAnswer(func(r *messagev1.ListChangesResponse) {
			r.Version = max(r.GetVersion(), r.GetHead().GetVersion())
		})},
		{"sync has pages", "pages", inAnswer(func(r *deliveryv1.SyncResponse) { r.NextPageToken = "" })},
		{"sync may be full", "full", inAnswer(func(r *deliveryv1.SyncResponse) { r.Full = false })},
		{"sync says which chats were left", "left", inAnswer(func(r *deliveryv1.SyncResponse) { r.LeftChats = nil })},
		{"sync's token is stored", "token", inAnswer(func(r *deliveryv1.SyncResponse) { r.Token = "" })},
		{"sync names the generation", "generation", inAnswer(func(r *deliveryv1.SyncResponse) { r.Generation = "" })},
		{"member lists have pages", "pages", inAnswer(func(r *chatv1.ListMembersResponse) { r.NextPageToken = "" })},
		{"messages have pages", "older", inAnswer(func(r *messagev1.ListMessagesResponse) { r.HasMore = !r.HasMore })},
		{"read marks have outcomes", "MarkRead", inAnswer(func(r *deliveryv1.AckResponse) { r.ReadOutcomes = nil })},
		{"an answer may be newer than what was seen", "newest seen", inAnswer(func(r *chatv1.GetChatResponse) {
			r.GetOverview().Head = nil
		})},
		{"the message that was sent is shown", "version", inAnswer(func(r *messagev1.SendMessageResponse) {
			r.Version, r.Sequence = 0, 0
		})},
	}
}

func storageRules() []rule {
	var held []device.ChatChange
	return []rule{
		{"what came before a token is stored with it", "before any token", inBatch(func(b *device.Batch) {
			held, b.Chats = b.Chats, held
		})},
		{"a message is stored before it is sent", "stored before", inBatch(func(b *device.Batch) { b.Outbox = nil })},
		{"a message that was sent is dropped", "outbox", inBatch(func(b *device.Batch) { b.Done = nil })},
		{"a chat that is started over drops what was stored", "drop", inBatch(func(b *device.Batch) {
			for i := range b.Chats {
				b.Chats[i].Clear = false
			}
		})},
		{"a chat that was left is dropped", "drop", inBatch(func(b *device.Batch) { b.Removed = nil })},
		{"a resumed stream has the token", "token", inBatch(func(b *device.Batch) {
			if b.Session != nil {
				b.Session.Token = ""
			}
		})},
		{"messages are stored", "stored", inBatch(func(b *device.Batch) {
			for i := range b.Chats {
				b.Chats[i].Messages = nil
			}
		})},
	}
}
