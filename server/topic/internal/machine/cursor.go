package machine

import (
	"encoding/binary"
	"errors"
	"time"
)

// MaxCursor is the size of the largest cursor, in bytes. It is less than what a row may have,
// which has a key and other attributes besides.
const MaxCursor = 398 << 10

const (
	// StateVersion is the first byte of a stored State.
	StateVersion = 1
	// Version is the first byte of a Cursor.
	Version = 1
	// historyVersion is of a cursor with a backfill.
	historyVersion = 2
	// movedVersion is of one of a group that was moved.
	movedVersion = 3
	// ledgerVersion is of one that says what the group is owed and what was released: of every group
	// that is dead, and of others that have such.
	ledgerVersion = 4
	// maxCursorRuns is of how many runs a set in a cursor may be: a run takes two bytes.
	maxCursorRuns = MaxCursor / 2
	// dueStep is how exactly a cursor has the time of a retry.
	dueStep = int64(100 * time.Millisecond)
	// entryBytes is what a failure or a run takes in a cursor at most, but for a few: more
	// attempts than maxAttempts are stored as these, and a failure that is due maxDue or
	// more before the last one as a step less: it has been due for long, as no delay is
	// longer than a day.
	entryBytes  = 6
	maxAttempts = 1<<14 - 1
	maxDue      = 1<<21 - 1 // steps, about two days
	// fixedBytes is for what a cursor has once, and for gaps that are longer than most.
	fixedBytes = 4 << 10
)

// maxCursorEntries is how many runs and failures a cursor has room for.
const maxCursorEntries = (MaxCursor - fixedBytes) / entryBytes

// ErrCursor is returned for bytes that are not a cursor or a state.
var ErrCursor = errors.New("machine: not a saved cursor")

// SavedFailure is what is known of a message that was delivered in vain.
type SavedFailure struct {
	Position int64
	Attempts int
	Due      int64 // unix ns
}

// Cursor is the position of a group.
type Cursor struct {
	Generation, Start, Floor            int64
	Processed, Filtered, Failed, Missed int64
	Required, Optional, Acked           *Set
	Failures                            []SavedFailure // by position
	Backfill                            int64          // number; 0: there is no History
	History                             *Set
	Moves                               int64
	// Dead makes Owed part of the cursor even if it is empty.
	Dead     bool
	Owed     *Set // nil: nothing, as released
	released *released
	ledger   bool // it was read, and has what follows Moves
}

// Append appends the cursor to b.
func (c *Cursor) Append(b []byte) []byte {
	version := byte(Version)
	owed, lost := c.Owed, c.released
	if owed == nil {
		owed = &Set{}
	}
	if lost == nil {
		lost = &released{}
	}
	switch {
	case c.Dead || !owed.Empty() || !lost.empty():
		version = ledgerVersion
	case c.Moves != 0:
		version = movedVersion
	case c.Backfill != 0:
		version = historyVersion
	}
	b = append(b, version)
	// Of a ledger's cause ByRetention there are two numbers, and releases without ByExpiry use the one in the ledger
	// only. So the first one includes ByExpiry: these releases read the cursor, and forget that count.
	missed := c.Missed + lost.gone[ByExpiry]
	for _, n := range [...]int64{c.Generation, c.Start, c.Floor, c.Processed, c.Filtered, c.Failed, missed} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, s := range [...]*Set{c.Required, c.Optional, c.Acked} {
		b = s.AppendBinary(b)
	}
	if b = c.appendFailures(b); version >= historyVersion {
		b = binary.AppendUvarint(b, uint64(c.Backfill))
		b = c.History.AppendBinary(b)
	}
	if version >= movedVersion {
		b = binary.AppendUvarint(b, uint64(c.Moves))
	}
	if version >= ledgerVersion {
		b = owed.AppendBinary(b)
		for cause := range lost.of { // by their numbers, which stay
			b = binary.AppendUvarint(b, uint64(lost.gone[cause]))
			b = lost.of[cause].AppendBinary(b)
		}
	}
	return b
}

