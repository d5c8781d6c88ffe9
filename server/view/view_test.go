package view_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

const generation = "gen_A"

// fixture is a store with a chat service and a reader over it.
type fixture struct {
	testing.TB
	ctx    context.Context
	store  *spy
	chat   *chat.Service
	reader *view.Reader
	alone  *view.Reader // keeps no lists: each page loads its own

	mu  sync.Mutex
	now time.Time
}

func newFixture(t testing.TB) *fixture {
	w := &fixture{TB: t, ctx: context.Background(), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	w.store = &spy{Store: dynamotest.Store(t, w.clock)}
	stamps := timestamp.New(w.store.Store, w.clock) // of the process that the service and the reader are in
	cfg := w.config(generation, 'k')
	cfg.Stamps = stamps
	w.reader, w.alone = view.New(cfg), w.newReader(generation, 'k', -1)
	var err error
	// The service writes past the spy: only the reader's reads are watched.
	ids := 0
	w.chat, err = chat.New(w.ctx, chat.Config{
		Store: w.store.Store, Clock: w.clock, Stamps: stamps, Generation: generation, Producer: "test",
		NewID: func(prefix string) string { ids++; return fmt.Sprintf("%s%026d", prefix, ids) },
	})
	w.must(err)
	for _, u := range []string{"ann", "bob", "cid", "dan"} {
		w.must(w.chat.EnsureUser(w.ctx, u))
	}
	return w
}

func (w *fixture) config(generation string, key byte) view.Config {
	return view.Config{
		Store: w.store, History: store.Line(generation), TokenKey: bytes.Repeat([]byte{key}, view.KeySize), Clock: w.clock,
	}
}

// newReader makes the reader of another process.
func (w *fixture) newReader(generation string, key byte, lists ...int) *view.Reader {
	cfg := w.config(generation, key)
	if len(lists) > 0 {
		cfg.Lists = lists[0]
	}
	return view.New(cfg)
}

// from is where reads begin at a time, without any setback.
func from(at time.Time) view.Start { return view.Start{At: at} }

func (w *fixture) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *fixture) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *fixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *fixture) change(op chat.Operation, c chat.MemberChange) {
	w.Helper()
	_, err := w.chat.Change(w.ctx, op, c)
	w.must(err)
}

func (w *fixture) group(history table.History, owner string, members ...string) string {
	w.Helper()
	c, err := w.chat.CreateGroup(w.ctx, chat.CreateGroup{Caller: owner, Name: "group", Members: members, History: history})
	w.must(err)
	return c.ChatID
}

func (w *fixture) send(chatID, user, text string) chat.Sent {
	w.Helper()
	s, err := w.chat.Send(w.ctx, chat.Send{Caller: user, ChatID: chatID, Content: text, ContentType: 1})
	w.must(err)
	return s
}

func (w *fixture) add(chatID, by, user string) {
	w.Helper()
	_, err := w.chat.Change(w.ctx, chat.OpAdd,
		chat.MemberChange{Caller: by, ChatID: chatID, UserID: user, Role: table.Member})
	w.must(err)
}

func (w *fixture) remove(chatID, by, user string) {
	w.Helper()
	w.change(chat.OpRemove, chat.MemberChange{Caller: by, ChatID: chatID, UserID: user})
}

func (w *fixture) messages(user string, req *messagev1.ListMessagesRequest) *messagev1.ListMessagesResponse {
	w.Helper()
	res, err := w.reader.Messages(w.ctx, user, req)
	w.must(err)
	return res
}

func (w *fixture) changes(user, chatID string, after int64, size int32) *messagev1.ListChangesResponse {
	w.Helper()
	res, err := w.reader.Changes(w.ctx, user,
		&messagev1.ListChangesRequest{ChatId: chatID, AfterVersion: after, PageSize: size})
	w.must(err)
	return res
}

// sync takes all pages.
func (w *fixture) sync(user, token string, size int32) *deliveryv1.SyncResponse {
	w.Helper()
	all := &deliveryv1.SyncResponse{}
	for page := ""; ; {
		res, err := w.reader.Sync(w.ctx, user, &deliveryv1.SyncRequest{Token: token, PageToken: page, PageSize: size})
		w.must(err)
		if (res.GetToken() == "") == (res.GetNextPageToken() == "") {
			w.Fatal("a page has either a token or a next page")
		}
		all.Overviews = append(all.Overviews, res.GetOverviews()...)
		all.LeftChats = append(all.LeftChats, res.GetLeftChats()...)
		all.Full, all.Generation, all.Token = res.GetFull(), res.GetGeneration(), res.GetToken()
		if page = res.GetNextPageToken(); page == "" {
			return all
		}
	}
}

func texts(messages []*messagev1.Message) []string {
	out := []string{}
	for _, m := range messages {
		out = append(out, m.GetContent())
	}
	return out
}

func chatIDs(chats []*chatv1.ChatOverview) []string {
	out := []string{}
	for _, c := range chats {
		out = append(out, c.GetChat().GetChatId())
	}
	return out
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}

func text(m proto.Message) string { return protojson.Format(m) }

