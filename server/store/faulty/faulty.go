// Package faulty injects faults into the calls of a store, like those of networks,
// overloaded services and crashes: errors before anything happened, writes with an unknown
// outcome, answers that are late or lost.
//
// A [Policy] decides the fault of each call: by a script ([Script]), by chance from a seed
// ([Random]), or as a test likes. The package owns no data and adds no promise to those of
// the store below.
//
// Concurrency: a Store is safe for concurrent use. The policy is called under a lock,
// in the order of the calls' numbers, so that it needs none of its own; with calls in a
// fixed order a run is repeatable. Delays and lost answers wait outside the lock.
package faulty

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
)

// Method is the operation of a call.
type Method string

// The methods; Close is never disturbed.
const (
	Get        Method = "get"
	BatchGet   Method = "batch get"
	Query      Method = "query"
	Scan       Method = "scan"
	Transact   Method = "transact"
	BatchWrite Method = "batch write"
	Durable    Method = "durable"
)

// Writes reports whether the method changes data.
func (m Method) Writes() bool { return m == Transact || m == BatchWrite }

// Call is what a policy knows of a call.
type Call struct {
	Number int // from 1, over all methods
	Method Method
	Writes []store.Write // of Transact and BatchWrite; not to be changed
}

// When says what happens to a call.
type When uint8

// The fates of a call.
const (
	Pass   When = iota // the store's answer, after the delay
	Before             // Err, and the call never reaches the store
	After              // Err, and the call reached the store: its answer is dropped
	Lost               // as After, but the answer never comes: the caller's context must end the call
)

// Fault is the fate of one call. The zero Fault lets it pass.
type Fault struct {
	When  When
	Err   error         // for Before and After; default: see [Store]
	Delay time.Duration // before the call reaches the store
	Late  time.Duration // after it did, before the answer
}

// Policy decides the fate of each call.
type Policy func(Call) Fault

// Options set a Store up.
type Options struct {
	Policy Policy // required
	// Sleep waits, or returns the context's error; default: a timer.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Store is a store that fails as its policy says.
//
// Without an error of its own, a fault Before is store.ErrUnavailable, and one After
// is store.ErrAmbiguous for a write and store.ErrUnavailable for a read. The policy
// must keep to the contract: an error that promises that nothing was written belongs
// to Before. A lost write ends with store.ErrAmbiguous, which wraps the context's
// error; a lost read with the context's error.
type Store struct {
	below store.Store
	opts  Options

	mu     sync.Mutex
	calls  int
	faults map[When]int
}

var _ store.Store = (*Store)(nil)

// New wraps a store.
func New(below store.Store, o Options) *Store {
	if o.Policy == nil {
		o.Policy = func(Call) Fault { return Fault{} }
	}
	if o.Sleep == nil {
		o.Sleep = wait.For
	}
	return &Store{below: below, opts: o, faults: map[When]int{}}
}

// Calls is the number of calls so far.
func (s *Store) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Count is the number of calls with a fate so far: a test that injects faults should
// see that there were some.
func (s *Store) Count(w When) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults[w]
}

func (s *Store) fate(m Method, writes []store.Write) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	f := s.opts.Policy(Call{Number: s.calls, Method: m, Writes: writes})
	s.faults[f.When]++
	return f
}

// do runs a call through its fate.
func do[T any](ctx context.Context, s *Store, m Method, writes []store.Write, call func() (T, error)) (T, error) {
	var none T
	f := s.fate(m, writes)
	if f.Delay > 0 {
		if err := s.opts.Sleep(ctx, f.Delay); err != nil {
			return none, err // it was not sent yet
		}
	}
	if f.When == Before {
		return none, orDefault(f.Err, store.ErrUnavailable)
	}
	answer, err := call()
	if errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrClosed) {
		return none, err // found out before anything is sent
	}
	if f.Late > 0 {
		if late := s.opts.Sleep(ctx, f.Late); late != nil {
			return none, unknown(m, late)
		}
	}
	switch f.When {
	case After:
		if m.Writes() {
			return none, orDefault(f.Err, store.ErrAmbiguous)
		}
		return none, orDefault(f.Err, store.ErrUnavailable)
	case Lost:
		<-ctx.Done()
		return none, unknown(m, ctx.Err())
	}
	return answer, err
}

// unknown is the error of a call whose caller gave up after it was sent.
func unknown(m Method, err error) error {
	if m.Writes() {
		return fmt.Errorf("%w: no answer: %w", store.ErrAmbiguous, err)
	}
	return err
}

func orDefault(err, otherwise error) error {
	if err == nil {
		return fmt.Errorf("%w (injected)", otherwise)
	}
	return err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	return do(ctx, s, Get, nil, func() (store.Item, error) { return s.below.Get(ctx, key, c) })
}

// BatchGet implements store.Store.
func (s *Store) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	return do(ctx, s, BatchGet, nil, func() ([]store.Item, error) { return s.below.BatchGet(ctx, keys, c) })
}

// Query implements store.Store.
func (s *Store) Query(ctx context.Context, q store.Query) (store.Page, error) {
	return do(ctx, s, Query, nil, func() (store.Page, error) { return s.below.Query(ctx, q) })
}

// Scan implements store.Store.
func (s *Store) Scan(ctx context.Context, q store.Scan) (store.Page, error) {
	return do(ctx, s, Scan, nil, func() (store.Page, error) { return s.below.Scan(ctx, q) })
}

// Transact implements store.Store.
func (s *Store) Transact(ctx context.Context, p store.Plan) error {
	_, err := do(ctx, s, Transact, p.Writes, func() (struct{}, error) { return struct{}{}, s.below.Transact(ctx, p) })
	return err
}

// BatchWrite implements store.Store.
func (s *Store) BatchWrite(ctx context.Context, writes []store.Write) error {
	_, err := do(ctx, s, BatchWrite, writes,
		func() (struct{}, error) { return struct{}{}, s.below.BatchWrite(ctx, writes) })
	return err
}

// Durable implements store.Store.
func (s *Store) Durable(ctx context.Context) error {
	_, err := do(ctx, s, Durable, nil, func() (struct{}, error) { return struct{}{}, s.below.Durable(ctx) })
	return err
}

// Close closes the store below.
func (s *Store) Close() error { return s.below.Close() }