// appendFailures appends positions, attempts and, in steps from the earliest one, when what
// failed is due.
func (c *Cursor) appendFailures(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(c.Failures)))
	if len(c.Failures) == 0 {
		return b
	}
	earliest, latest := NoEnd, int64(0)
	for _, f := range c.Failures {
		earliest, latest = min(earliest, f.Due), max(latest, f.Due)
	}
	earliest = max(earliest, latest-(maxDue-1)*dueStep, 0) / dueStep * dueStep
	b = binary.AppendUvarint(b, uint64(earliest/dueStep))
	last := int64(0)
	for _, f := range c.Failures {
		b = binary.AppendUvarint(b, uint64(f.Position-last))
		b = binary.AppendUvarint(b, uint64(min(f.Attempts, maxAttempts)))
		b = binary.AppendUvarint(b, uint64((max(f.Due, earliest)-earliest+dueStep-1)/dueStep))
		last = f.Position
	}
	return b
}

// DecodeCursor reads what Append wrote, with no more failures than most. Error: ErrCursor.
func DecodeCursor(b []byte, limit int64) (*Cursor, error) {
	d := decoder{b: b}
	version := d.byte()
	if version < Version || version > ledgerVersion {
		return nil, ErrCursor
	}
	c := &Cursor{History: &Set{}, Owed: &Set{}, released: &released{}}
	for _, n := range [...]*int64{&c.Generation, &c.Start, &c.Floor, &c.Processed, &c.Filtered, &c.Failed, &c.Missed} {
		*n = d.position()
	}
	c.Required, c.Optional, c.Acked = d.set(maxCursorRuns), d.set(maxCursorRuns), d.set(maxCursorRuns)
	c.Failures = d.failures(limit)
	if version >= historyVersion {
		c.Backfill, c.History = d.position(), d.set(maxCursorRuns)
	}
	if version >= movedVersion {
		c.Moves = d.position()
	}
	c.released.gone[ByRetention] = c.Missed
	if c.ledger = version >= ledgerVersion; c.ledger {
		c.Owed = d.set(maxCursorRuns)
		for cause := range c.released.of {
			c.released.gone[cause], c.released.of[cause] = d.position(), *d.set(maxCursorRuns)
		}
	}
	if c.ledger {
		c.released.gone[ByExpiry] = c.Missed - c.released.gone[ByRetention]
		c.Missed = c.released.gone[ByRetention]
	}
	if d.failed || len(d.b) > 0 || c.released.gone[ByExpiry] < 0 {
		return nil, ErrCursor
	}
	return c, nil
}

// appendState appends the state of a partition that belongs to no group: its watermark, and
// the positions that are complete for every group.
func appendState(b []byte, watermark int64, settled *Set) []byte {
	b = binary.AppendUvarint(append(b, StateVersion), uint64(watermark))
	return settled.AppendBinary(b)
}

// decodeState reads what AppendState wrote, of a set of runs at most. Error: Err.
func decodeState(b []byte, runs int) (watermark int64, settled *Set, err error) {
	d := decoder{b: b}
	if d.byte() != StateVersion {
		return 0, nil, ErrCursor
	}
	watermark, settled = d.position(), d.set(runs)
	if d.failed || len(d.b) > 0 {
		return 0, nil, ErrCursor
	}
	return watermark, settled, nil
}

// decoder reads what was appended; failed says that it was not.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.failed = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// position reads a number that is below NoEnd.
func (d *decoder) position() int64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v >= uint64(NoEnd) {
		d.failed = true
		return 0
	}
	d.b = d.b[n:]
	return int64(v)
}

func (d *decoder) set(limit int) *Set {
	s, rest, err := DecodeSet(d.b, limit)
	if err != nil {
		d.failed = true
		return &Set{}
	}
	d.b = rest
	return &s
}

func (d *decoder) failures(limit int64) []SavedFailure {
	n := d.position()
	if d.failed || n > limit || n > int64(len(d.b)) {
		d.failed = true
		return nil
	}
	if n == 0 {
		return nil
	}
	list := make([]SavedFailure, 0, n)
	earliest, position := d.position(), int64(0)
	const latest = NoEnd / dueStep
	for range n {
		gap, attempts, due := d.position(), d.position(), d.position()
		if gap > NoEnd-1-position || attempts < 1 || attempts > 1<<20 || earliest > latest-due {
			d.failed = true
			return nil
		}
		position += gap
		list = append(list, SavedFailure{position, int(attempts), (earliest + due) * dueStep})
	}
	return list
}
