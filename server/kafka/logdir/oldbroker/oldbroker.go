// Package oldbroker gives tests the broker that earlier releases had in the process: it writes directories of
// event logs as these did, repairs them, and shows what readers saw of them. No program has it.
//
// Concurrency: a [Broker] is safe for concurrent use. No other process may have its directory open.
package oldbroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// Config says how a log is opened.
type Config struct {
	Dir          string
	Topics       []logdir.Topic // made where they are missing
	SegmentBytes int            // size of a segment
	// Marks are what is known to be on the disk; nil if nothing is.
	Marks map[logdir.Partition]logdir.Mark
}

// Broker is one that runs.
type Broker struct {
	Cluster *kfake.Cluster
	// Ends are the offsets behind the last ones of all partitions as they were when the files were open, before
	// transactions without an end were aborted. It is not written to later.
	Ends map[logdir.Partition]int64
}

// Open does what a start of the last release did: it repairs the files, opens them, and aborts the transactions
// that were left without an end.
func Open(cfg Config) (*Broker, error) {
	open, err := repair(cfg)
	if err != nil {
		return nil, err
	}
	b := &Broker{Ends: map[logdir.Partition]int64{}}
	if b.Cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID(cluster), kfake.DataDir(cfg.Dir),
		kfake.BrokerConfigs(map[string]string{"log.retention.ms": "-1", "log.retention.bytes": "-1",
			"log.segment.bytes":                strconv.Itoa(cfg.SegmentBytes),
			"group.initial.rebalance.delay.ms": "0"})); err != nil {
		return nil, err
	}
	if err := errors.Join(b.declare(cfg.Topics), b.abort(open)); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close stops the broker in order: it writes its notes of the stop.
func (b *Broker) Close() { b.Cluster.Close() }

// declare makes the topics that are missing, and notes the ends of the others.
func (b *Broker) declare(topics []logdir.Topic) error {
	for _, t := range topics {
		list := b.Cluster.PartitionInfos(t.Name)
		for _, p := range list {
			b.Ends[logdir.Partition{Topic: t.Name, ID: p.Partition}] = p.HighWatermark
		}
		if len(list) == 0 {
			if err := b.Cluster.CreateTopic(t.Name, t.Partitions, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Broker) abort(list []txn) error {
	if len(list) == 0 {
		return nil
	}
	c, err := b.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	for _, t := range list {
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch = t.producer, t.epoch
		m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: t.Topic, Partitions: []int32{t.ID}}}
		req.Markers = append(req.Markers, m)
	}
	_, err = c.SeedBrokers()[0].Request(context.Background(), req)
	return err
}

// Client returns a client of the broker, which chooses the partitions of what it produces itself. The caller
// closes it.
func (b *Broker) Client(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(more, kgo.SeedBrokers(b.Cluster.ListenAddrs()...), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))...)
}

// Read calls each with the records that readers of committed records see of a partition now, in order.
func (b *Broker) Read(ctx context.Context, p logdir.Partition, each func(*kgo.Record)) error {
	info := b.Cluster.PartitionInfo(p.Topic, p.ID)
	if info == nil || info.LogStartOffset >= info.HighWatermark {
		return nil
	}
	c, err := b.Client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.Topic: {p.ID: kgo.NewOffset().At(info.LogStartOffset)}}))
	if err != nil {
		return err
	}
	defer c.Close()
	for end := false; !end; {
		fetches := c.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end = end || r.Offset >= info.HighWatermark-1
			if !r.Attrs.IsControl() {
				each(r)
			}
		})
	}
	return nil
}
