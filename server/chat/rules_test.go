package chat_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// strict is a store that takes no read that may be old.
type strict struct {
	store.Store
	t *testing.T
}

func (s *strict) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	if c != store.Strong {
		s.t.Errorf("eventual read of %s", k)
	}
	return s.Store.Get(ctx, k, c)
}

func (s *strict) BatchGet(ctx context.Context, k []store.Key, c store.Consistency) ([]store.Item, error) {
	if c != store.Strong {
		s.t.Errorf("eventual read of %v", k)
	}
	return s.Store.BatchGet(ctx, k, c)
}

func (s *strict) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.Consistency != store.Strong {
		s.t.Errorf("eventual read of %v", q)
	}
	return s.Store.Query(ctx, q)
}

func (w *fixture) events(id string) []event.Event {
	w.t.Helper()
	var out []event.Event
	for _, r := range w.scan(store.Events) {
		row, err := table.EventFrom(r)
		if err != nil {
			w.t.Fatal(err)
		}
		e, err := event.Unmarshal(row.Type, row.Payload)
		if err != nil {
			w.t.Fatal(err)
		}
		if row.ChatID == id {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b event.Event) int {
		return int(a.GetMetadata().GetVersion() - b.GetMetadata().GetVersion())
	})
	return out
}

// L-012, L-062, L-063, L-077, L-078, L-122, L-126, L-143: every read that a
// decision stands on is consistent. L-002, L-004, L-195, L-198, L-199: each change
// of members or metadata leaves the chat active, moves updated_at and
// membership_version on, and its time is the server's.
func TestEveryChange(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := w.service("p", &strict{st, t}, func(c *chat.Config) { c.Clock = func() time.Time { return now } })
		w.users(s, "ann", "bob", "cat")
		id := w.group(s, "ann", "bob")
		name := "n"
		change := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Member}
		promote := change
		promote.Role = table.Admin
		for what, do := range []func() error{
			func() error { _, err := s.Change(w.ctx, chat.OpAdd, change); return err },
			func() error { _, err := s.Change(w.ctx, chat.OpRole, promote); return err },
			func() error {
				_, _, err := s.UpdateChat(w.ctx, chat.ChatChange{Caller: "ann", ChatID: id, Name: &name})
				return err
			},
			func() error { return changeMember(w.ctx, s, chat.OpRemove, change) },
			func() error {
				return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id})
			},
		} {
			before := w.head(id)
			now = now.Add(time.Minute)
			if err := do(); err != nil {
				t.Fatal(what, err)
			}
			row, h := w.chat(id), w.head(id)
			if row.Status != table.Active || row.UpdatedAt != now.UnixMilli() || h.MembershipVersion != before.MembershipVersion+
				1 || row.Version != h.Version {
				t.Errorf("change %d: %+v, %+v", what, row, h)
			}
		}
		if _, err := s.CheckCount(w.ctx, id); err != nil {
			t.Error(err)
		}
		if _, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "bob"}); err != nil {
			t.Error(err)
		}
		if _, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "ann", ChatID: id, Sequence: 1}); err != nil {
			t.Error(err)
		}
		if _, err := s.SetMemberSettings(w.ctx,
			chat.MemberSettings{Caller: "ann", ChatID: id, MutedUntil: new(int64), Procedure: "unmute",
				RequestID: "r"}); err != nil {
			t.Error(err)
		}
		w.check()
	})
}

