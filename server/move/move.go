// Package move takes an installation to another place: an export is a stream of everything that an
// installation has and no other place can tell, and an import puts it into an empty one.
//
// It owns the form of the stream, what is in it and what is not, its verification, and how an export or
// an import continues that was cut off. It does not know engines or where keys are: a [Source] is read, a
// [Target] is written to, and package backend has both for each mode.
//
// # The stream
//
// A line with the version, then frames (frame.go). The first frame is the [Header], the last one counts
// every section: a stream without it was cut off. Between them are files, the rows of one table after
// another, and the records of the logs of topics, at most about a megabyte in a frame. Each frame has its
// checksum and its number, and stands alone: so an export continues behind the last frame that is whole,
// and an import behind the last one that is on the disk.
//
// Concurrency: a Source or a Target belongs to one call; the calls have no state in common.
package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// version is that of the stream; firstLine begins it.
const (
	version   = 1
	product   = "parley export "
	firstLine = product + "1\n"
)

// Errors, each fit for one line.
var (
	// ErrDamaged says that a stream is not as it was written; the error names the place.
	ErrDamaged = errors.New("the export is damaged")
	// ErrCutOff says that a stream has no end.
	ErrCutOff = errors.New("the export was cut off")
	// ErrOther says that the target has a part of another export.
	ErrOther = errors.New("a part of another export is there already")
	// ErrDiffers says that a target does not have what the stream has.
	ErrDiffers = errors.New("what was imported differs from the export")
)

// Header says what an export is of.
type Header struct {
	ID    string    `json:"id"`    // of the export, random
	Taken time.Time `json:"taken"` // UTC
	Mode  string    `json:"mode"`  // of the source
	// History is the source's: its generation with the last commit, and those before it.
	History []store.Ancestor `json:"history"`
	Topics  TopicCounters    `json:"topics"`
}

// TopicCounters are the highest number that a durable topic of the source had, and the highest epoch of
// their owners: those of the target must be higher.
type TopicCounters struct {
	Number int64 `json:"number"`
	Epoch  int64 `json:"epoch"`
}

// same reports whether two headers are of exports of the same data.
func (h Header) same(other Header) bool {
	if h.Mode != other.Mode || h.Topics != other.Topics || len(h.History) != len(other.History) {
		return false
	}
	for i := range h.History {
		if h.History[i] != other.History[i] {
			return false
		}
	}
	return true
}

// File is a small file that belongs to an installation.
type File struct {
	Name    string
	Content []byte
}

// KeyFile is the name of the file with the keys of the installation.
const KeyFile = "auth.key"

// Source is what is exported. It must not change meanwhile.
type Source struct {
	Header Header // ID and Taken are the export's
	Files  []File
	Store  store.Store
	// Records calls each with the records of the logs of topics behind a key, in order, until it returns
	// false; nil: there are none.
	Records func(ctx context.Context, after []byte, each func(key, value []byte) bool) error
}

// Progress is how far an import has come.
type Progress struct {
	Export   string // its id
	Frames   uint64 // so many are durable
	Verified bool   // all are, and were read back
}

// Target is where an export is put.
type Target interface {
	// Begin returns what Reached was last called with; the zero Progress if it was not.
	Begin(ctx context.Context, h Header) (Progress, error)
	File(f File) error
	Rows(ctx context.Context, rows []store.Row) error
	Records(ctx context.Context, records []store.Record) error
	// Reached makes durable what came before, and remembers how far the import is.
	Reached(ctx context.Context, p Progress) error
	// Written is what the target has, to be read back.
	Written(ctx context.Context) (Source, error)
	// Finish makes an installation of it: until then no server starts with it. It may be repeated.
	Finish(ctx context.Context, h Header) error
}

// Moves reports whether a row is part of an export. An export has no rows that a process or an engine makes for itself,
// nor rows about the event log, whose records get other positions in the other place.
func Moves(k store.Key) bool {
	switch k.Table {
	case store.Leases, store.ConsumerAttempts:
		return false
	case store.DeadLetters: // those of durable topics, which move with their positions
		return strings.HasPrefix(k.PK, "topic/")
	case store.Topics: // counters, and lists by slot, are made again
		return !table.OfNoTopic(k)
	case store.Meta:
		switch k {
		case table.LogKey(), table.LogGivenUpKey(), table.TopicsKey(), table.ImportKey(), table.ExportKey(),
			store.Key{Table: store.Meta, PK: "generation"}, store.Key{Table: store.Meta, PK: "format"}:
			return false
		}
	}
	return true
}

// damaged is ErrDamaged with a place.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}
