package conformance_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// muted has the chat open, in a network that holds two streams back.
func (x *script) muted() *script {
	x.t.Helper()
	return x.loaded().end(&device.Failure{Code: connect.CodeUnavailable}).
		pass(250 * time.Millisecond).pass(14 * time.Second).pass(time.Second). // to no hello
		pass(500 * time.Millisecond).pass(15 * time.Second)
}

// poll answers a poll with the chats that changed.
func (x *script) poll(token string, changed ...*chatv1.ChatOverview) *script {
	x.t.Helper()
	return x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: changed, Token: token, Generation: "g1"})
}

// polls are those of a device behind a proxy that holds streams back.
func polls() map[string]func(*script) {
	changed := func(after, version int64) *messagev1.ListChangesResponse {
		return &messagev1.ListChangesResponse{Head: head(version, version-1), Changes: []*messagev1.Change{{Version: version,
			Body: &messagev1.Change_Message{Message: message(version-1, version)}}}}
	}
	return map[string]func(*script){
		"polls": func(x *script) {
			x.muted().poll("p1", overview("c", 5, 4)).answer(device.ListChanges, changed(4, 5))
			x.pass(2*time.Second).poll("p2", overview("c", 5, 4)) // which is not news
			for _, wait := range []time.Duration{3000, 4500, 6750, 10125, 12000, 12000} {
				x.pass(wait*time.Millisecond - time.Millisecond).pass(time.Millisecond).poll("p3")
			}
			x.pass(12*time.Second).poll("p4", overview("c", 6, 5)).answer(device.ListChanges, changed(5, 6))
			x.pass(2 * time.Second).poll("p5").restart()
		},
		"polls-at-once-after-a-message": func(x *script) {
			x.muted().poll("p1").pass(2 * time.Second).poll("p2").pass(time.Second)
			x.do(func(m *recorder) { m.Send("c", "mine") })
			x.answer(device.SendMessage, &messagev1.SendMessageResponse{MessageId: "m4", Sequence: 4, Version: 5,
				ClientMessageId: "00000000-0000-4000-8000-000000000001"}).poll("p3", overview("c", 5, 4))
			x.do(func(m *recorder) { m.MarkRead("c", 3) }) // without an Ack
			x.answer(device.MarkRead, &messagev1.MarkReadResponse{State: &chatv1.MemberState{Revision: 2, ReadSequence: 3}})
			x.pass(2 * time.Second).poll("p4")
		},
		"polls-end-with-a-stream": func(x *script) {
			x.muted().poll("p1").pass(15 * time.Second).poll("p2")
			x.pass(5*time.Minute).frames(hello(), messageFrame(4, 5, 4)).poll("p2").frames(heartbeat("t5"))
			x.pass(15 * time.Second).frames(heartbeat("t5")).pass(15 * time.Second).frames(heartbeat("t6"))
		},
		"polls-with-streams-held-back-again": func(x *script) {
			x.muted().poll("p1").pass(15 * time.Second).poll("p2")
			for range 2 {
				x.pass(5 * time.Minute).poll("p2").pass(15 * time.Second).poll("p3").pass(4 * time.Minute).poll("p4")
			}
		},
		"polls-that-fail": func(x *script) {
			x.muted().poll("p1").pass(2*time.Second).fail(device.Sync, connect.CodeUnavailable, "")
			x.pass(250*time.Millisecond).fail(device.Sync, connect.CodeUnavailable, "").pass(500 * time.Millisecond).poll("p2")
			x.pass(3 * time.Second).poll("p3")
		},
		"polls-of-a-network-that-was-away": func(x *script) {
			x.muted().poll("p1", overview("c", 5, 4)).frames(hello(), messageFrame(4, 5, 4), heartbeat("t5"))
			x.pass(15 * time.Second).frames(heartbeat("t5"))
		},
		"polls-while-the-network-is-away": func(x *script) {
			x.muted().poll("p1").pass(15*time.Second).fail(device.Sync, connect.CodeUnavailable, "")
			for range 6 { // and a stream within 30 s
				x.pass(4*time.Second).pass(4*time.Second).fail(device.Sync, connect.CodeUnavailable, "")
			}
			x.pass(15 * time.Second).poll("p2")
		},
		"polls-that-are-refused": func(x *script) {
			x.muted().result(device.Sync, nil, &device.Failure{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
				RetryAfter: 7 * time.Second}).pass(6 * time.Second).pass(time.Second).poll("p1")
			x.pass(2*time.Second).fail(device.Sync, connect.CodeUnavailable, "")
			x.pass(time.Second).poll("p2")
		},
		"polls-again-if-one-is-under-way": func(x *script) {
			x.muted().poll("p1").pass(2 * time.Second).do(func(m *recorder) { m.Send("c", "mine") })
			x.answer(device.SendMessage, &messagev1.SendMessageResponse{MessageId: "m4", Sequence: 4, Version: 5,
				ClientMessageId: "00000000-0000-4000-8000-000000000001"}).poll("p2").poll("p3").pass(2 * time.Second).poll("p4")
		},
		"polls-that-a-token-of-another-store-begins": func(x *script) {
			x.muted().fail(device.Sync, connect.CodeInvalidArgument, "INVALID_TOKEN").pass(250 * time.Millisecond)
			x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "p2", Full: true, Generation: "g1",
				Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}}).pass(2 * time.Second).poll("p3")
		},
		"streams-first-then-polls": func(x *script) {
			x.pass(15 * time.Second).pass(250 * time.Millisecond).pass(15 * time.Second)
			x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "p1", Full: true, Generation: "g1",
				Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}}).pass(2 * time.Second).poll("p2")
		},
		"streams-that-the-server-refuses-late": func(x *script) {
			x.loaded().end(nil)
			for range 3 {
				x.pass(2 * time.Second).pass(6 * time.Second).
					end(&device.Failure{Code: connect.CodeUnavailable, Reason: "UNAVAILABLE"})
			}
		},
		"polls-without-a-network": func(x *script) {
			x.muted().fail(device.Sync, connect.CodeUnavailable, "").pass(time.Second).pass(time.Second)
			x.frames(hello(), heartbeat("t5"))
		},
		"polls-with-another-bearer-token": func(x *script) {
			x.muted().fail(device.Sync, connect.CodeUnauthenticated, "").answer(device.Refresh, nil)
			x.pass(time.Second).poll("p1")
		},
		"pages-of-a-poll": func(x *script) {
			next := func() *script {
				return x.answer(device.Sync, &deliveryv1.SyncResponse{Overviews: []*chatv1.ChatOverview{overview("b", 2, 1),
					overview("d", 2, 1)}, NextPageToken: "more", Generation: "g1"})
			}
			x.muted()
			next().poll("p1", overview("c", 5, 4)).answer(device.ListChanges, changed(4, 5)).pass(2 * time.Second)
			next().fail(device.Sync, connect.CodeUnavailable, "").pass(250*time.Millisecond).
				fail(device.Sync, connect.CodeInvalidArgument, "").pass(500 * time.Millisecond)
			next().poll("p2")
		},
		"polls-with-a-token-of-another-store": func(x *script) {
			x.muted().poll("p1").pass(2*time.Second).fail(device.Sync, connect.CodeInvalidArgument, "INVALID_TOKEN")
			x.pass(250*time.Millisecond).answer(device.Sync, &deliveryv1.SyncResponse{Token: "p2", Full: true, Generation: "g1",
				Overviews: []*chatv1.ChatOverview{overview("c", 4, 3)}})
			x.pass(3*time.Second).answer(device.Sync, &deliveryv1.SyncResponse{Token: "p3", Generation: "g1",
				LeftChats: []*deliveryv1.LeftChat{{ChatId: "c", Version: 6}}})
		},
		"polls-after-a-stop": func(x *script) {
			x.muted().poll("p1").pass(2*time.Second).fail(device.Sync, connect.CodeUnauthenticated, "SESSION_REVOKED")
			x.pass(time.Minute).do((*recorder).Resume).answer(device.Refresh, nil).poll("p2").pass(15 * time.Second)
		},
		"streams-that-a-proxy-ends": func(x *script) {
			x.loaded().end(nil).pass(250 * time.Millisecond).pass(6 * time.Second)
			x.end(&device.Failure{Code: connect.CodeUnavailable})
			x.pass(500 * time.Millisecond).pass(4 * time.Second).end(&device.Failure{Code: connect.CodeUnavailable}) // refused
			x.pass(time.Second).pass(6 * time.Second).end(&device.Failure{Code: connect.CodeUnavailable}).poll("p1")
		},
		"streams-of-which-one-begins": func(x *script) {
			x.loaded().end(nil).pass(250 * time.Millisecond).pass(15 * time.Second).pass(500 * time.Millisecond).frames(hello())
			x.pass(50 * time.Second).pass(time.Second).pass(15 * time.Second).pass(15 * time.Second)
		},
	}
}