// L-015, L-030 to L-033, L-110 to L-114, L-116, L-188, L-189: rows and events of a
// chat's life, field by field.
func TestRowsAndEvents(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := w.service("p", w.store, func(c *chat.Config) { c.Clock = func() time.Time { return now } })
	w.users(s, "ann", "bob", "cat")
	c, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"cat", "bob"}})
	if err != nil {
		t.Fatal(err)
	}
	id := c.ChatID
	if !regexp.MustCompile(`^chat_[0-9A-HJKMNP-TV-Z]{26}$`).MatchString(id) {
		t.Errorf("chat id %s", id)
	}
	at := now.UnixMilli()
	row := w.chat(id)
	want := table.Chat{
		ChatID: id, Type: table.Group, Name: "g", CreatedBy: "ann", Status: table.Active, History: table.All,
		MemberCount: 3, CreatedAt: at, UpdatedAt: at, Version: 3,
	}
	row.DirectUsers = nil
	if row.ChatID != want.ChatID || row.Type != want.Type || row.Name != want.Name || row.CreatedBy != want.CreatedBy ||
		row.Status != want.Status ||
		row.MemberCount != want.MemberCount || row.CreatedAt != want.CreatedAt || row.UpdatedAt != want.UpdatedAt ||
		row.Version != want.Version || row.History != want.History {
		t.Errorf("%+v, want %+v", row, want)
	}
	if h := w.head(id); h.Sequence != 0 || h.Version != 3 {
		t.Errorf("%+v", h)
	}
	change := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Admin}
	if _, err := s.Change(w.ctx, chat.OpRole, change); err != nil {
		t.Fatal(err)
	}
	if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id}); err != nil {
		t.Fatal(err)
	}
	events := w.events(id)
	if len(events) != 5 {
		t.Fatalf("%d events", len(events))
	}
	for i, e := range events {
		md := e.GetMetadata()
		if md.GetEventVersion() != 1 || md.GetProducerId() != "p" || md.GetVersion() != int64(i+1) ||
			md.GetMembershipVersion() != int64(i+1) || !md.GetEventTime().AsTime().Equal(now) {
			t.Errorf("%v", md)
		}
	}
	made, ok := events[0].(*eventv1.ChatCreated)
	if !ok || made.GetChatId() != id || made.GetName() != "g" ||
		made.GetStatus() != eventv1.ChatStatus_CHAT_STATUS_ACTIVE || made.GetCreatedBy() != "ann" ||
		made.GetMemberCount() != 3 || !slices.Equal(made.GetInitialMembers(), []string{"ann", "bob", "cat"}) ||
		!made.GetCreatedAt().AsTime().Equal(now) ||
		made.GetChatType() != eventv1.ChatType_CHAT_TYPE_GROUP {
		t.Errorf("%v", events[0])
	}
	for i, want := range []struct {
		user, by string
		kind     eventv1.MembershipChangeType
		role     eventv1.MemberRole
		count    int32
	}{
		{"bob", "ann", eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED, eventv1.MemberRole_MEMBER_ROLE_MEMBER, 3},
		{"cat", "ann", eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED, eventv1.MemberRole_MEMBER_ROLE_MEMBER, 3},
		{"bob", "ann", eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED, eventv1.MemberRole_MEMBER_ROLE_ADMIN,
			3},
		// L-092
		{"bob", "bob", eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED, eventv1.MemberRole_MEMBER_ROLE_ADMIN, 2},
	} {
		e, ok := events[i+1].(*eventv1.MembershipChanged)
		if !ok || e.GetChatId() != id || e.GetUserId() != want.user || e.GetChangedBy() != want.by ||
			e.GetChangeType() != want.kind ||
			e.GetRole() != want.role || e.GetMemberCountAfter() != want.count || !e.GetChangedAt().AsTime().Equal(now) {
			t.Errorf("%v, want %v", events[i+1], want)
		}
	}
}

// L-109: what a commit reports, and so whatever follows from it, finds the
// store at its version or beyond.
func TestCommitsAreReportedAfterTheStoreHasThem(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		reported := 0
		s := w.service("p", st, func(c *chat.Config) {
			c.Committed = func(c chat.Commit) {
				reported++
				if h := w.head(c.ChatID); h.Version < c.Head.Version {
					t.Errorf("reported version %d at %d", c.Head.Version, h.Version)
				}
				o, err := st.Get(w.ctx, c.Outbox.Key, store.Strong)
				if err != nil || o == nil {
					t.Errorf("reported version %d without a row in the outbox: %v", c.Head.Version, err)
				}
			}
		})
		w.users(s, "ann", "bob", "cat")
		id := w.group(s, "ann", "bob")
		w.add(s, id, "ann", "cat", table.Member)
		w.send(s, id, "cat", "x")
		if reported != 4 {
			t.Errorf("reported %d commits", reported)
		}
	})
}

