// Package people reads and writes the rows of users for package chat: who exists, and
// in how many chats each is.
//
// It owns how that number comes into the rows of earlier releases, which do not hold
// it. Plans of package plan keep it from then on, and demand it: so no chat is joined
// or left between the count and its writing. A Rows may be used by many goroutines.
package people

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Rows are the rows of users in a store.
type Rows struct {
	Store store.Store
	// Write runs a plan that is safe to repeat until its outcome is known.
	Write func(ctx context.Context, writes ...store.Write) error
	// Durable waits until what was read is on disk, and returns answer then.
	Durable func(ctx context.Context, answer error) error
}

// Ensure writes the row of a user if there is none. Whoever has no row is in no
// chat.
func (r Rows) Ensure(ctx context.Context, user string, at int64) error {
	row := table.User{UserID: user, CreatedAt: at, Status: table.Active, Counted: true}
	err := r.Write(ctx, store.Write{
		Op: store.OpPut, Key: table.UserKey(user), Item: row.Item(), Cond: store.Absent(), Name: plan.CondUser,
	})
	if failed := new(store.ConditionError); errors.As(err, &failed) {
		return r.Durable(ctx, nil)
	}
	return err
}

// Check checks that users are there, who are never removed, so that it may be done
// before the plan that relies on it, and that each can be in one more chat. Errors:
// plan.ErrUserNotFound, plan.ErrTooManyChats, and the store's.
func (r Rows) Check(ctx context.Context, m plan.Maker, users []string) error {
	keys := make([]store.Key, len(users))
	for i, u := range users {
		keys[i] = table.UserKey(u)
	}
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	items, err := r.Store.BatchGet(call, keys, store.Strong)
	cancel()
	if err != nil {
		return fmt.Errorf("read %s: %w", store.Users, err)
	}
	for i, it := range items {
		if it == nil {
			return r.Durable(ctx, plan.Unknown(users[i]))
		}
	}
	for i, it := range items {
		row := table.UserFrom(users[i], it)
		if !row.Counted {
			if row, err = r.count(ctx, users[i]); err != nil {
				return err
			}
		}
		if err := m.CheckRoom(row); err != nil {
			return r.Durable(ctx, err)
		}
	}
	return nil
}

// Count writes down in how many chats users are, whose rows do not say so.
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
	q := store.Query{Table: store.DeliveryState, PK: user, Consistency: store.Strong}
	for more := true; more; {
		call, cancel := context.WithTimeout(ctx, store.CallTimeout)
		page, err := r.Store.Query(call, q)
		cancel()
		if err != nil {
			return row, fmt.Errorf("read %s: %w", q.Table, err)
		}
		for _, p := range page.Rows {
			if u := table.UserChatFrom(user, p.Key.SK, p.Item); !u.Left() {
				row.Chats++
			}
		}
		q.Cursor, more = page.Cursor, page.Cursor != ""
	}
	err := r.Write(ctx, store.Write{
		Op: store.OpUpdate, Key: table.UserKey(user), Cond: store.Condition{}.Without(table.AttrChats), Name: plan.CondChats,
		Update: store.Update{Set: []store.Attr{{Name: table.AttrChats, Value: store.Int(row.Chats)}}},
	})
	if failed := new(store.ConditionError); errors.As(err, &failed) { // somebody else was faster
		return table.UserFrom(user, failed.Failures[0].Current), nil
	}
	return row, err
}
