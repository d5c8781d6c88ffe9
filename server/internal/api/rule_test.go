package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// metadata of an error in JSON.
func (a answer) metadata() map[string]string {
	var e struct {
		Details []struct {
			Type  string
			Debug struct{ Metadata map[string]string }
		}
	}
	_ = json.Unmarshal(a.body, &e)
	for _, d := range e.Details {
		if d.Type == "google.rpc.ErrorInfo" {
			return d.Debug.Metadata
		}
	}
	return nil
}

// Every refusal by a rule names the rule, and each has a text of its own.
func TestRulesAreNamed(t *testing.T) {
	s := newServer(t)
	id := s.cast()
	direct, err := s.chats.CreateDirect(t.Context(), chat.CreateDirect{Caller: "ann", Other: "bob"})
	s.must(err)
	full := s.group("bob")
	for i := range 98 {
		u := "u" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		s.must(s.chats.EnsureUser(t.Context(), u))
		_, err := s.chats.Change(t.Context(), chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: full, UserID: u, Role: "member"})
		s.must(err)
	}
	const forbidden, invalid = "FORBIDDEN", "INVALID_OPERATION"
	texts := map[string]string{}
	for _, tt := range []struct{ user, procedure, body, reason, rule string }{
		{"bob", "AddMember", `{"chatId":"%","userId":"new"}`, forbidden, "MEMBERS_CANNOT_ADD"},
		{"amy", "AddMember", `{"chatId":"%","userId":"new","role":2}`, forbidden, "ADMINS_CANNOT_ADD_ADMINS"},
		{"bob", "RemoveMember", `{"chatId":"%","userId":"cid"}`, forbidden, "MEMBERS_CANNOT_REMOVE"},
		{"amy", "RemoveMember", `{"chatId":"%","userId":"ada"}`, forbidden, "ADMINS_CANNOT_REMOVE_ADMINS"},
		{"amy", "UpdateMemberRole", `{"chatId":"%","userId":"cid","role":2}`, forbidden, "ONLY_OWNER_CHANGES_ROLES"},
		{"bob", "UpdateChat", `{"chatId":"%","name":"x"}`, forbidden, "MEMBERS_CANNOT_UPDATE_CHAT"},
		{"ann", "AddMember", `{"chatId":"%","userId":"new","role":1}`, invalid, "ROLE_NOT_ASSIGNABLE"},
		{"ann", "RemoveMember", `{"chatId":"%","userId":"ann"}`, invalid, "CANNOT_REMOVE_SELF"},
		{"amy", "RemoveMember", `{"chatId":"%","userId":"ann"}`, invalid, "OWNER_CANNOT_BE_REMOVED"},
		{"ann", "LeaveChat", `{"chatId":"%"}`, invalid, "OWNER_CANNOT_LEAVE"},
		{"ann", "UpdateMemberRole", `{"chatId":"%","userId":"ann","role":2}`, invalid, "OWNER_ROLE_IS_FIXED"},
		{"ann", "LeaveChat", `{"chatId":"@"}`, invalid, "DIRECT_CHAT_MEMBERS_ARE_FIXED"},
		{"ann", "UpdateMemberRole", `{"chatId":"@","userId":"bob","role":2}`, invalid, "DIRECT_CHAT_HAS_NO_ROLES"},
		{"ann", "UpdateChat", `{"chatId":"@","name":"x"}`, invalid, "DIRECT_CHAT_HAS_NO_NAME"},
		{"ann", "CreateChat", `{"type":1,"memberIds":["ann"]}`, invalid, "DIRECT_CHAT_WITH_SELF"},
		{"ann", "AddMember", `{"chatId":"!","userId":"new"}`, "CHAT_FULL", "MEMBERS_LIMIT"},
		{"ann", "AddMember", `{"chatId":"%","userId":"ghost"}`, "USER_NOT_FOUND", "USER_EXISTS"},
		{"ann", "UpdateChat", `{"chatId":"%","name":"x","expectedVersion":"1"}`, "VERSION_MISMATCH", "EXPECTED_VERSION"},
	} {
		body := strings.NewReplacer("%", id, "@", direct.ChatID, "!", full).Replace(tt.body)
		a := s.post(chatService+tt.procedure, body, "X-User", tt.user)
		_, reason, text := a.error()
		testkit.Equal(t, tt.rule, reason+" "+a.metadata()["rule"], tt.reason+" "+tt.rule)
		if other := texts[text]; other != "" || text == "" {
			t.Errorf("%s and %s both read %q", tt.rule, other, text)
		}
		texts[text] = tt.rule
		switch tt.rule {
		case "MEMBERS_LIMIT":
			testkit.Equal(t, "limit", a.metadata()["max_members"], "100")
		case "USER_EXISTS":
			testkit.Equal(t, "user", a.metadata()["user_id"], "ghost")
		}
	}
}