func TestConfig(t *testing.T) {
	good := view.Config{Store: dynamotest.Store(t, time.Now), History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize),
		Clock:    time.Now}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*view.Config){
		"store":           func(c *view.Config) { c.Store = nil },
		"clock":           func(c *view.Config) { c.Clock = nil },
		"generation":      func(c *view.Config) { c.History = store.Line("") },
		"long generation": func(c *view.Config) { c.History = store.Line(make([]byte, view.MaxGeneration+1)) },
		"key":             func(c *view.Config) { c.TokenKey = nil },
	} {
		bad := good
		spoil(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOverview(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	w.send(id, "bob", "hello")
	w.send(id, "bob", "world")
	o, err := w.reader.Overview(w.ctx, "ann", id)
	w.must(err)
	testkit.Equal(t, "chat", o.GetChat().GetName()+" "+o.GetChat().GetType().String(), "group CHAT_TYPE_GROUP")
	testkit.Equal(t, "member count", o.GetChat().GetMemberCount(), 2)
	testkit.Equal(t, "head", [2]int64{o.GetHead().GetVersion(), o.GetHead().GetSequence()}, [2]int64{4, 2})
	testkit.Equal(t, "preview", o.GetHead().GetLastMessage().GetText(), "world")
	testkit.Equal(t, "unread", o.GetState().GetUnreadCount(), 2)
	_, err = w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "ann", ChatID: id, Sequence: 1})
	w.must(err)
	o, err = w.reader.Overview(w.ctx, "ann", id)
	w.must(err)
	testkit.Equal(t, "unread", o.GetState().GetUnreadCount(), 1)

	// The head is read before the user's row: what is read meanwhile may be more
	// than the head has, and unread never goes below 0.
	w.store.reads = 0
	w.store.before = func(n int) {
		if n == 2 {
			w.send(id, "bob", "x")
			_, err := w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "ann", ChatID: id, Sequence: 3})
			w.must(err)
		}
	}
	o, err = w.reader.Overview(w.ctx, "ann", id)
	w.must(err)
	testkit.Equal(t, "head, read, unread",
		[]int64{o.GetHead().GetSequence(), o.GetState().GetReadSequence(), o.GetState().GetUnreadCount()}, []int64{2, 3, 0})
}

func TestMute(t *testing.T) {
	w := newFixture(t)
	until := w.clock().Add(time.Hour).UnixMilli()
	s := w.reader.State(table.Head{}, table.UserChat{MutedUntil: until})
	testkit.Equal(t, "muted", s.GetMutedUntil().AsTime().UnixMilli(), until)
	w.advance(2 * time.Hour)
	if w.reader.State(table.Head{}, table.UserChat{MutedUntil: until}).MutedUntil != nil {
		t.Fatal("a mute that is over still shows")
	}
}

// A stranger cannot tell a chat that exists from one that does not: same answer
// after the same reads.
func TestStrangerAndUnknownChatAreAlike(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	w.send(id, "ann", "secret")
	unknown := chat.NewID("chat_")
	for name, op := range operations {
		if name == "chats" || name == "sync" || name == "overviews" {
			continue // about all chats of the user
		}
		var reads [2]int
		for i, chatID := range []string{id, unknown} {
			w.store.reads = 0
			_, err := op(w, "dan", chatID)
			wantError(t, name, err, chat.ErrNotAMember)
			reads[i] = w.store.reads
		}
		testkit.Equal(t, name+": reads", reads[0], reads[1])
	}
}

// operations are all reads for a user of a chat.
var operations = map[string]func(w *fixture, user, chatID string) (proto.Message, error){
	"overview": func(w *fixture, user, chatID string) (proto.Message, error) {
		return w.reader.Overview(w.ctx, user, chatID)
	},
	"members": func(w *fixture, user, chatID string) (proto.Message, error) {
		return w.reader.Members(w.ctx, user, chatID, 0, "")
	},
	"newest messages": func(w *fixture, user, chatID string) (proto.Message, error) {
		return w.reader.Messages(w.ctx, user, &messagev1.ListMessagesRequest{ChatId: chatID})
	},
	"messages after": func(w *fixture, user, chatID string) (proto.Message, error) {
		return w.reader.Messages(w.ctx, user, &messagev1.ListMessagesRequest{ChatId: chatID, AfterSequence: proto.Int64(0)})
	},
	"changes": func(w *fixture, user, chatID string) (proto.Message, error) {
		return w.reader.Changes(w.ctx, user, &messagev1.ListChangesRequest{ChatId: chatID})
	},
	"reset": func(w *fixture, user, chatID string) (proto.Message, error) {
		return w.reader.Changes(w.ctx, user, &messagev1.ListChangesRequest{ChatId: chatID, AfterVersion: 1 << 40})
	},
	"chats": func(w *fixture, user, _ string) (proto.Message, error) {
		return w.reader.ListChats(w.ctx, user, &chatv1.ListChatsRequest{})
	},
	"sync": func(w *fixture, user, _ string) (proto.Message, error) {
		return w.reader.Sync(w.ctx, user, &deliveryv1.SyncRequest{})
	},
	"overviews": func(w *fixture, user, chatID string) (proto.Message, error) {
		chats, err := w.reader.Overviews(w.ctx, user, []string{chatID})
		if err == nil && len(chats) == 0 {
			return nil, chat.ErrNotAMember
		}
		return &chatv1.ListChatsResponse{Overviews: chats}, err
	},
}
