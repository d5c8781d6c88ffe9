package people

import (
	"context"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Block adds other to a user's block list. It changes nothing if other is on it. Errors:
// ErrSelf, ErrUnknown, also for a caller whose account is deleted, ErrTooManyBlocked, and
// the store's.
func (s *Service) Block(ctx context.Context, user, other string) error {
	if user == other {
		return ErrSelf
	}
	return s.repeat(ctx, func() ([]store.Write, error) {
		items, err := s.commits.BatchGet(ctx, []store.Key{rows.BlockKey(user, other), table.DirectIndexKey(user, other),
			table.UserKey(other), table.UserKey(user)})
		if err != nil {
			return nil, err
		}
		own := rows.AccessFrom(items[3])
		switch {
		case items[0] != nil:
			return nil, nil
		case items[2] == nil, !own.Exists, own.Deleted():
			return nil, ErrUnknown
		}
		if err := s.room(ctx, rows.Blocks(user), MaxBlocked, ErrTooManyBlocked); err != nil {
			return nil, err
		}
		return append(barring(user, other, items[1], true),
			put("entry", store.Absent(), rows.BlockKey(user, other), rows.Block{At: s.now()}.Item()),
			update("user", there(), table.UserKey(user), store.Update{
				Set: []store.Attr{{Name: rows.AttrHasBlocked, Value: store.Bool(true)}}})), nil
	})
}

// Unblock removes other from a user's block list. It changes nothing if other is not on it.
func (s *Service) Unblock(ctx context.Context, user, other string) error {
	return s.repeat(ctx, func() ([]store.Write, error) {
		items, err := s.commits.BatchGet(ctx,
			[]store.Key{rows.BlockKey(user, other), table.DirectIndexKey(user, other)})
		if err != nil || items[0] == nil {
			return nil, err
		}
		entry := store.Write{Op: store.OpDelete, Key: rows.BlockKey(user, other), Cond: store.Exists(), Name: "entry"}
		return append(barring(user, other, items[1], false), entry), nil
	})
}

// NoChat names the condition that two people have no direct chat yet.
const NoChat = "no_chat"

// barring writes a block, or its end, into the rows of the direct chat of two people. If
// they have none yet, the plan demands that there is none still.
func barring(user, other string, pair store.Item, blocks bool) []store.Write {
	if pair == nil {
		return []store.Write{{Op: store.OpCheck, Key: table.DirectIndexKey(user, other), Cond: store.Absent(),
			Name: NoChat}}
	}
	id := table.DirectIndexFrom(pair).ChatID
	set := func(attr string) store.Update {
		if blocks {
			return store.Update{Set: []store.Attr{{Name: attr, Value: store.Bool(true)}}}
		}
		return store.Update{Remove: []string{attr}}
	}
	return []store.Write{
		update("own", store.Exists(), table.UserChatKey(user, id), set(rows.AttrBlocks)),
		update("others", store.Exists(), table.UserChatKey(other, id), set(rows.AttrBlocked)),
	}
}

// room refuses another row of a query that has as many as there may be.
func (s *Service) room(ctx context.Context, q store.Query, limit int, full error) error {
	n := 0
	for _, err := range s.query(ctx, q) {
		if err != nil {
			return err
		}
		if n++; n >= limit {
			return full
		}
	}
	return nil
}

// Blocked returns a page of a user's block list, in order of user id, after a user; more says
// that there are further ones.
func (s *Service) Blocked(ctx context.Context, user, after string, size int) (page []rows.Block, more bool, err error) {
	q := rows.Blocks(user)
	if after != "" {
		if command.CheckUser(after) != nil {
			return nil, false, ErrCursor
		}
		q.From = rows.BlockKey(user, after).SK
	}
	for row, err := range s.query(ctx, q) {
		if err != nil {
			return nil, false, err
		}
		b := rows.BlockFrom(row)
		if b.Other == after {
			continue
		}
		if len(page) == size {
			return page, true, nil
		}
		page = append(page, b)
	}
	return page, false, nil
}
