package pipeline

import (
	"context"

	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"
)

// The differences where the event log lies in the store of the process: records are published and consumed by calls,
// not by Kafka's protocol.

// publisher publishes for one slot.
type publisher struct {
	publish func(ctx context.Context, list []eventlog.Publication) error
	renew   func(ctx context.Context) error // fences earlier publishers of the slot
	close   func()
}

// publisher makes the publisher of a slot. In the store nothing has to be fenced: there is one process, and the lease
// of the slot says which relay runs in it.
func (p *Pipeline) publisher(transactionalID string) (publisher, error) {
	b := p.cfg.Backend
	if b.Embedded() {
		return publisher{b.Publish, func(context.Context) error { return nil }, func() {}}, nil
	}
	c, err := kafka.NewPublisher(b.KafkaAddr(), transactionalID, b.KafkaOptions()...)
	if err != nil {
		return publisher{}, err
	}
	return publisher{relay.Flatten(c.Publish), c.Renew, c.Close}, nil
}

// join makes sessions in the store; nil: those of Kafka.
func (p *Pipeline) join() func(kafka.SessionConfig) (consume.Session, error) {
	if !p.cfg.Backend.Embedded() {
		return nil
	}
	return func(cfg kafka.SessionConfig) (consume.Session, error) { return p.cfg.Backend.Join(cfg), nil }
}

// deadLetters writes dead letters, to Kafka with a producer of its own.
func (p *Pipeline) deadLetters() (func(context.Context, consume.DeadLetter) error, error) {
	b, frame := p.cfg.Backend, p.cfg.Schemas.frameDeadLetter
	if b.Embedded() {
		return consume.Writer(func(ctx context.Context, r *kafka.Record) error {
			return b.Publish(ctx, []eventlog.Publication{{Records: []*kafka.Record{r}}})
		}, frame), nil
	}
	producer, err := kafka.NewProducer(b.KafkaAddr(), b.KafkaOptions()...)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, producer.Close)
	return consume.Publisher(producer, frame), nil
}
