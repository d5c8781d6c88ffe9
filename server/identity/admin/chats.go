package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Chats reads chats for operators, regardless of membership.
type Chats struct{ store store.Store }

// NewChats makes Chats.
func NewChats(s store.Store) *Chats { return &Chats{s} }

// Bounds of what is read.
const (
	maxMembers  = 1000
	maxMessages = 200
)

// Get returns what a chat is and how far it has come.
func (c *Chats) Get(ctx context.Context, chatID string) (table.Chat, table.Head, error) {
	items, err := c.store.BatchGet(ctx, []store.Key{table.ChatKey(chatID), table.HeadKey(chatID)}, store.Strong)
	if err != nil {
		return table.Chat{}, table.Head{}, fmt.Errorf("read chat: %w", err)
	}
	if items[0] == nil || items[1] == nil {
		return table.Chat{}, table.Head{}, ErrNoChat
	}
	return table.ChatFrom(chatID, items[0]), table.HeadFrom(chatID, items[1]), nil
}

// Members returns the members of a chat by id, and the users who are still to be added.
func (c *Chats) Members(ctx context.Context, chatID string) (members []table.Membership, pending []string, err error) {
	if _, _, err := c.Get(ctx, chatID); err != nil {
		return nil, nil, err
	}
	// A user who is added between the two reads is in both: pending is read first.
	item, err := c.store.Get(ctx, table.PendingKey(chatID), store.Strong)
	if err != nil {
		return nil, nil, fmt.Errorf("read pending members: %w", err)
	}
	there := map[string]bool{}
	query := store.Query{Table: store.ChatMemberships, PK: chatID, Limit: maxMembers, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, c.store, query) {
		if err != nil {
			return nil, nil, fmt.Errorf("read members: %w", err)
		}
		if len(members) == maxMembers {
			break
		}
		members = append(members, table.MembershipFrom(chatID, row.Key.SK, row.Item))
		there[row.Key.SK] = true
	}
	for _, user := range table.PendingFrom(chatID, item).Members {
		if !there[user] && len(pending) < maxMembers {
			pending = append(pending, user)
		}
	}
	return members, pending, nil
}

// Messages returns up to limit messages from a sequence on; from 0 the last ones.
func (c *Chats) Messages(ctx context.Context, chatID string, from int64, limit int) (list []table.Message, err error) {
	if limit < 1 || limit > maxMessages || from < 0 {
		return nil, fmt.Errorf("%w: 1 to %d messages", ErrInvalid, maxMessages)
	}
	_, head, err := c.Get(ctx, chatID)
	if err != nil {
		return nil, err
	}
	if from > head.Sequence {
		return nil, nil
	}
	query := store.Query{Table: store.Messages, PK: chatID, From: table.Number(from), To: table.Number(head.Sequence),
		Limit: limit, Descending: from == 0, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, c.store, query) {
		if err != nil {
			return nil, fmt.Errorf("read messages: %w", err)
		}
		m, err := table.MessageFrom(row)
		if err != nil {
			return nil, err
		}
		if list = append(list, m); len(list) == limit {
			break
		}
	}
	if from == 0 {
		slices.Reverse(list)
	}
	return list, nil
}
