package parked

import (
	"context"
	"fmt"
	"iter"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Select says which parked keys are meant; an empty field means all.
type Select struct {
	Group string
	Topic string // declared
	Key   string
}

func (s Select) has(p *table.Parked) bool {
	return (s.Group == "" || p.Group == s.Group) && (s.Topic == "" || p.Topic == s.Topic) &&
		(s.Key == "" || string(p.Key) == s.Key)
}

// prefix begins the sort keys of all that is meant.
func (s Select) prefix() string {
	switch {
	case s.Group != "" && s.Topic != "":
		return table.ParkedPrefix(s.Group, s.Topic)
	case s.Group != "":
		return s.Group + "#"
	}
	return ""
}

// List reads parked keys in the order of group, topic and key.
func List(ctx context.Context, st store.Store, s Select) (out []table.Parked, err error) {
	for p, err := range all(ctx, st, s, "") {
		if err != nil {
			return out, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Page reads the next parked keys behind a position, at most size of them, and returns the
// position at which they end; the position is empty at the start and at the end of the list.
func Page(
	ctx context.Context, st store.Store, s Select, after string, size int,
) (page []table.Parked, next string, err error) {
	for p, err := range all(ctx, st, s, after) {
		if err != nil {
			return nil, "", err
		}
		if len(page) == size {
			return page, page[size-1].RowKey().SK, nil
		}
		page = append(page, p)
	}
	return page, "", nil
}

// all reads parked keys behind a position.
func all(ctx context.Context, st store.Store, s Select, after string) iter.Seq2[table.Parked, error] {
	q := store.Query{Table: store.ConsumerAttempts, PK: table.ParkedPartition, Consistency: store.Strong}
	if prefix := s.prefix(); prefix != "" { // it ends with "#", whose next byte is "$"
		q.From, q.To = prefix, prefix[:len(prefix)-1]+"$"
	}
	q.From = max(q.From, after)
	return func(yield func(table.Parked, error) bool) {
		for row, err := range store.QueryAll(ctx, st, q) {
			if err != nil {
				yield(table.Parked{}, fmt.Errorf("read parked keys: %w", err))
				return
			}
			p := table.ParkedFrom(row.Item)
			if row.Key.SK > after && s.has(&p) && !yield(p, nil) {
				return
			}
		}
	}
}
