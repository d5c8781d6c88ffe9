package chat

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// MarkRead says that a user has read a chat up to a sequence; more than the chat
// has counts as all. It never goes back. It returns the user's row and the head
// that it was measured by. Errors: ErrNotAMember.
func (s *Service) MarkRead(ctx context.Context, user, chatID string, sequence int64) (table.UserChat, table.Head, error) {
	for {
		head, err := s.readHead(ctx, chatID)
		if err != nil {
			return table.UserChat{}, head, err
		}
		it, err := s.cfg.Store.Get(ctx, table.UserChatKey(user, chatID), store.Strong)
		if err != nil {
			return table.UserChat{}, head, fmt.Errorf("read user's row: %w", err)
		}
		if it == nil {
			return table.UserChat{}, head, ErrNotAMember
		}
		row := table.UserChatFrom(user, chatID, it)
		if row.Left() {
			return table.UserChat{}, head, ErrNotAMember
		}
		n := min(sequence, head.Sequence)
		if n <= row.ReadSequence {
			return row, head, nil
		}
		row.ReadSequence, row.ChangedAt = n, s.stamp(row.ChangedAt)
		err = s.raise(ctx, user, chatID, table.AttrReadSequence, n, store.Attr{Name: table.AttrChangedAt, Value: store.Int(row.ChangedAt)})
		if conditionError(err) != nil {
			continue // read further meanwhile, or left
		}
		if err == nil {
			s.cfg.Receipt(row, head)
		}
		return row, head, err
	}
}

// Delivered says that a message reached a device of a user; lower sequences than
// before are ignored.
func (s *Service) Delivered(ctx context.Context, user, chatID string, sequence int64) error {
	err := s.raise(ctx, user, chatID, table.AttrDeliveredSequence, sequence)
	if conditionError(err) != nil {
		return nil // further already, or left
	}
	return err
}

// raise sets a mark of a member's row if it is lower, and other attributes with
// it. Repeating it after an unknown outcome is harmless.
func (s *Service) raise(ctx context.Context, user, chatID, mark string, n int64, with ...store.Attr) error {
	return s.transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.UserChatKey(user, chatID), Name: condUser,
		Cond:   isMember().Lt(mark, store.Int(n)),
		Update: store.Update{Set: append(with, store.Attr{Name: mark, Value: store.Int(n)})},
	}}})
}
