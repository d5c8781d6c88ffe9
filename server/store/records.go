package store

import "context"

// Record is an entry of an engine's ordered records.
type Record struct {
	Key   []byte
	Value []byte
	// Until, if set, makes this a removal: of all records from Key on that are below Until.
	Until []byte
	// Frees says that removals depend on this record, which is small: it is written on a
	// full disk, too.
	Frees bool
}

// Records are ordered keys and values that an engine keeps beside its tables: logs, which
// are appended to, read in order and cut off in the front. Only the embedded engine has
// them. Keys and values are bytes of the caller's own; neither is kept after a call.
type Records interface {
	// Commit applies records in order, all or none of them. They are visible when it
	// returns, and durable when wait returns nil; wait must be called once. Commits become
	// durable in their order. Rows of tables are deleted in the same commit: there is no
	// moment, and no crash, with one and not the other. A row that is not there is no error.
	//
	// Errors: ErrInvalid (a key of a row), ErrFull, ErrClosed, ErrUnavailable; of wait:
	// ErrAmbiguous. A commit of removals and Frees is never refused with ErrFull. One that
	// deletes rows is refused only once half of the disk's reserve is used: accepted messages
	// that wait in rows still get into the logs on a full disk, and the other half remains
	// for what the engine must write.
	Commit(ctx context.Context, records []Record, rows ...Key) (wait func() error, err error)
	// Seek calls f with the records from a key on, below another one (nil: all), in order,
	// as of one moment, until f returns false; descending, it begins with the last one. key
	// is valid during the call of f only, as is what value returns, which reads the record.
	Seek(ctx context.Context, from, until []byte, descending bool,
		f func(key []byte, value func() ([]byte, error)) bool) error
	// Durable waits until all that was visible when it was called is durable.
	Durable(ctx context.Context) error
}

// Reclaimer is Records that give space back when they are asked. Others do so by themselves.
type Reclaimer interface {
	// Size returns about how many bytes of the disk take records from a key on, below another one,
	// whether or not they were removed. It reads none of them. The records that were just written
	// may be missing.
	Size(from, until []byte) (int64, error)
	// Short reports whether the disk has so little room that writes are refused, or soon will be.
	Short() bool
	// Reclaim gives the space of records that were removed from a key on, below another one, back
	// to the disk, by merging what the engine has of that range. It takes the time of writing what
	// is left there, and works on a disk that has room for that.
	Reclaim(ctx context.Context, from, until []byte) error
}
