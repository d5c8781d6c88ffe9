package commit

import (
	"context"
	"fmt"
	"iter"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Get reads one item, consistently.
func (c *Committer) Get(ctx context.Context, key store.Key) (store.Item, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	it, err := c.cfg.Store.Get(call, key, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key.Table, err)
	}
	return it, nil
}

// BatchGet reads items, consistently.
func (c *Committer) BatchGet(ctx context.Context, keys []store.Key) ([]store.Item, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	items, err := c.cfg.Store.BatchGet(call, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", keys[0].Table, err)
	}
	return items, nil
}

// Partition reads the rows of a partition, consistently, page by page. It ends after an
// error.
func (c *Committer) Partition(ctx context.Context, t store.Table, pk string) iter.Seq2[store.Row, error] {
	return c.Query(ctx, store.Query{Table: t, PK: pk, Consistency: store.Strong})
}

// Query reads the rows of a query, page by page. It ends after an error.
func (c *Committer) Query(ctx context.Context, q store.Query) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		for {
			page, err := c.page(ctx, q)
			if err != nil {
				yield(store.Row{}, fmt.Errorf("read %s: %w", q.Table, err))
				return
			}
			for _, row := range page.Rows {
				if !yield(row, nil) {
					return
				}
			}
			if q.Cursor = page.Cursor; q.Cursor == "" {
				return
			}
		}
	}
}

func (c *Committer) page(ctx context.Context, q store.Query) (store.Page, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	return c.cfg.Store.Query(call, q)
}

// Head reads the present head of a chat. Errors: command.ErrNotAMember if there is no such
// chat, and the store's.
func (c *Committer) Head(ctx context.Context, chatID string) (table.Head, error) {
	it, err := c.Get(ctx, table.HeadKey(chatID))
	if err != nil {
		return table.Head{}, err
	}
	if it == nil {
		return table.Head{}, c.Durable(ctx, command.ErrNotAMember)
	}
	return table.HeadFrom(chatID, it), nil
}

// Replay returns the result of a request that was carried out before, nil if it
// was not. Errors: command.ErrKeyReused, and the store's.
func (c *Committer) Replay(ctx context.Context, i command.Idempotency) (*table.Request, error) {
	if i.Key == "" {
		return nil, nil
	}
	it, err := c.Get(ctx, table.RequestKey(i.Key))
	if err != nil || it == nil {
		return nil, err
	}
	done, err := i.Replay(it)
	return done, c.Durable(ctx, err)
}

// Durable waits until the rows that were read are on disk, and returns answer then: rows
// behind an answer must not disappear in a crash.
func (c *Committer) Durable(ctx context.Context, answer error) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	if err := c.cfg.Store.Durable(call); err != nil {
		return fmt.Errorf("wait for the disk: %w", err)
	}
	return answer
}
