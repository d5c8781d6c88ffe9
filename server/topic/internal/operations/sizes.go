package operations

import (
	"context"
	"maps"
	"slices"

	"github.com/parley-chat/parley/server/commitlog"
)

const (
	maxMarks  = 1024
	leastMark = 4 << 10 // bytes
)

// mark says that the messages from the mark before to end take so many bytes.
type mark struct{ end, bytes int64 }

// sizes remembers how large the messages of partitions are that it was asked for, so that each is read
// once. It is of one goroutine at a time.
type sizes struct {
	cycle int64
	of    map[commitlog.Partition]*sized
}

type sized struct {
	from, to int64
	marks    []mark
	cycle    int64 // in which it was asked for last
}

// between returns marks, about step bytes apart, of the messages from from to to. The first may count
// some that lie before from.
func (s *sizes) between(
	ctx context.Context, log commitlog.Reader, p commitlog.Partition, from, to, step int64,
) ([]mark, error) {
	of := s.of[p]
	if of == nil || of.to < from || from < of.from {
		of = &sized{from: from, to: from}
		s.of[p] = of
	}
	of.cycle = s.cycle
	of.marks, of.from = slices.Delete(of.marks, 0, behind(of.marks, from)), from
	if err := of.extend(ctx, log, p, to, step); err != nil {
		return nil, err
	}
	return of.marks[:min(behind(of.marks, to-1)+1, len(of.marks))], nil
}

// behind is the index of the first mark that ends behind a position.
func behind(marks []mark, position int64) int {
	i, _ := slices.BinarySearchFunc(marks, position, func(m mark, position int64) int {
		if m.end <= position {
			return -1
		}
		return 1
	})
	return i
}

// extend reads what was not read yet. A corrupt or removed batch has no size.
func (s *sized) extend(ctx context.Context, log commitlog.Reader, p commitlog.Partition, to, step int64) error {
	err := commitlog.Scan(ctx, log, p, &s.to, to, readBytes, func(b *commitlog.Batch) {
		s.add(b.End(), int64(b.Size(0, b.Count())), step)
	})
	if err == nil {
		s.to = max(s.to, to)
	}
	return err
}

func (s *sized) add(end, bytes, step int64) {
	if n := len(s.marks); n > 0 && s.marks[n-1].bytes+bytes <= step {
		s.marks[n-1] = mark{end, s.marks[n-1].bytes + bytes}
	} else {
		s.marks = append(s.marks, mark{end, bytes})
	}
}

// forget drops what was not asked for since it was called last.
func (s *sizes) forget() {
	maps.DeleteFunc(s.of, func(_ commitlog.Partition, of *sized) bool { return of.cycle != s.cycle })
	s.cycle++
}
