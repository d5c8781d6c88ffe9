package chat

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Count is what CheckCount found.
type Count struct {
	Stored    int64 // member_count of the chats row
	Counted   int64 // members
	Corrected bool
}

// CheckCount compares the stored number of a group's members with the members,
// and corrects it through the chat's head, with an event. Every plan keeps
// the number exact, so there is something to correct only after damage from
// outside. While members are pending it does nothing. It may be called at any time
// by any number of processes. Errors: ErrNotAMember if there is no such chat,
// store.ErrConflict if the chat kept changing, and the store's.
func (s *Service) CheckCount(callerCtx context.Context, chatID string) (found Count, err error) {
	if err := command.CheckChat(chatID); err != nil {
		return Count{}, err
	}
	err = s.exclusive(callerCtx, "", chatID, func(ctx context.Context, q *queuedChat) error {
		found, err = s.checkCount(callerCtx, ctx, q)
		return err
	})
	return found, err
}

// countAttempts is how often a count starts over because the chat has changed.
const countAttempts = 5

func (s *Service) checkCount(callerCtx, ctx context.Context, q *queuedChat) (Count, error) {
	for range countAttempts {
		var err error
		if q.Head, err = s.commits.Head(ctx, q.ID); err != nil {
			return Count{}, err
		}
		items, err := s.commits.BatchGet(ctx, []store.Key{table.ChatKey(q.ID), table.PendingKey(q.ID)})
		if err != nil {
			return Count{}, err
		}
		if items[0] == nil {
			return Count{}, fmt.Errorf("%w: a head without a chat", errState)
		}
		row := table.ChatFrom(q.ID, items[0])
		found := Count{Stored: row.MemberCount}
		if items[1] != nil || row.Type != table.Group || row.Status != table.Active {
			found.Counted = found.Stored
			return found, nil
		}
		if found.Counted, err = s.countMembers(ctx, q.ID); err != nil {
			return Count{}, err
		}
		if found.Counted == found.Stored || found.Counted == 0 {
			return found, nil
		}
		// They differ, or the chat changed between the reads: then the head's condition
		// fails, and the count starts again.
		st := &plan.State{Head: q.Head, Chat: &row}
		p, err := s.planner.CorrectCount(st, found.Counted, s.timestamp(q.Head.ChangedAt))
		if err != nil {
			return Count{}, err
		}
		err = s.commit(callerCtx, ctx, q, p, nil)
		if err == nil {
			found.Corrected = true
			return found, nil
		}
		if conditionError(err) == nil {
			return Count{}, err
		}
		if err := callerCtx.Err(); err != nil {
			return Count{}, err
		}
	}
	return Count{}, fmt.Errorf("chat: %w: the chat changed while its members were counted", store.ErrConflict)
}

func (s *Service) countMembers(ctx context.Context, chatID string) (n int64, err error) {
	for _, err := range s.commits.Partition(ctx, store.ChatMemberships, chatID) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}