// A change that is based on another version of the chat is not carried out; the error says
// which version there is; the repetition of one that was carried out is.
func TestExpectedVersion(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	update := func(name, version, request string) answer {
		return s.post(chatService+"UpdateChat", `{"chatId":"`+id+`","name":"`+name+`","expectedVersion":"`+version+
			`","requestId":"`+request+`"}`)
	}
	var res struct {
		Chat struct{ Name, Version string }
	}
	a := update("first", "2", "r1") // the group's creation is 1, bob's arrival 2
	s.must(json.Unmarshal(a.body, &res))
	testkit.Equal(t, "updated", res.Chat, struct{ Name, Version string }{"first", "3"})
	late := update("second", "2", "r2")
	testkit.Equal(t, "late", late.status, http.StatusConflict)
	code, reason, _ := late.error()
	testkit.Equal(t, "late", code+" "+reason+" "+late.metadata()["current_version"], "aborted VERSION_MISMATCH 3")
	again := update("first", "2", "r1")
	testkit.Equal(t, "repeated", again.header.Get("Idempotency-Replayed"), "true")
	testkit.Equal(t, "repeated", string(again.body), string(a.body))
	_, reason, _ = update("first", "3", "r1").error()
	testkit.Equal(t, "the same request on another version", reason, "IDEMPOTENCY_KEY_REUSED")
	testkit.Equal(t, "on the present one", update("second", "3", "r3").status, http.StatusOK)
	// A message is no change of the chat.
	_, err := s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "x"})
	s.must(err)
	testkit.Equal(t, "after a message", update("third", "4", "").status, http.StatusOK)
	testkit.Equal(t, "without a change", update("third", "4", "").status, http.StatusConflict)
	testkit.Equal(t, "no version", update("third", "0", "").status, http.StatusBadRequest)
}

// A mark of what was read is remembered under its request id like every other change.
func TestMarkReadRemembersRequests(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for range 5 {
		_, err := s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "x"})
		s.must(err)
	}
	read := func(sequence, request string) answer {
		return s.post("/parley.message.v1.MessageService/MarkRead", `{"chatId":"`+id+`","sequence":"`+sequence+
			`","requestId":"`+request+`"}`, "X-User", "bob")
	}
	mark := func(what string, a answer, replayed, sequence string) {
		t.Helper()
		testkit.Equal(t, what, a.status, http.StatusOK)
		testkit.Equal(t, what, a.header.Get("Idempotency-Replayed"), replayed)
		if !strings.Contains(strings.ReplaceAll(string(a.body), " ", ""), `"readSequence":"`+sequence+`"`) {
			t.Errorf("%s: %s", what, a.body)
		}
	}
	mark("first", read("2", "r1"), "", "2")
	mark("repeated", read("2", "r1"), "true", "2")
	_, reason, _ := read("3", "r1").error()
	testkit.Equal(t, "another sequence", reason, "IDEMPOTENCY_KEY_REUSED")
	mark("further", read("4", "r2"), "", "4")
	mark("an older one repeated goes not back", read("2", "r1"), "true", "4")
	mark("nothing to do", read("3", "r3"), "", "4")
	mark("nothing to do, repeated", read("3", "r3"), "true", "4")
	mark("without an id", read("5", ""), "", "5")
	calls := s.tally().of(func() { mark("again without an id", read("5", ""), "", "5") })
	testkit.Equal(t, "calls of a mark that is there", strings.Count(calls, "get"), 2)
}

