package dynamo

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Format says which rows the tables may have, and which releases can read them.
//
// A rolling upgrade has processes of two versions on the same tables, so a format comes in two
// releases. The first one knows the format (Version) and still writes rows that the release before
// it can read. The next one writes it, and requires a reader that knows it (Reader). So Reader is
// at most the Version of the release before, whose processes go on and may restart meanwhile.
type Format struct {
	Version int // the newest format that this version reads
	Reader  int // the oldest that must be known to read what this version writes
}

// current is the format of this version. Tables without a row of the format have format 1.
var current = Format{Version: 1, Reader: 1}

// ErrFormat says that the tables have a format that this version cannot read.
var ErrFormat = errors.New("tables have a format that this version cannot read")

// formatKey is the row of the format in table meta.
var formatKey = store.Key{Table: store.Meta, PK: "format"}

const (
	attrFormat = "format" // the newest that any process knew
	attrReader = "reader"
)

// ErrMoving says that no process may use the tables, because an import into them has not ended, or because
// they were exported.
var ErrMoving = errors.New("the installation is being moved")

// CheckFormat returns an error that wraps ErrFormat if a newer version has written rows that this
// one cannot read, and one that wraps ErrMoving if the tables are being moved.
func (s *Store) CheckFormat(ctx context.Context, c store.Consistency) error {
	// One call, because every process asks often.
	rows, err := s.BatchGet(ctx, []store.Key{table.ImportKey(), table.ExportKey(), formatKey}, c)
	if err != nil {
		return err
	}
	if err := current.reads(rows[2]); err != nil {
		return err
	}
	return s.moving(rows[0], rows[1])
}

// moving returns ErrMoving if there is a row of an import or an export.
func (s *Store) moving(imported, exported store.Item) error {
	switch {
	case imported != nil:
		return fmt.Errorf("%w: an import into %s* has not ended; run it again with the same export", ErrMoving, s.opts.Prefix)
	case exported != nil:
		return fmt.Errorf("%w: %s* were exported; start the installation that they were imported into, or run server export --cancel",
			ErrMoving, s.opts.Prefix)
	}
	return nil
}

// readFormat returns the row of the format.
func (s *Store) readFormat(ctx context.Context, c store.Consistency, known Format) (store.Item, error) {
	it, err := s.Get(ctx, formatKey, c)
	if err != nil {
		return nil, err
	}
	return it, known.reads(it)
}

// reads returns ErrFormat if the row of the format asks for a newer version than this one.
func (f Format) reads(row store.Item) error {
	if reader := row.Get(attrReader).Int64(); reader > int64(f.Version) {
		return fmt.Errorf("%w: a newer version has written them and they need format %d, this version knows %d; start the newer version",
			ErrFormat, reader, f.Version)
	}
	return nil
}

// enterFormat checks the format and records the one of this version. Nothing of the format may be
// written before.
func (s *Store) enterFormat(ctx context.Context, known Format) error {
	for {
		it, err := s.readFormat(ctx, store.Strong, known)
		if err != nil {
			return err
		}
		version, reader := it.Get(attrFormat).Int64(), it.Get(attrReader).Int64()
		if max(version, 1) >= int64(known.Version) && max(reader, 1) >= int64(known.Reader) {
			return nil
		}
		cond := store.Absent()
		if it != nil {
			cond = store.Exists().Eq(attrFormat, store.Int(version)).Eq(attrReader, store.Int(reader))
		}
		err = s.Transact(ctx, store.Plan{Writes: []store.Write{{
			Op: store.OpPut, Key: formatKey, Cond: cond, Name: "format",
			Item: store.NewItem(
				store.Attr{Name: attrFormat, Value: store.Int(max(version, int64(known.Version)))},
				store.Attr{Name: attrReader, Value: store.Int(max(reader, int64(known.Reader)))}),
		}}})
		var lost *store.ConditionError
		if err != nil && !errors.As(err, &lost) && !errors.Is(err, store.ErrAmbiguous) {
			return err
		}
	}
}
