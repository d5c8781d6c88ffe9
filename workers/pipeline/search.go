package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/slot"
	"github.com/parley-chat/parley/workers/searchrelay"
)

// Search publishes search events. They have a relay and a producer of their own: no event of
// a chat waits for them.
type Search struct {
	Targets   search.Targets // nil: the declared ones
	Attempts  int            // before what a partition refuses for good is a dead letter; 0: the default
	Exclusive bool           // as in Relay, and what follows
	// Reserve takes room in the log for so many bytes of records. An error says why nothing
	// may be published at the moment. Nil where the log needs none.
	Reserve func(bytes int64) error
	Awaited func() bool
}

// searchPart is a Search in its pipeline.
type searchPart struct {
	Search
	*Pipeline
	deadLetters atomic.Int64
}

// topics are all that events go to, those of dead letters too.
func (c Search) topics() (names []string) {
	for _, topic := range c.Targets.Topics() {
		names = append(names, topic, search.Target{Topic: topic}.DeadLetters())
	}
	return names
}

func (c Search) addTo(_ context.Context, p *Pipeline) error {
	if c.Targets == nil {
		c.Targets = search.DefaultTargets()
	}
	c.Attempts = cmp.Or(c.Attempts, searchrelay.DefaultAttempts)
	s := &searchPart{Search: c, Pipeline: p}
	slots, err := p.leases(lease.Config{
		Kind: slot.SearchKind, Slots: 1, Exclusive: c.Exclusive,
		Start: func(ctx context.Context, _ int) error { return s.runSlot(ctx, slot.Search()) },
	})
	if err != nil {
		return err
	}
	observe.Search(p.cfg.Metrics, &p.searches, c.topics(), s.deadLetters.Load)
	p.run("search events", slots.Run)
	return nil
}

// WakeSearch wakes the relay of search events for a stream that has new ones, if it runs in
// this process. It never waits.
func (p *Pipeline) WakeSearch(stream string) { p.searches.Wake(stream) }

// runSlot runs the relay until ctx ends or another process has the slot.
func (p *searchPart) runSlot(ctx context.Context, s slot.Slot) error {
	b := p.cfg.Backend
	partitions, err := p.partitions(ctx)
	if err != nil {
		return err
	}
	to, err := p.publisher(s.TransactionalID)
	if err != nil {
		return err
	}
	defer to.close()
	log := p.cfg.Logger.With("slot", "search")
	source := &searchrelay.Source{Store: b.Store, Targets: p.Targets, Partitions: partitions, Clock: time.Now}
	guard := &searchrelay.Guard{Source: source, Attempts: p.Attempts,
		Publish: func(ctx context.Context, list []eventlog.Publication) error {
			if err := reserve(p.Reserve, list); err != nil {
				return err
			}
			return to.publish(ctx, list)
		},
		DeadLettered: func(id, topic string, why error) {
			p.deadLetters.Add(1)
			log.Error("a search event became a dead letter", "event", id, "topic", topic, "error", why)
		}}
	r, err := relay.New(relay.Config{
		Store: b.Store, Load: source.Load, Shards: s.Shards, Clock: time.Now, Logger: log,
		Publish: guard.Do, Deletes: b.Embedded(), Awaited: p.Awaited,
	})
	if err != nil {
		return err
	}
	defer p.searches.Add(r)()
	return r.Run(ctx)
}

// partitions are the numbers of partitions of all topics that events go to.
func (p *searchPart) partitions(ctx context.Context) (map[string]int, error) {
	b := p.cfg.Backend
	names := p.topics()
	found, err := lag.Counts(ctx, b.KafkaAddr(), names, b.KafkaOptions()...)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if found[name] < 1 {
			return nil, fmt.Errorf("search events need the topic %s, of %v there are %v", name, names,
				slices.Sorted(maps.Keys(found)))
		}
	}
	return found, nil
}

// reserve takes room in the log for records.
func reserve(room func(bytes int64) error, list []eventlog.Publication) error {
	if room == nil {
		return nil
	}
	bytes := 0
	for i := range list {
		for _, r := range list[i].Records {
			bytes += len(r.Key) + len(r.Value)
		}
	}
	return room(int64(bytes))
}
