package commitlog

import (
	"context"
	"errors"
)

// Scan calls f with the batches of a partition from a position on, up to another one or the end, and reads so many
// bytes at a time. It moves the position on with each, so that a scan which fails can be continued. Batches that are
// corrupt, or were removed meanwhile, are skipped.
func Scan(ctx context.Context, log Reader, p Partition, next *int64, to int64, maxBytes int, f func(*Batch)) error {
	for *next < to {
		batches, err := log.Read(ctx, p, *next, maxBytes)
		var corrupt *CorruptError
		switch {
		case errors.As(err, &corrupt):
			*next = max(*next+1, corrupt.To)
			continue
		case errors.Is(err, ErrTrimmed):
			start, _, err := log.Bounds(ctx, p)
			if err != nil {
				return err
			}
			*next = max(*next+1, start)
			continue
		case err != nil:
			return err
		case len(batches) == 0:
			return nil
		}
		for _, b := range batches {
			f(b)
			*next = b.End()
		}
	}
	return nil
}
