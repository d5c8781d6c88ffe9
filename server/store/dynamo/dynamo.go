// Package dynamo is the storage engine for many machines: Amazon DynamoDB.
//
// It owns the encoding of keys, items, conditions and updates in DynamoDB's terms, and
// what expired but is still there. Package wire has the connection, its retries and
// errors, package tables the definitions of the tables. The contract is package
// store's, the rows are package table's.
//
// # Plans
//
// A plan is one TransactWriteItems with a ClientRequestToken, so that it may be sent
// again when its answer was lost; a plan of one write is a conditional PutItem,
// UpdateItem or DeleteItem at half the price, which has no token: its lost answer is
// store.ErrAmbiguous at once. Conditions on tables whose items expire carry the time
// of the call: an item that expired counts as missing long before DynamoDB removes
// it. An update of an expired item fails a condition that this engine adds, and is sent
// again as a put. Increments carry a condition, too, against overflow and other kinds, so
// that failed conditions of the plan are reported first, as the contract requires. The
// contract's evaluator decides about failed conditions, never DynamoDB alone.
//
// # Answers that did not come
//
// Throttling, conflicts, lost answers and failures of the service are retried with full
// jitter within store.CallTimeout. When a request with a token may have been carried out
// and a repetition fails a condition, that is the answer: a transaction that was committed
// answers its token with success. Sizes and numbers are DynamoDB's own: an update may make
// an item up to 64 bytes larger than the embedded engine would let it, and the terms and
// increments of one write must fit into an expression of 4 KB and 300 operators, which 70
// of both together do; a write that does not fit is store.ErrInvalid.
//
// # Concurrency
//
// A Store has no state but counters and is safe for concurrent use. Close waits
// for calls under way.
package dynamo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// Options say where the tables are.
type Options struct {
	Wire   wire.Config
	Prefix string           // of the tables' names; by default tables.DefaultPrefix
	Clock  func() time.Time // decides what has expired; by default time.Now

	// Moving opens tables that no process may use, because they are being moved: see ErrMoving.
	Moving bool

	noShort bool // plans of one write are transactions, too; for tests
}

// Store is the engine.
type Store struct {
	opts     Options
	wire     *wire.Client
	schemas  map[store.Table]*schema
	line     Line
	counters counters

	life   sync.RWMutex // shared by every call, exclusive in Close
	closed bool
}

var _ store.Store = (*Store)(nil)

// Open connects to tables that [tables.Tables.Apply] or Terraform has made. Errors fit into
// one line; one that wraps wire.ErrNoTables says that there are none, and one that wraps
// ErrFormat that a newer version has written them.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Prefix == "" {
		o.Prefix = tables.DefaultPrefix
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if err := tables.ValidPrefix(o.Prefix); err != nil {
		return nil, err
	}
	client, err := wire.Dial(ctx, o.Wire)
	if err != nil {
		return nil, err
	}
	s := &Store{opts: o, wire: client, schemas: schemas(o.Prefix)}
	if err = s.enterFormat(ctx, current); err == nil && !o.Moving {
		err = s.CheckFormat(ctx, store.Strong)
	}
	if err == nil {
		s.line, err = s.enterLine(ctx)
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("dynamo: open %s*: %w", o.Prefix, err)
	}
	return s, nil
}

// begin admits a call and bounds it; the caller must call end if there was no error.
func (s *Store) begin(ctx context.Context) (bounded context.Context, end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return nil, nil, store.ErrClosed
	}
	bounded, cancel := wire.WithTimeout(ctx)
	return bounded, func() {
		cancel()
		s.life.RUnlock()
	}, nil
}

// Durable implements store.Store. DynamoDB answers with nothing that is not durable.
func (s *Store) Durable(ctx context.Context) error {
	_, end, err := s.begin(ctx)
	if err == nil {
		end()
	}
	return err
}

// Close implements store.Store. It waits for calls under way.
func (s *Store) Close() error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.wire.Close()
	return nil
}
