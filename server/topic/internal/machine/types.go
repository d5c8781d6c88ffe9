package machine

import (
	"errors"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// Errors of the machine.
var (
	// ErrState is returned for a transition that the group's state does not allow.
	ErrState = errors.New("machine: the subscription's state does not allow it")
	// ErrOutOfRange is returned for a position beyond the end of the log.
	ErrOutOfRange = errors.New("machine: the position is beyond the end")
	// ErrGeneration is returned for a generation that is not higher than the one there is.
	ErrGeneration = errors.New("machine: the generation has been used")
	// ErrMemberExists is returned for a member whose name another one has.
	ErrMemberExists = errors.New("machine: a member has this name")
)

// Residence says whether a batch is in memory.
type Residence int

// Where a position's batch is.
const (
	Resident Residence = iota // here it is
	Missing                   // in the log; to be read, and then asked for again
	Beyond                    // the log has not come that far
)

// Source has the batches that are in memory.
type Source interface {
	// At returns the batch that holds a position. If the position does not exist but later
	// ones do, it is the batch after it: the positions between count as acknowledged.
	At(position int64) (*commitlog.Batch, Residence)
}

// State is where a group is in its life.
type State int

// States of a group, with the numbers that the contract gives them.
const (
	Active    State = 1
	Paused    State = 2
	Dead      State = 3
	Cancelled State = 4
)

// Exhausted says what becomes of a message that failed too often.
type Exhausted int

// The outcomes of an exhausted message.
const (
	DeadLetter Exhausted = iota // TakeUndeliverable returns it; MarkDeadLettered acknowledges it
	ParkKey                     // it waits, and with it what has its key
	Discard                     // it is acknowledged
)

// Config is how a group is served.
type Config struct {
	Name       string
	Generation int64
	Filter     *Filter // nil: everything
	KeyOrder   bool    // one message of a key at a time
	Hash       bool    // members are chosen by hash, otherwise in turns
	Exhausted  Exhausted
	// MaxAttempts is how often a message is delivered at most, 1 or more.
	MaxAttempts    int
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	Lease          time.Duration
	// HoldsPaused says whether the group, while it is paused, holds the watermark.
	HoldsPaused bool
}

// Begin is where a group begins.
type Begin struct {
	Start int64 // first position, at most the end
	// Backfill holds what is there already and not complete; without it the group reads
	// it as long as it is there.
	Backfill bool
	// Rest leaves out what is complete.
	Rest bool
}

// Piece is a run of messages of one batch for one member, all delivered for the same
// time: From and To are indexes into the batch.
type Piece struct {
	Member   *Member
	Batch    *commitlog.Batch
	From, To int
	Attempt  int // 1 for the first delivery
}

// Reason says why Next stopped.
type Reason int

// Why Next stopped.
const (
	Idle    Reason = iota // nothing is to be delivered now
	Limit                 // as much as was asked for; call again
	Fetch                 // Wait.Position is to be read from the log first
	Credits               // no member that takes the next messages has credits, or the Quota is full
	Full                  // as much is open as may be, or the group does not deliver
)

// Wait says why Next stopped.
type Wait struct {
	Reason   Reason
	Position int64
}

// Lost are positions whose lease a member has lost.
type Lost struct {
	Member   *Member
	From, To int64
}

// Stats counts.
type Stats struct {
	Start, Floor                int64
	Pending                     int64 // see GroupState.Missing
	InFlight, Retrying, Delayed int64
	Parked, Undeliverable       int64
	Members                     int
	Processed, Filtered, Failed int64 // since the group began
	Missed                      int64 // due, and trimmed before it had acknowledged them
}

// Cutoffs are the positions up to which the log is older than a retention.
type Cutoffs struct {
	Complete   int64 // of what all groups have acknowledged
	Unrequired int64 // of what no group is to receive
	Forced     int64 // of everything, due or not
}

// Status says which groups are to acknowledge a position and which have.
type Status struct {
	Required     []string
	Acknowledged []string
	InFlight     bool
	Complete     bool
}
