package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

const recoverTimeout = 10 * time.Second

// check checks the log before the broker opens it, and repairs damage: the broker would
// drop everything after a byte that it cannot read, and reuse the offsets.
func (b *Broker) check() error {
	report, err := CheckLog(b.cfg.Dir, *b.topics.Load(), b.cfg.Known)
	if err != nil {
		return err
	}
	if b.cfg.Logger != nil {
		for _, note := range report.Notes {
			b.cfg.Logger.Warn("a file of the log was damaged and rebuilt", "file", note)
		}
		if n := len(report.Updates); n > 0 {
			b.cfg.Logger.Info("the log takes over what this version declares", "changes", n, "first", report.Updates[0])
		}
	}
	b.reportUnreadable(report.Unreadable)
	if len(report.Damage) > 0 && b.cfg.Damaged != nil {
		if err := b.cfg.Damaged(report.Damage); err != nil {
			return err
		}
	}
	b.marks = report.Marks
	return report.Repair()
}

// shownUnreadable bounds the lines about records that cannot be read at a start.
const shownUnreadable = 10

// reportUnreadable counts and names the records of groups and producers that are lost.
func (b *Broker) reportUnreadable(list []logdir.Unreadable) {
	b.unreadable = len(list)
	if b.cfg.Logger == nil {
		return
	}
	for i, u := range list {
		if i == shownUnreadable {
			b.cfg.Logger.Warn("more of the log's records of groups and producers cannot be read", "records", len(list)-i)
			return
		}
		b.cfg.Logger.Warn("records of the log's groups or producers cannot be read; all others are kept", "file", u.File,
			"at", u.At, "bytes", u.Bytes, "groups", strings.Join(u.Groups, " "), "lost", u.String())
	}
}

// Unreadable is how many records of consumer groups and producers could not be read at the start.
func (b *Broker) Unreadable() int { return b.unreadable }

// CheckLog checks the topics of an embedded log that is not open, without changing it.
func CheckLog(dir string, list []Topic, known Marks) (*logdir.Report, error) {
	var topics []logdir.Topic
	for _, t := range list {
		topics = append(topics, logdir.Topic{Name: t.Name, Partitions: t.Partitions, Configs: embeddedConfigs(t)})
	}
	return logdir.Check(dir, topics, known)
}

// abort writes the markers that end transactions. The broker treats a transaction that is
// open at its start as aborted, but writes no marker: a reader of committed records drops
// what a producer wrote until its marker, and so would drop the producer's later
// transactions, too. Nothing may be published before.
func (b *Broker) abort(list []logdir.Txn) error {
	if len(list) == 0 {
		return nil
	}
	c, err := kgo.NewClient(append(b.Options(), kgo.SeedBrokers(b.addr), kgo.ClientID("parley-recovery"),
		kgo.DisableClientMetrics())...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	for _, t := range list {
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = t.Topic, []int32{t.ID}
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch, m.Topics = t.Producer, t.Epoch, []kmsg.WriteTxnMarkersRequestMarkerTopic{topic}
		req.Markers = append(req.Markers, m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
	defer cancel()
	res, err := c.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return fmt.Errorf("end transactions: %w", err)
	}
	for _, m := range res.(*kmsg.WriteTxnMarkersResponse).Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				err := errorFor(p.ErrorCode)
				if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) { // files of a topic deleted in the crash
					return fmt.Errorf("end a transaction in %s/%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
	}
	return nil
}
