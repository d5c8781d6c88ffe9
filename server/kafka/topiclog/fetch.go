package topiclog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
)

// fetched is what one request brought.
type fetched struct {
	records []*kgo.Record
	next    int64 // offset behind what was checked
	end     int64 // of what is committed
}

// fetch asks the partition's leader, and again if that has changed.
func (l *Log) fetch(ctx context.Context, name string, number int32, from int64, maxBytes int) (f fetched, err error) {
	for tries := 1; ; tries++ {
		f, err = l.fetchOnce(ctx, name, number, from, maxBytes)
		if err == nil || !kerr.IsRetriable(err) || tries == maxTries {
			return f, err
		}
		if wait.For(ctx, time.Duration(tries)*retryPause) != nil {
			return f, err
		}
	}
}

func (l *Log) fetchOnce(
	ctx context.Context, name string, number int32, from int64, maxBytes int,
) (f fetched, err error) {
	detail, err := l.detail(ctx, name)
	if err != nil {
		return f, err
	}
	partition, ok := detail.Partitions[number]
	if !ok {
		return f, fmt.Errorf("%w: %s has no partition %d", commitlog.ErrInvalid, name, number)
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes = int32(fetchWait.Milliseconds()), 0
	// The partition's bound is the one that counts.
	req.MaxBytes = math.MaxInt32
	req.IsolationLevel = 1 // committed records only
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = name, detail.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = number, from, int32(min(max(maxBytes, 1), maxFetch))
	topic.Partitions = append(topic.Partitions, rp)
	req.Topics = append(req.Topics, topic)
	res, err := req.RequestWith(ctx, l.cfg.Client.Broker(int(partition.Leader)))
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
	}
	if err == nil && (len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1) {
		err = errors.New("the broker answers without the partition")
	}
	if err == nil {
		err = kerr.ErrorForCode(res.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		l.forget(name)
		return f, err
	}
	got := &res.Topics[0].Partitions[0]
	fp, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: from, IsolationLevel: kgo.ReadCommitted(), Topic: name, Partition: number,
	}, got, l.decompress, nil)
	return fetched{fp.Records, max(from, next), got.LastStableOffset}, fp.Err
}

// detail is what the brokers say of a topic.
func (l *Log) detail(ctx context.Context, name string) (kadm.TopicDetail, error) {
	l.mu.Lock()
	d, ok := l.leaders[name]
	l.mu.Unlock()
	if ok {
		return d, nil
	}
	m, err := l.admin.Metadata(ctx, name)
	if err != nil {
		return d, err
	}
	if d = m.Topics[name]; d.Err != nil {
		return d, d.Err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaders[name] = d
	return d, nil
}

// forget makes the next request ask again for the leader of a topic.
func (l *Log) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leaders, name)
}

// Records returns what a fetch from an offset on brings: committed records, perhaps none,
// and the offset to continue with. At the end of what is committed that is the same offset.
func (l *Log) Records(ctx context.Context, name string, number int32, from int64, maxBytes int) (
	records []*kafka.Record, next int64, err error,
) {
	f, err := l.fetch(ctx, name, number, from, maxBytes)
	if err != nil {
		return nil, from, fmt.Errorf("read %s/%d from %d on: %w", name, number, from, err)
	}
	return f.records, min(f.next, max(f.end, from)), nil
}
