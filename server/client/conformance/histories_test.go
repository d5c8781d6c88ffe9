package conformance_test

import (
	"time"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// histories are those of servers that say what they showed.
func histories() map[string]func(*script) {
	again := func(x *script) *script { return x.end(nil).pass(time.Second) }
	return map[string]func(*script){
		"history-goes-on": func(x *script) { // a start of the server: nothing is read again
			again(x.at("g1", 7).loaded()).at("g2", 3).frames(x.hello(), messageFrame(4, 5, 4), heartbeat("t3")).restart()
			x.frames(x.hello(), heartbeat("t4"))
		},
		"history-goes-on-with-an-answer": func(x *script) { // the stream of before brings nothing any more
			x.at("g1", 7).loaded().do(func(m *recorder) { m.Send("c", "hi") }).at("g2", 3)
			x.answer(device.SendMessage, &messagev1.SendMessageResponse{MessageId: "m", Sequence: 4, Version: 5})
			x.at("g1", 8).frames(messageFrame(4, 5, 4)).pass(time.Second).at("g2", 4).frames(x.hello(), heartbeat("t3"))
		},
		"history-is-another": func(x *script) {
			x.at("g1", 7).loaded().frames(messageFrame(4, 5, 4)).do(func(m *recorder) { m.Send("c", "hi") }).end(nil).pass(time.Second)
			x.at("g2", 3).end(&device.Failure{Code: connect.CodeAborted, Reason: "HISTORY_CHANGED"})
			x.fail(device.SendMessage, connect.CodeAborted, "HISTORY_CHANGED") // of what was said before
			x.answer(device.Sync, &deliveryv1.SyncResponse{Token: "u1", Full: true, Generation: "g2",
				Overviews: []*chatv1.ChatOverview{overview("c", 2, 1)}})
			x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(1, 2)},
				Head: head(2, 1)}).pass(time.Second)
			x.answer(device.SendMessage, &messagev1.SendMessageResponse{MessageId: "m", Sequence: 2, Version: 3})
			x.frames(x.hello(), heartbeat("u2")).restart()
		},
		"history-is-another-for-a-call": func(x *script) {
			x.at("g1", 7).loaded().frames(resetFrame("c", 4)).fail(device.ListMessages, connect.CodeAborted,
				"HISTORY_CHANGED").at("g2", 3).answer(device.Sync, &deliveryv1.SyncResponse{Token: "u1", Full: true,
				Generation: "g2"}).pass(time.Second).frames(x.hello(), heartbeat("u2"))
		},
		"answer-of-less-than-was-shown": func(x *script) { // asked before a frame came: it is asked again
			x.at("g1", 7).loaded().frames(resetFrame("c", 4)).at("g1", 9).frames(messageFrame(4, 5, 4)).at("g2", 8)
			x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(1, 2)},
				Head: head(4, 3)})
			x.pass(time.Second).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(1, 2)}, Head: head(5, 4)})
			x.pass(time.Second).frames(x.hello(), heartbeat("t3"))
		},
		"stream-of-less-than-was-shown": func(x *script) {
			x.at("g1", 7).loaded().frames(resetFrame("c", 4))
			again(x).at("g1", 9).answer(device.ListMessages, &messagev1.ListMessagesResponse{
				Messages: []*messagev1.Message{message(1, 2)}, Head: head(4, 3)})
			x.at("g2", 8).frames(x.hello(), messageFrame(4, 5, 4)).pass(time.Second).frames(x.hello(), heartbeat("t3"))
		},
		"commits-come-in-no-order": func(x *script) {
			x.at("g1", 7).loaded().frames(resetFrame("c", 4)).at("g1", 9).frames(messageFrame(4, 5, 4)).at("g1", 8)
			x.answer(device.ListMessages, &messagev1.ListMessagesResponse{Messages: []*messagev1.Message{message(1, 2)},
				Head: head(5, 4)}).pass(time.Second)
			again(x).frames(x.hello(), heartbeat("t3"))
		},
		"learned-in-the-history": func(x *script) { // what was shown includes it
			x.at("g1", 7).loaded().at("g1", 9).do(func(m *recorder) { m.Learn(overview("d", 1, 0), x.says()) })
			again(x).frames(x.hello(), heartbeat("t3"))
		},
		"learned-of-another-generation": func(x *script) { // the device asks for it itself
			x.at("g1", 7).loaded().at("g2", 3).do(func(m *recorder) { m.Learn(overview("d", 1, 0), x.says()) })
			x.answer(device.GetChat, &chatv1.GetChatResponse{Overview: overview("d", 2, 1)}).pass(time.Second)
			x.frames(x.hello(), heartbeat("t3"))
		},
		"learned-of-what-is-gone": func(x *script) {
			x.at("g1", 7).loaded().at("g2", 3).do(func(m *recorder) { m.Learn(overview("d", 1, 0), x.says()) })
			x.fail(device.GetChat, connect.CodePermissionDenied, "NOT_A_MEMBER").pass(time.Second).
				frames(x.hello(), heartbeat("t3"))
		},
		"history-is-not-said": func(x *script) { // a server of an earlier release
			again(x.at("g1", 7).loaded()).at("g1", 0).frames(x.hello(), heartbeat("t3"))
			again(x).at("g2", 0).frames(x.hello(), heartbeat("u1")).pass(time.Second)
		},
	}
}
