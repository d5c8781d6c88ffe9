package upgrade

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/kafka/logdir"
)

// rowsAtOnce bounds the rows of groups in one write.
const rowsAtOnce = 1_000

// moveGroups writes the rows of all groups. Those of one group are in one write, if there are not too many:
// its own row is before those of its offsets.
func (r *run) moveGroups(ctx context.Context) error {
	var rows []group.Row
	write := func() error {
		if len(rows) == 0 {
			return nil
		}
		err := r.Groups.Write(ctx, rows)
		rows = nil
		return err
	}
	dropped := 0
	for _, g := range r.old.Groups() {
		kept := group.Kept{Name: g.Name, Generation: g.Generation, Kind: g.Kind, Owner: r.Owner}
		for _, c := range g.Commits {
			o, ok := r.offset(g.Name, c)
			if !ok {
				dropped++
				continue
			}
			kept.Offsets = append(kept.Offsets, o)
		}
		if len(kept.Offsets) == 0 {
			continue // its name is of no use
		}
		r.report.Groups++
		r.report.Offsets += len(kept.Offsets)
		rows = append(rows, group.Rows(kept)...)
		if len(rows) >= rowsAtOnce {
			if err := write(); err != nil {
				return fmt.Errorf("consumer groups: %w", err)
			}
		}
	}
	if dropped > 0 {
		r.Logger.Warn("committed offsets of topics that the old event log does not have are dropped", "offsets", dropped)
	}
	if err := write(); err != nil {
		return fmt.Errorf("consumer groups: %w", err)
	}
	return nil
}

// offset is what a commit becomes; false if its partition is not there. A commit beyond the end, which a loss
// of power can leave, would skip the next records: it becomes the end.
func (r *run) offset(name string, c logdir.Commit) (group.KeptOffset, bool) {
	if !r.has(c.Partition) {
		return group.KeptOffset{}, false
	}
	if _, end := r.old.Bounds(c.Partition); c.Offset > end {
		r.Logger.Error("the old event log was truncated: a group continues from its end", "group", name,
			"partition", c.Partition.String(), "committed", c.Offset, "end", end)
		c.Offset = end
	}
	o := group.KeptOffset{Topic: c.Topic, Partition: c.ID, Offset: c.Offset, Epoch: c.Epoch, Metadata: c.Metadata,
		Committed: time.UnixMilli(c.At)}
	if c.At == 0 {
		o.Committed = r.Clock()
	}
	return o, true
}

func (r *run) has(p kafka.Partition) bool {
	for _, t := range r.topics {
		if t.Name == p.Topic {
			return p.ID >= 0 && p.ID < t.Partitions
		}
	}
	return false
}
