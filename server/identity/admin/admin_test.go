package admin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// identity is users over the store and their sessions, which note what was done.
type identity struct {
	store store.Store
	steps []string
	err   error // of EndEverything
}

func (i *identity) Status(ctx context.Context, user string) (Status, error) {
	item, err := i.store.Get(ctx, table.UserKey(user), store.Strong)
	if err == nil && item == nil {
		err = ErrNoUser
	}
	return Status(table.UserFrom(user, item).Status), err
}

func (i *identity) set(ctx context.Context, user string, status Status) error {
	i.steps = append(i.steps, string(status))
	return i.store.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.UserKey(user), Cond: store.Exists(), Name: "user",
		Update: store.Update{Set: store.NewItem(store.Attr{Name: table.AttrStatus, Value: store.String(string(status))})},
	}}})
}

func (i *identity) Suspend(ctx context.Context, user string) error {
	return i.set(ctx, user, Suspended)
}
func (i *identity) Restore(ctx context.Context, user string) error { return i.set(ctx, user, Active) }

func (i *identity) EndEverything(_ context.Context, user string) error {
	i.steps = append(i.steps, "end everything of "+user)
	return i.err
}

func (*identity) List(context.Context, string) ([]Session, error) { return nil, nil }
func (*identity) Revoke(context.Context, string, string) error    { return nil }

// A suspension writes the state before anything ends, so that nobody signs in between;
// one that failed is repeated, and a deleted account stays as it is.
func TestPeople(t *testing.T) {
	i := &identity{store: storetest.NewMemory(time.Now)}
	user := table.User{UserID: "mallory", CreatedAt: 1_700_000_000_000, Status: table.Active, Chats: 3, Counted: true}
	gone := table.User{UserID: "gone", CreatedAt: 1, Status: table.Status(Deleted)}
	for _, u := range []table.User{user, gone} {
		testkit.Must(t, i.store.BatchWrite(t.Context(),
			[]store.Write{{Op: store.OpPut, Key: table.UserKey(u.UserID), Item: u.Item()}}))
	}
	p, err := NewPeople(Config{Store: i.store, Parts: Parts{Users: i, Sessions: i}})
	testkit.Must(t, err)
	if u, err := p.Suspend(t.Context(), "mallory", false); err != nil || u.Status != Active || u.Chats != 3 ||
		u.CreatedAt.UnixMilli() != user.CreatedAt || len(i.steps) > 0 {
		t.Errorf("a dry run: %+v, %v, %v", u, i.steps, err)
	}
	i.err = errors.New("broken")
	if _, err := p.Suspend(t.Context(), "mallory", true); !errors.Is(err, i.err) {
		t.Error(err)
	}
	i.err = nil
	u, err := p.Suspend(t.Context(), "mallory", true)
	want := []string{"suspended", "end everything of mallory"}
	if err != nil || u.Status != Suspended || !slices.Equal(i.steps, append(want, want...)) {
		t.Errorf("%+v, %v, %v", u, i.steps, err)
	}
	if u, err := p.Restore(t.Context(), "mallory", true); err != nil || u.Status != Active {
		t.Errorf("%+v, %v", u, err)
	}
	i.steps = nil
	for what, do := range map[string]func(context.Context, string, bool) (User, error){"suspend": p.Suspend,
		"restore": p.Restore} {
		if _, err := do(t.Context(), "gone", true); !errors.Is(err, ErrDeleted) {
			t.Errorf("%s a deleted user: %v", what, err)
		}
		if _, err := do(t.Context(), "nobody", true); !errors.Is(err, ErrNoUser) {
			t.Errorf("%s nobody: %v", what, err)
		}
	}
	if len(i.steps) > 0 {
		t.Errorf("done: %v", i.steps)
	}
	for _, parts := range []Parts{{}, {Users: i}, {Sessions: i}} {
		if _, err := NewPeople(Config{Store: i.store, Parts: parts}); err == nil {
			t.Errorf("%+v is enough", parts)
		}
	}
}

// Members that are still to be added are shown once, as such, whoever has been added since.
func TestMembers(t *testing.T) {
	s := storetest.NewMemory(time.Now)
	chats, err := chat.New(t.Context(), chat.Config{Store: s, Clock: time.Now, Generation: "g", Producer: "p"})
	testkit.Must(t, err)
	for _, u := range []string{"alice", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), u))
	}
	c, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "Tea", Members: []string{"bob"}})
	testkit.Must(t, err)
	testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: table.PendingKey(c.ChatID),
		Item: table.Pending{Members: []string{"bob", "carol"}, CreatedBy: "alice", CreatedAt: 1}.Item()}}))
	reader := NewChats(s)
	members, pending, err := reader.Members(t.Context(), c.ChatID)
	testkit.Must(t, err)
	if len(members) != 2 || members[0].Role != table.Owner || members[1].UserID != "bob" ||
		!slices.Equal(pending, []string{"carol"}) {
		t.Errorf("%+v, %v", members, pending)
	}
	if _, _, err := reader.Members(t.Context(), "chat_x"); !errors.Is(err, ErrNoChat) {
		t.Error(err)
	}
	for _, n := range []int{0, 201} {
		if _, err := reader.Messages(t.Context(), c.ChatID, 0, n); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d messages: %v", n, err)
		}
	}
}
