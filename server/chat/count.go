package chat

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/queue"
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
// and corrects it through the chat's head, with an event (L-053). Every plan keeps
// the number exact, so there is something to correct only after damage from
// outside. While members are pending it does nothing. It may be called at any time
// by any number of processes. Errors: ErrNotAMember if there is no such chat,
// store.ErrConflict if the chat kept changing, and the store's.
func (s *Service) CheckCount(ctx context.Context, chatID string) (found Count, err error) {
	if err := checkChat(chatID); err != nil {
		return Count{}, err
	}
	err = s.exclusive(ctx, "", chatID, func(work context.Context, q *queue.Chat) error {
		found, err = s.checkCount(ctx, work, q)
		return err
	})
	return found, err
}

// countAttempts is how often a count is begun again because the chat changed.
const countAttempts = 5

func (s *Service) checkCount(lead, ctx context.Context, q *queue.Chat) (Count, error) {
	for range countAttempts {
		var err error
		if q.Head, err = s.readHead(ctx, q.ID); err != nil {
			return Count{}, err
		}
		items, err := s.batchGet(ctx, []store.Key{table.ChatKey(q.ID), table.PendingKey(q.ID)})
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
		// fails, and the count begins anew.
		st := &plan.State{Head: q.Head, Chat: &row}
		d, err := s.maker.Correct(st, found.Counted, s.stamp(q.Head.ChangedAt))
		if err != nil {
			return Count{}, err
		}
		err = s.commit(lead, ctx, d)
		if err == nil {
			q.Head = d.Head
			found.Corrected = true
			return found, nil
		}
		if conditionError(err) == nil {
			return Count{}, err
		}
		if err := lead.Err(); err != nil {
			return Count{}, err
		}
	}
	return Count{}, fmt.Errorf("chat: %w: the chat changed while its members were counted", store.ErrConflict)
}

func (s *Service) countMembers(ctx context.Context, chatID string) (int64, error) {
	var n int64
	q := store.Query{Table: store.ChatMemberships, PK: chatID, Consistency: store.Strong}
	for {
		call, cancel := context.WithTimeout(ctx, store.CallTimeout)
		page, err := s.cfg.Store.Query(call, q)
		cancel()
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", q.Table, err)
		}
		n += int64(len(page.Rows))
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return n, nil
		}
	}
}
