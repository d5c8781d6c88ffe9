package commitlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// counted counts the keys that are checked, and the records that are written.
type counted struct {
	store.Records
	seen, written int
}

func (c *counted) Seek(ctx context.Context, from, to []byte, back bool,
	f func(key []byte, value func() ([]byte, error)) bool,
) error {
	return c.Records.Seek(ctx, from, to, back, func(key []byte, value func() ([]byte, error)) bool {
		c.seen++
		return f(key, value)
	})
}

func (c *counted) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	c.written += len(list)
	return c.Records.Commit(ctx, list, rows...)
}

// HQ-R5: a trim costs the same for any number of removed messages: it checks a few batches, and writes where
// the partition begins and one range.
func TestTrimCostsTheSame(t *testing.T) {
	c := &counted{Records: records.Of(embeddedtest.NewDisk(nil).Open(t, nil))}
	log := commitlog.NewLocal(c, time.Now)
	list := make([]commitlog.Append, 1000)
	for i := range list {
		list[i] = commitlog.Append{Partition: home, Messages: someMessages(10)}
	}
	if _, err := log.Append(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for _, before := range []int64{1000, 9000} { // 100 batches, then 800
		c.seen, c.written = 0, 0
		start, err := log.Trim(t.Context(), home, before)
		if err != nil || start != before {
			t.Fatal(start, err)
		}
		if c.seen > 40 || c.written > 3 {
			t.Errorf("up to %d: %d batches are looked at, %d records written", before, c.seen, c.written)
		}
	}
}
