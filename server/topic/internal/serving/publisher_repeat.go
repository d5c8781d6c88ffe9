package serving

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/commitlog"
)

// compareBytes bounds one read of what is compared.
const compareBytes = 1 << 20

// same reports whether an append, whose producer's number was stored before by a release that kept no
// hashes, has the messages that were stored. Messages that were trimmed since, or are damaged, count as
// the same.
func (p *Publisher) same(ctx context.Context, a commitlog.Append, was commitlog.Appended) (bool, error) {
	end := was.Base + int64(was.Count)
	for from := was.Base; from < end; {
		batches, err := p.engine.Log.Read(ctx, a.Partition, from, compareBytes)
		var damaged *commitlog.CorruptError
		switch {
		case errors.Is(err, commitlog.ErrTrimmed), errors.As(err, &damaged):
			return true, nil
		case err != nil:
			return false, err
		case len(batches) == 0:
			return true, nil
		}
		for _, b := range batches {
			for at := max(from, b.Base); at < min(end, b.End()); at++ {
				stored, err := b.Message(int(at - b.Base))
				if err != nil {
					return true, nil //nolint:nilerr // it is damaged
				}
				wanted := proto.CloneOf(a.Messages[at-was.Base])
				stored.PublishTime, wanted.PublishTime = nil, nil // the server's own; releases without hashes had no ttl
				if !proto.Equal(stored, wanted) {
					return false, nil
				}
			}
			from = max(from, b.End())
		}
	}
	return true, nil
}
