package projection_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/workers/projection"
)

// Two processes run the projections, and one of them rebuilds. Once it has been silent for a
// while, the other continues.
func TestAnotherProcessContinues(t *testing.T) {
	f := newFixture(t, 120)
	f.talk(120)
	scans, dead := 0, false
	dying := faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if c.Method == faulty.Scan {
			scans++
			dead = dead || scans == 3 // the first counts the events
		}
		if dead {
			return faulty.Fault{When: faulty.Before, Err: store.ErrClosed}
		}
		return faulty.Fault{}
	}})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		run := func(process string, st store.Store) {
			s := f.set(st, func(c *projection.Config) { c.Process, c.Exclusive, c.Clock = process, false, time.Now })
			all.Go(func() { _ = s.Run(ctx, func() {}) })
			synctest.Wait()
		}
		run("p1", dying)
		testkit.Equal(t, "who rebuilds", f.status().Rebuild.Holder, "p1")
		run("p2", f.store)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		testkit.Equal(t, "who rebuilds", f.status().Rebuild.Holder, "p1")
		time.Sleep(15 * time.Second)
		synctest.Wait()
		testkit.Equal(t, "the live build", f.status().Builds.Live, int64(1))
		cancel()
		all.Wait()
	})
	f.check()
}
