package check

import (
	"errors"
	"fmt"
	"iter"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/raw"
)

// stream reads a table in the order of its keys. row is the next row.
type stream struct {
	c     *checker
	table store.Table
	pull  func() (store.Row, error, bool)
	stop  func()

	row store.Row
	bad error // why the row cannot be read
	ok  bool
}

// stream opens a table at its first row.
func (c *checker) stream(t store.Table) (*stream, error) {
	s := &stream{c: c, table: t}
	s.pull, s.stop = iter.Pull2(c.Data.Raw.Rows(t))
	return s, s.advance()
}

// advance reads the next row. A key that is not one of the table is a finding; a table that
// cannot be read further is an error.
func (s *stream) advance() error {
	for {
		s.row, s.bad, s.ok = s.pull()
		if !s.ok {
			return nil
		}
		s.c.progress.row()
		if s.c.progress.rows%stride == 0 && s.c.ctx.Err() != nil {
			return s.c.ctx.Err()
		}
		switch {
		case s.bad == nil:
			return nil
		case s.row.Key.PK == "":
			return fmt.Errorf("%s cannot be read further: %w", s.table, s.bad)
		case errors.Is(s.bad, raw.ErrKey):
			if err := s.c.found(RowUnreadable, location(fmt.Sprintf("%s/%s", s.table, s.row.Key.PK)), s.bad.Error(),
				"it does no harm, but a program wrote it: "+restoreBackup); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// at reports whether the next row is of a partition.
func (s *stream) at(pk string) bool { return s.ok && s.row.Key.PK == pk }

// pop returns the next row if it is of a partition, and advances; nil if there is none. bad
// says why the row cannot be read; rewriting the row repairs that.
func (s *stream) pop(pk string) (it store.Item, bad error, err error) {
	if !s.at(pk) {
		return nil, nil, nil
	}
	it, bad = s.row.Item, s.bad
	if bad != nil {
		it = nil
	}
	return it, bad, s.advance()
}

// skip skips the rest of a partition and counts its rows.
func (s *stream) skip(pk string) (n int, err error) {
	for s.at(pk) && err == nil {
		n++
		err = s.advance()
	}
	return n, err
}

// ignoreCorrupt drops errors of corrupt rows: the check of the row's table reports them.
func ignoreCorrupt(err error) error {
	if errors.Is(err, store.ErrCorrupt) {
		return nil
	}
	return err
}
