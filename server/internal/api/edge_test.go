package api_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

func TestCallerRequired(t *testing.T) {
	s := newServer(t)
	for name, user := range map[string]string{"at the gate": "", "behind it": "nobody"} {
		for protocol, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()},
			"grpc-web": {connect.WithGRPCWeb()}} {
			c := s.clients(h2c(t), user, opts...)
			_, err := c.chat.ListChats(t.Context(), &chatv1.ListChatsRequest{})
			wantCode(t, name+" "+protocol, err, connect.CodeUnauthenticated, "UNAUTHENTICATED")
			stream, err := c.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
			s.must(err)
			if stream.Receive() {
				t.Fatal("a stream without a caller")
			}
			wantCode(t, name+" "+protocol, stream.Err(), connect.CodeUnauthenticated, "UNAUTHENTICATED")
			s.must(stream.Close())
		}
	}
	a := s.do(http.MethodPost, getChat, "application/json", []byte("{}"), "X-User", "")
	testkit.Equal(t, "challenge", a.header.Get("WWW-Authenticate"), "Bearer")
}

// A panic ends in an error that tells nothing, and a log entry that tells all,
// under the same id; the next request is served.
func TestPanic(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	s.store.fail(func() error { panic("secret of the store") }, nil)
	_, err := s.ann().chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
	wantCode(t, "unary", err, connect.CodeInternal, "INTERNAL")
	a := s.post(getChat, `{"chatId":"`+id+`"}`)
	testkit.Equal(t, "status", a.status, http.StatusInternalServerError)
	correlation := regexp.MustCompile(`err_[A-Z2-7]+`).FindString(string(a.body))
	if strings.Contains(string(a.body), "secret") || correlation == "" {
		t.Fatalf("answer: %s", a.body)
	}
	if log := s.log.String(); !strings.Contains(log, "secret of the store") || !strings.Contains(log, correlation) ||
		!strings.Contains(log, "view.(*Reader)") || !strings.Contains(log, "user_id=ann") {
		t.Fatalf("log: %s", log)
	}
	stream, err := s.ann().delivery.Subscribe(t.Context(),
		&deliveryv1.SubscribeRequest{KnownChats: []*deliveryv1.KnownChat{{ChatId: id}}})
	s.must(err)
	for stream.Receive() {
	}
	wantCode(t, "stream", stream.Err(), connect.CodeInternal, "INTERNAL")
	s.must(stream.Close())
	s.store.fail(nil, nil)
	_, err = s.ann().chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "counted", s.count(getChat, "internal"), 2)
	testkit.Equal(t, "counted", s.count(getChat, "ok"), 1)
}

// Unknown errors tell nothing, whatever they say themselves (S-37).
func TestSec_S_37_HiddenErrors(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for name, tt := range map[string]struct {
		err    error
		code   connect.Code
		reason string
	}{
		"unknown": {errors.New("dial tcp 10.0.0.7: secret"), connect.CodeInternal, "INTERNAL"},
		"invalid": {store.ErrInvalid, connect.CodeInternal, "INTERNAL"},
		"down":    {store.ErrUnavailable, connect.CodeUnavailable, "UNAVAILABLE"},
		"busy":    {store.ErrThrottled, connect.CodeUnavailable, "UNAVAILABLE"},
	} {
		s.store.fail(func() error { return tt.err }, nil)
		_, err := s.ann().chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
		wantCode(t, name, err, tt.code, tt.reason)
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "store:") {
			t.Fatalf("%s: %v", name, err)
		}
		if tt.code == connect.CodeUnavailable {
			testkit.Equal(t, name, connectError(t, err).Meta().Get("Retry-After") != "", true)
		}
	}
}

// Nothing is answered before what it tells is on stable storage: answers and
// errors alike wait, once each.
func TestAnswersAreDurable(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	const stranger = "chat_01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for _, chatID := range []string{id, stranger} {
		calls := map[string]func() error{
			"GetChat": func() error {
				_, err := s.ann().chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: chatID})
				return err
			},
			"SendMessage": func() error {
				_, err := s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: chatID, Content: "x"})
				return err
			},
			"ListChanges": func() error {
				_, err := s.ann().message.ListChanges(t.Context(), &messagev1.ListChangesRequest{ChatId: chatID})
				return err
			},
		}
		for name, call := range calls {
			before := s.store.waits()
			if err := call(); (err == nil) != (chatID == id) {
				t.Fatalf("%s: %v", name, err)
			}
			testkit.Equal(t, name+": waits", s.store.waits()-before, 1)
			s.store.fail(nil, store.ErrUnavailable)
			wantCode(t, name, call(), connect.CodeUnavailable, "UNAVAILABLE")
			s.store.fail(nil, nil)
		}
	}
}

