package view_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// groups makes chats of ann and bob, a second apart, and returns their ids, the
// last changed first.
func (w *fixture) groups(n int) []string {
	w.Helper()
	var ids []string
	for range n {
		w.advance(time.Second)
		ids = append(ids, w.group(table.All, "ann", "bob"))
	}
	slices.Reverse(ids)
	return ids
}

func (w *fixture) chatsPage(r *view.Reader, user string, size int, page string) (
	[]*chatv1.ChatOverview, string, error,
) {
	res, err := r.ListChats(w.ctx, user, &chatv1.ListChatsRequest{PageSize: int32(size), PageToken: page})
	return res.GetOverviews(), res.GetNextPageToken(), err
}

func (w *fixture) listChats(user string, size int) []*chatv1.ChatOverview {
	w.Helper()
	var all []*chatv1.ChatOverview
	for page := ""; ; {
		res, err := w.reader.ListChats(w.ctx, user, &chatv1.ListChatsRequest{PageSize: int32(size), PageToken: page})
		w.must(err)
		all = append(all, res.GetOverviews()...)
		if page = res.GetNextPageToken(); page == "" {
			return all
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestListChatsOrder(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(7)
	for _, size := range []int{0, 1, 2, 3, 7, 100} {
		testkit.Equal(t, fmt.Sprint("size ", size), chatIDs(w.listChats("bob", size)), ids)
	}
	// A message moves a chat to the front; reading or muting it, and what happens to
	// its name and members, does not.
	w.advance(time.Second)
	w.send(ids[3], "ann", "x")
	w.advance(time.Second)
	_, err := w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: ids[3], Sequence: 1})
	w.must(err)
	_, err = w.chat.SetMemberSettings(w.ctx,
		chat.MemberSettings{Caller: "bob", ChatID: ids[6], MutedUntil: ptr(int64(table.Forever)), Procedure: "mute"})
	w.must(err)
	w.add(ids[4], "ann", "cid")
	_, _, err = w.chat.UpdateChat(w.ctx, chat.ChatChange{Caller: "ann", ChatID: ids[2], Name: ptr("other")})
	w.must(err)
	w.send(ids[5], "ann", "x")
	moved := []string{ids[5], ids[3], ids[0], ids[1], ids[2], ids[4], ids[6]}
	testkit.Equal(t, "moved", chatIDs(w.listChats("bob", 2)), moved)
	// Left chats are not listed.
	w.remove(ids[0], "ann", "bob")
	testkit.Equal(t, "left", slices.Contains(chatIDs(w.listChats("bob", 2)), ids[0]), false)
	testkit.Equal(t, "of a user without chats", len(w.listChats("dan", 2)), 0)
}

// Chats that do not move are listed once each, however young they are.
func TestPagesOfStillChats(t *testing.T) {
	w := newFixture(t)
	var want []string
	for range 20 { // all in the same millisecond
		want = append(want, w.group(table.All, "ann", "bob"))
	}
	slices.Sort(want)
	slices.Reverse(want)
	for _, size := range []int32{1, 3, 20} {
		testkit.Equal(t, "list", chatIDs(w.listChats("bob", int(size))), want)
		testkit.Equal(t, "sync", chatIDs(w.sync("bob", "", size).GetOverviews()), want)
	}
	w.remove(want[4], "ann", "bob")
	want = slices.Delete(want, 4, 5)
	got := w.sync("bob", "", 3)
	testkit.Equal(t, "after leaving one", chatIDs(got.GetOverviews()), want)
	testkit.Equal(t, "left in a full list", len(got.GetLeftChats()), 0)
}

// Chats move, come and go between the pages. Every chat that is there from the
// first page to the last is listed; only chats of the last minute are repeated.
func TestPagesWhileChatsMove(t *testing.T) {
	for seed := range uint64(dynamotest.Rounds(60, 3)) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newFixture(t)
		w.groups(30)
		if seed%2 == 0 {
			w.advance(time.Hour)
		}
		start := w.clock()
		rows, err := w.reader.UserChats(w.ctx, "bob")
		w.must(err)
		token := ""
		if seed%3 == 0 {
			token = w.reader.NewToken("bob", from(start.Add(-24*time.Hour)))
		}
		stays := map[string]bool{}
		for _, r := range rows {
			stays[r.ChatID] = true
		}
		seen := map[string]int{}
		left := map[string]bool{}
		for page := ""; ; {
			r := w.alone // the usual reader, one that keeps no lists, or now the one and then the other
			if mode := seed % 4; mode == 0 || (mode == 3 && rnd.IntN(2) == 0) {
				r = w.reader
			}
			res, err := r.Sync(w.ctx, "bob",
				&deliveryv1.SyncRequest{Token: token, PageToken: page, PageSize: int32(1 + rnd.IntN(8))})
			w.must(err)
			for _, c := range res.GetOverviews() {
				seen[c.GetChat().GetChatId()]++
				delete(left, c.GetChat().GetChatId())
			}
			for _, l := range res.GetLeftChats() {
				left[l.GetChatId()] = true
			}
			if page = res.GetNextPageToken(); page == "" {
				break
			}
			for range rnd.IntN(4) {
				id := rows[rnd.IntN(len(rows))].ChatID
				w.advance(time.Duration(rnd.IntN(2)) * time.Second) // also the same millisecond
				if rnd.IntN(5) == 0 && stays[id] {
					w.remove(id, "ann", "bob")
					stays[id] = false
				} else {
					w.send(id, "ann", "x")
				}
			}
		}
		for id, still := range stays {
			if still && seen[id] == 0 {
				t.Fatalf("seed %d: %s was lost", seed, id)
			}
			if n, h := seen[id], w.headOf(id); n > 2 || (n == 2 && h.ChangedAt < start.Add(-view.Overlap).UnixMilli()) {
				t.Fatalf("seed %d: %s was listed %d times", seed, id, n)
			}
			if !still && seen[id] > 0 && !left[id] {
				// Listed, then left: the second part, or the next Sync, tells.
				next := w.sync("bob", w.reader.NewToken("bob", from(start)), 100)
				found := slices.ContainsFunc(next.GetLeftChats(), func(l *deliveryv1.LeftChat) bool { return l.GetChatId() == id })
				testkit.Equal(t, "left", found, true)
			}
		}
	}
}

