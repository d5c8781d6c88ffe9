package api_test

import (
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/history"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A call that says something which is not in the store's history does nothing; every answer, and
// each response of a stream, says what a client may have seen.
func TestHistory(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	send := func(said string) answer {
		body := `{"chatId":"` + id + `","content":"x"}`
		return s.do(http.MethodPost, "/parley.message.v1.MessageService/SendMessage", "application/json", []byte(body),
			history.Header, said)
	}
	for said, want := range map[string]struct {
		status int
		reason string
	}{
		"gen-1": {200, ""}, "gen-0": {200, ""}, "old-1": {409, "HISTORY_CHANGED"}, "-1": {409, "HISTORY_CHANGED"},
		"gen": {400, "INVALID_ARGUMENT"}, "gen-x": {400, "INVALID_ARGUMENT"}, "gen--1": {400, "INVALID_ARGUMENT"},
		"gen-99999999999999999999": {400, "INVALID_ARGUMENT"}, strings.Repeat("g", 200) + "-1": {400, "INVALID_ARGUMENT"},
	} {
		before := s.sequence(id)
		a := send(said)
		_, reason, _ := a.error()
		testkit.Equal(t, "reason after "+said, reason, want.reason)
		testkit.Equal(t, "status after "+said, a.status, want.status)
		if want.status != 200 {
			testkit.Equal(t, "messages after "+said, s.sequence(id), before)
			continue
		}
		testkit.Equal(t, "what the answer says", a.header.Get(history.Header), "gen-1")
		testkit.Equal(t, "messages", s.sequence(id), before+1)
	}
	said := s.log.String()
	if !strings.Contains(said, "a client was shown what the store does not have") || !strings.Contains(said, "shown=old") {
		t.Errorf("the log says: %s", said)
	}

	for said, want := range map[string]connect.Code{"gen-1": 0, "old-1": connect.CodeAborted} {
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set(history.Header, said)
		stream, err := s.ann().delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
		s.must(err)
		if stream.Receive() != (want == 0) || want != 0 && connect.CodeOf(stream.Err()) != want {
			t.Errorf("a stream of %s: %v", said, stream.Err())
		}
		if want == 0 {
			testkit.Equal(t, "commit of a response", stream.Msg().GetCommit(), int64(1))
		}
		_ = stream.Close()
	}
}

// sequence is that of the last message of a chat.
func (s *server) sequence(id string) int64 {
	s.Helper()
	res, err := s.ann().message.ListMessages(s.Context(), &messagev1.ListMessagesRequest{ChatId: id})
	s.must(err)
	return res.GetHead().GetSequence()
}
