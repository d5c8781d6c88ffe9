package consume

import (
	"context"

	"github.com/parley-chat/parley/server/kafka"
)

// Session is one membership of a consumer group, from joining it to Close: a kafka.Session, or
// one that does the same on another log (Config.Join). Its methods belong to one goroutine, but
// for Ends, which any goroutine may call until Close.
type Session interface {
	Poller
	Fetching
	// Commit commits the offsets of the next records, durably. Error kafka.ErrNotMember: others
	// may own the partitions. Any other error leaves the session usable, and the offsets may have been
	// committed.
	Commit(ctx context.Context, next map[kafka.Partition]int64) error
	// Ends returns the offsets at which the partitions of topics end.
	Ends(ctx context.Context, topics []string) (map[kafka.Partition]int64, error)
	// Close leaves the group. Nothing of the session runs afterwards.
	Close()
}

// Poller brings records. Between a call of Poll, Fetched or Block and the next call of Done no
// partition is assigned or revoked.
type Poller interface {
	// Poll returns all that was fetched, by partition, in order of offsets and from where the
	// partition was committed, rewound to, or last polled; if that is nothing, it waits until
	// something is fetched, or ctx ends. An error is about some partitions. The batches of
	// others are returned beside it.
	Poll(ctx context.Context) (map[kafka.Partition]kafka.Batch, error)
	// Fetched is Poll without the wait.
	Fetched() (map[kafka.Partition]kafka.Batch, error)
	// Block is Fetched without any records.
	Block()
	// Done ends what Poll, Fetched or Block has begun.
	Done()
}

// Fetching controls what of a partition is fetched.
type Fetching interface {
	// Rewind has the record at an offset come next, also if it came before.
	Rewind(p kafka.Partition, offset int64)
	// Pause has nothing come of a partition until Resume. Records that were fetched of it and
	// not polled may come later, or be fetched again.
	Pause(p kafka.Partition)
	Resume(p kafka.Partition)
}

// joinKafka is the Join of an Engine without another one.
func joinKafka(cfg kafka.SessionConfig) (Session, error) {
	s, err := kafka.NewSession(cfg)
	if err != nil {
		return nil, err // a nil *kafka.Session would be a Session that is not nil
	}
	return s, nil
}
