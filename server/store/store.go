// Package store is the storage contract of Parley: tables, items, conditions
// and plans, and the few operations an engine must offer on them.
//
// A mutation is a value, the [Plan]: a list of writes, each under a condition
// from a small closed set and with a name for its failure. Engines run the same
// plans and answer alike: the shape of the contract is what DynamoDB's
// TransactWriteItems, GetItem, BatchGetItem, Query, Scan and BatchWriteItem can
// express within their limits, so that one set of rules in package chat serves
// every engine. The package owns the contract, its limits and the one evaluator
// of conditions and updates ([Evaluate], [Apply]); it does not know any row
// (package table), any rule of chats, or any engine.
//
// Concurrency: values of this package are plain data and must not be changed
// after they were passed on. Engines are safe for use by many goroutines.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits of the contract. They are DynamoDB's, and every engine enforces them
// ([Plan.Validate] and friends), so that nothing works on one engine only.
const (
	MaxPlanWrites  = 100              // writes in one plan
	MaxPlanBytes   = 4 << 20          // size of one plan, by [Item.Size]
	MaxItemBytes   = 400 << 10        // size of one item
	MaxBatchGet    = 100              // keys in one BatchGet
	MaxBatchWrite  = 25               // writes in one BatchWrite
	MaxPageBytes   = 1 << 20          // bytes evaluated by one Query or Scan page
	MaxKeyBytes    = 1024             // one part of a key
	MaxSegments    = 1024             // parallel segments of a Scan
	CallTimeout    = 20 * time.Second // of a store call; a plan is not older than this when it is committed
	ExpiresAtField = "expires_at"     // unix seconds; an item past it counts as absent everywhere
)

// Key addresses one item. SK is empty for tables without a sort key. Neither
// part may contain a zero byte.
type Key struct {
	Table Table
	PK    string
	SK    string
}

// String returns the key in a form fit for logs and errors.
func (k Key) String() string {
	if k.SK == "" {
		return fmt.Sprintf("%s/%s", k.Table, k.PK)
	}
	return fmt.Sprintf("%s/%s/%s", k.Table, k.PK, k.SK)
}

// Store is the authoritative store.
//
// Reads return copies or immutable values; expired items (ExpiresAtField in the
// past by the engine's clock, or of this second) are never returned, and plans
// see them as missing. Errors are the sentinels of this package, wrapped, or the
// context's error. All arguments are validated before anything else happens.
type Store interface {
	// Get reads one item; nil without an error if there is none. A consistent
	// read sees every plan whose Transact has returned.
	Get(ctx context.Context, key Key, c Consistency) (Item, error)
	// BatchGet reads up to MaxBatchGet distinct keys, consistently or not, each item
	// by itself (not a snapshot). The answer has one entry per key, in order, nil
	// where there is no item. Unprocessed keys are retried inside.
	BatchGet(ctx context.Context, keys []Key, c Consistency) ([]Item, error)
	// Query reads one partition in order of the sort key's bytes, a page at a time.
	Query(ctx context.Context, q Query) (Page, error)
	// Scan reads a whole table, a page at a time, in no order that callers may
	// rely on, for replay, export and repair.
	Scan(ctx context.Context, s Scan) (Page, error)
	// Transact runs a plan: all writes or none, each on the item as it was before
	// the plan. nil means that the plan is committed, and that it and all it saw
	// are durable. *ConditionError: none was written, at least one condition
	// failed; it may show what is not durable yet. ErrAmbiguous, which may wrap
	// the context's error: it may or may not have been written. Every other error,
	// a bare context's error too: nothing was written. Updates are made once all
	// conditions hold; one that cannot be made (of an attribute that is no integer,
	// to an item that is too large) fails with ErrInvalid.
	Transact(ctx context.Context, p Plan) error
	// BatchWrite runs up to MaxBatchWrite unconditional puts and deletes, each
	// durable when it returns nil, not atomic as a whole: on an error some may
	// have been written. Unprocessed items are retried inside.
	BatchWrite(ctx context.Context, writes []Write) error
	// Durable waits until everything that any call saw before is on stable storage. A
	// caller that answers with or publishes what it read calls Durable first.
	Durable(ctx context.Context) error
	// Close releases the store. Calls after it fail with ErrClosed.
	Close() error
}

