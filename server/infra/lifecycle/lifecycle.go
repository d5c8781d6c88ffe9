// Package lifecycle starts and stops the parts of a process in order.
//
// It owns the contract of a background service and the order: start one after
// the other, each when the one before is ready; stop in reverse, each within a
// bound; when one ends by itself, all stop. It does not know any service.
//
// Concurrency: a Group runs each service in a goroutine of its own and is itself
// used by one.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Service is a part of a process that runs in the background.
type Service struct {
	Name string
	// Run does the work until ctx ends, then stops and returns nil. It calls ready when others
	// may rely on the service, once at most. Returning earlier is a failure of the process,
	// also without an error. No goroutine that it starts outlives it.
	Run func(ctx context.Context, ready func()) error
	// Stop is the longest time that Run may take once ctx has ended; 0 means 10 s.
	Stop time.Duration
}

// ErrEnded reports that a service ended without being stopped.
var ErrEnded = errors.New("ended by itself")

type running struct {
	Service
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Run starts the services in order, calls started, waits for ctx to end or for a
// service to end by itself, and stops all in reverse order. It returns the first
// reason: nil if ctx ended and all stopped in time.
func Run(ctx context.Context, services []Service, started func()) error {
	var up []*running
	ended := make(chan *running, len(services))
	var reason error
	for _, s := range services {
		r, ready := start(ctx, s, ended)
		up = append(up, r)
		select {
		case <-ready:
		case e := <-ended:
			reason = e.failure()
		case <-ctx.Done():
		}
		if reason != nil || ctx.Err() != nil {
			break
		}
	}
	if reason == nil && ctx.Err() == nil {
		started()
		select {
		case e := <-ended:
			reason = e.failure()
		case <-ctx.Done():
		}
	}
	for i := len(up) - 1; i >= 0; i-- {
		if err := up[i].stop(); err != nil && reason == nil {
			reason = err
		}
	}
	return reason
}

func start(ctx context.Context, s Service, ended chan<- *running) (*running, <-chan struct{}) {
	// Stopping is for Run to order: the services do not see ctx end.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{Service: s, cancel: cancel, done: make(chan struct{})}
	ready := make(chan struct{}, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			close(r.done)
			ended <- r
		}()
		r.err = s.Run(own, func() {
			select {
			case ready <- struct{}{}:
			default:
			}
		})
	}()
	return r, ready
}

func (r *running) failure() error {
	err := r.err
	if err == nil {
		err = ErrEnded
	}
	return fmt.Errorf("%s: %w", r.Name, err)
}

func (r *running) stop() error {
	r.cancel()
	bound := r.Stop
	if bound == 0 {
		bound = 10 * time.Second
	}
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-r.done:
		if r.err != nil && !errors.Is(r.err, context.Canceled) { // which a start that is stopped returns
			return fmt.Errorf("%s: %w", r.Name, r.err)
		}
		return nil
	case <-t.C:
		return fmt.Errorf("%s: did not stop within %v", r.Name, bound)
	}
}
