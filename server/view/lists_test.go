package view_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

func (w *fixture) filtered(user string, archived, unread *bool) []string {
	w.Helper()
	got := []string{}
	for page := ""; ; {
		res, err := w.reader.ListChats(w.ctx, user,
			&chatv1.ListChatsRequest{PageSize: 2, PageToken: page, Archived: archived, Unread: unread})
		w.must(err)
		got = append(got, chatIDs(res.GetOverviews())...)
		if page = res.GetNextPageToken(); page == "" {
			return got
		}
	}
}

func (w *fixture) archive(user, chatID string, archived bool) {
	w.Helper()
	_, err := w.chat.SetMemberSettings(w.ctx,
		chat.MemberSettings{Caller: user, ChatID: chatID, Archived: &archived, Procedure: "archive"})
	w.must(err)
}

func TestListChatsFilters(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(8) // the latest first
	for i, id := range ids {
		if i%2 == 0 {
			w.archive("bob", id, true)
		}
	}
	for i := len(ids) - 1; i >= 0; i-- {
		w.advance(time.Second)
		w.send(ids[i], "ann", "x")
		if i >= 4 {
			_, err := w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: ids[i], Sequence: 1})
			w.must(err)
		}
	}
	for _, tt := range []struct {
		archived, unread *bool
		want             []string
	}{
		{nil, nil, ids},
		{ptr(true), nil, []string{ids[0], ids[2], ids[4], ids[6]}},
		{ptr(false), nil, []string{ids[1], ids[3], ids[5], ids[7]}},
		{nil, ptr(true), ids[:4]},
		{nil, ptr(false), ids[4:]},
		{ptr(true), ptr(true), []string{ids[0], ids[2]}},
		{ptr(false), ptr(false), []string{ids[5], ids[7]}},
	} {
		testkit.Equal(t, "list", w.filtered("bob", tt.archived, tt.unread), tt.want)
	}
	// A page token belongs to its filters.
	res, err := w.reader.ListChats(w.ctx, "bob", &chatv1.ListChatsRequest{PageSize: 1, Archived: ptr(true)})
	w.must(err)
	for _, other := range []*chatv1.ListChatsRequest{{}, {Archived: ptr(false)}, {Archived: ptr(true), Unread: ptr(true)},
		{Unread: ptr(true)}} {
		other.PageToken = res.GetNextPageToken()
		_, err := w.reader.ListChats(w.ctx, "bob", other)
		wantError(t, "other filters", err, view.ErrInvalidPageToken)
	}
	// What changes between the pages counts: a chat that is not archived any more is
	// not shown as archived.
	w.archive("bob", ids[2], false)
	res, err = w.reader.ListChats(w.ctx, "bob",
		&chatv1.ListChatsRequest{PageSize: 10, Archived: ptr(true), PageToken: res.GetNextPageToken()})
	w.must(err)
	testkit.Equal(t, "the rest", chatIDs(res.GetOverviews()), []string{ids[4], ids[6]})
}

