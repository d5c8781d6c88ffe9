package eventquery

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/check/derive"
	"github.com/parley-chat/parley/server/store"
)

// progressEvery is the number of events after which a fold reports how far it is.
const progressEvery = 1000

// Fold derives what a chat was after one of its versions, from its events alone; 0 is the
// newest. onProgress is called now and then with the version that was reached; its error
// ends the fold.
//
// If an event is missing, cannot be read or cannot follow the others, problem says why,
// and the chat is as it was before. ErrNotFound: there is no such version.
func Fold(
	ctx context.Context, st store.Store, chatID string, version int64, onProgress func(version int64) error,
) (c *derive.Chat, problem, err error) {
	if version < 0 {
		return nil, nil, fmt.Errorf("%w: version %d", ErrInvalid, version)
	}
	c = derive.New(chatID)
	for row, err := range eventsOf(ctx, st, chatID, 1, version) {
		if err != nil {
			return nil, nil, fmt.Errorf("read events: %w", err)
		}
		e := Read(row)
		if e.Problem == nil {
			e.Problem = c.Apply(e.Body)
		}
		if e.Problem != nil {
			return c, fmt.Errorf("the events are whole up to version %d only: %w", c.Head.Version, e.Problem), nil
		}
		if c.Head.Version%progressEvery == 0 {
			if err := onProgress(c.Head.Version); err != nil {
				return nil, nil, err
			}
		}
	}
	switch {
	case c.Head.Version == 0:
		return nil, nil, fmt.Errorf("%w: there is no chat %.80s", ErrNotFound, chatID)
	case version > c.Head.Version:
		return nil, nil, fmt.Errorf("%w: the chat is at version %d", ErrNotFound, c.Head.Version)
	}
	return c, nil, nil
}

// VersionAt returns the version of a chat's newest event that is not later than a time.
// Clocks may go back, so that an older event may have a later time. ErrNotFound: all events
// are later, or there are none.
func VersionAt(ctx context.Context, st store.Store, chatID string, at time.Time) (int64, error) {
	q := store.Query{Table: store.Events, PK: chatID, Descending: true, Consistency: store.Strong, Limit: pageRows}
	for row, err := range store.QueryAll(ctx, st, q) {
		if err != nil {
			return 0, fmt.Errorf("read events: %w", err)
		}
		if e := Read(row); e.Body != nil && !e.Body.GetMetadata().GetEventTime().AsTime().After(at) {
			return e.Version, nil
		}
	}
	return 0, fmt.Errorf("%w: the chat has no event of %s or before", ErrNotFound, at.UTC().Format(time.RFC3339))
}
