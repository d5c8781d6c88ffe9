package stream

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func message(chat string, sequence int64) *deliveryv1.Frame {
	return &deliveryv1.Frame{ChatId: chat, AfterVersion: 1, Version: 2, Body: &deliveryv1.Frame_Message{
		Message: &messagev1.Message{MessageId: "m", ChatId: chat, Sequence: sequence, Content: "text"}}}
}

// A listener reads frames as the contract encodes them.
func TestListener(t *testing.T) {
	var got []string
	receipts, last := 0, int64(0)
	l := NewListener(Handler{
		Message: func(l *Listener, f Frame) {
			got = append(got, fmt.Sprint(string(f.Chat), f.Sequence, string(f.Content), l.Repeats(f)))
			last = f.Position
		},
		Receipt: func() { receipts++ },
	})
	l.take(encode(t, &deliveryv1.SubscribeResponse{FirstPosition: 7, Frames: []*deliveryv1.Frame{
		{Body: &deliveryv1.Frame_Hello{Hello: &deliveryv1.Hello{StreamId: "s"}}},
		message("a", 1), message("b", 1), message("a", 2), message("a", 2), message("a", 1),
		{ChatId: "a", Body: &deliveryv1.Frame_MemberState{MemberState: &chatv1.MemberState{ReadSequence: 2}}},
	}}))
	want := "[a1textfalse b1textfalse a2textfalse a2texttrue a1texttrue]"
	if fmt.Sprint(got) != want || receipts != 1 || l.ID() != "s" || last != 12 {
		t.Errorf("%v and %d receipts of %s up to position %d, want %s and 1 of s up to 12", got, receipts, l.ID(), last, want)
	}
	if len(l.live) != 0 || l.IsLost() {
		t.Error("live before the first heartbeat")
	}
	heartbeat := &deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{Heartbeat: &deliveryv1.Heartbeat{}}}
	l.take(encode(t, &deliveryv1.SubscribeResponse{Frames: []*deliveryv1.Frame{heartbeat, heartbeat}}))
	if err := l.Await(t.Context()); err != nil || l.IsLost() {
		t.Errorf("not live after a heartbeat: %v", err)
	}
	l.take(encode(t, &deliveryv1.SubscribeResponse{
		Frames: []*deliveryv1.Frame{{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{}}}}}))
	if !l.IsLost() {
		t.Error("a stream that the server ended is not lost")
	}
}

func TestListenerThatEnds(t *testing.T) {
	for name, end := range map[string]func(*Listener){
		"in good order": func(l *Listener) { l.end(nil) },
		"nonsense":      func(l *Listener) { l.take([]byte{0xff}) },
		"cut":           func(l *Listener) { l.take([]byte{responseFrames<<3 | 2, 100}) },
	} {
		l := NewListener(Handler{})
		end(l)
		if err := l.Await(t.Context()); err == nil || !l.IsLost() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequests(t *testing.T) {
	var send, plain messagev1.SendMessageRequest
	var mark messagev1.MarkReadRequest
	for m, b := range map[proto.Message][]byte{
		&send: SendRequest("chat", "id", []byte("text")), &plain: SendRequest("chat", "", []byte("text")),
		&mark: MarkRequest("chat", 300),
	} {
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
	}
	if send.GetChatId() != "chat" || send.GetClientMessageId() != "id" || send.GetContent() != "text" ||
		plain.GetClientMessageId() != "" || mark.GetChatId() != "chat" || mark.GetSequence() != 300 {
		t.Errorf("%v, %v, %v", &send, &plain, &mark)
	}
}

// Acknowledgements carry marks, and each must have been recorded.
func TestAcks(t *testing.T) {
	var req deliveryv1.AckRequest
	if err := proto.Unmarshal(AckRequest("s", 7, map[string]int64{"a": 300}), &req); err != nil {
		t.Fatal(err)
	}
	if req.GetStreamId() != "s" || req.GetPosition() != 7 || len(req.GetReadMarks()) != 1 ||
		req.GetReadMarks()[0].GetChatId() != "a" || req.GetReadMarks()[0].GetSequence() != 300 {
		t.Errorf("%v", &req)
	}
	recorded := &deliveryv1.ReadOutcome{State: &chatv1.MemberState{ReadSequence: 1}}
	for name, tt := range map[string]struct {
		outcomes []*deliveryv1.ReadOutcome
		good     bool
	}{
		"both recorded": {[]*deliveryv1.ReadOutcome{recorded, recorded}, true},
		"one refused":   {[]*deliveryv1.ReadOutcome{recorded, {Reason: "NOT_A_MEMBER"}}, false},
		"none taken":    {nil, false},
	} {
		if err := CheckAck(encode(t, &deliveryv1.AckResponse{ReadOutcomes: tt.outcomes}), 2); (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStamp(t *testing.T) {
	text := AppendStamp([]byte("before "), 12, 3*time.Second+4, 40)
	round, due, ok := ParseStamp(text[len("before "):])
	if !ok || round != 12 || due != 3*time.Second+4 || len(text) != 47 {
		t.Errorf("%d, %v, %v of %q", round, due, ok, text)
	}
	for _, text := range []string{"", "hello", "1", "1 2", "a 2 x", "1 -2 x", "1 99999999999999999999999 x", "  x"} {
		if _, _, ok := ParseStamp([]byte(text)); ok {
			t.Errorf("%q is taken for a stamp", text)
		}
	}
}
