package embedded

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
)

// While the clock is one that somebody set, nothing that seems to have expired is
// removed: it is there again when the clock is right.
func TestNothingExpiresByAClockThatWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by atomic.Int64
		s, err := Open(Options{
			Dir: "/data", FS: vfs.NewMem(), Clock: func() time.Time { return time.Now().Add(time.Duration(by.Load())) },
			ClockSet: func() bool { return by.Load() != 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		key := store.Key{Table: store.IdempotencyKeys, PK: "x"}
		it := store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(time.Now().Add(time.Hour).Unix())})
		if err := s.Transact(t.Context(),
			store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: it}}}); err != nil {
			t.Fatal(err)
		}
		by.Store(int64(365 * 24 * time.Hour))
		time.Sleep(3 * time.Minute) // of the sweeper
		by.Store(0)
		if it, err := s.Get(t.Context(), key, store.Strong); it == nil || err != nil {
			t.Errorf("%v, %v", it, err)
		}
		time.Sleep(2 * time.Hour)
		if n := s.Stats().Expired; n != 1 {
			t.Errorf("%d removed", n)
		}
	})
}
