package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/infra/pace"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
	"github.com/parley-chat/parley/workers/projection/notifications"
)

// Projector keeps the projections: it consumes what they follow, and rebuilds them.
type Projector struct {
	Exclusive bool          // no other process can be alive: the data directory is locked
	MinFetch  int32         // bytes that a fetch waits for; 0: any
	MaxWait   time.Duration // for them; 0: the default
	// Live, if given, measures what rebuilds must not slow down: the sends of this process.
	Live *pace.Window
}

// Of a rebuild beside sends, at most: steps so small that on two processors no send waits for
// one for long.
const rebuildStep, rebuildRate = 500, 50_000 // events, and events a second

// definitions are all projections.
func definitions() []projection.Definition {
	return []projection.Definition{chatactivity.Definition(), notifications.Definition()}
}

// projections makes the projections of this process.
func (p *Pipeline) projections(exclusive bool, live *pace.Window) (*projection.Set, error) {
	b := p.cfg.Backend
	var throttle *pace.Throttle
	if live != nil {
		throttle = pace.NewThrottle(live, pace.Limits{Batch: rebuildStep, Rate: rebuildRate}, time.Now)
	}
	return projection.New(projection.Config{
		Definitions: definitions(), Store: b.Store, Decode: p.cfg.Schemas.Serde.Decode, Addr: b.KafkaAddr(),
		Kafka: b.KafkaOptions(), Process: p.cfg.Process, History: b.History, Exclusive: exclusive, Clock: time.Now,
		Logger: p.cfg.Logger, Throttle: throttle,
	})
}

func (c Projector) addTo(_ context.Context, p *Pipeline) error {
	set, err := p.projections(c.Exclusive, c.Live)
	if err != nil {
		return err
	}
	read := kafka.ReadBy(projection.Group)
	for _, topic := range set.Topics() { // another one would be trimmed before the projection has read it
		if !slices.Contains(read, topic) {
			return fmt.Errorf("projections follow %s, which %s does not read", topic, projection.Group)
		}
	}
	b, s := p.cfg.Backend, p.cfg.Schemas
	write, err := p.deadLetters()
	if err != nil {
		return err
	}
	e, err := consume.New(consume.Config{
		Addr: b.KafkaAddr(), Kafka: b.KafkaOptions(), Join: p.join(), Group: projection.Group, Consumer: p.cfg.Process,
		Instance: p.member(projection.Group),
		Follow:   s.Topics.Readable(read...), Aggregate: set.Aggregate, WriteDeadLetter: write,
		Store: b.Store, Clock: time.Now, Logger: p.cfg.Logger, MinFetch: c.MinFetch, MaxWait: c.MaxWait,
		Isolation: &p.isolation,
	})
	if err != nil {
		return err
	}
	observe.Projector(p.cfg.Metrics, e)
	observe.Projections(p.cfg.Metrics, set)
	p.checks = append(p.checks, func() error { return checkProgress("projector", e.Stats().Stalled) })
	p.run("projector", func(ctx context.Context, ready func()) error {
		if err := set.Prepare(ctx); err != nil {
			return err
		}
		return e.Run(ctx, ready)
	})
	p.run("projections", set.Run)
	return nil
}