// The caller's role and the revision are in every copy of the state, at no read more
// than the user's row.
func TestStateHasRoleAndRevision(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	states := func(user string) []*chatv1.MemberState {
		o, err := w.reader.Overview(w.ctx, user, id)
		w.must(err)
		return []*chatv1.MemberState{o.GetState(), w.listChats(user, 0)[0].GetState(),
			w.sync(user, "", 0).GetOverviews()[0].GetState()}
	}
	last := int64(0)
	check := func(what, user string, role chatv1.MemberRole) {
		t.Helper()
		for _, s := range states(user) {
			testkit.Equal(t, what, s.GetRole(), role)
			if s.GetRevision() <= last {
				t.Fatalf("%s: revision %d after %d", what, s.GetRevision(), last)
			}
		}
		last = states(user)[0].GetRevision()
	}
	testkit.Equal(t, "owner", states("ann")[1].GetRole(), chatv1.MemberRole_MEMBER_ROLE_OWNER)
	check("member", "bob", chatv1.MemberRole_MEMBER_ROLE_MEMBER)
	token := w.sync("bob", "", 0).GetToken()
	w.advance(time.Hour)
	_, err := w.chat.Change(w.ctx, chat.OpRole,
		chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Admin})
	w.must(err)
	check("admin", "bob", chatv1.MemberRole_MEMBER_ROLE_ADMIN)
	testkit.Equal(t, "reported by Sync", len(w.sync("bob", token, 0).GetOverviews()), 1)
	w.send(id, "bob", "x")
	check("after a message", "bob", chatv1.MemberRole_MEMBER_ROLE_ADMIN)
	w.archive("bob", id, true)
	check("archived", "bob", chatv1.MemberRole_MEMBER_ROLE_ADMIN)
	w.send(id, "ann", "y")
	_, err = w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 2})
	w.must(err)
	check("read", "bob", chatv1.MemberRole_MEMBER_ROLE_ADMIN)
	w.must(w.chat.Delivered(w.ctx, "bob", id, 2))
	testkit.Equal(t, "delivered", states("bob")[0].GetRevision(), last)
	w.remove(id, "ann", "bob")
	w.add(id, "ann", "bob")
	check("joined again", "bob", chatv1.MemberRole_MEMBER_ROLE_MEMBER)

	read := w.store.counting(func() { w.listChats("bob", 0) })
	testkit.Equal(t, "memberships read", read[store.ChatMemberships], 0)
}

// downgrade leaves a row as a release without some attributes would have written it.
func (w *fixture) downgrade(k store.Key, names ...string) {
	w.Helper()
	it, err := w.store.Store.Get(w.ctx, k, store.Strong)
	w.must(err)
	old := slices.DeleteFunc(slices.Clone(it), func(a store.Attr) bool { return slices.Contains(names, a.Name) })
	if len(old) == len(it) {
		w.Fatalf("%s has none of %v", k, names)
	}
	w.must(w.store.Store.BatchWrite(w.ctx, []store.Write{{Op: store.OpPut, Key: k, Item: old}}))
}

// Rows of an earlier release say neither the role nor when the last message came. The
// role is read from the membership until the row is written again.
func TestRowsOfEarlierReleases(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(3)
	for _, id := range ids {
		w.downgrade(table.UserChatKey("bob", id), "role", "revision")
		w.downgrade(table.HeadKey(id), "last_message_at")
	}
	roles := func() string {
		var got []string
		for _, c := range append(w.listChats("bob", 0), w.sync("bob", "", 0).GetOverviews()...) {
			got = append(got, c.GetState().GetRole().String())
		}
		o, err := w.reader.Overview(w.ctx, "bob", ids[0])
		w.must(err)
		return strings.ReplaceAll(fmt.Sprint(append(got, o.GetState().GetRole().String())), "MEMBER_ROLE_", "")
	}
	testkit.Equal(t, "roles", roles(), "[MEMBER MEMBER MEMBER MEMBER MEMBER MEMBER MEMBER]")
	testkit.Equal(t, "in order of changes", chatIDs(w.listChats("bob", 0)), ids)
	w.send(ids[2], "ann", "x")
	w.downgrade(table.HeadKey(ids[2]), "last_message_at")
	o, err := w.reader.Overview(w.ctx, "bob", ids[2])
	w.must(err)
	if p := o.GetHead().GetLastMessage(); p.GetText() != "x" || p.CreatedAt != nil {
		t.Fatal(p)
	}
	w.advance(time.Minute)
	w.send(ids[1], "ann", "y")
	o, err = w.reader.Overview(w.ctx, "bob", ids[1])
	w.must(err)
	testkit.Equal(t, "time of the message", o.GetHead().GetLastMessage().GetCreatedAt().AsTime(), w.clock())

	// The role changes while the row does not say it, and is written with the row.
	_, err = w.chat.Change(w.ctx, chat.OpRole,
		chat.MemberChange{Caller: "ann", ChatID: ids[0], UserID: "bob", Role: table.Admin})
	w.must(err)
	w.archive("bob", ids[1], true)
	_, err = w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: ids[2], Sequence: 1})
	w.must(err)
	for i, want := range []string{"admin 1", "member 1", "member 1"} {
		it, err := w.store.Store.Get(w.ctx, table.UserChatKey("bob", ids[i]), store.Strong)
		w.must(err)
		row := table.UserChatFrom("bob", ids[i], it)
		testkit.Equal(t, "row", fmt.Sprint(row.Role, " ", row.Revision), want)
	}
	// A chat that was left under an earlier release still has its row in place.
	gone := table.UserChat{
		History: table.All, JoinedVersion: 2, LeftVersion: 3, ChangedAt: w.clock().UnixMilli(),
		ExpiresAt: w.clock().Add(time.Hour).Unix(),
	}
	other := ids[0][:len(ids[0])-1] + "Z"
	token := w.reader.NewToken("bob", from(w.clock()))
	w.must(w.store.Store.BatchWrite(w.ctx,
		[]store.Write{{Op: store.OpPut, Key: table.UserChatKey("bob", other), Item: gone.Item()}}))
	testkit.Equal(t, "listed", len(w.listChats("bob", 0)), 3)
	for _, size := range []int32{1, 2, 100} {
		left := w.sync("bob", token, size).GetLeftChats()
		if len(left) != 1 || left[0].GetChatId() != other || left[0].GetVersion() != 3 {
			t.Fatalf("left in pages of %d: %v", size, left)
		}
	}
	rows, err := w.reader.UserChats(w.ctx, "bob")
	w.must(err)
	testkit.Equal(t, "rows", len(rows), 4)
}

