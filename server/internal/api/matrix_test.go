package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const chatService = "/parley.chat.v1.ChatService/"

// A cell of the matrix: what the API answers.
const (
	allowed   = "200"
	forbidden = "403 FORBIDDEN"
	stranger  = "403 NOT_A_MEMBER"
	invalid   = "400 INVALID_OPERATION"
)

// operations are the rows of the matrix (L-132 to L-142). % stands for a group of
// the owner ann, the admin amy and the members bob and cid; dan is in no chat.
var operations = []struct {
	name, procedure, body string
	cells                 [4]string // by owner, admin, member, non-member
}{
	{"L-132 create group", createChat, `{"type":2,"name":"n","memberIds":["cid"]}`,
		[4]string{allowed, allowed, allowed, allowed}},
	{"L-133 create direct", createChat, `{"type":1,"memberIds":["cid"]}`, [4]string{allowed, allowed, allowed, allowed}},
	{"L-134 rename", chatService + "UpdateChat", `{"chatId":"%","name":"n2"}`,
		[4]string{allowed, allowed, forbidden, stranger}},
	{"L-135 add as member", chatService + "AddMember", `{"chatId":"%","userId":"new"}`,
		[4]string{allowed, allowed, forbidden, stranger}},
	{"L-136 add as admin", chatService + "AddMember", `{"chatId":"%","userId":"new","role":2}`,
		[4]string{allowed, forbidden, forbidden, stranger}},
	{"L-137 remove", chatService + "RemoveMember", `{"chatId":"%","userId":"cid"}`,
		[4]string{allowed, allowed, forbidden, stranger}},
	{"L-138 change role", chatService + "UpdateMemberRole", `{"chatId":"%","userId":"cid","role":2}`,
		[4]string{allowed, forbidden, forbidden, stranger}},
	{"L-139 leave", chatService + "LeaveChat", `{"chatId":"%"}`, [4]string{invalid, allowed, allowed, stranger}},
	{"L-140 mute", chatService + "MuteChat", `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"L-141 send", sendMessage, `{"chatId":"%","content":"x"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"L-142 read history", listMessages, `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
}

// further holds rows beside the matrix: the exceptions that its cells name, and
// operations that the matrix does not have.
var further = []struct {
	name, procedure, body string
	cells                 [4]string
}{
	{"L-137 remove an admin", chatService + "RemoveMember", `{"chatId":"%","userId":"ada"}`,
		[4]string{allowed, forbidden, forbidden, stranger}},
	{"L-079 L-185 remove the owner", chatService + "RemoveMember", `{"chatId":"%","userId":"ann"}`,
		[4]string{invalid, invalid, forbidden, stranger}},
	{"L-087 remove oneself", chatService + "RemoveMember", `{"chatId":"%","userId":"@"}`,
		[4]string{invalid, invalid, invalid, stranger}},
	{"L-084 remove nobody", chatService + "RemoveMember", `{"chatId":"%","userId":"new"}`,
		[4]string{"404 MEMBER_NOT_FOUND", "404 MEMBER_NOT_FOUND", forbidden, stranger}},
	{"L-074 add as owner", chatService + "AddMember", `{"chatId":"%","userId":"new","role":1}`,
		[4]string{invalid, invalid, invalid, stranger}},
	{"L-075 add nobody", chatService + "AddMember", `{"chatId":"%","userId":"ghost"}`,
		[4]string{"404 USER_NOT_FOUND", "404 USER_NOT_FOUND", forbidden, stranger}},
	{"L-068 add a member", chatService + "AddMember", `{"chatId":"%","userId":"cid"}`,
		[4]string{"409 ALREADY_MEMBER", "409 ALREADY_MEMBER", forbidden, stranger}},
	{"L-096 make an owner", chatService + "UpdateMemberRole", `{"chatId":"%","userId":"cid","role":1}`,
		[4]string{invalid, invalid, invalid, stranger}},
	{"L-138 change one's own role", chatService + "UpdateMemberRole", `{"chatId":"%","userId":"@","role":2}`,
		[4]string{invalid, forbidden, forbidden, stranger}},
	{"L-094 change the owner's role", chatService + "UpdateMemberRole", `{"chatId":"%","userId":"ann","role":2}`,
		[4]string{invalid, forbidden, forbidden, stranger}},
	{"change nobody's role", chatService + "UpdateMemberRole", `{"chatId":"%","userId":"new","role":2}`,
		[4]string{"404 MEMBER_NOT_FOUND", forbidden, forbidden, stranger}},
	{"L-100 same role", chatService + "UpdateMemberRole", `{"chatId":"%","userId":"cid","role":3}`,
		[4]string{allowed, forbidden, forbidden, stranger}},
	{"L-140 unmute", chatService + "UnmuteChat", `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"archive", chatService + "ArchiveChat", `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"unarchive", chatService + "UnarchiveChat", `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"read the chat", getChat, `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"list members", chatService + "ListMembers", `{"chatId":"%"}`, [4]string{allowed, allowed, allowed, stranger}},
	{"list changes", "/parley.message.v1.MessageService/ListChanges", `{"chatId":"%"}`,
		[4]string{allowed, allowed, allowed, stranger}},
	{"mark read", "/parley.message.v1.MessageService/MarkRead", `{"chatId":"%","sequence":"1"}`,
		[4]string{allowed, allowed, allowed, stranger}},
}

// cast makes the group of the matrix.
func (s *server) cast() string {
	s.Helper()
	for _, u := range []string{"amy", "ada", "dan", "new"} {
		s.must(s.chats.EnsureUser(s.Context(), u))
	}
	id := s.group("bob", "cid")
	for _, u := range []string{"amy", "ada"} {
		_, err := s.chats.Change(s.Context(), chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: u, Role: table.Admin})
		s.must(err)
	}
	return id
}

// outcome is an answer as the cells have it.
func outcome(a answer) string {
	if a.status == 200 {
		return allowed
	}
	code, reason, _ := a.error()
	status := map[string]string{
		"permission_denied": "403", "failed_precondition": "400", "not_found": "404", "already_exists": "409",
		"invalid_argument": "400",
	}[code]
	return status + " " + reason
}

// The authorization matrix: 11 operations by 4 roles, every cell executed, and
// what it leaves open beside it (L-132 to L-146, L-187, S-16).
func TestSec_S_16_AuthorizationMatrix(t *testing.T) {
	callers := [4]string{"ann", "amy", "bob", "dan"}
	cells := 0
	reasons := map[string]int{}
	for i, op := range append(operations, further...) {
		for j, user := range callers {
			t.Run(op.name+" by "+[]string{"owner", "admin", "member", "non-member"}[j], func(t *testing.T) {
				s := newServer(t)
				id := s.cast()
				before := s.head(id)
				a := s.post(op.procedure, strings.NewReplacer("%", id, "@", user).Replace(op.body), "X-User", user)
				testkit.Equal(t, "answer", outcome(a), op.cells[j])
				_, reason, _ := a.error()
				reasons[reason]++
				if op.cells[j] != allowed && s.head(id) != before {
					t.Error("a refusal changed the chat")
				}
				if i < len(operations) {
					cells++
				}
				if !strings.Contains(op.body, "%") {
					return
				}
				// L-146: a chat that does not exist answers whoever asks as a chat of others does.
				unknown := s.post(op.procedure, strings.NewReplacer("%", chat.NewID("chat_"), "@", user).Replace(op.body), "X-User",
					user)
				testkit.Equal(t, "no such chat", outcome(unknown), stranger)
				others := s.post(op.procedure, strings.NewReplacer("%", s.othersChat(), "@", user).Replace(op.body), "X-User", user)
				testkit.Equal(t, "a chat of others, to the letter", string(unknown.body), string(others.body))
			})
		}
	}
	testkit.Equal(t, "cells of the matrix", cells, 44)
	// L-155: no other reason comes out of these operations.
	for reason := range reasons {
		switch reason {
		case "", "FORBIDDEN", "NOT_A_MEMBER", "INVALID_OPERATION", "MEMBER_NOT_FOUND", "USER_NOT_FOUND", "ALREADY_MEMBER":
		default:
			t.Errorf("reason %s", reason)
		}
	}
}

func (s *server) head(id string) table.Head {
	s.Helper()
	it, err := s.store.Get(s.Context(), table.HeadKey(id), store.Strong)
	s.must(err)
	return table.HeadFrom(id, it)
}

// othersChat makes a group of two people who are in no other chat.
func (s *server) othersChat() string {
	s.Helper()
	for _, u := range []string{"yan", "zoe"} {
		s.must(s.chats.EnsureUser(s.Context(), u))
	}
	c, err := s.chats.CreateGroup(s.Context(), chat.CreateGroup{Caller: "yan", Name: "secret", Members: []string{"zoe"}})
	s.must(err)
	return c.ChatID
}

// L-101 to L-108, L-186: whatever would change a direct chat is refused, whoever
// asks; what concerns the caller alone, and sending, is not.
func TestDirectChatsDoNotChange(t *testing.T) {
	s := newServer(t)
	s.must(s.chats.EnsureUser(t.Context(), "dan"))
	c, err := s.chats.CreateDirect(t.Context(), chat.CreateDirect{Caller: "ann", Other: "bob"})
	s.must(err)
	before := s.head(c.ChatID)
	for _, op := range append(operations[2:8:8], further...) {
		for _, user := range []string{"ann", "bob"} {
			if !strings.Contains(op.procedure, "Member") && !strings.Contains(op.procedure, "Leave") &&
				!strings.Contains(op.procedure, "UpdateChat") || strings.Contains(op.procedure, "List") {
				continue
			}
			a := s.post(op.procedure, strings.NewReplacer("%", c.ChatID, "@", user).Replace(op.body), "X-User", user)
			testkit.Equal(t, op.name+" by "+user, outcome(a), invalid)
		}
		if strings.Contains(op.body, "%") {
			a := s.post(op.procedure, strings.NewReplacer("%", c.ChatID, "@", "dan").Replace(op.body), "X-User", "dan")
			testkit.Equal(t, op.name+" by dan", outcome(a), stranger)
		}
	}
	testkit.Equal(t, "head", s.head(c.ChatID), before)
	for _, user := range []string{"ann", "bob"} {
		for _, procedure := range []string{"MuteChat", "UnmuteChat", "ArchiveChat", "UnarchiveChat"} { // L-106
			testkit.Equal(t, procedure, outcome(s.post(chatService+procedure, `{"chatId":"`+c.ChatID+`"}`, "X-User", user)),
				allowed)
		}
		testkit.Equal(t, "L-107 send",
			outcome(s.post(sendMessage, `{"chatId":"`+c.ChatID+`","content":"x"}`, "X-User", user)),
			allowed)
	}
}

// Whatever RPC and whatever field holds an id: one that is not the caller's gets
// the same answer as one that does not exist. The requests are made from the
// descriptors, so that a new RPC cannot be forgotten.
func TestForeignIDs(t *testing.T) {
	s := newServer(t)
	id := s.cast()
	foreign := s.othersChat()
	_, err := s.chats.Send(t.Context(), chat.Send{Caller: "yan", ChatID: foreign, Content: "secret"})
	s.must(err)
	valid := map[protoreflect.Name]string{
		"chat_id": `"` + id + `"`, "user_id": `"cid"`, "name": `"n"`, "role": `3`, "content": `"x"`, "sequence": `"1"`,
		"stream_id": `"p.str_01"`, "position": `"1"`,
		"type": `2`, "member_ids": `["cid"]`,
	}
	open := s.openStream("yan")
	checked := 0
	for _, f := range ownFiles {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				if m.IsStreamingServer() {
					s.foreignStream(foreign)
					checked++
					continue
				}
				procedure := "/" + string(service.FullName()) + "/" + string(m.Name())
				body := func(field protoreflect.Name, value string) string {
					var parts []string
					for k := range m.Input().Fields().Len() {
						name := m.Input().Fields().Get(k).Name()
						v, ok := valid[name]
						if name == field {
							v, ok = value, true
						}
						if ok {
							parts = append(parts, fmt.Sprintf("%q:%s", name, v))
						}
					}
					return "{" + strings.Join(parts, ",") + "}"
				}
				for k := range m.Input().Fields().Len() {
					field := m.Input().Fields().Get(k)
					name := string(field.Name())
					isID := strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_ids")
					if !isID || name == "request_id" || name == "client_message_id" { // these name the caller's own requests
						continue
					}
					checked++
					switch name {
					case "chat_id":
						got := s.post(procedure, body("chat_id", `"`+foreign+`"`))
						none := s.post(procedure, body("chat_id", `"`+chat.NewID("chat_")+`"`))
						testkit.Equal(t, procedure+" with a foreign chat", outcome(got), stranger)
						testkit.Equal(t, procedure+" with no chat", string(none.body), string(got.body))
					case "user_id":
						if m.Name() == "AddMember" { // anybody may be added
							testkit.Equal(t, "add a user of another chat", outcome(s.post(procedure, body("user_id", `"zoe"`))), allowed)
							continue
						}
						got := s.post(procedure, body("user_id", `"yan"`))
						testkit.Equal(t, procedure+" with a user of another chat", outcome(got), "404 MEMBER_NOT_FOUND")
					case "stream_id":
						got := s.post(procedure, body("stream_id", `"`+open+`"`))
						none := s.post(procedure, body("stream_id", `"p.str_99"`))
						_, reason, _ := none.error()
						testkit.Equal(t, procedure+" with no stream", reason, "STREAM_GONE")
						testkit.Equal(t, procedure+" with a foreign stream that is open", string(got.body), string(none.body))
						own := s.post(procedure, body("stream_id", `"`+open+`"`), "X-User", "yan")
						testkit.Equal(t, procedure+" with the own stream", own.status, http.StatusOK)
					case "member_ids":
						testkit.Equal(t, procedure+" with users of other chats",
							outcome(s.post(procedure, body("member_ids", `["yan"]`))),
							allowed)
					default:
						t.Errorf("%s: nothing is known about the id %s", procedure, name)
					}
					if got := s.post(listMessages, `{"chatId":"`+foreign+`"}`, "X-User", "yan"); !strings.Contains(string(got.body),
						"secret") {
						t.Fatalf("%s damaged a foreign chat", procedure)
					}
				}
			}
		}
	}
	if checked < 18 {
		t.Errorf("%d fields were checked", checked)
	}
}

// openStream opens a stream of a user that lives as long as the test, and returns
// its id once it has sent what it must.
func (s *server) openStream(user string) string {
	s.Helper()
	stream, err := s.clients(http.DefaultClient, user).delivery.Subscribe(s.Context(), &deliveryv1.SubscribeRequest{})
	s.must(err)
	next := receiver(s.T, stream)
	id := next().GetHello().GetStreamId()
	for next().GetHeartbeat() == nil {
	}
	return id
}

// foreignStream: a stream that claims to know a chat of others learns that it is
// none of its user's, as of one that does not exist.
func (s *server) foreignStream(foreign string) {
	s.Helper()
	var answers []string
	for _, id := range []string{foreign, chat.NewID("chat_")} {
		ctx, cancel := context.WithCancel(s.Context())
		stream, err := s.ann().delivery.Subscribe(ctx,
			&deliveryv1.SubscribeRequest{KnownChats: []*deliveryv1.KnownChat{{ChatId: id, Version: 1}}})
		s.must(err)
		next := receiver(s.T, stream)
		got := ""
		for f := next(); f.GetHeartbeat() == nil; f = next() {
			if f.GetChatId() == id {
				mc := f.GetMembershipChange()
				got += fmt.Sprint(f.GetVersion(), f.GetAfterVersion(), mc.GetKind(), mc.GetVersion(),
					f.GetHead() != nil, f.GetMessage() != nil, ";")
			}
		}
		cancel()
		answers = append(answers, got)
	}
	testkit.Equal(s.T, "a foreign chat and none", answers[0], answers[1])
	if answers[0] == "" || strings.Contains(answers[0], "true") {
		s.Fatalf("answered for a foreign chat: %s", answers[0])
	}
}
