package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

const recoverTimeout = 10 * time.Second

// abort writes the markers that end transactions. The broker takes a transaction
// that it finds open at its start for aborted, but writes no marker: a reader of
// committed records, who drops what a producer wrote until its marker comes, would
// drop the producer's later transactions too. Nothing may be published before.
func (b *Broker) abort(list []logdir.Txn) error {
	if len(list) == 0 {
		return nil
	}
	c, err := kgo.NewClient(append(b.Options(), kgo.SeedBrokers(b.addr), kgo.ClientID("parley-recovery"), kgo.DisableClientMetrics())...)
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
