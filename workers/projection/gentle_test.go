package projection_test

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/pace"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
)

// countingStore counts the plans that change rows of projections.
type countingStore struct {
	store.Store
	plans atomic.Int64
}

func (s *countingStore) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table == chatactivity.Definition().Table {
		s.plans.Add(1)
	}
	return s.Store.Transact(ctx, p)
}

// While sends are slow, a rebuild goes in many small steps, with pauses, and comes to the same;
// where nobody sends it takes as many events at a time as it can.
func TestRebuildBesideSends(t *testing.T) {
	for _, slow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, 3)
			f.talk(600)
			st := &countingStore{Store: f.store}
			live := &pace.Window{}
			throttle := pace.NewThrottle(live, pace.Limits{Batch: 500, Rate: 50_000}, time.Now)
			d := chatactivity.Definition()
			s, err := projection.New(projection.Config{
				Definitions: []projection.Definition{d}, Store: st, Decode: unasked, Process: "p1", History: store.Line("g"),
				Exclusive: true, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Rest: -1, Throttle: throttle,
			})
			testkit.Must(t, err)
			testkit.Must(t, s.Prepare(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var sends sync.WaitGroup
			if slow {
				for range 100 { // by themselves they take 1 ms
					live.Observe(time.Now(), time.Millisecond)
				}
				_, _ = throttle.Wait(ctx, 1)
				sends.Go(func() {
					for ctx.Err() == nil {
						live.Observe(time.Now(), 20*time.Millisecond)
						time.Sleep(time.Millisecond)
					}
				})
				time.Sleep(time.Second)
			}
			began := time.Now()
			testkit.Must(t, s.RebuildOnce(ctx))
			took := time.Since(began)
			cancel()
			sends.Wait()
			if shown, want := f.shown(), f.count(); !maps.Equal(shown, want) {
				t.Errorf("the projection says %v, expected %v", shown, want)
			}
			if !slow {
				if n := st.plans.Load(); n > 30 || took > time.Second || s.Slowed() > 0 {
					t.Errorf("%d plans in %v where nobody sends", n, took)
				}
				return
			}
			if n := st.plans.Load(); n < 60 || took < time.Second || s.Slowed() == 0 {
				t.Errorf("%d plans in %v beside slow sends, slowed %d times; expected small steps with pauses", n, took, s.Slowed())
			}
		})
	}
}