func get(procedure, message, extra string) string {
	return procedure + "?encoding=json&message=" + url.QueryEscape(message) + extra
}

// S-35: GET needs connect=v1; POST needs no header. Only reads can be had by GET.
func TestGet(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	body := `{"chatId":"` + id + `"}`
	a := s.do(http.MethodGet, get(getChat, body, ""), "", nil)
	code, reason, _ := a.error()
	testkit.Equal(t, "without version", code+" "+reason, "invalid_argument INVALID_ARGUMENT")
	a = s.do(http.MethodGet, get(getChat, body, "&connect=v1"), "", nil)
	testkit.Equal(t, "with version", a.status, 200)
	tag := a.header.Get("ETag")
	testkit.Equal(t, "cache", a.header.Get("Cache-Control"), "private, no-cache")

	for _, match := range []string{tag, `"x", ` + tag} {
		same := s.do(http.MethodGet, get(getChat, body, "&connect=v1"), "", nil, "If-None-Match", match)
		testkit.Equal(t, "not modified", same.status, http.StatusNotModified)
		testkit.Equal(t, "tag", same.header.Get("ETag"), tag)
		testkit.Equal(t, "body", len(same.body), 0)
	}
	testkit.Equal(t, "not an error", s.count(getChat, "unknown"), 0)
	binary := s.do(http.MethodGet, getChat+"?encoding=proto&connect=v1&base64=1&message="+url.QueryEscape("Ch9"), "", nil)
	testkit.Equal(t, "broken message", binary.status, 400)

	_, err := s.clients(http.DefaultClient, "bob").message.SendMessage(t.Context(),
		&messagev1.SendMessageRequest{ChatId: id, Content: "x"})
	s.must(err)
	changed := s.do(http.MethodGet, get(getChat, body, "&connect=v1"), "", nil, "If-None-Match", tag)
	testkit.Equal(t, "modified", changed.status, 200)
	if changed.header.Get("ETag") == tag {
		t.Fatal("another answer has the same tag")
	}
	mine := s.do(http.MethodGet, get(getChat, body, "&connect=v1"), "", nil)
	testkit.Equal(t, "stable", mine.header.Get("ETag"), changed.header.Get("ETag"))
	_, err = s.ann().message.MarkRead(t.Context(), &messagev1.MarkReadRequest{ChatId: id, Sequence: 1})
	s.must(err)
	if s.do(http.MethodGet, get(getChat, body, "&connect=v1"), "", nil).header.Get("ETag") == mine.header.Get("ETag") {
		t.Fatal("the user's own state is no part of the tag")
	}
	testkit.Equal(t, "of a stranger", s.do(http.MethodGet, get(getChat, body, "&connect=v1"), "", nil, "X-User", "cid",
		"If-None-Match", tag).status, 403)
}

// Unary answers are compressed from 1 KiB on, streams never.
func TestCompression(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	list := func() answer {
		return s.post(listMessages, `{"chatId":"`+id+`"}`, "Accept-Encoding", "gzip")
	}
	testkit.Equal(t, "small", list().header.Get("Content-Encoding"), "")
	_, err := s.ann().message.SendMessage(t.Context(),
		&messagev1.SendMessageRequest{ChatId: id, Content: strings.Repeat("x", 4000)})
	s.must(err)
	large := list()
	testkit.Equal(t, "large", large.header.Get("Content-Encoding"), "gzip")
	if len(large.body) > 2000 {
		t.Fatalf("%d bytes", len(large.body))
	}
}

func TestStreamsAreNotCompressed(t *testing.T) {
	s := newServer(t)
	for range 30 {
		s.group("bob")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		s.url+"/parley.delivery.v1.DeliveryService/Subscribe", strings.NewReader("\x00\x00\x00\x00\x02{}"))
	s.must(err)
	req.Header.Set("X-User", "ann")
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Accept-Encoding", "gzip")
	res, err := http.DefaultClient.Do(req)
	s.must(err)
	defer res.Body.Close()
	for largest := uint32(0); largest < 4<<10; {
		var head [5]byte
		_, err := io.ReadFull(res.Body, head[:])
		s.must(err)
		testkit.Equal(t, "flags", head[0], 0)
		n := binary.BigEndian.Uint32(head[1:])
		_, err = io.CopyN(io.Discard, res.Body, int64(n))
		s.must(err)
		largest = max(largest, n)
	}
}
