package lag

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/kafka"
)

// Unread is what a group has not read of a topic.
type Unread struct {
	Group   string
	Records int64 // offsets, where there are more than 200 of a partition
}

// UnreadBy returns what each group that reads a topic has not read of it. Groups in must
// are included even if they have never read anything. Other groups are those that this
// user may describe.
func UnreadBy(ctx context.Context, addr, topic string, must []string, options ...kafka.Option) ([]Unread, error) {
	spans, err := Spans(ctx, addr, topic, options...)
	if err != nil {
		return nil, err
	}
	readers, err := readersOf(ctx, addr, topic, options)
	if err != nil {
		return nil, err
	}
	var list []Unread
	for _, group := range slices.Compact(slices.Sorted(slices.Values(append(readers, must...)))) {
		g, err := OfGroup(ctx, addr, group, options...)
		if err != nil && !errors.Is(err, ErrNoGroup) {
			return nil, err
		}
		list = append(list, Unread{group, g.unread(spans, slices.Contains(must, group))})
	}
	return list, nil
}

// unread counts the records of spans that the group has not read. A partition that it does
// not know is its business only if it must read all.
func (g Group) unread(spans []Span, all bool) (n int64) {
	for _, s := range spans {
		if s.From >= s.To {
			continue
		}
		i := slices.IndexFunc(g.Partitions, func(p GroupPartition) bool { return p.Partition == s.Partition })
		switch {
		case i >= 0:
			n += g.Partitions[i].Lag
		case all:
			n += s.To - s.From
		}
	}
	return n
}

// readersOf lists the groups that have committed in a topic, or have members which read it.
func readersOf(ctx context.Context, addr, topic string, options []kafka.Option) ([]string, error) {
	c, err := open(addr, options)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list groups: %w", err)
	}
	names := groups.Groups()
	if len(names) == 0 {
		return nil, nil
	}
	lags, err := admin.Lag(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka: describe groups: %w", err)
	}
	var readers []string
	for _, l := range lags.Sorted() {
		err := l.Error()
		if errors.Is(err, kerr.GroupIDNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("kafka: describe group %.100q: %w", l.Group, err)
		}
		if len(l.Lag[topic]) > 0 {
			readers = append(readers, l.Group)
		}
	}
	return readers, nil
}