// A chat whose user's row alone changed is a change: the head does not decide alone.
func TestSyncListsChangesOfTheOwnRow(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(3)
	w.advance(time.Hour)
	token := w.sync("bob", "", 0).GetToken()
	w.advance(time.Hour)
	_, err := w.chat.SetMemberSettings(w.ctx,
		chat.MemberSettings{Caller: "bob", ChatID: ids[1], MutedUntil: ptr(int64(table.Forever)), Procedure: "mute"})
	w.must(err)
	for _, r := range []*view.Reader{w.reader, w.alone} {
		res, err := r.Sync(w.ctx, "bob", &deliveryv1.SyncRequest{Token: token})
		w.must(err)
		testkit.Equal(t, "changed", chatIDs(res.GetOverviews()), []string{ids[1]})
		testkit.Equal(t, "muted", res.GetOverviews()[0].GetState().GetMutedUntil() != nil, true)
	}
}

// A list reads the user's rows and the heads once, and then what its pages show; no
// row of a chat that was left.
func TestReadsOfAList(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(30)
	w.advance(time.Hour)
	for _, id := range ids[20:] {
		w.remove(id, "ann", "bob")
	}
	w.advance(time.Hour)
	const chats = 20
	token := w.reader.NewToken("bob", from(w.clock()))
	whole := map[store.Table]int{store.DeliveryState: 2 * chats, store.ChatCounters: chats, store.Chats: chats}
	for name, tt := range map[string]struct {
		list func()
		want map[store.Table]int
	}{
		"ListChats":        {func() { w.listChats("bob", 3) }, whole},
		"Sync, everything": {func() { w.sync("bob", "", 3) }, whole},
		"Sync, nothing has changed": {func() { w.sync("bob", token, 3) },
			map[store.Table]int{store.DeliveryState: chats, store.ChatCounters: chats}},
		"Sync, chats were left": {func() {
			testkit.Equal(t, "left",
				len(w.sync("bob", w.reader.NewToken("bob", from(w.clock().Add(-90*time.Minute))), 100).GetLeftChats()),
				10)
		},
			map[store.Table]int{store.DeliveryState: chats + 10, store.ChatCounters: chats}},
	} {
		testkit.Equal(t, name, w.store.counting(tt.list), tt.want)
	}
}

