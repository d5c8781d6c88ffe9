package chat

import (
	"context"
	"slices"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// peopleRows reads and writes the rows of users in a store: which users exist, and in how many chats each is. Rows of
// earlier releases do not hold that number. Plans keep it once it is written, and demand it: so no chat is joined or
// left between the count and its writing. Many goroutines may use it.
type peopleRows struct {
	Store *commit.Committer
}

// Ensure writes the row of a user if there is none. A user without a row is in no
// chat. It reads first: most users are there, and a write costs more.
func (r peopleRows) Ensure(ctx context.Context, user string, at int64) error {
	switch it, err := r.Store.Get(ctx, table.UserKey(user)); {
	case err != nil:
		return err
	case it != nil:
		return r.Store.Durable(ctx, nil)
	}
	row := table.User{UserID: user, CreatedAt: at, Status: table.Active, Counted: true}
	err := r.Store.Repeat(ctx, store.Write{
		Op: store.OpPut, Key: table.UserKey(user), Item: row.Item(), Cond: store.Absent(), Name: plan.CondUser,
	})
	if commit.ConditionError(err) != nil {
		return r.Store.Durable(ctx, nil)
	}
	return err
}

// Check checks that users exist, and that each can be in one more chat. If a user adds them to a group, it checks that
// they allow this user to add them and have blocked none of the others. Rows of users are never removed, so it may be
// done before the plan that relies on it. Errors: command.ErrUserNotFound, command.ErrTooManyChats,
// command.ErrForbidden, command.ErrInvalidOperation, and the store's.
func (r peopleRows) Check(ctx context.Context, p plan.Planner, adds string, users []string) error {
	items, err := r.read(ctx, users, table.UserKey)
	if err != nil {
		return err
	}
	for i, user := range users {
		if access := people.AccessFrom(items[i]); !access.Exists || access.Deleted() {
			return r.Store.Durable(ctx, command.UnknownUser(user))
		}
	}
	if adds != "" {
		if err := r.mayAdd(ctx, adds, users, items); err != nil {
			return err
		}
	}
	for i, user := range users {
		row := table.UserFrom(user, items[i])
		if !row.Counted {
			var err error
			if row, err = r.count(ctx, user); err != nil {
				return err
			}
		}
		if err := p.CheckChatCount(row); err != nil {
			return r.Store.Durable(ctx, err)
		}
	}
	return nil
}

// read reads a row of each user.
func (r peopleRows) read(ctx context.Context, users []string, key func(user string) store.Key) ([]store.Item, error) {
	items := make([]store.Item, 0, len(users))
	for part := range slices.Chunk(users, store.MaxBatchGet) {
		keys := make([]store.Key, len(part))
		for i, u := range part {
			keys[i] = key(u)
		}
		got, err := r.Store.BatchGet(ctx, keys)
		if err != nil {
			return nil, err
		}
		items = append(items, got...)
	}
	return items, nil
}

// mayAdd checks that users, whose rows are given, allow the user adds to add them to a
// group. It also checks that none of them would share the group with a user whom they have
// blocked.
func (r peopleRows) mayAdd(ctx context.Context, adds string, users []string, rows []store.Item) error {
	blocks, err := r.read(ctx, users, func(user string) store.Key { return people.BlockKey(user, adds) })
	if err != nil {
		return err
	}
	shared, present := &sharing{rows: r, user: adds}, map[string]bool{}
	for _, u := range users {
		present[u] = true
	}
	for i, u := range users {
		if blocks[i] != nil {
			return r.Store.Durable(ctx, command.Unreachable(u))
		}
		access := people.AccessFrom(rows[i])
		var failed error
		asks := plan.NeedsInvitation(access, func() (shares bool) {
			shares, failed = shared.with(ctx, u)
			return shares
		})
		if failed == nil && !asks && access.HasBlocked {
			asks, failed = r.blocksOneOf(ctx, u, present)
		}
		switch {
		case failed != nil:
			return failed
		case asks:
			return r.Store.Durable(ctx, command.NeedsInvitation(u))
		}
	}
	return nil
}

// blocked returns whom a user has blocked.
func (r peopleRows) blocked(ctx context.Context, user string) (list []string, err error) {
	for row, err := range r.Store.Query(ctx, people.Blocks(user)) {
		if err != nil {
			return nil, err
		}
		list = append(list, people.BlockFrom(row).Other)
	}
	return list, nil
}

// blocksOneOf reports whether a user has blocked one of others.
func (r peopleRows) blocksOneOf(ctx context.Context, user string, others map[string]bool) (bool, error) {
	list, err := r.blocked(ctx, user)
	return slices.ContainsFunc(list, func(u string) bool { return others[u] }), err
}

// Meets reports whether a user has blocked one of the members of a group, or one of others,
// besides the user adds, which the plan checks.
func (r peopleRows) Meets(ctx context.Context, adds, user, chatID string, others []string) (bool, error) {
	list, err := r.blocked(ctx, user)
	if err != nil {
		return false, err
	}
	list = slices.DeleteFunc(list, func(u string) bool { return u == adds })
	if slices.ContainsFunc(list, func(u string) bool { return slices.Contains(others, u) }) {
		return true, nil
	}
	members, err := r.read(ctx, list, func(u string) store.Key { return table.MembershipKey(chatID, u) })
	return slices.ContainsFunc(members, func(it store.Item) bool { return it != nil }), err
}

// Share reports whether the user adds shares a chat with another user: both are members of
// the same group, or have a direct chat that the other user began or has written in. A user
// who begins a chat with a stranger shares nothing by that. Share reads the lists of both,
// unless they have such a direct chat.
func (r peopleRows) Share(ctx context.Context, adds, user string) (bool, error) {
	return (&sharing{rows: r, user: adds}).with(ctx, user)
}

// sharing reports with which users one user shares chats; that user's list is read once.
type sharing struct {
	rows peopleRows
	user string
	of   map[string]bool // chats; nil: not read yet
}

func (s *sharing) with(ctx context.Context, user string) (bool, error) {
	r := s.rows
	direct := ""
	it, err := r.Store.Get(ctx, table.DirectIndexKey(s.user, user))
	if err != nil {
		return false, err
	}
	if it != nil {
		direct = table.DirectIndexFrom(it).ChatID
		if takesPart, err := r.takesPart(ctx, user, direct); err != nil || takesPart {
			return takesPart, err
		}
	}
	if s.of == nil {
		if err := s.read(ctx); err != nil {
			return false, err
		}
	}
	for row, err := range r.Store.Partition(ctx, store.DeliveryState, user) {
		if err != nil {
			return false, err
		}
		id := row.Key.SK
		if s.of[id] && id != direct && !table.UserChatFrom(user, id, row.Item).Left() {
			return true, nil
		}
	}
	return false, nil
}

func (s *sharing) read(ctx context.Context) error {
	of := map[string]bool{}
	for row, err := range s.rows.Store.Partition(ctx, store.DeliveryState, s.user) {
		if err != nil {
			return err
		}
		if !table.UserChatFrom(s.user, row.Key.SK, row.Item).Left() {
			of[row.Key.SK] = true
		}
	}
	s.of = of
	return nil
}

// recent is how many messages of a direct chat are checked for one of a user.
const recent = 100

// takesPart reports whether a user has begun a direct chat, or written one of its last
// messages.
func (r peopleRows) takesPart(ctx context.Context, user, chatID string) (bool, error) {
	it, err := r.Store.Get(ctx, table.ChatKey(chatID))
	if err != nil || table.ChatFrom(chatID, it).CreatedBy == user {
		return err == nil, err
	}
	n := 0
	for row, err := range r.Store.Query(ctx, store.Query{Table: store.Messages, PK: chatID, Descending: true,
		Limit: recent, Consistency: store.Strong}) {
		if err != nil {
			return false, err
		}
		m, err := table.MessageFrom(row)
		if err != nil || m.SenderID == user {
			return err == nil, err
		}
		if n++; n == recent {
			break
		}
	}
	return false, nil
}

// Count records in how many chats users are, whose rows do not have the number.
func (r peopleRows) Count(ctx context.Context, users []string) error {
	for _, u := range users {
		if _, err := r.count(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

func (r peopleRows) count(ctx context.Context, user string) (table.User, error) {
	row := table.User{UserID: user, Counted: true}
	for p, err := range r.Store.Partition(ctx, store.DeliveryState, user) {
		if err != nil {
			return row, err
		}
		if u := table.UserChatFrom(user, p.Key.SK, p.Item); !u.Left() {
			row.Chats++
		}
	}
	err := r.Store.Repeat(ctx, store.Write{
		Op: store.OpUpdate, Key: table.UserKey(user), Cond: store.Condition{}.Without(table.AttrChats), Name: plan.CondChats,
		Update: store.Update{Set: []store.Attr{{Name: table.AttrChats, Value: store.Int(row.Chats)}}},
	})
	if failed := commit.ConditionError(err); failed != nil { // another caller was faster
		return table.UserFrom(user, failed.Failures[0].Current), nil
	}
	return row, err
}
