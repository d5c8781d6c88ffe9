package view_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

func listAfter(chatID string, after int64, size int32) *messagev1.ListMessagesRequest {
	return &messagev1.ListMessagesRequest{ChatId: chatID, AfterSequence: &after, PageSize: size}
}

func TestMessagePages(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	testkit.Equal(t, "empty chat", texts(w.messages("bob", &messagev1.ListMessagesRequest{ChatId: id}).GetMessages()),
		[]string{})
	for i := 1; i <= 7; i++ {
		w.send(id, "ann", fmt.Sprint(i))
	}
	for _, tt := range []struct {
		size          int32
		before, after int64 // after: -1 for none
		want          []string
		more          bool
	}{
		{3, 0, -1, []string{"5", "6", "7"}, true},
		{7, 0, -1, []string{"1", "2", "3", "4", "5", "6", "7"}, false},
		{0, 0, -1, []string{"1", "2", "3", "4", "5", "6", "7"}, false},
		{3, 5, -1, []string{"2", "3", "4"}, true},
		{3, 4, -1, []string{"1", "2", "3"}, false},
		{3, 1, -1, []string{}, false},
		{3, 100, -1, []string{"5", "6", "7"}, true},
		{3, 0, 0, []string{"1", "2", "3"}, true},
		{3, 0, 1, []string{"2", "3", "4"}, true},
		{3, 0, 4, []string{"5", "6", "7"}, false},
		{3, 0, 7, []string{}, false},
		{3, 0, 1 << 62, []string{}, false},
	} {
		req := &messagev1.ListMessagesRequest{ChatId: id, PageSize: tt.size, BeforeSequence: tt.before}
		if tt.after >= 0 {
			req.AfterSequence = &tt.after
		}
		res := w.messages("bob", req)
		name := fmt.Sprintf("size %d before %d after %d", tt.size, tt.before, tt.after)
		testkit.Equal(t, name, texts(res.GetMessages()), tt.want)
		testkit.Equal(t, name, res.GetHasMore(), tt.more)
		testkit.Equal(t, name, res.GetHead().GetSequence(), 7)
	}
	_, err := w.reader.Messages(w.ctx, "bob",
		&messagev1.ListMessagesRequest{ChatId: id, BeforeSequence: 1, AfterSequence: proto.Int64(0)})
	wantError(t, "both directions", err, chat.ErrInvalidArgument)
}

func TestMessageFields(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	sent := w.send(id, "ann", "text")
	m := w.messages("bob", &messagev1.ListMessagesRequest{ChatId: id}).GetMessages()[0]
	testkit.Equal(t, "ids", m.GetMessageId()+m.GetChatId()+m.GetClientMessageId()+m.GetSenderId(),
		sent.MessageID+id+sent.ClientMessageID+"ann")
	testkit.Equal(t, "numbers", []int64{m.GetSequence(), m.GetVersion(), m.GetCreatedAt().AsTime().UnixMilli()},
		[]int64{sent.Sequence, sent.Version, sent.CreatedAt})
	testkit.Equal(t, "type", m.GetContentType(), messagev1.ContentType_CONTENT_TYPE_TEXT)
}

// An engine without snapshots may show the head of a plan before its other
// items: such a read ends as unavailable instead of with a hole.
func TestIncompletePlans(t *testing.T) {
	for name, hide := range map[string]func(id string) store.Key{
		"newest messages": func(id string) store.Key { return table.MessageKey(id, 2) },
		"messages after":  func(id string) store.Key { return table.MessageKey(id, 2) },
		"reset":           func(id string) store.Key { return table.MessageKey(id, 1) },
		"overview":        table.ChatKey,
		"changes":         func(id string) store.Key { return table.EventKey(id, 1) },
	} {
		w := newFixture(t)
		id := w.group(table.All, "ann", "bob")
		w.send(id, "ann", "one")
		w.send(id, "ann", "two")
		w.store.hide = hide(id)
		_, err := operations[name](w, "bob", id)
		wantError(t, name, err, store.ErrUnavailable)
	}
	for name, hide := range map[string]func(id string) store.Key{
		"message": func(id string) store.Key { return table.MessageKey(id, 2) },
		"chat":    table.ChatKey,
		"member":  func(id string) store.Key { return table.MembershipKey(id, "bob") },
	} {
		w := newFixture(t)
		id := w.group(table.All, "ann", "bob")
		w.send(id, "ann", "one")
		w.send(id, "ann", "two")
		w.store.hide = hide(id)
		_, err := operations["changes"](w, "bob", id)
		wantError(t, name, err, store.ErrUnavailable)
	}
	// An event is visible, and the membership that it changed is not yet.
	for _, change := range []func(w *fixture, id string){
		func(w *fixture, id string) { w.add(id, "ann", "dan") },
		func(w *fixture, id string) { w.remove(id, "ann", "cid") },
	} {
		w := newFixture(t)
		id := w.group(table.All, "ann", "bob", "cid")
		w.add(id, "ann", "dan")
		w.remove(id, "ann", "dan")
		old := map[store.Key]store.Item{}
		for _, user := range []string{"cid", "dan"} {
			for _, k := range []store.Key{table.MembershipKey(id, user), table.UserChatKey(user, id)} {
				it, err := w.store.Store.Get(w.ctx, k, store.Strong)
				w.must(err)
				old[k] = it
			}
		}
		change(w, id)
		w.store.old = old
		_, err := w.reader.Changes(w.ctx, "bob",
			&messagev1.ListChangesRequest{ChatId: id, AfterVersion: w.headOf(id).Version - 1})
		wantError(t, "membership", err, store.ErrUnavailable)
	}
	// A later event that is missing only shortens the page.
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	w.send(id, "ann", "one")
	w.send(id, "ann", "two")
	w.store.hide = table.EventKey(id, 3)
	testkit.Equal(t, "version reached", w.changes("bob", id, 0, 0).GetVersion(), 2)
	events, err := w.reader.Events(w.ctx, id, 0, 10)
	w.must(err)
	testkit.Equal(t, "events", len(events), 2)
}

