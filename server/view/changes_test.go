package view_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/table"
)

func describe(changes []*messagev1.Change) []string {
	out := []string{}
	for _, c := range changes {
		switch b := c.GetBody().(type) {
		case *messagev1.Change_Message:
			out = append(out, fmt.Sprintf("%d:%s@%d", c.GetVersion(), b.Message.GetContent(), b.Message.GetVersion()))
		case *messagev1.Change_MembershipChange:
			kind := strings.ToLower(strings.TrimPrefix(b.MembershipChange.GetKind().String(), "KIND_"))
			out = append(out, fmt.Sprintf("%d:%s %s@%d", c.GetVersion(), b.MembershipChange.GetUserId(), kind,
				b.MembershipChange.GetVersion()))
		case *messagev1.Change_Chat:
			out = append(out, fmt.Sprintf("%d:chat@%d", c.GetVersion(), b.Chat.GetVersion()))
		}
	}
	return out
}

func TestChanges(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob") // 1 chat, 2 bob
	w.send(id, "ann", "a")                 // 3
	w.add(id, "ann", "cid")                // 4
	w.send(id, "bob", "b")                 // 5
	w.remove(id, "ann", "cid")             // 6
	w.add(id, "ann", "dan")                // 7

	res := w.changes("bob", id, 0, 0)
	testkit.Equal(t, "all", describe(res.GetChanges()),
		[]string{"1:chat@7", "2:bob added@2", "3:a@3", "5:b@5", "6:cid removed@6", "7:dan added@7"})
	testkit.Equal(t, "version", res.GetVersion(), 7)

	dan := res.GetChanges()[5].GetMembershipChange()
	testkit.Equal(t, "by, count, role", fmt.Sprintf("%s %d %s", dan.GetChangedBy(), dan.GetMemberCount(), dan.GetRole()),
		"ann 3 MEMBER_ROLE_MEMBER")
	cid := res.GetChanges()[4].GetMembershipChange()
	testkit.Equal(t, "removed: by, count, role",
		fmt.Sprintf("%s %d %s", cid.GetChangedBy(), cid.GetMemberCount(), cid.GetRole()),
		"ann 2 MEMBER_ROLE_UNSPECIFIED")

	// A page that ends before the removal shows the present state already.
	res = w.changes("bob", id, 0, 4)
	testkit.Equal(t, "first page", describe(res.GetChanges()),
		[]string{"1:chat@7", "2:bob added@2", "3:a@3", "4:cid removed@6"})
	testkit.Equal(t, "version", res.GetVersion(), 4)
	if c := res.GetChanges()[3].GetMembershipChange(); c.GetChangedBy() != "" || c.GetMemberCount() != 0 {
		t.Fatalf("who removed is not known from this page: %v", c)
	}
	res = w.changes("bob", id, 4, 4)
	testkit.Equal(t, "second page", describe(res.GetChanges()), []string{"5:b@5", "6:cid removed@6", "7:dan added@7"})

	// Back again: the page with the removal shows a member.
	w.add(id, "ann", "cid") // 8
	res = w.changes("bob", id, 4, 3)
	testkit.Equal(t, "page", describe(res.GetChanges()), []string{"5:b@5", "6:cid added@8", "7:dan added@7"})
	testkit.Equal(t, "nothing new", len(w.changes("bob", id, 8, 0).GetChanges()), 0)
}

func TestChangesReset(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob") // versions 1 and 2
	for i := 1; i <= 1010; i++ {
		w.send(id, "ann", fmt.Sprint(i)) // version i+2
	}
	head := w.headOf(id).Version
	for _, tt := range []struct {
		after int64
		reset bool
	}{{0, true}, {head - 1001, true}, {head - 1000, false}, {head, false}, {head + 1, true}, {1 << 62, true}} {
		res := w.changes("bob", id, tt.after, 10)
		name := fmt.Sprint("after ", tt.after)
		testkit.Equal(t, name, res.GetReset_(), tt.reset)
		testkit.Equal(t, name, res.GetHead().GetVersion(), head)
		if tt.reset {
			testkit.Equal(t, name, res.GetVersion(), head)
			testkit.Equal(t, name, len(res.GetChanges()), 0)
			testkit.Equal(t, name, texts(res.GetMessages()),
				[]string{"1001", "1002", "1003", "1004", "1005", "1006", "1007", "1008", "1009", "1010"})
		}
	}
	// A member since just now is not behind what it never saw.
	old := w.group(table.SinceJoined, "ann", "bob")
	for i := range 1010 {
		w.send(old, "ann", fmt.Sprint("old ", i))
	}
	w.add(old, "ann", "cid")
	w.send(old, "ann", "new")
	res := w.changes("cid", old, 0, 0)
	testkit.Equal(t, "reset", res.GetReset_(), false)
	testkit.Equal(t, "changes", describe(res.GetChanges()), []string{"1013:cid added@1013", "1014:new@1014"})
}

// Whatever a client has, asking on from the version reached brings it to the
// head, with each object in its newest state.
func TestChangesConverge(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	for i := range 30 {
		switch i % 5 {
		case 0:
			w.add(id, "ann", "cid")
		case 3:
			w.remove(id, "ann", "cid")
		default:
			w.send(id, "ann", fmt.Sprint(i))
		}
	}
	for _, size := range []int32{1, 2, 3, 7, 100} {
		newest := map[string]int64{}
		for own := int64(0); own < w.headOf(id).Version; {
			res := w.changes("bob", id, own, size)
			if res.GetVersion() <= own {
				t.Fatalf("no progress at %d", own)
			}
			own = res.GetVersion()
			for _, c := range res.GetChanges() {
				key, version := "chat", c.GetChat().GetVersion()
				if m := c.GetMessage(); m != nil {
					key, version = m.GetContent(), m.GetVersion()
				} else if m := c.GetMembershipChange(); m != nil {
					key, version = m.GetUserId()+m.GetKind().String(), m.GetVersion()
				}
				newest[key] = max(newest[key], version)
			}
		}
		head := w.headOf(id)
		testkit.Equal(t, "messages", newest["29"], head.Version)
		testkit.Equal(t, "last removal", newest["cidKIND_REMOVED"] > newest["cidKIND_ADDED"], true)
	}
}

// Somebody who is removed, added and given a role within one page, or over several,
// is a member since the addition.
func TestChangesOfAMemberWhoCameBack(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob", "cid")
	after := w.headOf(id).Version
	w.advance(time.Hour)
	w.remove(id, "ann", "bob")
	w.advance(time.Hour)
	w.add(id, "ann", "bob")
	joined := w.clock()
	w.advance(time.Hour)
	_, err := w.chat.Change(w.ctx, chat.OpRole,
		chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Admin})
	w.must(err)
	for size := int32(1); size <= 3; size++ {
		at, added := after, time.Time{}
		for at < w.headOf(id).Version {
			res := w.changes("cid", id, at, size)
			for _, c := range res.GetChanges() {
				m := c.GetMembershipChange()
				if m.GetKind() == messagev1.MembershipChange_KIND_ADDED {
					added = m.GetChangedAt().AsTime()
				}
				testkit.Equal(t, "role", m.GetRole(), chatv1.MemberRole_MEMBER_ROLE_ADMIN)
			}
			at = res.GetVersion()
		}
		testkit.Equal(t, fmt.Sprint("joined, in pages of ", size), added, joined)
	}
	// Whoever knows the addition is sent the role alone.
	res := w.changes("cid", id, after+2, 10)
	testkit.Equal(t, "kind", res.GetChanges()[0].GetMembershipChange().GetKind(),
		messagev1.MembershipChange_KIND_ROLE_CHANGED)
}
