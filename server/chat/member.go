package chat

import (
	"context"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Changes of what a chat holds for one member alone bypass the chat's queue. They change
// only the member's own row, and in a direct chat the other person's row for the read
// position. No other user is affected.

// MemberState is a user's row of a chat, with the head that it was measured by.
type MemberState struct {
	Row      table.UserChat
	Head     table.Head
	Replayed bool // the request was carried out before; Row is the present one
}

// SetMemberSettings mutes a chat, or archives it, for the caller. It is
// allowed in every chat and touches only the caller's row; other members do not learn
// of it. Errors: ErrInvalidArgument, ErrNotAMember, ErrKeyReused, ErrBusy, and the store's.
func (s *Service) SetMemberSettings(ctx context.Context, c MemberSettings) (MemberState, error) {
	if err := c.Check(); err != nil {
		return MemberState{}, err
	}
	if err := s.begin(c.Caller, c.ChatID); err != nil {
		return MemberState{}, err
	}
	defer s.admission.End(c.Caller, c.ChatID)
	s.clock.Keep(ctx, s.commits.Transact)
	key := c.Idempotency()
	for backoff := s.commits.Backoff(); ; {
		before, err := s.readMember(ctx, c.Caller, c.ChatID, key)
		if err != nil || before.Replayed {
			return before, open("request_id", c.RequestID, err)
		}
		if err := c.CheckTime(s.cfg.Clock().UnixMilli()); err != nil {
			return MemberState{}, err
		}
		// Always later than before, so that the comparison of the old time notices
		// every other change, those of releases that do not count them too.
		after := before
		after.Row = plan.ApplySettings(c, before.Row, s.timestamp(max(before.Row.ChangedAt+1, before.Head.ChangedAt)))
		err = s.commits.Repeat(ctx, plan.Settings(c, before.Row, after.Row, before.Head)...)
		if err == nil {
			s.cfg.Receipt(after.Row, after.Head)
			return after, nil
		}
		if conditionError(err) == nil {
			return MemberState{}, open("request_id", c.RequestID, err)
		}
		// The row or the request is another by now, the latter perhaps by an attempt
		// of this call whose outcome was unknown: read again.
		if err := backoff.Wait(ctx, ctx); err != nil {
			return MemberState{}, err
		}
	}
}

// readMember reads what a change of a member's own row begins with. The row comes last:
// it decides whether the head may be shown.
func (s *Service) readMember(ctx context.Context, user, chatID string, key command.Idempotency) (MemberState, error) {
	keys := []store.Key{table.HeadKey(chatID)}
	if key.Key != "" {
		keys = append(keys, table.RequestKey(key.Key))
	}
	items, err := s.commits.BatchGet(ctx, keys)
	if err != nil {
		return MemberState{}, err
	}
	it, err := s.commits.Get(ctx, table.UserChatKey(user, chatID))
	if err != nil {
		return MemberState{}, err
	}
	out := MemberState{Row: table.UserChatFrom(user, chatID, it)}
	if items[0] == nil || it == nil || out.Row.Left() {
		return MemberState{}, s.commits.Durable(ctx, ErrNotAMember)
	}
	if err := s.addRole(ctx, &out.Row); err != nil {
		return MemberState{}, err
	}
	out.Head = table.HeadFrom(chatID, items[0])
	if len(items) == 1 || items[1] == nil {
		return out, nil
	}
	_, err = key.Replay(items[1])
	if err = s.commits.Durable(ctx, err); err != nil {
		return MemberState{}, err
	}
	out.Replayed = true
	// Perhaps the process that carried it out died before its receipt.
	s.cfg.Receipt(out.Row, out.Head)
	return out, nil
}

// addRole adds the role to a member's row that an earlier release wrote. The caller that
// changes the row stores the role with the change.
func (s *Service) addRole(ctx context.Context, row *table.UserChat) error {
	if row.Role != "" {
		return nil
	}
	it, err := s.commits.Get(ctx, table.MembershipKey(row.ChatID, row.UserID))
	if err == nil {
		row.Role = table.MembershipFrom(row.ChatID, row.UserID, it).Role
	}
	return err
}

// Delivered says that a message reached a device of a user; lower sequences than
// before, and chats that were left, are ignored. The row counts as unchanged.
func (s *Service) Delivered(ctx context.Context, user, chatID string, sequence int64) error {
	if err := command.CheckUser(user); err != nil {
		return err
	}
	if err := command.CheckChat(chatID); err != nil {
		return err
	}
	err := s.commits.Repeat(ctx, plan.Delivered(user, chatID, sequence))
	if conditionError(err) != nil {
		return nil //nolint:nilerr // a later one is there already
	}
	return err
}
