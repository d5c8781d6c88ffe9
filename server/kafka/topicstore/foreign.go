package topicstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
)

// ErrForeign says that Kafka has the topics of another installation. Two would fence each
// other for ever, and take each other's messages for their own.
var ErrForeign = errors.New("topicstore: Kafka has the topics of another installation")

// Check refuses a Kafka whose topics are another installation's. It writes nothing. An error
// that is not ErrForeign says that this could not be found out.
func Check(ctx context.Context, cfg Config) error {
	l, err := connect(cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.refuseForeign(ctx)
}

// refuseForeign looks whose the slot is, before anybody is fenced.
func (l *Log) refuseForeign(ctx context.Context) error {
	owner, err := state.Owner(ctx, l.reader, l.slot())
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return nil
	case err != nil:
		return l.explain(err)
	}
	return l.compare(owner)
}

func (l *Log) compare(owner string) error {
	if owner == "" || owner == l.cfg.Installation {
		return nil
	}
	return fmt.Errorf("%w: %s says %s, this one is %s. Each needs a Kafka of its own; if the other one is gone, remove "+
		"%[2]s and the topics whose names begin with %[5]s", ErrForeign, state.Name, owner, l.cfg.Installation, record.Prefix)
}

// claim records the owner of the slot, and returns once others can read it: brokers answer the
// end of a transaction first, and until then Check would find that the slot has no owner.
func (l *Log) claim(ctx context.Context) error {
	records := []*kafka.Record{l.stateRecord(state.OwnerKey(), []byte(l.cfg.Installation))}
	tx, err := transaction.Begin(ctx, l.writer, records)
	if err != nil {
		return err
	}
	err = tx.Produce(ctx, records)
	if err := errors.Join(err, tx.End(ctx, err == nil)); err != nil {
		return err
	}
	kafka.AwaitTransactionEnd(ctx, l.writer)
	return nil
}
