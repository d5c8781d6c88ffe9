package pipeline

import (
	"context"
	"log/slog"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/migrate"
)

// Messages lists what the path publishes besides events.
func Messages() []registry.Message {
	return []registry.Message{{Topic: kafka.DeadLetters, Proto: &eventv1.DeadLetter{}}}
}

// Resolve returns the ids of the schemas of what this version publishes, and makes sure
// that the later versions of migrated topics have them too. With register it registers
// what is missing; otherwise it changes nothing and fails with *registry.MissingError.
func Resolve(ctx context.Context, r *registry.Registry, topics versions.State, register bool) (registry.Own, error) {
	resolve := r.FindOwn
	if register {
		resolve = r.RegisterOwn
	}
	own, err := resolve(ctx, Messages()...)
	if err != nil {
		return registry.Own{}, err
	}
	return own, migrate.Subjects(ctx, r, topics, register)
}

// Schemas is what a process must have to publish and read events: their encoding, and the
// topics that carry them now.
type Schemas struct {
	Serde  *event.Serde
	Topics *versions.Watch

	registry   *registry.Registry
	deadLetter int // schema id
}

// LoadSchemas loads them from the store. With register it registers schemas that are
// missing; otherwise it fails with *registry.MissingError.
func LoadSchemas(ctx context.Context, st store.Store, register bool, log *slog.Logger) (*Schemas, error) {
	s := &Schemas{registry: registry.New(st)}
	var err error
	if s.Topics, err = versions.NewWatch(ctx, st, log); err != nil {
		return nil, err
	}
	// Also on a full disk: without its schemas nothing is published, so nothing leaves the outbox.
	own, err := Resolve(ctx, registry.New(store.Freeing(st)), s.Topics.State(), register)
	if err != nil {
		return nil, err
	}
	s.deadLetter = own.Messages[0]
	if s.Serde, err = event.NewSerde(own.Events, s.registry.SubjectsOf); err != nil {
		return nil, err
	}
	s.Serde.OnNewer(func(eventType string, version int32) {
		log.Warn("events of a newer version are read without their new fields", "type", eventType, "version", version)
	})
	return s, nil
}

// frameDeadLetter puts the id of its schema in front of a dead letter.
func (s *Schemas) frameDeadLetter(payload []byte) ([]byte, error) {
	return event.Frame(s.deadLetter, payload)
}