// An answer that leaves the outcome open carries the key to repeat with, also if the
// server made it, and a repetition with it does the work once.
func TestOpenOutcomeCarriesTheKey(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for what, tt := range map[string]struct{ procedure, body, field string }{
		"no id": {sendMessage, `{"chatId":"` + id + `","content":"x"}`, "client_message_id"},
		"an id": {chatService + "UpdateChat", `{"chatId":"` + id + `","name":"x","requestId":"r7"}`, "request_id"},
	} {
		s.tally().lose()
		a := s.post(tt.procedure, tt.body)
		_, reason, _ := a.error()
		testkit.Equal(t, what, reason, "OUTCOME_UNKNOWN")
		key := a.metadata()[tt.field]
		if key == "" || (tt.field == "request_id" && key != "r7") {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
}

// The store looks no id up that the server makes: there can be no row of it. One that a
// client gives may be there.
func TestMadeIDsAreNotLookedUp(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	s.tally().ids = nil
	send := func(clientID string) (message, made string) {
		sent, err := s.ann().message.SendMessage(t.Context(),
			&messagev1.SendMessageRequest{ChatId: id, Content: "x", ClientMessageId: clientID})
		s.must(err)
		return sent.GetMessageId(), sent.GetClientMessageId()
	}
	first, made := send("")
	again, _ := send(made)
	testkit.Equal(t, "the message, once more", again, first)
	testkit.Equal(t, "ids", s.tally().ids, []string{"fresh", "looked up"})
}

// A direct chat is always one of the caller's own, with one other.
func TestDirectChatOfOthersIsInvalid(t *testing.T) {
	s := newServer(t)
	for _, members := range [][]string{{"bob", "cid"}, {"ann", "bob", "cid"}, {"bob", "cid", "cid"}} {
		_, err := s.ann().chat.CreateChat(t.Context(),
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: members})
		wantCode(t, strings.Join(members, " "), err, connect.CodeInvalidArgument, "INVALID_ARGUMENT")
	}
}

// Whom a group was created with sees all that was sent since the creation was answered,
// also if the server stopped in the middle of it and somebody else completed it later:
// in their list, as unread, in the history, and in the change log.
func TestWhatIsSentDuringACreation(t *testing.T) {
	for _, history := range []chatv1.HistoryMode{chatv1.HistoryMode_HISTORY_MODE_ALL,
		chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED} {
		s := newServer(t)
		s.must(s.chats.EnsureUser(t.Context(), "dan"))
		s.tally().only(1) // the first phase
		res, err := s.ann().chat.CreateChat(t.Context(), &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"bob", "cid"}, History: history,
		})
		s.must(err)
		s.tally().only(-1)
		id := res.GetOverview().GetChat().GetChatId()
		for _, text := range []string{"one", "two", "three"} {
			_, err := s.ann().message.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: text})
			s.must(err)
		}
		// comes in by this
		_, err = s.chats.Change(t.Context(), chat.OpRole,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cid", Role: "admin"})
		s.must(err)
		s.must(s.chats.FinishPending(t.Context(), id))
		_, err = s.chats.Change(t.Context(), chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: "dan", Role: "member"})
		s.must(err)
		for user, want := range map[string]int{"bob": 3, "cid": 3,
			"dan": map[bool]int{true: 0, false: 3}[history == chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED]} {
			as := s.clients(http.DefaultClient, user)
			list, err := as.message.ListMessages(t.Context(), &messagev1.ListMessagesRequest{ChatId: id})
			s.must(err)
			testkit.Equal(t, user+"'s history", len(list.GetMessages()), want)
			changes, err := as.message.ListChanges(t.Context(), &messagev1.ListChangesRequest{ChatId: id})
			s.must(err)
			n := 0
			for _, c := range changes.GetChanges() {
				if c.GetMessage() != nil {
					n++
				}
			}
			testkit.Equal(t, user+"'s changes", n, want)
			got, err := as.chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
			s.must(err)
			if user == "dan" {
				want = 0 // what was there before is read
			}
			testkit.Equal(t, user+"'s unread messages", got.GetOverview().GetState().GetUnreadCount(), int64(want))
		}
	}
}

// L-146: whoever asks for whatever in a chat, it takes the same calls of the store to
// refuse it whether the chat is one of others, was left, or does not exist (S-54).
func TestSec_S_54_RefusalsTakeTheSameCalls(t *testing.T) {
	s := newServer(t)
	s.must(s.chats.EnsureUser(t.Context(), "new"))
	left, foreign := s.group("bob", "cid"), s.othersChat()
	_, err := s.chats.Change(t.Context(), chat.OpLeave, chat.MemberChange{Caller: "cid", ChatID: left})
	s.must(err)
	checked := 0
	for _, op := range append(operations, further...) {
		if !strings.Contains(op.body, "%") {
			continue
		}
		for _, request := range []string{"", `,"requestId":"r"}`} {
			body := op.body
			if request != "" {
				if strings.Contains(op.procedure, "/List") || op.procedure == getChat {
					continue
				}
				if op.procedure == sendMessage {
					request = `,"clientMessageId":"01900000-0000-7000-8000-000000000001"}`
				}
				body = strings.TrimSuffix(body, "}") + request
			}
			calls := func(id string) string {
				return s.tally().of(func() {
					a := s.post(op.procedure, strings.NewReplacer("%", id, "@", "cid").Replace(body), "X-User", "cid")
					testkit.Equal(t, op.name, outcome(a), stranger)
				})
			}
			none := calls(chat.NewID("chat_"))
			for what, id := range map[string]string{"left": left, "of others": foreign} {
				if got := calls(id); got != none {
					t.Errorf("%s in a chat that is %s: %s; in none: %s", op.name, what, got, none)
				}
			}
			checked++
		}
	}
	if checked < 40 {
		t.Errorf("%d requests were checked", checked)
	}
}