// clocks are those of devices that are wrong.
func clocks() map[string]func(*script) {
	return map[string]func(*script){"extend-by-a-wrong-clock": func(x *script) { // a day ahead, and then a day behind
		x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "t1", Full: true, Generation: "g1"})
		for _, shift := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
			h := hello()
			h.GetHello().ExpiresAt = timestamppb.New(x.now.Add(shift + 2*time.Minute))
			h.GetHello().ExpiresIn = durationpb.New(2 * time.Minute)
			x.frames(h, heartbeat("t2")).pass(30*time.Second).frames(heartbeat("t2")).pass(29*time.Second).pass(time.Second).
				answer(device.Extend, &deliveryv1.ExtendResponse{ExpiresAt: timestamppb.New(x.now.Add(shift + 100*time.Second)),
					ExpiresIn: durationpb.New(100 * time.Second)})
			x.frames(heartbeat("t2")).pass(40*time.Second).fail(device.Extend, connect.CodeUnavailable, "")
			x.end(nil).pass(time.Second)
		}
	}}
}

// A device that polls says so.
func TestPolling(t *testing.T) {
	x := newScript(t, "polling", device.Config{})
	x.muted()
	x.m.Result(x.call(device.Sync).ID, &deliveryv1.SyncResponse{Token: "p1"}, "", nil)
	if got := x.m.Machine.Events(); len(got) != 1 || !got[0].Connected || !got[0].Polling {
		t.Errorf("events %v", got)
	}
}
