package view

import (
	"context"
	"fmt"
	"slices"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const messagesPage, maxMessagesPage = 50, 100

// Messages returns a page of a chat's messages, oldest first.
func (r *Reader) Messages(
	ctx context.Context, user string, req *messagev1.ListMessagesRequest,
) (*messagev1.ListMessagesResponse, error) {
	before, after, forward := req.GetBeforeSequence(), req.GetAfterSequence(), req.AfterSequence != nil
	if before < 0 || after < 0 || (before > 0 && forward) {
		return nil, fmt.Errorf("%w: before_sequence and after_sequence exclude each other", chat.ErrInvalidArgument)
	}
	chatID := req.GetChatId()
	head, row, err := r.open(ctx, user, chatID)
	if err != nil {
		return nil, err
	}
	size := int64(pageSize(int(req.GetPageSize()), messagesPage, maxMessagesPage))
	// Sequences have no gaps, so a page is a range of them.
	var from, to int64
	if forward {
		from = max(min(after, head.Sequence)+1, row.FirstSequence())
		to = min(from+size-1, head.Sequence)
	} else {
		to = head.Sequence
		if before > 0 {
			to = min(to, before-1)
		}
		from = max(to-size+1, row.FirstSequence())
	}
	messages, err := r.messages(ctx, chatID, from, to)
	if err != nil {
		return nil, err
	}
	if row, err = r.confirm(ctx, user, chatID); err != nil {
		return nil, err
	}
	res := &messagev1.ListMessagesResponse{Messages: visible(messages, row), Head: headMessage(head, row)}
	if forward {
		res.HasMore = to < head.Sequence
	} else {
		res.HasMore = from <= to && from > row.FirstSequence()
	}
	return res, nil
}

// messages reads the messages from one sequence to another, all of which the
// head counts.
func (r *Reader) messages(ctx context.Context, chatID string, from, to int64) ([]*messagev1.Message, error) {
	if from > to {
		return nil, nil
	}
	n := int(to - from + 1)
	messages := make([]*messagev1.Message, 0, n)
	q := store.Query{Table: store.Messages, PK: chatID, From: table.Number(from), To: table.Number(to), Limit: n}
	err := r.query(ctx, q, func(row store.Row) error {
		m, err := table.MessageFrom(row)
		if err != nil {
			return err
		}
		messages = append(messages, messageMessage(m))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(messages) != n {
		return nil, fmt.Errorf("%w: messages %d to %d of %s are not all visible yet", store.ErrUnavailable, from, to, chatID)
	}
	return messages, nil
}

// visible drops the messages that the user's row forbids.
func visible(messages []*messagev1.Message, row table.UserChat) []*messagev1.Message {
	return slices.DeleteFunc(messages, func(m *messagev1.Message) bool { return m.GetSequence() < row.FirstSequence() })
}
