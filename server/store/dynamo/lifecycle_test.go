package dynamo_test

import (
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// What a group's life is made of, also those plans that only check, and repetitions
// of each.
func TestLifecycle(t *testing.T) { lifecycle(t, dynamotest.Fresh(t)) }

// The same while requests are throttled, cancelled or lose their answers.
func TestLifecycleUnderFaults(t *testing.T) {
	f := dynamotest.RandomChaos(5)
	lifecycle(t, dynamotest.Fresh(t, f.Inject))
	if f.Count() == 0 {
		t.Fatal("nothing was injected")
	}
}

func lifecycle(t *testing.T, s *dynamo.Store) {
	svc := service(t, s, "p", nil)
	id := group(t, svc, "ann", "bob")
	for _, u := range []string{"cid", "dan"} {
		if err := svc.EnsureUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	role := func(user string) table.Role {
		t.Helper()
		it, err := s.Get(ctx, table.MembershipKey(id, user), store.Strong)
		if err != nil {
			t.Fatal(err)
		}
		return table.MembershipFrom(id, user, it).Role
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	change := func(op chat.Operation, caller, user string, role table.Role, request string) chat.Changed {
		t.Helper()
		out, err := svc.Change(ctx, op,
			chat.MemberChange{Caller: caller, ChatID: id, UserID: user, Role: role, RequestID: request})
		must(string(op), err)
		return out
	}
	change(chat.OpAdd, "ann", "cid", table.Member, "a")
	change(chat.OpRole, "ann", "bob", table.Admin, "b")
	change(chat.OpRole, "ann", "bob", table.Admin, "c") // is one: a plan that only checks and remembers
	change(chat.OpRole, "ann", "bob", table.Admin, "")  // only checks
	if !change(chat.OpRole, "ann", "bob", table.Admin, "c").Replayed || role("bob") != table.Admin {
		t.Errorf("bob is %q", role("bob"))
	}
	name := "renamed"
	for range 2 {
		row, _, err := svc.UpdateChat(ctx, chat.ChatChange{Caller: "bob", ChatID: id, Name: &name, RequestID: "d"})
		must("rename", err)
		if row.Name != name || row.MemberCount != 3 {
			t.Errorf("%+v", row)
		}
	}
	change(chat.OpRemove, "bob", "cid", "", "e")
	change(chat.OpLeave, "bob", "", "", "f")
	until, yes := time.Now().Add(time.Hour).UnixMilli(), true
	for _, own := range []chat.MemberSettings{
		{MutedUntil: &until, Procedure: "mute", RequestID: "g"}, {Archived: &yes, Procedure: "archive"},
		{MutedUntil: new(int64), Procedure: "unmute"},
	} {
		own.Caller, own.ChatID = "ann", id
		_, err := svc.SetMemberSettings(ctx, own)
		must(own.Procedure, err)
	}
	it, err := s.Get(ctx, table.UserChatKey("ann", id), store.Strong)
	must("read", err)
	if row := table.UserChatFrom("ann", id, it); row.MutedUntil != 0 || !row.Archived {
		t.Errorf("%+v", row)
	}
	found, err := svc.CheckCount(ctx, id)
	if err != nil || found.Stored != 1 || found.Counted != 1 || found.Corrected {
		t.Errorf("%+v, %v", found, err)
	}
	direct, err := svc.CreateDirect(ctx, chat.CreateDirect{Caller: "ann", Other: "dan"})
	must("direct", err)
	if _, err := svc.Change(ctx, chat.OpAdd,
		chat.MemberChange{Caller: "ann", ChatID: direct.ChatID, UserID: "cid", Role: table.Member}); !errors.Is(err,
		chat.ErrInvalidOperation) {
		t.Error(err)
	}
}
