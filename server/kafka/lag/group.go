package lag

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/kafka"
)

// Group is the state of a consumer group.
type Group struct {
	State      string // in Kafka's words: Stable, Empty, Dead …
	Members    []GroupMember
	Partitions []GroupPartition // those with the greatest lag first
	Lag        int64            // of all
}

// GroupMember is a process of a group.
type GroupMember struct {
	ID, Client, Host string
	Partitions       int
}

// GroupPartition is how far a group is in a partition that it has read or is assigned.
type GroupPartition struct {
	Partition kafka.Partition
	Committed int64  // the next record to read; −1 if nothing is committed
	From      int64  // the same, also where nothing was committed
	End       int64  // behind the last record
	Lag       int64  // records in between; offsets, if there are more than 200
	Member    string // "" for none
}

// ErrNoGroup says that a group has no members and has never committed.
var ErrNoGroup = errors.New("inspect: no such consumer group")

// OfGroup returns the state of a consumer group. While a broker does not answer, its error is
// one that kerr.IsRetriable knows.
func OfGroup(ctx context.Context, addr, group string, options ...kafka.Option) (Group, error) {
	c, err := open(addr, options)
	if err != nil {
		return Group{}, err
	}
	defer c.Close()
	lags, err := kadm.NewClient(c).Lag(ctx, group)
	l := lags[group]
	if err == nil {
		err = l.Error()
	}
	switch {
	case errors.Is(err, kerr.GroupIDNotFound):
		return Group{}, ErrNoGroup
	case err != nil:
		return Group{}, fmt.Errorf("kafka: describe group: %w", err)
	}
	g := Group{State: l.State}
	for _, m := range l.Members {
		n := 0
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				n += len(t.Partitions)
			}
		}
		g.Members = append(g.Members, GroupMember{m.MemberID, m.ClientID, m.ClientHost, n})
	}
	for _, p := range l.Lag.Sorted() {
		if err := p.Err; err != nil {
			if !errors.As(err, new(*kerr.Error)) { // the partition's broker did not say where it ends
				err = fmt.Errorf("%w: %w", kerr.LeaderNotAvailable, err)
			}
			return Group{}, fmt.Errorf("kafka: lag of %s/%d: %w", p.Topic, p.Partition, err)
		}
		row := GroupPartition{Partition: kafka.Partition{Topic: p.Topic, ID: p.Partition}, Committed: p.Commit.At,
			From: p.End.Offset - p.Lag, End: p.End.Offset, Lag: p.Lag}
		if p.Member != nil {
			row.Member = p.Member.MemberID
		}
		g.Lag += row.Lag
		g.Partitions = append(g.Partitions, row)
	}
	if len(g.Members) == 0 && len(g.Partitions) == 0 {
		return Group{}, ErrNoGroup
	}
	if err := g.records(ctx, addr, options); err != nil {
		return Group{}, err
	}
	slices.SortStableFunc(g.Partitions, func(a, b GroupPartition) int { return cmp.Compare(b.Lag, a.Lag) })
	return g, nil
}
