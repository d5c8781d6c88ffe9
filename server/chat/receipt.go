package chat

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// MarkRead says that a user has read a chat up to a sequence; more than the chat
// has counts as all. It never goes back. It returns the user's row and the head
// that it was measured by. Errors: ErrInvalidArgument, ErrNotAMember, and the
// store's.
func (s *Service) MarkRead(ctx context.Context, user, chatID string, sequence int64) (table.UserChat, table.Head, error) {
	fail := func(err error) (table.UserChat, table.Head, error) { return table.UserChat{}, table.Head{}, err }
	if err := checkKeys(user, ""); err != nil {
		return fail(err)
	}
	if err := checkChat(chatID); err != nil {
		return fail(err)
	}
	if sequence < 1 {
		return fail(fmt.Errorf("%w: a sequence is 1 or more", ErrInvalidArgument))
	}
	s.clock.Keep(ctx, s.transact)
	for pace := s.pacer(); ; {
		// The user's row comes last: it decides whether the head may be told.
		it, err := s.get(ctx, table.HeadKey(chatID))
		if err != nil {
			return fail(err)
		}
		own, err := s.get(ctx, table.UserChatKey(user, chatID))
		if err != nil {
			return fail(err)
		}
		if it == nil || own == nil || table.UserChatFrom(user, chatID, own).Left() {
			return fail(s.durable(ctx, ErrNotAMember))
		}
		head, row := table.HeadFrom(chatID, it), table.UserChatFrom(user, chatID, own)
		n := min(sequence, head.Sequence)
		if n <= row.ReadSequence {
			if err := s.durable(ctx, nil); err != nil {
				return fail(err)
			}
			if n == row.ReadSequence {
				// Perhaps the repetition of an attempt whose reply was lost, or whose process
				// died before it told anybody: once more does no harm.
				s.cfg.Receipt(row, head)
			}
			return row, head, nil
		}
		row.ReadSequence, row.ChangedAt = n, s.stamp(max(row.ChangedAt, head.ChangedAt))
		err = s.raise(ctx, user, chatID, table.AttrReadSequence, n, store.Attr{Name: table.AttrChangedAt, Value: store.Int(row.ChangedAt)})
		if err == nil {
			s.cfg.Receipt(row, head)
			return row, head, nil
		}
		if conditionError(err) == nil {
			return fail(err)
		}
		if err := pace.again(ctx, ctx); err != nil { // read further meanwhile, or left
			return fail(err)
		}
	}
}

// Delivered says that a message reached a device of a user; lower sequences than
// before, and chats that were left, are ignored. The row counts as unchanged.
func (s *Service) Delivered(ctx context.Context, user, chatID string, sequence int64) error {
	if err := checkKeys(user, ""); err != nil {
		return err
	}
	if err := checkChat(chatID); err != nil {
		return err
	}
	err := s.raise(ctx, user, chatID, table.AttrDeliveredSequence, sequence)
	if conditionError(err) != nil {
		return nil
	}
	return err
}

// raise sets a mark of a member's row if it is lower, and other attributes with
// it. Repeating it after an unknown outcome is harmless.
func (s *Service) raise(ctx context.Context, user, chatID, mark string, n int64, with ...store.Attr) error {
	return s.repeat(ctx, store.Write{
		Op: store.OpUpdate, Key: table.UserChatKey(user, chatID), Name: plan.CondUser,
		Cond:   table.IsMember().Lt(mark, store.Int(n)),
		Update: store.Update{Set: append(with, store.Attr{Name: mark, Value: store.Int(n)})},
	})
}