// Consistency of a read.
type Consistency bool

// A strong read costs twice as much on DynamoDB and sees all finished writes.
const (
	Eventual Consistency = false
	Strong   Consistency = true
)

// Query reads items of one partition whose sort key is in [From, To]; an empty
// bound is open. Cursor continues after the page that returned it and is only
// valid for the same query. Limit ≤ 0 means as many as a page holds.
type Query struct {
	Table       Table
	PK          string
	From, To    string
	Descending  bool
	Limit       int
	Cursor      string
	Consistency Consistency
}

// Scan reads the items of segment Segment of Segments.
type Scan struct {
	Table             Table
	Segment, Segments int
	Limit             int
	Cursor            string
}

// Page is one page of a Query or Scan. Cursor is empty after the last page; a
// page may be empty and still have a cursor.
type Page struct {
	Rows   []Row
	Cursor string
}

// Row is an item with its key.
type Row struct {
	Key  Key
	Item Item
}

// Op is the kind of a write.
type Op uint8

// The kinds of writes.
const (
	OpPut    Op = iota + 1 // replaces the whole item
	OpUpdate               // changes attributes; creates the item if there is none and the condition allows it
	OpDelete               // removes the item; removing nothing is no error
	OpCheck                // only evaluates the condition
)

// Write is one action of a plan on one item.
type Write struct {
	Op     Op
	Key    Key
	Item   Item      // OpPut: the attributes, without the key
	Update Update    // OpUpdate
	Cond   Condition // empty: always true
	Name   string    // what a failure of Cond is called, e.g. "head"
	// Fresh says of an OpPut that its key has just been made at random, so that there can be
	// no item: an engine need not look, and Cond counts as true. Where it may be wrong another
	// condition of the plan must fail.
	Fresh bool
	// Frees says that freeing space depends on the write: it is done though the storage is
	// full, see ErrFull.
	Frees bool
}

// Plan is a transaction: at most MaxPlanWrites writes, no item twice. Token
// makes a repetition of the same plan within ten minutes a no-op on engines
// that support it (ClientRequestToken); it is optional, at most 36 bytes, and
// no replacement for an idempotency row.
type Plan struct {
	Writes []Write
	Token  string
}

// Sentinels. Engines translate their own errors to these.
var (
	ErrClosed      = errors.New("store: closed")
	ErrConflict    = errors.New("store: transaction conflict")
	ErrThrottled   = errors.New("store: throttled")
	ErrUnavailable = errors.New("store: unavailable")
	ErrAmbiguous   = errors.New("store: outcome unknown")
	ErrInvalid     = errors.New("store: invalid request")
	ErrFull        = errors.New("store: storage full") // nothing was written; deletes, what Frees, and reads still work
	ErrCorrupt     = errors.New("store: corrupt data")
)

// Failure is one failed condition: the name of its write and the item as it
// was at that moment (nil if there was none).
type Failure struct {
	Index   int
	Name    string
	Current Item
}

// ConditionError reports every failed condition of a plan, in plan order.
type ConditionError struct{ Failures []Failure }

// Error names the failed conditions.
func (e *ConditionError) Error() string {
	names := make([]string, len(e.Failures))
	for i, f := range e.Failures {
		names[i] = f.Name
	}
	return "store: condition failed: " + strings.Join(names, ", ")
}

// Failed returns the first failure with that name, if any.
func (e *ConditionError) Failed(name string) (Failure, bool) {
	for _, f := range e.Failures {
		if f.Name == name {
			return f, true
		}
	}
	return Failure{}, false
}
