// Package lifecycletest checks that a background service keeps the contract of
// lifecycle.Service. Only tests import it.
//
// It owns the moments at which a service is stopped, and the checks of its end. It knows no
// service. Concurrency: a test that calls Stress must not be parallel, because goroutines are
// those of the process.
package lifecycletest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/infra/lifecycle"
)

// Numbers of services that Stress starts.
const (
	inARow = 20 // one after the other, each stopped a little later
	beside = 4  // at the same time
)

// settle is how long a service that is ready goes on before it is stopped.
const settle = 20 * time.Millisecond

// Stress starts services that make returns and stops them before they run, at once, when they
// become ready, after that, and in between: one by one, many in a row and some at the same time.
// Each must keep the contract: Run calls ready once at most, goes on until its context ends, and
// then returns nil within Service.Stop. No goroutine may remain that make or Run has started.
//
// Stress tests starts and stops. What a service does in an interval of seconds is not reached.
//
// Every call of make returns a new service. Its cleanups run before goroutines are counted.
func Stress(t *testing.T, make func(t *testing.T) lifecycle.Service) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	each := func(name string, services int, stop func(r *run)) {
		t.Run(name, func(t *testing.T) {
			all := []*run{}
			for range services {
				all = append(all, newRun(t, make(t)))
			}
			var running sync.WaitGroup
			for _, r := range all {
				running.Go(func() { r.check(stop) })
			}
			running.Wait()
		})
		if err := goleak.Find(before); err != nil {
			t.Errorf("stopped %s: %v", name, err)
		}
		if t.Failed() { // the goroutines that remain would count again
			t.FailNow()
		}
	}
	each("before it runs", 1, func(r *run) { r.cancel(); r.start() })
	each("at once", 1, func(r *run) { r.start(); r.cancel() })
	each("when it becomes ready", 1, func(r *run) { r.onReady = r.cancel; r.start(); r.awaitReady() })
	each("after it was ready", 1, func(r *run) { r.start(); r.awaitReady(); r.stay(); r.cancel() })
	for i := range inARow {
		each(fmt.Sprint("in a row ", i), 1, func(r *run) {
			r.start()
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			r.cancel()
		})
	}
	each("beside others", beside, func(r *run) { r.start(); r.awaitReady(); r.stay(); r.cancel() })
}

// run is one run of a service.
type run struct {
	t       *testing.T
	service lifecycle.Service
	ctx     context.Context
	cancel  context.CancelFunc
	onReady func()

	calls atomic.Int64 // of ready
	ready chan struct{}
	ended chan error
}

func newRun(t *testing.T, s lifecycle.Service) *run {
	if s.Stop == 0 {
		s.Stop = 10 * time.Second
	}
	r := &run{t: t, service: s, onReady: func() {}, ready: make(chan struct{}), ended: make(chan error, 1)}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	return r
}

// start starts the service.
func (r *run) start() {
	go func() {
		r.ended <- r.service.Run(r.ctx, func() {
			if r.calls.Add(1) == 1 {
				close(r.ready)
				r.onReady()
			}
		})
	}()
}

// awaitReady waits until the service is ready.
func (r *run) awaitReady() {
	watchdog := time.NewTimer(r.service.Stop)
	defer watchdog.Stop()
	select {
	case <-r.ready:
	case err := <-r.ended:
		select {
		case <-r.ready: // it was ready, and has seen the end of its context since
			r.ended <- err
			return
		default:
		}
		r.t.Errorf("%s ended before it was ready: %v", r.service.Name, err)
		r.ended <- nil
	case <-watchdog.C:
		r.t.Errorf("%s was not ready within %v\n%s", r.service.Name, r.service.Stop, stacks())
	}
}

// stay checks that the service, which is ready, goes on.
func (r *run) stay() {
	select {
	case err := <-r.ended:
		r.t.Errorf("%s ended by itself: %v", r.service.Name, err)
		r.ended <- nil
	case <-time.After(settle):
	}
}

// check starts and stops the service, and checks how it ends.
func (r *run) check(stop func(r *run)) {
	defer r.cancel()
	stop(r)
	watchdog := time.NewTimer(r.service.Stop)
	defer watchdog.Stop()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Errorf("%s was stopped and returned %v", r.service.Name, err)
		}
	case <-watchdog.C:
		r.t.Errorf("%s did not stop within %v\n%s", r.service.Name, r.service.Stop, stacks())
	}
	if n := r.calls.Load(); n > 1 {
		r.t.Errorf("%s called ready %d times", r.service.Name, n)
	}
}

// stacks are the stacks of all goroutines.
func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}
