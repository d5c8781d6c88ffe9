package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topiclog"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
)

// Slot is what Kafka says of a slot of topics.
type Slot struct {
	Installation string            // that the slot belongs to; "" if no server has had it
	Logs         map[uint64]string // topics of Kafka by the numbers of the topics whose messages they hold
}

// Slots returns what Kafka says of all slots, by number. There are none if no server has ever had
// durable topics there.
func Slots(ctx context.Context, addr string, options ...kafka.Option) ([]Slot, error) {
	client, err := transaction.NewReader(addr, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	all, err := kadm.NewClient(client).ListTopics(ctx, state.Name)
	if err == nil {
		err = all[state.Name].Err
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: %s: %w", state.Name, err)
	}
	list := make([]Slot, len(all[state.Name].Partitions))
	reader := topiclog.New(topiclog.Config{Client: client, Message: record.Message, Producer: record.Producer})
	for n := range list {
		found, err := state.Load(ctx, reader, int32(n))
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("kafka: %s/%d: %w", state.Name, n, err)
		}
		list[n] = Slot{Installation: found.Owner, Logs: map[uint64]string{}}
		for number, t := range found.Topics {
			list[n].Logs[number] = t.Name
		}
	}
	return list, nil
}
