package auth

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/chat/command"
)

// Tokens, the rules of chats and the contracts take the same user ids (L-011): those of
// a table, which tests of other packages may read too.
func TestUserIDs(t *testing.T) {
	text, err := os.ReadFile("testdata/user_ids.json")
	if err != nil {
		t.Fatal(err)
	}
	var ids struct{ Accepted, Refused []string }
	if err := json.Unmarshal(text, &ids); err != nil || len(ids.Accepted) < 10 || len(ids.Refused) < 10 {
		t.Fatal(err, ids)
	}
	ids.Refused = append(ids.Refused, "a\xff", "\xc3") // not to be said in JSON
	k := testKey(t)
	b := newFixture(t, k)
	valid := func(m proto.Message) error {
		if _, err := proto.Marshal(m); err != nil { // as it would come over the wire
			return err
		}
		return protovalidate.Validate(m)
	}
	const chatID = "chat_01ARZ3NDEKTSV4RRFFQ69G5FAV"
	takes := func(id string) map[string]error {
		_, issued := k.Issue(id, testTime, time.Hour)
		return map[string]error{
			"token": issued, "chats": command.CheckUser(id),
			"AddMember":    valid(&chatv1.AddMemberRequest{ChatId: chatID, UserId: id}),
			"RemoveMember": valid(&chatv1.RemoveMemberRequest{ChatId: chatID, UserId: id}),
			"UpdateMemberRole": valid(&chatv1.UpdateMemberRoleRequest{ChatId: chatID, UserId: id,
				Role: chatv1.MemberRole_MEMBER_ROLE_ADMIN}),
			"CreateChat": valid(&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT,
				MemberIds: []string{id}}),
		}
	}
	for _, id := range ids.Accepted {
		for what, err := range takes(id) {
			if err != nil {
				t.Errorf("%s does not take %q: %v", what, id, err)
			}
		}
		if p, err := b.try(t, "Bearer "+issue(t, k, id)); err != nil || p.UserID != id {
			t.Errorf("%q is let in as %q: %v", id, p.UserID, err)
		}
	}
	for _, id := range ids.Refused {
		for what, err := range takes(id) {
			if err == nil {
				t.Errorf("%s takes %q", what, id)
			}
		}
	}
}
