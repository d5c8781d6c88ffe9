package upgrade

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/backend/restore"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// state is the row of the log in table meta, as the broker's starts have left it.
type state struct {
	store store.Store
	row   store.Item
	marks map[kafka.Partition]logdir.Mark // nil: none
	lost  []restore.Lost
}

func loadState(ctx context.Context, st store.Store) (*state, error) {
	s := &state{store: st}
	var err error
	if s.row, err = st.Get(ctx, table.LogKey(), store.Strong); err != nil {
		return nil, fmt.Errorf("read the log's marks: %w", err)
	}
	for _, line := range s.row.Get(table.AttrLogMarks).Strings() {
		var p kafka.Partition
		var m logdir.Mark
		if _, err := fmt.Sscanf(line, "%s %d %d %d %d", &p.Topic, &p.ID, &m.Start, &m.End, &m.Since); err != nil {
			return nil, fmt.Errorf("the log's marks in the store cannot be read: %.100q", line)
		}
		if s.marks == nil {
			s.marks = map[kafka.Partition]logdir.Mark{}
		}
		s.marks[p] = m
	}
	for _, line := range s.row.Get(table.AttrLogLost).Strings() {
		var l restore.Lost
		if _, err := fmt.Sscanf(line, "%s %d %d", &l.Topic, &l.ID, &l.Since); err != nil {
			return nil, fmt.Errorf("the log's losses in the store cannot be read: %.100q", line)
		}
		s.lost = append(s.lost, l)
	}
	return s, nil
}

// lose records that a partition has lost records, which nothing else may show any more.
func (s *state) lose(ctx context.Context, l restore.Lost) error {
	if slices.Contains(s.lost, l) {
		return nil
	}
	s.lost = append(s.lost, l)
	lines := make([]string, len(s.lost))
	for i, l := range s.lost {
		lines[i] = fmt.Sprintf("%s %d %d", l.Topic, l.ID, l.Since)
	}
	slices.Sort(lines)
	s.row = store.NewItem(
		store.Attr{Name: table.AttrLogMarks, Value: store.List(s.row.Get(table.AttrLogMarks).Strings())},
		store.Attr{Name: table.AttrLogLost, Value: store.List(lines)},
	)
	return s.put(ctx, s.row)
}

// finish records that the old log is of no use any more.
func (s *state) finish(ctx context.Context, at time.Time) error {
	return s.put(ctx, store.NewItem(store.Attr{Name: table.AttrLogMoved, Value: store.Int(max(1, at.UnixMilli()))}))
}

func (s *state) put(ctx context.Context, it store.Item) error {
	return store.Freeing(s.store).BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: table.LogKey(), Item: it}})
}
