// Package people reads and writes the rows of users for package chat: who exists, and
// in how many chats each is.
//
// It owns how that number comes into the rows of earlier releases, which do not hold
// it. Plans of package plan keep it from then on, and demand it: so no chat is joined
// or left between the count and its writing. A Rows may be used by many goroutines.
package people

import (
	"context"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Rows are the rows of users in a store.
type Rows struct {
	Store *commit.Committer
}

// Ensure writes the row of a user if there is none. A user without a row is in no
// chat.
func (r Rows) Ensure(ctx context.Context, user string, at int64) error {
	row := table.User{UserID: user, CreatedAt: at, Status: table.Active, Counted: true}
	err := r.Store.Repeat(ctx, store.Write{
		Op: store.OpPut, Key: table.UserKey(user), Item: row.Item(), Cond: store.Absent(), Name: plan.CondUser,
	})
	if commit.ConditionError(err) != nil {
		return r.Store.Durable(ctx, nil)
	}
	return err
}

// Check checks that users exist, and that each can be in one more chat. Users are never
// removed, so it may be done before the plan that relies on it. Errors:
// command.ErrUserNotFound, command.ErrTooManyChats, and the store's.
func (r Rows) Check(ctx context.Context, p plan.Planner, users []string) error {
	keys := make([]store.Key, len(users))
	for i, u := range users {
		keys[i] = table.UserKey(u)
	}
	items, err := r.Store.BatchGet(ctx, keys)
	if err != nil {
		return err
	}
	for i, it := range items {
		if it == nil {
			return r.Store.Durable(ctx, command.UnknownUser(users[i]))
		}
	}
	for i, it := range items {
		row := table.UserFrom(users[i], it)
		if !row.Counted {
			if row, err = r.count(ctx, users[i]); err != nil {
				return err
			}
		}
		if err := p.CheckChatCount(row); err != nil {
			return r.Store.Durable(ctx, err)
		}
	}
	return nil
}

// Count records in how many chats users are, whose rows do not have the number.
func (r Rows) Count(ctx context.Context, users []string) error {
	for _, u := range users {
		if _, err := r.count(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

func (r Rows) count(ctx context.Context, user string) (table.User, error) {
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
