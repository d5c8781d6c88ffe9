package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/wait"
)

// knownPause is between two checks whether the client knows partitions.
const knownPause = time.Millisecond

// EndTransaction ends a client's transaction in which these records were acknowledged.
//
// To commit, it waits until the client's metadata names their partitions. Records of a topic
// that the client uses for the first time are sent, and may be acknowledged, a moment before:
// to the client the transaction is empty then, and it would abort it and report no error.
func EndTransaction(ctx context.Context, c *Client, records []*Record, commit bool) error {
	if commit {
		if err := awaitKnown(ctx, c, records); err != nil {
			return err
		}
	}
	return c.EndTransaction(ctx, kgo.TransactionEndTry(commit)) //nolint:wrapcheck // the caller does
}

// awaitKnown waits until the client knows the partitions of records.
func awaitKnown(ctx context.Context, c *Client, records []*Record) error {
	for _, r := range records {
		for {
			if leader, _, err := c.PartitionLeader(r.Topic, r.Partition); leader >= 0 || err != nil {
				break
			}
			if err := wait.For(ctx, knownPause); err != nil {
				return fmt.Errorf("partition %d of %s is still unknown: %w", r.Partition, r.Topic, err)
			}
		}
	}
	return nil
}
