package rest_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// L-067 to L-100, L-154: members come, change and go.
func TestMembers(t *testing.T) {
	w := newFixture(t)
	path := w.group("bob")
	testkit.Equal(t, "L-067", w.do("ann", "POST", path+"/members", `{"userId":"cid"}`, "Idempotency-Key", "k").want(201,
		"").at("member", "userId"), "cid")
	again := w.do("ann", "POST", path+"/members", `{"user_id":"cid","request_id":"k"}`).want(201, "")
	testkit.Equal(t, "L-076: replay", again.header.Get("X-Idempotent-Replay"), "true")
	w.do("ann", "POST", path+"/members", `{"userId":"cid"}`).want(409, "ALREADY_MEMBER")
	w.do("ann", "POST", path+"/members", `{"userId":"nobody"}`).want(404, "USER_NOT_FOUND")
	w.do("bob", "POST", path+"/members", `{"userId":"dan"}`).want(403, "FORBIDDEN")
	w.do("dan", "POST", path+"/members", `{"userId":"dan"}`).want(403, "NOT_A_MEMBER")

	testkit.Equal(t, "L-097",
		w.do("ann", "PATCH", path+"/members/cid", `{"role":"MEMBER_ROLE_ADMIN"}`).want(200, "").at("member",
			"role"), "MEMBER_ROLE_ADMIN")
	w.do("bob", "PATCH", path+"/members/cid", `{"role":"MEMBER_ROLE_MEMBER"}`).want(403, "FORBIDDEN")
	w.do("ann", "PATCH", path+"/members/cid", `{"role":"MEMBER_ROLE_MEMBER","userId":"bob"}`).want(400, "INVALID_ARGUMENT")

	gone := w.do("ann", "DELETE", path+"/members/bob?requestId=r", "").want(204, "")
	testkit.Equal(t, "L-083: body", len(gone.body), 0)
	testkit.Equal(t, "type", gone.header.Get("Content-Type"), "")
	testkit.Equal(t, "replay", w.do("ann", "DELETE", path+"/members/bob", "", "Idempotency-Key", "r").want(204,
		"").header.Get("X-Idempotent-Replay"), "true")
	w.do("ann", "DELETE", path+"/members/bob", "").want(404, "MEMBER_NOT_FOUND")
	w.do("cid", "DELETE", path+"/members/ann", "").want(400, "INVALID_OPERATION")

	w.do("ann", "POST", path+"/leave", "").want(400, "INVALID_OPERATION")
	w.do("cid", "POST", path+"/leave", "").want(204, "")
	w.do("cid", "POST", path+"/leave", "{}").want(403, "NOT_A_MEMBER")

	testkit.Equal(t, "rename", w.do("ann", "PATCH", path, `{"name":"new"}`).want(200, "").at("chat", "name"), "new")
	w.do("ann", "PATCH", path, `{"name":"late","expectedVersion":"1"}`).want(409, "VERSION_MISMATCH")
	testkit.Equal(t, "mute",
		w.do("ann", "POST", path+"/mute", `{"mutedUntil":"2999-01-01T00:00:00Z"}`).want(200, "").at("state",
			"mutedUntil"), "2999-01-01T00:00:00Z")
	testkit.Equal(t, "unmute", w.do("ann", "POST", path+"/unmute", "").want(200, "").at("state", "mutedUntil"), nil)
}

// L-101 to L-106, L-108: a direct chat stays what it is, but for the caller's own
// row.
func TestDirectChatsDoNotChange(t *testing.T) {
	w := newFixture(t)
	id, _ := w.do("ann", "POST", chats, `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`).want(201, "").at("overview",
		"chat", "chatId").(string)
	path := chats + "/" + id
	for _, c := range [][3]string{
		{"POST", "/members", `{"userId":"cid"}`},
		{"DELETE", "/members/bob", ""},
		{"PATCH", "/members/bob", `{"role":"MEMBER_ROLE_ADMIN"}`},
		{"POST", "/leave", ""},
		{"PATCH", "", `{"name":"x"}`},
	} {
		w.do("ann", c[0], path+c[1], c[2]).want(400, "INVALID_OPERATION")
		w.do("dan", c[0], path+c[1], c[2]).want(403, "NOT_A_MEMBER")
	}
	w.do("ann", "POST", path+"/mute", "").want(200, "")
	w.do("ann", "POST", path+"/unmute", "").want(200, "")
}
