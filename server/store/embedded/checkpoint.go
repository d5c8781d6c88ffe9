package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Checkpoint makes a store in a directory that has none, as a data directory has it: all that
// was committed at one moment, as links to files that do not change. They take no room of
// their own until the store has replaced them; so the directory is to be removed soon.
//
// moment is called once, with what takes the moment: it may do so while something else stands
// still. Writes continue meanwhile.
func (s *Store) Checkpoint(ctx context.Context, dir string, moment func(take func() error) error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	// Without the flush, data that is in memory only would be in the log, which is copied.
	if err := s.db.Flush(); err != nil {
		return translate(err)
	}
	fs := s.opts.FS
	// SEAL comes first: the store must have all that it speaks of.
	for _, path := range []string{formatPath(fs, s.opts.Dir), fs.PathJoin(s.opts.Dir, sealFile)} {
		err := vfs.Copy(fs, path, fs.PathJoin(dir, fs.PathBase(path)))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a store without writes has no seal
			return fmt.Errorf("checkpoint: %w", plain(err))
		}
	}
	return moment(func() error {
		if err := s.db.Checkpoint(fs.PathJoin(dir, "store"), pebble.WithFlushedWAL()); err != nil {
			return fmt.Errorf("checkpoint: %w", plain(err))
		}
		return nil
	})
}
