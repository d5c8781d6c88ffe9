package pipeline

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/observe"
)

// Fanout reads what was published and repairs delivery with it.
type Fanout struct {
	// Deliver passes the head of a chat to the hubs.
	Deliver func(context.Context, delivery.Delivery) error
	// Applied reports whether the only hub there is has applied a message that it is told by
	// its position: then the record need not be decoded. Nil: there are other hubs.
	Applied func(delivery.Delivery) bool
	// Await waits until Deliver can be called, and returns false if ctx ends before. Nil: it
	// can be called at once.
	Await    func(context.Context) bool
	Parallel int           // chats at a time; 0: the default of package consume
	MinFetch int32         // bytes that a fetch waits for; 0: any
	MaxWait  time.Duration // for them; 0: the default
	Stop     time.Duration // for the work in progress when the process ends; 0: the default
}

func (c Fanout) addTo(_ context.Context, p *Pipeline) error {
	b, s := p.cfg.Backend, p.cfg.Schemas
	write, err := p.deadLetters()
	if err != nil {
		return err
	}
	e, err := consume.New(consume.Config{
		Addr: b.KafkaAddr(), Kafka: b.KafkaOptions(), Join: p.join(), Group: fanout.Group, Consumer: p.cfg.Process,
		Instance: p.member(fanout.Group),
		Follow:   s.Topics.Readable(kafka.ReadBy(fanout.Group)...),
		Batch:    fanout.Repairer(s.Serde, c.Deliver, c.Applied), WriteDeadLetter: write,
		Store: b.Store, Clock: time.Now, Logger: p.cfg.Logger, Parallel: c.Parallel, MinFetch: c.MinFetch,
		MaxWait: c.MaxWait, Isolation: &p.isolation,
	})
	if err != nil {
		return err
	}
	observe.Fanout(p.cfg.Metrics, e)
	p.checks = append(p.checks, func() error { return checkProgress("fanout", e.Stats().Stalled) })
	service := lifecycle.Restarted("fanout", p.cfg.Logger, func(ctx context.Context, ready func()) error {
		if c.Await != nil && !c.Await(ctx) {
			return nil
		}
		return e.Run(ctx, ready)
	})
	service.Stop = c.Stop
	p.Services = append(p.Services, service)
	return nil
}