// L-019, L-035, L-036, L-159, L-192: what the store throttles, or others are in the
// way of, goes again and is complete in the end.
func TestThrottledCreation(t *testing.T) {
	for _, err := range []error{store.ErrThrottled, store.ErrConflict} {
		w := newFixture(t, dynamotest.Store(t, time.Now))
		g := newGate(w.store)
		s := w.service("p", g)
		users := numbered("u", 99)
		w.users(s, append(users, "ann")...)
		n := 0
		g.failAll(func() error { // two of three plans
			if n++; n%3 != 0 {
				return err
			}
			g.failAll(nil)
			return err
		})
		d, failed := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: users[0]})
		if failed != nil || d.Replayed || n != 3 {
			t.Errorf("%v: %+v, %v after %d refusals", err, d, failed, n)
		}
		again := &often{Store: w.store, err: err}
		retries := 0
		q := w.service("q", again, func(c *chat.Config) { c.Meter.CreationRetried = func() { retries++ } })
		c, failed := q.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: users})
		if failed != nil || c.Incomplete != nil || w.chat(c.ChatID).MemberCount != 100 || again.n < 10 {
			t.Errorf("%v: %+v, %v after %d plans", err, c, failed, again.n)
		}
		if retries < 4 { // L-169: each of its chunks of 25 was refused at least once
			t.Errorf("%v: %d chunks were counted that went again", err, retries)
		}
		w.check()
	}
}

// often refuses every other plan.
type often struct {
	store.Store
	err error
	n   int
}

func (o *often) Transact(ctx context.Context, p store.Plan) error {
	if o.n++; o.n%2 == 1 {
		return o.err
	}
	return o.Store.Transact(ctx, p)
}

// L-043: while a group's members are on their way in, those who are in can send,
// and the others are no members yet.
func TestSendDuringCreation(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	s := w.service("p", w.store)
	w.users(s, "ann", "bob", "cat")
	dying := &crash{Store: w.store}
	dying.left.Store(1)
	c, err := w.service("d", dying).CreateGroup(w.ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"}})
	if err != nil || c.Incomplete == nil {
		t.Fatal(c, err)
	}
	w.send(s, c.ChatID, "ann", "x")
	if _, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: c.ChatID, Content: "x"}); !errors.Is(err,
		chat.ErrNotAMember) {
		t.Error(err)
	}
	if err := s.FinishPending(w.ctx, c.ChatID); err != nil {
		t.Fatal(err)
	}
	w.send(s, c.ChatID, "bob", "y")
	w.check()
}

// L-047, L-048: the stored count serves the size of a group and nothing else: no
// rule of who may do what reads it. L-115: nobody takes the initial members of an
// event for the members: only frames show them.
func TestWhoReadsTheCount(t *testing.T) {
	allowed := map[string]bool{
		"mayAdd": true, "mayShrink": true, // the size
		// what plans write
		"add": true, "changeRole": true, "updateRole": true, "remove": true, "updateCount": true, "CorrectCount": true,
		"updateChat": true, "depart": true,
		"Direct": true, "Group": true, "create": true, "Chunk": true, "ChatOf": true,
	}
	found := 0
	walk(t, "plan", func(file string, f *ast.File) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if ok && strings.Contains(id.Name, "MemberCount") {
					found++
					if !allowed[fn.Name.Name] {
						t.Errorf("%s: %s reads %s", file, fn.Name.Name, id.Name)
					}
				}
				return true
			})
		}
	})
	for _, dir := range []string{"../auth", "../delivery", "../view", "../internal/api", "../event", "../../workers"} {
		walk(t, dir, func(file string, f *ast.File) {
			ast.Inspect(f, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				if strings.Contains(id.Name, "AttrMemberCount") {
					t.Errorf("%s tests the stored count", file)
				}
				if strings.HasSuffix(id.Name, "InitialMembers") {
					found++
					if !strings.HasSuffix(filepath.ToSlash(file), "delivery/frame/frame.go") {
						t.Errorf("%s reads the initial members", file)
					}
				}
				return true
			})
		})
	}
	if found < 10 {
		t.Errorf("%d places found", found)
	}
}

// walk parses the files of a directory and below, but tests.
func walk(t *testing.T, dir string, visit func(file string, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			visit(path, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// L-008, L-194 to L-197: the tables of the ADR, and ours.
func TestTables(t *testing.T) {
	want := []store.Table{
		"users", "chats", "chat_memberships", "messages", "chat_counters", "idempotency_keys", "delivery_state", "sessions",
		"otp_requests", "direct_chat_index",
		"outbox", "pending_members", "consumer_attempts", "dead_letters", "subscriptions",
	}
	for _, d := range store.Tables() {
		if d.Name == store.DirectChatIndex && (d.TTL || d.SortKey) {
			t.Errorf("%+v", d)
		}
		if d.Name == store.ChatMemberships && !d.SortKey || d.Name == store.ChatCounters && d.SortKey {
			t.Errorf("%+v", d)
		}
		want = slices.DeleteFunc(want, func(n store.Table) bool { return n == d.Name })
	}
	if len(want) > 0 {
		t.Errorf("no table %v", want)
	}
}
