package topicstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
	"github.com/parley-chat/parley/server/store"
)

// Names of settings of Kafka's topics.
const (
	retentionMS  = "retention.ms"
	segmentBytes = "segment.bytes"
)

// maxMessage is the largest batch that a broker takes, with what Kafka adds to it.
const maxMessage = transaction.MaxBatch + 1<<20

// insync is how many replicas have a message before it is acknowledged, of three.
const insync = 2

func (l *Log) settings(more map[string]string) map[string]*string {
	all := map[string]*string{
		"min.insync.replicas":            kadm.StringPtr(strconv.Itoa(min(insync, int(l.cfg.Replication)))),
		"unclean.leader.election.enable": kadm.StringPtr("false"), // a leader that lacks messages would lose them
		"compression.type":               kadm.StringPtr("producer"),
		"max.message.bytes":              kadm.StringPtr(strconv.Itoa(maxMessage)),
		"message.timestamp.type":         kadm.StringPtr("CreateTime"),
	}
	for k, v := range more {
		all[k] = &v
	}
	return all
}

// createState makes state.Name, unless it is there.
func (l *Log) createState(ctx context.Context) error {
	_, n, err := l.create(ctx, state.Name, int32(l.cfg.Slots), map[string]string{
		"cleanup.policy": "compact", segmentBytes: "33554432", "min.cleanable.dirty.ratio": "0.2",
	})
	if err == nil && n != int32(l.cfg.Slots) {
		err = fmt.Errorf("topicstore: %s has %d partitions, but there are %d slots: their number cannot be changed",
			state.Name, n, l.cfg.Slots)
	}
	return err
}

// create makes a topic of Kafka, unless it is there, and waits until it can be used.
func (l *Log) create(ctx context.Context, name string, partitions int32, more map[string]string) (
	id kadm.TopicID, n int32, err error,
) {
	res, err := l.admin.CreateTopic(ctx, partitions, l.cfg.Replication, l.settings(more), name)
	if err == nil {
		err = res.Err
	}
	switch {
	case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		// Another process with that permission may have made it.
		if id, n, err = l.describe(ctx, name, maxTries); err == nil {
			return id, n, nil
		}
		return id, 0, fmt.Errorf("%w: this server may not make topics in Kafka: give it the right, or make %s with %d "+
			"partitions", store.ErrUnavailable, name, partitions)
	default:
		return id, 0, l.explain(fmt.Errorf("make topic %s in Kafka: %w", name, err))
	}
	return l.describe(ctx, name, madeTries)
}

// describe waits until each partition of a topic has a leader.
func (l *Log) describe(ctx context.Context, name string, limit int) (id kadm.TopicID, n int32, err error) {
	for tries := 1; ; tries++ {
		d, err := l.lookUp(ctx, name)
		if err == nil {
			err = leaders(d)
		}
		if err == nil {
			return d.ID, int32(len(d.Partitions)), nil
		}
		if tries == limit || errors.Is(err, kerr.TopicAuthorizationFailed) || wait.For(ctx, triesPause) != nil {
			return id, 0, l.explain(fmt.Errorf("topic %s of Kafka: %w", name, err))
		}
	}
}

const (
	maxTries = 50
	// madeTries is for a topic that is there: a broker of a busy machine has needed more than 5 s to know it.
	madeTries  = 300
	triesPause = 100 * time.Millisecond
)

func (l *Log) lookUp(ctx context.Context, name string) (d kadm.TopicDetail, err error) {
	m, err := l.admin.Metadata(ctx, name)
	if err != nil {
		return d, err
	}
	d, ok := m.Topics[name]
	if !ok {
		return d, kerr.UnknownTopicOrPartition
	}
	return d, d.Err
}

func leaders(d kadm.TopicDetail) error {
	for _, p := range d.Partitions {
		if p.Err != nil {
			return p.Err
		}
		if p.Leader < 0 {
			return kerr.LeaderNotAvailable
		}
	}
	return nil
}

