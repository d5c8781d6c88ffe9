package serve

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// budget is the memory for answers under way. Each answer takes a share, and waits for it in order of
// arrival, so that no connection is passed over. A large answer also takes from the extra half, if there is
// some left: then it is larger, and otherwise the client asks again. Connections with large answers can
// therefore not take what the others need.
type budget struct {
	shares *semaphore.Weighted
	extra  *semaphore.Weighted
}

// share is the memory that an answer may always take: up to maxPart bytes of records in three forms, as the
// log returns them, as batches, and as the frame with all of them; and what surrounds them.
const share = 4 << 20

func newBudget(total int64) *budget {
	if total == 0 {
		total = DefaultAnswerMemory
	}
	half := max(total/2, share)
	return &budget{shares: semaphore.NewWeighted(half), extra: semaphore.NewWeighted(half)}
}

// take waits for a share, and takes extra bytes as far as they are there without waiting.
func (b *budget) take(ctx context.Context, extra int64) (got int64, release func(), err error) {
	if err := b.shares.Acquire(ctx, share); err != nil {
		return 0, nil, err
	}
	for ; extra > 0 && !b.extra.TryAcquire(extra); extra /= 2 {
		if extra < share {
			extra = 0
			break
		}
	}
	return extra, func() {
		b.shares.Release(share)
		if extra > 0 {
			b.extra.Release(extra)
		}
	}, nil
}
