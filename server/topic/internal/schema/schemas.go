package schema

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Bounds of a process.
const (
	cachedSchemas = 256      // that are kept compiled, of a service
	cachedBytes   = 64 << 20 // that they take, by estimate
	leastCached   = 8 << 20  // of these bytes for a service of many in a process
	parsedBytes   = 4 << 20  // of payloads that are parsed at the same time
	leastShare    = 1 << 20  // of those: a payload has as many
	compilations  = 2        // at the same time, of a service
	loadTime      = 20 * time.Second
	judgeTime     = 30 * time.Second
	maxEarlier    = 32 // schemas that a topic had before; the contract has the same number
)

// Schemas has the schemas of the topics of a service.
type Schemas struct {
	registry *registry.Registry
	bounds   bounds
	parsing  *semaphore.Weighted // bytes of payloads
	loading  *semaphore.Weighted
	judging  *semaphore.Weighted // one change at a time: the samples of a large schema take memory
	flights  singleflight.Group  // of checkers that are loaded

	mu    sync.Mutex
	cache map[key]*cached
	bytes int    // that what is in cache takes
	turn  uint64 // counts uses
}

// bounds of a cache.
type bounds struct{ schemas, bytes int }

// key names a checker.
type key struct {
	id      int32
	message string // "" for the first of the file
}

type cached struct {
	*checker
	used uint64 // turn of the last use
}

// New makes a Schemas. services is how many of them a process may have: they share its bounds.
func New(r *registry.Registry, services int) *Schemas {
	services = max(services, 1)
	return &Schemas{
		registry: r, cache: map[key]*cached{},
		bounds:  bounds{cachedSchemas, max(cachedBytes/services, leastCached)},
		parsing: semaphore.NewWeighted(int64(max(parsedBytes/services, leastShare))),
		loading: semaphore.NewWeighted(compilations), judging: semaphore.NewWeighted(1),
	}
}

// Check refuses messages whose payloads are not as a schema says, with SCHEMA_MISMATCH; the first one
// is named. Errors of the registry are the store's.
func (s *Schemas) Check(ctx context.Context, t *topicv1.TopicSchema, messages []*topicv1.TopicMessage) error {
	c, err := s.checker(ctx, key{t.GetId(), t.GetMessage()})
	if err != nil {
		return err
	}
	for i, m := range messages {
		if err := s.check(ctx, c, t.GetEncoding(), m.GetPayload()); err != nil {
			var wrong *mismatch
			if !errors.As(err, &wrong) {
				return err
			}
			return refusal.New(refusal.SchemaMismatch, "messages[%d]: the payload is not %s of schema %d: %s; "+
				"nothing of this request is stored", i, t.GetMessage(), t.GetId(), clipped(wrong.Error(), maxMismatch))
		}
	}
	return nil
}

func (s *Schemas) check(ctx context.Context, c *checker, as topicv1.TopicSchema_Encoding, payload []byte) error {
	json := as == topicv1.TopicSchema_ENCODING_JSON
	if !json {
		if err := c.read(payload); err != nil || !c.parses {
			return err
		}
	}
	// The caller's payloads are at most leastShare each, so that one always fits.
	n := int64(min(len(payload), leastShare))
	if err := s.parsing.Acquire(ctx, n); err != nil {
		return err
	}
	defer s.parsing.Release(n)
	return c.parse(payload, json)
}

// checker returns the checker of a schema, from the cache or compiled. One that several ask for at the
// same time is compiled once; it goes on if they give up.
func (s *Schemas) checker(ctx context.Context, k key) (*checker, error) {
	if c := s.cached(k); c != nil {
		return c, nil
	}
	done := s.flights.DoChan(fmt.Sprintf("%d %s", k.id, k.message), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTime)
		defer cancel()
		c, err := s.load(ctx, k, false)
		if err != nil {
			return nil, err
		}
		s.keep(k, c)
		return c, nil
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		c, _ := r.Val.(*checker) // it is one: load made it
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// load compiles a schema. live: one of which no version is left but deleted ones is refused.
func (s *Schemas) load(ctx context.Context, k key, live bool) (*checker, error) {
	if err := s.loading.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.loading.Release(1)
	file, err := s.registry.Compiled(ctx, int(k.id), live)
	if err != nil {
		return nil, refused(err)
	}
	c, err := newChecker(file, k.message)
	if err != nil {
		return nil, fmt.Errorf("schema %d: %w", k.id, err)
	}
	return c, nil
}

// refused makes a refusal of one of the registry; failures stay what they are.
func refused(err error) error {
	var r *registry.Error
	if errors.As(err, &r) {
		return refusal.New(refusal.SchemaNotFound, "the registry says: %s", clipped(r.Message, maxMismatch))
	}
	return err
}

func (s *Schemas) cached(k key) *checker {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cache[k]
	if c == nil {
		return nil
	}
	s.turn++
	c.used = s.turn
	return c.checker
}

// keep puts a checker into the cache. Those that were not used for longest make room; the new one
// stays, however large it is.
func (s *Schemas) keep(k key, c *checker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(k)
	for len(s.cache) > 0 && (len(s.cache) >= s.bounds.schemas || s.bytes+c.size > s.bounds.bytes) {
		var oldest key
		used := s.turn + 1
		for k, c := range s.cache {
			if c.used < used {
				oldest, used = k, c.used
			}
		}
		s.drop(oldest)
	}
	s.turn++
	s.cache[k] = &cached{c, s.turn}
	s.bytes += c.size
}

// drop removes a checker. The caller holds mu.
func (s *Schemas) drop(k key) {
	if c := s.cache[k]; c != nil {
		s.bytes -= c.size
		delete(s.cache, k)
	}
}