// Create implements commitlog.Log. A topic of Kafka that is there already is used if it has
// the partitions, and if it is the one that was used before.
func (l *Log) Create(ctx context.Context, t commitlog.Topic) error {
	if t.Partitions < 1 || t.Partitions > commitlog.MaxPartitions || t.Name == "" {
		return fmt.Errorf("%w: topic %d of %d partitions", commitlog.ErrInvalid, t.Number, t.Partitions)
	}
	l.creating.Lock()
	defer l.creating.Unlock()
	l.mu.Lock()
	row, stored := l.memory.Topics[t.Number]
	now := l.known[t.Number]
	l.mu.Unlock()
	keep := keep(t)
	if now == nil {
		var err error
		if stored && row.Name != record.Name(t.Name) {
			err = fmt.Errorf("%w: Kafka has %s as topic %d, of another installation or of a store that is gone",
				commitlog.ErrLost, row.Name, t.Number)
		} else if stored {
			err = l.verify(ctx, row)
		} else {
			row, err = l.make(ctx, t, keep)
		}
		if err != nil {
			return err
		}
		now = &topic{kafka: row.Name}
	}
	if now.kept != keep {
		if err := l.retain(ctx, row.Name, now.kept, keep); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[t.Number] = &topic{Topic: t, kafka: row.Name, kept: keep}
	return nil
}

// kept is how Kafka keeps the messages of a topic: retention.ms, and segment.bytes, "" for the broker's.
type kept struct{ retention, segment string }

// Bounds of a segment. Brokers take no batch that is larger than a segment.
const (
	minSegment = maxMessage
	maxSegment = 1 << 30 // Kafka's default
	// segmentsOfBound is how many segments of all partitions make up the bound of a topic.
	segmentsOfBound = 8
)

// keep is how a topic's messages are to be kept. Brokers remove what was trimmed by whole segments, and never the
// one that is written to: with segments as large as the topic's bound, a topic that is full would take nothing
// however much of it is trimmed.
func keep(t commitlog.Topic) (k kept) {
	k.retention = "-1"
	if t.Retention > 0 {
		k.retention = strconv.FormatInt(t.Retention.Milliseconds(), 10)
	}
	if t.Bytes > 0 {
		n := t.Bytes / segmentsOfBound / int64(t.Partitions)
		k.segment = strconv.FormatInt(min(max(n, minSegment), maxSegment), 10)
	}
	return k
}

// retain changes how a topic's messages are kept.
func (l *Log) retain(ctx context.Context, name string, was, is kept) error {
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: retentionMS, Value: &is.retention}}
	switch {
	case is.segment != "":
		change = append(change, kadm.AlterConfig{Op: kadm.SetConfig, Name: segmentBytes, Value: &is.segment})
	case was.segment != "":
		change = append(change, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: segmentBytes})
	}
	res, err := l.admin.AlterTopicConfigs(ctx, change, name)
	if err == nil {
		_, err = res.On(name, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		l.cfg.Logger.Warn("this server may not set how Kafka keeps a topic", "topic", name, "retention_ms", is.retention,
			"segment_bytes", is.segment)
		return nil
	}
	if err != nil {
		return l.explain(fmt.Errorf("set how %s is kept: %w", name, err))
	}
	return nil
}

// verify refuses a topic of Kafka that is not the one in which the messages were stored.
func (l *Log) verify(ctx context.Context, s state.Topic) error {
	d, err := l.lookUp(ctx, s.Name)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("%w: there is no topic %s in Kafka any more", commitlog.ErrLost, s.Name)
	case err != nil:
		return l.explain(fmt.Errorf("topic %s of Kafka: %w", s.Name, err))
	case !bytes.Equal(d.ID[:], s.ID):
		return fmt.Errorf("%w: topic %s of Kafka was removed and recreated", commitlog.ErrLost, s.Name)
	case len(d.Partitions) < int(s.Partitions):
		return fmt.Errorf("%w: topic %s of Kafka has %d partitions, not %d", commitlog.ErrLost, s.Name, len(d.Partitions),
			s.Partitions)
	}
	return nil
}

