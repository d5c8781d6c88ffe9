package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
)

// run is a consumer while Run does its work.
//
// Workers call handlers; a session, of which there is one at a time, fills the inbox and
// settles what comes out of it; sendHeartbeats runs beside them.
type run struct {
	*Consumer
	flush       chan struct{} // capacity 1: there may be something to settle
	endHandlers context.CancelFunc
	finish      func() // ends Run as the end of its context does
	attached    bool   // once
	registered  bool   // the group
	twoWays     bool   // the last connection was to have both directions

	mu         sync.Mutex
	changed    *sync.Cond // of mu: there may be work, or the end of it
	inbox      *inbox
	heartbeats *heartbeatSchedule
	stopping   bool
	prompt     bool // acknowledgements must not wait for others
	lease      time.Duration
	restores   int    // of the server that this run knows of
	identity   string // of the subscription
	left       int    // messages that handlers may be called for
	warned     map[string]string
}

// usualLease is that of a subscription that names none.
const usualLease = 30 * time.Second

func newRun(c *Consumer) *run {
	r := &run{Consumer: c, flush: make(chan struct{}, 1), inbox: newInbox(), heartbeats: newHeartbeatSchedule(time.Now()),
		lease: usualLease, restores: c.client.shown.restores(), left: cmp.Or(c.cfg.Limit, math.MaxInt),
		warned: map[string]string{}}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// do runs until ctx ends and everything is finished, or an error is final.
func (r *run) do(ctx context.Context) error {
	var handlers context.Context
	handlers, r.endHandlers = context.WithCancel(context.WithoutCancel(ctx))
	defer r.endHandlers()
	serving, give := context.WithCancelCause(ctx) // ends with ctx, or with why there is no use in continuing
	defer give(nil)
	r.finish = func() { give(nil) }
	var wg sync.WaitGroup
	for range r.cfg.Concurrency {
		wg.Go(func() { r.work(serving, handlers) })
	}
	if r.group != Queue { // which does not die
		wg.Go(func() { r.sendHeartbeats(serving, give) })
	}
	err := r.serve(serving)
	give(nil)
	if err != nil {
		r.endHandlers()
	}
	r.drain(context.WithoutCancel(ctx))
	wg.Wait()
	if err == nil {
		err = r.leftover()
	}
	return err
}

// leftover reports what was handled without a session to acknowledge it in. If the answer
// to an acknowledgement was lost, the client does not know whether the acknowledgement
// arrived.
func (r *run) leftover() error {
	n := 0
	for _, it := range r.inbox.items {
		if it.state == handled && it.failure == nil && !it.sent {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("topic: %d messages were handled and could not be acknowledged: they come again", n)
}

// serve keeps a session open until ctx ends. The error is why it makes no sense to continue.
func (r *run) serve(ctx context.Context) error {
	again := newRetry()
	for {
		err := r.prepare(ctx)
		if err == nil {
			err = r.session(ctx, again)
		}
		if ctx.Err() != nil {
			if cause := fatal(ctx); cause != nil {
				return cause
			}
			return onlyDetach(err)
		}
		if errors.Is(err, errUsed) {
			continue
		}
		err = explain(err)
		v := r.after(again, err)
		if v.final || v.renew && !r.client.renew(ctx) {
			return err
		}
		r.cfg.Log.Warn("topic: not connected", "error", err, "again_in", v.pause)
		_ = wait.For(ctx, v.pause)
	}
}

// prepare has the group registered. If the server was put back to an earlier copy, which may be without
// the group, it first lets go of what the server may not have any more: it returns when no handler runs
// and OnRestore has taken it.
func (r *run) prepare(ctx context.Context) error {
	n := r.client.shown.restores()
	if n != r.restores {
		r.registered = false
		r.cfg.Log.Warn("topic: the server was put back to an earlier copy: what was handled may be gone")
		r.update(func() {
			for at := range r.inbox.items {
				r.inbox.lose(at, ErrRestored)
			}
		})
		if r.waitFor(ctx, func() bool { return r.inbox.running == 0 }); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if !r.registered {
		if err := r.register(ctx); err != nil {
			return err
		}
		r.registered = true
	}
	if n != r.restores && r.cfg.OnRestore != nil {
		if err := r.cfg.OnRestore(ctx); err != nil {
			return err
		}
	}
	r.restores = n
	return nil
}

// fatal is why the consumer gave up, if it did and ctx ended for that reason.
func fatal(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, ErrHeartbeat) || errors.Is(err, ErrSubscriptionGone) {
		return err
	}
	return nil
}

// detachError is a session's that ended as it should, but for its last call.
type detachError struct{ error }

// onlyDetach keeps of an error at the end what a caller should know.
func onlyDetach(err error) error {
	var d *detachError
	if errors.As(err, &d) {
		return d.error
	}
	return nil
}

// after says what follows on the end of a session.
func (r *run) after(again *retry, err error) verdict {
	var gone *GoneError
	if errors.As(err, &gone) {
		switch gone.Reason {
		case reasonExpired:
			return verdict{renew: true}
		case reasonDraining, reasonSlow:
			return again.failed(errEnded)
		}
		return verdict{final: true}
	}
	v := again.failed(err)
	// The server may not have noticed yet that the session before has ended.
	if r.attached && Reason(err) == reasonExists {
		v.final = false
	}
	// Nothing but the version of HTTP may be wrong.
	if r.twoWays && !r.canTwoWays() {
		v = verdict{}
	}
	return v
}

// work calls handlers until the consumer stops, and none once serving has ended: one that
// stops the consumer is the last.
func (r *run) work(serving, handlers context.Context) {
	for {
		r.mu.Lock()
		var batch []*item
		for len(batch) == 0 {
			if r.stopping || serving.Err() != nil {
				r.mu.Unlock()
				return
			}
			if batch = r.inbox.next(min(r.cfg.BatchSize, r.left)); len(batch) == 0 {
				r.changed.Wait()
			}
		}
		r.left -= len(batch)
		ctx, cancel := context.WithCancelCause(handlers)
		for _, it := range batch {
			it.cancel = cancel
		}
		received := r.received(batch)
		r.mu.Unlock()

		failures := r.handle(ctx, received)
		cancel(nil)
		r.update(func() {
			for i, it := range batch {
				r.inbox.finish(it, failures[i], time.Now())
			}
			r.inbox.release(batch)
		})
		r.wake()
	}
}

// update changes what mu guards, and has everybody check it.
func (r *run) update(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.changed.Broadcast()
}

// wake has the session look for what is to be settled.
func (r *run) wake() {
	select {
	case r.flush <- struct{}{}:
	default:
	}
}

// drain takes no more messages and waits for handlers, at most as long as they may take,
// then until they return.
func (r *run) drain(ctx context.Context) {
	r.update(func() { r.stopping = true })
	slow := time.AfterFunc(r.cfg.DrainTimeout, r.endHandlers)
	defer slow.Stop()
	r.waitFor(ctx, func() bool { return r.inbox.running == 0 })
}

// waitFor waits until something is true, or ctx ends.
func (r *run) waitFor(ctx context.Context, ok func() bool) {
	defer context.AfterFunc(ctx, func() { r.update(func() {}) })()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() && ctx.Err() == nil {
		r.changed.Wait()
	}
}

// sendHeartbeats sends a heartbeat whenever the server has sent nothing else for an interval, and
// gives up after too many failures.
func (r *run) sendHeartbeats(ctx context.Context, give context.CancelCauseFunc) {
	for {
		r.mu.Lock()
		due := r.heartbeats.due
		r.mu.Unlock()
		if pause := time.Until(due); pause > 0 {
			if wait.For(ctx, pause) != nil {
				return
			}
			continue // something may have been heard meanwhile
		}
		err := r.heartbeat(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrSubscriptionGone) {
			give(err)
			return
		}
		if r.heartbeatEnded(err) {
			give(ErrHeartbeat)
			return
		}
	}
}

// heartbeatEnded records the outcome of a heartbeat, and reports whether to give up.
func (r *run) heartbeatEnded(err error) (stop bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.heartbeats.heard(time.Now())
		return false
	}
	stop = r.heartbeats.failed(time.Now())
	r.cfg.Log.Warn("topic: a heartbeat failed", "failures", fmt.Sprintf("%d/%d", r.heartbeats.missed, maxMissed),
		"error", err)
	return stop
}

// know takes the description of the subscription. The caller holds mu.
func (r *run) know(s *topicv1.Subscription) {
	r.prompt = s.GetConfig().GetOrdering() == topicv1.Ordering_ORDERING_KEY
	if r.lease = s.GetConfig().GetRetry().GetLease().AsDuration(); r.lease <= 0 {
		r.lease = usualLease
	}
	if d := s.GetConfig().GetHeartbeatInterval().AsDuration(); d > 0 {
		r.heartbeats.interval = d
	}
	r.heartbeats.heard(time.Now())
	// Positions of another subscription mean other messages.
	identity := fmt.Sprint(s.GetGeneration(), s.GetSubscribedAt().AsTime().UnixNano())
	if r.identity != "" && r.identity != identity {
		for at := range r.inbox.items {
			r.inbox.lose(at, ErrLeaseLost)
		}
	}
	r.identity = identity
	r.warnReleased(s.GetReleased())
	r.inbox.expire(time.Now())
}
