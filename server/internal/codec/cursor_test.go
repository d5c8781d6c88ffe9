package codec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/store"
)

func chatOf(i int) string { return "chat_" + ulid.ULID{15: byte(i)}.String() }

// resumed is what a stream that resumes after an id asks for.
func resumed(t *testing.T, generation, id string) (token string, known map[string]int64) {
	t.Helper()
	req := &deliveryv1.SubscribeRequest{}
	if _, err := NewCursor("bob", store.Line(generation), id, req); err != nil {
		t.Fatal(err)
	}
	known = map[string]int64{}
	for _, k := range req.GetKnownChats() {
		known[k.GetChatId()] = k.GetVersion()
	}
	return req.GetToken(), known
}

// An id says what the frames before it have brought: changes, first heads, resets;
// not the heads of chats whose changes may come later, nor what is not in order.
func TestCursor(t *testing.T) {
	message := func(chat, version int) *frame.Frame {
		return frame.New(&deliveryv1.Frame{ChatId: chatOf(chat), Version: int64(version),
			Body: &deliveryv1.Frame_Message{Message: &messagev1.Message{}}}, 0)
	}
	removal := func(chat int, user string) *frame.Frame {
		return frame.New(&deliveryv1.Frame{ChatId: chatOf(chat), Version: 9, Body: &deliveryv1.Frame_MembershipChange{
			MembershipChange: &messagev1.MembershipChange{UserId: user, Kind: messagev1.MembershipChange_KIND_REMOVED},
		}}, 0)
	}
	for name, tt := range map[string]struct {
		frames []*frame.Frame
		token  string
		known  map[string]int64
	}{
		"nothing":                     {nil, "t0", map[string]int64{}},
		"a heartbeat":                 {[]*frame.Frame{frame.Heartbeat("t1")}, "t1", map[string]int64{}},
		"a heartbeat without a token": {[]*frame.Frame{frame.Heartbeat("")}, "t0", map[string]int64{}},
		"an end": {[]*frame.Frame{frame.End(deliveryv1.EndCode_END_CODE_DRAIN, 0, "t2")}, "t2",
			map[string]int64{}},
		"messages": {[]*frame.Frame{message(1, 4), message(2, 1), message(1, 5)}, "t0",
			map[string]int64{chatOf(1): 5, chatOf(2): 1}},
		"an older one": {[]*frame.Frame{message(1, 4), message(1, 3)}, "t0", map[string]int64{chatOf(1): 4}},
		"a first head": {[]*frame.Frame{frame.Head(chatOf(1), 7, 0, nil), message(1, 8)}, "t0",
			map[string]int64{chatOf(1): 8}},
		"a head that is ahead": {[]*frame.Frame{message(1, 4), frame.Head(chatOf(1), 7, 0, nil)}, "t0",
			map[string]int64{chatOf(1): 4}},
		"a reset": {[]*frame.Frame{message(1, 4), frame.Reset(chatOf(1), 900)}, "t0",
			map[string]int64{chatOf(1): 900}},
		"a reset of everything": {[]*frame.Frame{message(1, 4), frame.Reset("", 0)}, "", map[string]int64{}},
		"the user's removal":    {[]*frame.Frame{message(1, 4), removal(1, "bob")}, "t0", map[string]int64{}},
		"another's": {[]*frame.Frame{message(1, 4), removal(1, "cid")}, "t0",
			map[string]int64{chatOf(1): 9}},
		"the user's own state": {[]*frame.Frame{frame.Receipt(chatOf(1), &chatv1.MemberState{})}, "t0",
			map[string]int64{}},
		"a chat that is not the user's": {[]*frame.Frame{frame.Left(chatOf(1), "bob", 0)}, "t0", map[string]int64{}},
	} {
		p, err := NewCursor("bob", store.Line("gen"), "t0", &deliveryv1.SubscribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range tt.frames {
			p.pass(f, 1)
		}
		token, known := resumed(t, "gen", p.id())
		if token != tt.token || fmt.Sprint(known) != fmt.Sprint(tt.known) {
			t.Errorf("%s: %q %v, want %q %v", name, token, known, tt.token, tt.known)
		}
		if _, known := resumed(t, "other", p.id()); len(known) > 0 {
			t.Errorf("%s: known in another generation: %v", name, known)
		}
	}
}

// counting is a history of two generations.
type counting struct{ store.Line }

func (counting) Shown() int64 { return 20 }
func (counting) Holds(generation string, commit int64) bool {
	return generation == "gen" || generation == "before" && commit <= 7
}

// A stream resumes if what was shown is part of the history, in whichever generation it was shown; if
// not, it begins with nothing, without the token, too.
func TestCursorInHistory(t *testing.T) {
	for commit, held := range map[int64]bool{7: true, 8: false} {
		p, err := NewCursor("bob", store.Line("before"), "t0", &deliveryv1.SubscribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		p.pass(frame.Reset(chatOf(1), 9), commit)
		p.pass(frame.Reset(chatOf(2), 9), 3) // passed later, although it was shown before
		req := &deliveryv1.SubscribeRequest{}
		if _, err := NewCursor("bob", counting{}, p.id(), req); err != nil {
			t.Fatal(err)
		}
		if (len(req.GetKnownChats()) == 2) != held || (req.GetToken() == "t0") != held {
			t.Errorf("shown up to %d: %v", commit, req)
		}
	}
}

// The hundred chats that changed last are known; heads come with the latest first.
func TestCursorIsBounded(t *testing.T) {
	p, err := NewCursor("bob", store.Line("gen"), "", &deliveryv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 150 {
		p.pass(frame.Head(chatOf(i), int64(i+1), 0, nil), 1)
	}
	for _, i := range []int{140, 50} {
		p.pass(frame.New(&deliveryv1.Frame{ChatId: chatOf(i), Version: 1000, Body: &deliveryv1.Frame_Chat{}}, 0), 1)
	}
	_, known := resumed(t, "gen", p.id())
	if len(known) != 100 || known[chatOf(0)] != 1 || known[chatOf(98)] != 99 || known[chatOf(99)] != 0 ||
		known[chatOf(140)] != 1000 || known[chatOf(50)] != 1000 {
		t.Errorf("%d: %v", len(known), known)
	}
	if n := len(p.id()); n > 8000 {
		t.Errorf("an id of %d bytes does not fit into a header", n)
	}
}

// Whatever stands in the header, it is read or refused.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "t", ".", "t.AQNnZW4", "t.AQA", "..", strings.Repeat("A", 5000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		req := &deliveryv1.SubscribeRequest{}
		p, err := NewCursor("bob", store.Line("gen"), id, req)
		if err != nil {
			return
		}
		if len(req.GetKnownChats()) > 100 {
			t.Fatalf("%d chats", len(req.GetKnownChats()))
		}
		if token, known := resumed(t, "gen", p.id()); token != req.GetToken() || len(known) != len(req.GetKnownChats()) {
			t.Fatalf("%q: %q %v, want %v", id, token, known, req)
		}
	})
}
