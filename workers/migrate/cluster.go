package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// Live is the Cluster of a running installation, embedded or not.
type Live struct {
	Store    store.Store
	Addr     string // of Kafka
	Kafka    []kafka.Option
	Registry *registry.Registry
	Groups   []string // that must read everything
	// AddTopic creates a topic with the settings of another one.
	AddTopic func(ctx context.Context, t kafka.Topic, like string) error
}

// queryTimeout bounds one query of the cluster, queryRetry is the wait between two attempts.
const (
	queryTimeout = 30 * time.Second
	queryRetry   = 200 * time.Millisecond
)

// retryQuery retries a query while the cluster is not ready: for a moment after a topic was
// created, some of its partitions have no leader.
func retryQuery[T any](ctx context.Context, query func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	for {
		answer, err := query(ctx)
		if !kerr.IsRetriable(err) {
			return answer, err
		}
		if wait.For(ctx, queryRetry) != nil {
			return answer, err
		}
	}
}

// Create implements Cluster.
func (l *Live) Create(ctx context.Context, base string, t kafka.Topic, like string) error {
	if err := l.AddTopic(ctx, t, like); err != nil {
		return err
	}
	return l.Registry.EnsureTopic(ctx, base, t.Name, true)
}

// Empty implements Cluster.
func (l *Live) Empty(ctx context.Context, topic string) (bool, error) {
	spans, err := retryQuery(ctx, func(ctx context.Context) ([]lag.Span, error) {
		return lag.Spans(ctx, l.Addr, topic, l.Kafka...)
	})
	for _, s := range spans {
		if s.To > 0 {
			return false, nil
		}
	}
	return err == nil, err
}

// Relays implements Cluster.
func (l *Live) Relays(ctx context.Context, revision int64) ([]string, error) {
	return slot.Unreported(ctx, l.Store, revision)
}

// Unread implements Cluster.
func (l *Live) Unread(ctx context.Context, topic string) ([]lag.Unread, error) {
	return retryQuery(ctx, func(ctx context.Context) ([]lag.Unread, error) {
		return lag.UnreadBy(ctx, l.Addr, topic, l.Groups, l.Kafka...)
	})
}

// Subscribed implements Cluster.
func (l *Live) Subscribed(ctx context.Context, topic string) (waiting []string, err error) {
	spans, err := retryQuery(ctx, func(ctx context.Context) ([]lag.Span, error) {
		return lag.Spans(ctx, l.Addr, topic, l.Kafka...)
	})
	if err != nil {
		return nil, err
	}
	for _, name := range l.Groups {
		g, err := retryQuery(ctx, func(ctx context.Context) (lag.Group, error) {
			return lag.OfGroup(ctx, l.Addr, name, l.Kafka...)
		})
		if err != nil && !errors.Is(err, lag.ErrNoGroup) {
			return nil, err
		}
		n := 0
		for _, p := range g.Partitions {
			if p.Partition.Topic == topic && p.Member != "" {
				n++
			}
		}
		if n < len(spans) {
			waiting = append(waiting, fmt.Sprintf("group %s reads %d of the %d partitions of %s", name, n, len(spans), topic))
		}
	}
	return waiting, nil
}

// Flush implements Cluster: offsets are either in the store, or durable with their commit.
func (l *Live) Flush(ctx context.Context) error { return l.Store.Durable(ctx) }

// Subjects registers the schemas of this program's events for all versions of their topics,
// beside the declared names. Without register it only looks them up, and returns
// *registry.MissingError if one is missing.
func Subjects(ctx context.Context, r *registry.Registry, s versions.State, register bool) error {
	for _, t := range kafka.Topics() {
		for _, name := range s.Readable(t.Name) {
			if name == t.Name {
				continue
			}
			if err := r.EnsureTopic(ctx, t.Name, name, register); err != nil {
				return err
			}
		}
	}
	return nil
}