// Pages of chats that were left have their order and their places among the others.
func TestSyncPagesOfLeftChats(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(12)
	w.advance(time.Hour)
	token := w.sync("bob", "", 0).GetToken()
	w.advance(time.Hour)
	want := map[string]int64{}
	for i, id := range ids[:9] {
		w.advance(time.Duration(i%2) * time.Second)
		if i%3 == 2 {
			w.send(id, "ann", "x")
			continue
		}
		w.remove(id, "ann", "bob")
		want[id] = w.headOf(id).Version
	}
	w.add(ids[0], "ann", "bob") // is back
	delete(want, ids[0])
	rows, err := w.reader.UserChats(w.ctx, "bob")
	w.must(err)
	for i, r := range rows {
		if r.LeftVersion != want[r.ChatID] || (i > 0 && rows[i-1].ChatID >= r.ChatID) {
			t.Errorf("%+v behind %+v", r, rows[max(i-1, 0)])
		}
	}
	testkit.Equal(t, "rows", len(rows), len(ids))
	for _, r := range []*view.Reader{w.reader, w.alone} {
		for size := int32(1); size < 12; size++ {
			got, chats := map[string]int64{}, 0
			for page := ""; ; {
				res, err := r.Sync(w.ctx, "bob", &deliveryv1.SyncRequest{Token: token, PageToken: page, PageSize: size})
				w.must(err)
				chats += len(res.GetOverviews())
				for _, l := range res.GetLeftChats() {
					got[l.GetChatId()] = l.GetVersion()
				}
				if n := len(res.GetOverviews()) + len(res.GetLeftChats()); n > int(size) {
					t.Fatalf("%d entries in a page of %d", n, size)
				}
				if page = res.GetNextPageToken(); page == "" {
					break
				}
			}
			testkit.Equal(t, fmt.Sprint("left, in pages of ", size), got, want)
			testkit.Equal(t, "chats", chats, 4)
		}
	}
}

// The list that a page token names goes away after a minute: the next page loads
// another and continues.
func TestPagesAfterTheListIsGone(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(6)
	first, next, err := w.chatsPage(w.reader, "bob", 2, "")
	w.must(err)
	w.advance(time.Minute)
	testkit.Equal(t, "kept",
		w.store.counting(func() { _, _, err = w.chatsPage(w.reader, "bob", 2, next) })[store.ChatCounters], 0)
	w.must(err)
	w.advance(time.Minute + time.Millisecond)
	var rest []*chatv1.ChatOverview
	testkit.Equal(t, "loaded", w.store.counting(
		func() { rest, _, err = w.chatsPage(w.reader, "bob", 10, next) })[store.ChatCounters], 6)
	w.must(err)
	testkit.Equal(t, "chats", append(chatIDs(first), chatIDs(rest)...), ids)
}

// Lists that are asked for at once share a load, but never one that began before they
// were asked for.
func TestListsShareALoad(t *testing.T) { synctest.Test(t, testListsShareALoad) }

func testListsShareALoad(t *testing.T) {
	w := newFixture(t)
	w.groups(3)
	w.store.wait, w.store.began = make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	seen := make([]int, 17)
	list := func(i int) {
		wg.Go(func() {
			res, err := w.reader.ListChats(w.ctx, "bob", &chatv1.ListChatsRequest{})
			if err == nil {
				seen[i] = len(res.GetOverviews())
			}
		})
	}
	list(0)
	<-w.store.began // and has read its rows
	id := w.group(table.All, "ann", "bob")
	for i := 1; i < len(seen); i++ {
		list(i)
	}
	synctest.Wait() // all have joined the load that has not begun
	reads := w.store.counting(func() {
		w.store.wait <- struct{}{}
		<-w.store.began
		close(w.store.wait)
		wg.Wait()
	})
	testkit.Equal(t, "chats of the first list", seen[0], 3)
	for _, n := range seen[1:] {
		testkit.Equal(t, "chats of a later list, with "+id, n, 4)
	}
	// The first load has 3 chats, the one that 16 calls share has 4.
	testkit.Equal(t, "heads read", reads[store.ChatCounters], 3+4)
}

// A chat that is left while its list is loaded is listed once.
func TestSyncLeftDuringTheLoad(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(3)
	w.advance(time.Hour)
	token := w.sync("bob", "", 0).GetToken()
	w.advance(time.Hour)
	w.send(ids[0], "ann", "x")
	w.store.reads = 0
	w.store.before = func(read int) {
		if read == 1 { // after the rows, before the heads
			w.remove(ids[0], "ann", "bob")
		}
	}
	res := w.sync("bob", token, 0)
	w.store.before = nil
	testkit.Equal(t, "chats, left", fmt.Sprint(len(res.GetOverviews()), len(res.GetLeftChats())), "0 1")
}