// A process whose clock is behind stamps a change that comes between the pages
// with a time before the first page (within what the design allows clocks to
// differ): the chat is not lost.
func TestPagesWithClockBehind(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(4)
	w.advance(time.Hour)
	behind, err := chat.New(w.ctx, chat.Config{
		Store: w.store.Store, Clock: func() time.Time { return w.clock().Add(-30 * time.Second) }, Generation: generation,
		Producer: "behind",
	})
	w.must(err)
	first, next, err := w.chatsPage(w.alone, "bob", 2, "")
	w.must(err)
	_, err = behind.Send(w.ctx, chat.Send{Caller: "ann", ChatID: ids[3], Content: "x"})
	w.must(err)
	got := chatIDs(first)
	for next != "" {
		var page []*chatv1.ChatOverview
		page, next, err = w.chatsPage(w.alone, "bob", 2, next)
		w.must(err)
		got = append(got, chatIDs(page)...)
	}
	testkit.Equal(t, "chats", got, ids)
}

func TestSync(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(5)
	w.advance(time.Hour)

	full := w.sync("bob", "", 0)
	testkit.Equal(t, "first", fmt.Sprint(full.GetFull(), " ", chatIDs(full.GetOverviews())), fmt.Sprint(true, " ", ids))
	testkit.Equal(t, "generation", full.GetGeneration(), generation)
	if n := len(full.GetToken()); n == 0 || n > 128 {
		t.Fatalf("token of %d bytes", n)
	}

	w.advance(time.Hour)
	none := w.sync("bob", full.GetToken(), 0)
	testkit.Equal(t, "nothing changed", fmt.Sprint(none.GetFull(), len(none.GetOverviews()), len(none.GetLeftChats())), "false 0 0")

	w.send(ids[4], "ann", "hello")
	w.advance(time.Second)
	// a receipt of another user changes nothing for bob
	_, err := w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "ann", ChatID: ids[2], Sequence: 1})
	w.must(err)
	w.remove(ids[1], "ann", "bob")
	some := w.sync("bob", none.GetToken(), 0)
	testkit.Equal(t, "changed", chatIDs(some.GetOverviews()), []string{ids[4]})
	testkit.Equal(t, "state", some.GetOverviews()[0].GetState().GetUnreadCount(), 1)
	testkit.Equal(t, "left", fmt.Sprint(len(some.GetLeftChats()), " ", some.GetLeftChats()[0].GetChatId(), " ",
		some.GetLeftChats()[0].GetVersion()),
		fmt.Sprint(1, " ", ids[1], " ", w.headOf(ids[1]).Version))

	// A chat that was left does not come back through what happens in it.
	w.advance(time.Hour)
	some = w.sync("bob", some.GetToken(), 0)
	w.send(ids[1], "ann", "without bob")
	again := w.sync("bob", some.GetToken(), 0)
	testkit.Equal(t, "after leaving", fmt.Sprint(len(again.GetOverviews()), len(again.GetLeftChats())), "0 0")

	// What changed within the overlap before the token comes again.
	w.send(ids[0], "ann", "x")
	w.advance(view.Overlap)
	edge := w.sync("bob", "", 0)
	testkit.Equal(t, "exactly the overlap", chatIDs(w.sync("bob", edge.GetToken(), 0).GetOverviews()), []string{ids[0]})
	w.advance(time.Millisecond)
	edge = w.sync("bob", "", 0)
	testkit.Equal(t, "older than the overlap", len(w.sync("bob", edge.GetToken(), 0).GetOverviews()), 0)
}

// The token's time is taken before the first read of the first page: what
// happens during the reads, or between pages, comes with the next Sync.
func TestSyncTokenIsOlderThanTheReads(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(3)
	w.advance(time.Hour)
	w.store.reads = 0
	w.store.before = func(read int) {
		if read == 2 { // heads are read
			w.advance(2 * view.Overlap)
			w.send(ids[2], "ann", "during")
			w.advance(2 * view.Overlap)
		}
	}
	res := w.sync("bob", "", 1)
	w.store.before = nil
	w.advance(time.Hour)
	testkit.Equal(t, "next", chatIDs(w.sync("bob", res.GetToken(), 0).GetOverviews()), []string{ids[2]})
}

// A user who is removed while a page is made gets the chat as left.
func TestSyncRemovedMeanwhile(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	w.store.before = func(read int) {
		if read == 3 { // the last one
			w.remove(id, "ann", "bob")
		}
	}
	w.store.reads = 0
	res := w.sync("bob", "", 0)
	testkit.Equal(t, "chats, left", fmt.Sprint(len(res.GetOverviews()), len(res.GetLeftChats())), "0 1")
	testkit.Equal(t, "version", res.GetLeftChats()[0].GetVersion(), w.headOf(id).Version)
}