func (l *Log) make(ctx context.Context, t commitlog.Topic, keep kept) (state.Topic, error) {
	name := record.Name(t.Name)
	more := map[string]string{"cleanup.policy": "delete", retentionMS: keep.retention, "retention.bytes": "-1"}
	if keep.segment != "" {
		more[segmentBytes] = keep.segment
	}
	if t.Shared { // one clock for all
		more["message.timestamp.type"] = "LogAppendTime"
	}
	id, n, err := l.create(ctx, name, t.Partitions, more)
	if err != nil {
		return state.Topic{}, err
	}
	if n != t.Partitions {
		return state.Topic{}, fmt.Errorf("%w: topic %s of Kafka has %d partitions, not %d", commitlog.ErrInvalid, name, n,
			t.Partitions)
	}
	row := state.Topic{Name: name, ID: id[:], Partitions: t.Partitions}
	value, err := json.Marshal(row)
	if err != nil {
		return state.Topic{}, err
	}
	s := newSubmission(nil)
	s.state = []*kafka.Record{l.stateRecord(state.TopicKey(t.Number), value)}
	if err := l.submit(ctx, s); err != nil {
		return state.Topic{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.memory.Topics[t.Number] = row
	l.reader.Add(t.Number, name)
	return row, nil
}

// Size implements commitlog.Log.
func (l *Log) Size(ctx context.Context, topic uint64, partitions int32) (n int64, err error) {
	name, err := l.kafkaName(commitlog.Partition{Topic: topic})
	if err != nil || name == "" {
		return 0, err
	}
	of := kadm.TopicsSet{}
	for number := range partitions {
		of.Add(name, number)
	}
	brokers, err := l.admin.DescribeAllLogDirs(ctx, of)
	if err != nil {
		return 0, l.explain(fmt.Errorf("size of topic %s of Kafka: %w", name, err))
	}
	sizes := map[int32]int64{}
	for _, dirs := range brokers {
		if err := dirs.Error(); err != nil {
			return 0, l.explain(fmt.Errorf("size of topic %s of Kafka: %w", name, err))
		}
		dirs.EachPartition(func(p kadm.DescribedLogDirPartition) {
			sizes[p.Partition] = max(sizes[p.Partition], p.Size)
		})
	}
	for number, size := range sizes {
		if !l.emptied(commitlog.Partition{Topic: topic, Number: number}) {
			n += size
		}
	}
	return n, nil
}

// emptied reports whether all that was written to a partition was trimmed. Brokers keep the segment that is written
// to, also when it has nothing any more that is read.
func (l *Log) emptied(p commitlog.Partition) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.parts[p]
	return x != nil && x.loaded && l.memory.Starts[p] > 0 && l.memory.Starts[p] >= x.end
}

// Delete implements commitlog.Log.
func (l *Log) Delete(ctx context.Context, number uint64) error {
	l.creating.Lock()
	defer l.creating.Unlock()
	l.mu.Lock()
	row, ok := l.memory.Topics[number]
	l.mu.Unlock()
	if !ok {
		return nil
	}
	res, err := l.admin.DeleteTopic(ctx, row.Name)
	if err == nil {
		err = res.Err
	}
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return l.explain(fmt.Errorf("remove topic %s of Kafka: %w", row.Name, err))
	}
	s := newSubmission(nil)
	s.forget = row.Name
	s.state = []*kafka.Record{l.stateRecord(state.TopicKey(number), nil)}
	l.mu.Lock()
	keys := l.memory.DropIf(func(k state.Key, _ *producers.Window) bool { return k.Partition.Topic == number })
	delete(l.known, number)
	delete(l.memory.Topics, number)
	for n := range row.Partitions {
		p := commitlog.Partition{Topic: number, Number: n}
		delete(l.parts, p)
		delete(l.trimmed, p)
		if _, ok := l.memory.Starts[p]; ok {
			delete(l.memory.Starts, p)
			keys = append(keys, state.StartKey(p))
		}
	}
	l.reader.Remove(number)
	l.mu.Unlock()
	s.state = append(s.state, l.tombstones(keys)...)
	if err := l.submit(ctx, s); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.memory.Topics[number] = row // it is removed again when that is asked for again
		l.reader.Add(number, row.Name)
		l.removed = append(l.removed, keys...)
		return err
	}
	return nil
}
