package topicstore

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/commitlog"
)

// Group is the name of the consumer group of Kafka in whose offsets a topic's group is seen.
// It has no members.
func Group(topic, group string) string { return "parley." + topic + "." + group }

// Offsets are committed at most so often for a group, and in so much time.
const (
	mirrorEvery  = time.Second
	mirrorWithin = 5 * time.Second
)

// reached is what of groups is not committed yet.
type reached map[groupName]map[int32]int64

type groupName struct {
	topic uint64
	group string
}

// Reached implements commitlog.Mirror.
func (l *Log) Reached(group string, p commitlog.Partition, position int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := groupName{p.Topic, group}
	if l.reached[k] == nil {
		l.reached[k] = map[int32]int64{}
	}
	l.reached[k][p.Number] = position
}

// mirror commits offsets, until the context ends. An offset that cannot be committed waits for
// the next change of the group: the offsets are for people and tools, and no consumer resumes
// from them.
func (l *Log) mirror(ctx context.Context) {
	tick := time.NewTicker(mirrorEvery)
	defer tick.Stop()
	taken := map[groupName]bool{} // real consumers use the group; said once
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		news := l.reached
		l.reached = reached{}
		l.mu.Unlock()
		for k, offsets := range news {
			err := l.commitOffsets(ctx, k, offsets)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, kerr.UnknownMemberID):
				if !taken[k] {
					taken[k] = true
					l.cfg.Logger.Warn("consumers of Kafka use a group's name: its offsets are not shown there", "group", k.group)
				}
			case err != nil:
				l.cfg.Counters.OffsetsFailed.Add(1)
				l.cfg.Logger.Debug("offsets of a group cannot be shown", "group", k.group, "error", err)
			}
		}
	}
}

func (l *Log) commitOffsets(ctx context.Context, k groupName, offsets map[int32]int64) error {
	list := kadm.Offsets{}
	l.mu.Lock()
	t := l.known[k.topic]
	for partition, at := range offsets {
		if t == nil { // removed meanwhile
			break
		}
		// Behind the last message is the end of its transaction, which would count as lag.
		x := l.parts[commitlog.Partition{Topic: k.topic, Number: partition}]
		if x != nil && at == x.end && at > 0 && !t.Shared {
			at++
		}
		list.AddOffset(t.kafka, partition, at, -1)
	}
	l.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, mirrorWithin)
	defer cancel()
	res, err := l.admin.CommitOffsets(ctx, Group(t.Name, k.group), list)
	if err != nil {
		return err
	}
	return res.Error()
}
