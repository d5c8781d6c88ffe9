package chat

import (
	"context"
	"fmt"
	"strconv"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// MarkRead asks for a user's mark of what was read to be raised.
type MarkRead struct {
	Caller    string
	ChatID    string
	Sequence  int64 // more than the chat has counts as all
	RequestID string
}

// MarkRead is Read without a request id.
func (s *Service) MarkRead(ctx context.Context, user, chatID string, sequence int64) (table.UserChat, table.Head, error) {
	out, err := s.Read(ctx, MarkRead{Caller: user, ChatID: chatID, Sequence: sequence})
	return out.Row, out.Head, err
}

// Read says that a user has read a chat up to a sequence. The mark never goes back, so
// that the request is safe to repeat without an id, too; with one, the same id with
// another sequence is refused. Errors: ErrInvalidArgument, ErrNotAMember, ErrKeyReused,
// ErrBusy, and the store's.
func (s *Service) Read(ctx context.Context, r MarkRead) (OwnState, error) {
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return OwnState{}, err
	}
	if err := checkChat(r.ChatID); err != nil {
		return OwnState{}, err
	}
	if r.Sequence < 1 {
		return OwnState{}, fmt.Errorf("%w: a sequence is 1 or more", ErrInvalidArgument)
	}
	if err := s.enter(r.Caller, r.ChatID); err != nil {
		return OwnState{}, err
	}
	defer s.door.Leave(r.Caller, r.ChatID)
	s.clock.Keep(ctx, s.transact)
	request := plan.NewRequest("read", r.Caller, r.ChatID, r.RequestID, strconv.FormatInt(r.Sequence, 10))
	for pace := s.pacer(); ; {
		out, row, err := s.readOwn(ctx, plan.Own{Caller: r.Caller, ChatID: r.ChatID, Request: request})
		if err != nil || out.Replayed {
			return out, open("request_id", r.RequestID, err)
		}
		out.Row = row
		n := min(r.Sequence, out.Head.Sequence)
		if n <= row.ReadSequence && request.Scope == "" {
			if err := s.durable(ctx, nil); err != nil {
				return OwnState{}, err
			}
			if n == row.ReadSequence {
				// Perhaps the repetition of an attempt whose reply was lost, or whose process
				// died before it told anybody: once more does no harm.
				s.cfg.Receipt(row, out.Head)
			}
			return out, nil
		}
		at := s.stamp(max(row.ChangedAt, out.Head.ChangedAt))
		var writes []store.Write
		if request.Scope != "" {
			writes = append(writes, request.Remember(r.ChatID, out.Head.Version, n, at))
		}
		if n > row.ReadSequence {
			// Only from the row as it was read: its revision must not stand for anything
			// but what is told under it.
			out.Row.ReadSequence, out.Row.ChangedAt, out.Row.Revision = n, at, row.Revision+1
			u := plan.RowUpdate(out.Row)
			u.Set = append(u.Set, store.Attr{Name: table.AttrReadSequence, Value: store.Int(n)})
			writes = append(writes, store.Write{
				Op: store.OpUpdate, Key: table.UserChatKey(r.Caller, r.ChatID), Cond: plan.Unchanged(row), Name: plan.CondUser, Update: u,
			})
		}
		if err = s.repeat(ctx, writes...); err == nil {
			s.cfg.Receipt(out.Row, out.Head)
			return out, nil
		}
		if conditionError(err) == nil {
			return OwnState{}, open("request_id", r.RequestID, err)
		}
		if err := pace.again(ctx, ctx); err != nil { // changed meanwhile, or left
			return OwnState{}, err
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
	err := s.repeat(ctx, store.Write{
		Op: store.OpUpdate, Key: table.UserChatKey(user, chatID), Name: plan.CondUser,
		Cond:   table.IsMember().Lt(table.AttrDeliveredSequence, store.Int(sequence)),
		Update: store.Update{Set: []store.Attr{{Name: table.AttrDeliveredSequence, Value: store.Int(sequence)}}},
	})
	if conditionError(err) != nil {
		return nil
	}
	return err
}

// addRole adds the role to a member's row that an earlier release wrote. Whoever
// changes the row writes it down with the change.
func (s *Service) addRole(ctx context.Context, row *table.UserChat) error {
	if row.Role != "" {
		return nil
	}
	it, err := s.get(ctx, table.MembershipKey(row.ChatID, row.UserID))
	if err == nil {
		row.Role = table.MembershipFrom(row.ChatID, row.UserID, it).Role
	}
	return err
}
