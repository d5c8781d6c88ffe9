// Package withhold decides whether operators are shown what users wrote.
//
// It owns the rule for accounts that were deleted: only users who share a chat with them see
// their content. Operators do not see it by any call, in the event store and in dead letters
// alike. How content is hidden is package redact's. Concurrency: functions may be called
// from many goroutines.
package withhold

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Content reports whether the content of an event is shown to an operator who has asked for
// it, or not. An event that cannot be read has no account.
func Content(ctx context.Context, st store.Store, e event.Event, asked bool) (bool, error) {
	if !asked || e == nil {
		return asked, nil
	}
	user := e.GetMetadata().GetActorId()
	if user == "" {
		return true, nil
	}
	it, err := get(ctx, st, table.UserKey(user))
	if err != nil {
		return false, fmt.Errorf("read the account of an event: %w", err)
	}
	return !people.AccessFrom(it).Deleted(), nil
}

// Unreadable is Content for a record that cannot be read as an event. If its payload still
// decodes as an event of the type that its producer says, the account of its actor decides.
// Otherwise a record with a chat's key belongs to an unknown account, which may be deleted,
// so it is not shown. A record with another key is no event of a chat.
func Unreadable(ctx context.Context, st store.Store, key, value []byte, eventType string, asked bool) (bool, error) {
	if !asked {
		return false, nil
	}
	if _, payload, err := event.Unframe(value); err == nil {
		if e, err := event.Unmarshal(eventType, payload); err == nil && e.GetMetadata().GetActorId() != "" &&
			e.GetChatId() == string(key) {
			return Content(ctx, st, e, asked)
		}
	}
	chat := table.ChatKey(string(key))
	if chat.Validate() != nil { // the key of no chat
		return true, nil //nolint:nilerr // which is an answer
	}
	it, err := get(ctx, st, chat)
	if err != nil {
		return false, fmt.Errorf("read the chat of a record: %w", err)
	}
	return it == nil, nil
}

func get(ctx context.Context, st store.Store, key store.Key) (store.Item, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	return st.Get(call, key, store.Strong)
}