func TestMembers(t *testing.T) {
	w := newFixture(t)
	users := []string{"bob", "cid", "dan"}
	for i := range 20 {
		u := fmt.Sprintf("u%02d", i)
		w.must(w.chat.EnsureUser(w.ctx, u))
		users = append(users, u)
	}
	id := w.group(table.All, "ann", users...)
	want := append([]string{"ann"}, users...)
	for _, size := range []int{0, 1, 3, 8, 24, 100} {
		var got []string
		for page := ""; ; {
			res, err := w.reader.Members(w.ctx, "bob", id, size, page)
			w.must(err)
			for _, m := range res.GetMembers() {
				got = append(got, m.GetUserId())
			}
			if size > 0 && len(res.GetMembers()) > size {
				t.Fatalf("%d members in a page of %d", len(res.GetMembers()), size)
			}
			testkit.Equal(t, "head", res.GetHead().GetVersion(), w.headOf(id).Version)
			if page = res.GetNextPageToken(); page == "" {
				break
			}
		}
		testkit.Equal(t, fmt.Sprint("size ", size), got, want)
	}
	version, ids, err := w.reader.MemberIDs(w.ctx, id)
	w.must(err)
	testkit.Equal(t, "member ids", ids, want)
	testkit.Equal(t, "membership version", version, w.headOf(id).MembershipVersion)

	// The member that a page ended with is removed: the next page continues behind.
	res, err := w.reader.Members(w.ctx, "bob", id, 3, "")
	w.must(err)
	w.remove(id, "ann", "cid")
	res, err = w.reader.Members(w.ctx, "bob", id, 3, res.GetNextPageToken())
	w.must(err)
	testkit.Equal(t, "first of the next page", res.GetMembers()[0].GetUserId(), "dan")

	version, ids, err = w.reader.MemberIDs(w.ctx, "chat_unknown")
	w.must(err)
	testkit.Equal(t, "unknown chat", fmt.Sprint(version, len(ids)), "0 0")
}

// The version of a member list is read before the list: a change in between
// makes the list newer than it says, never older.
func TestMemberIDsVersionIsOlder(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	before := w.headOf(id).MembershipVersion
	w.store.reads = 0
	w.store.before = func(n int) {
		if n == 1 {
			w.add(id, "ann", "cid")
		}
	}
	version, ids, err := w.reader.MemberIDs(w.ctx, id)
	w.must(err)
	testkit.Equal(t, "version", version, before)
	testkit.Equal(t, "list", ids, []string{"ann", "bob", "cid"})
}

func TestRowsOfHub(t *testing.T) {
	w := newFixture(t)
	a, b := w.group(table.All, "ann", "bob"), w.group(table.All, "ann", "bob")
	w.remove(b, "ann", "bob")
	rows, err := w.reader.UserChats(w.ctx, "bob")
	w.must(err)
	testkit.Equal(t, "rows", len(rows), 2)
	some, err := w.reader.UserChatsOf(w.ctx, "bob", []string{b, "chat_x", a})
	w.must(err)
	testkit.Equal(t, "left, none, member", fmt.Sprint(some[0].Left(), some[1] == nil, some[2].Left()), "true true false")
	heads, err := w.reader.Heads(w.ctx, []string{"chat_x", a})
	w.must(err)
	testkit.Equal(t, "heads", heads[1].ChatID, a)
	testkit.Equal(t, "no head", heads[0] == nil, true)
	if none, err := w.reader.Heads(w.ctx, nil); err != nil || len(none) != 0 {
		t.Fatalf("no chats: %v %v", none, err)
	}
	if events, err := w.reader.Events(w.ctx, a, 0, 1); err != nil || len(events) != 1 ||
		events[0].GetMetadata().GetVersion() != 1 {
		t.Fatalf("events: %v %v", events, err)
	}
	if events, err := w.reader.Events(w.ctx, a, 100, 10); err != nil || len(events) != 0 {
		t.Fatalf("events after the last: %v %v", events, err)
	}
}
