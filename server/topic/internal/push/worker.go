package push

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/serving"
)

// MaxInFlight is how many messages of a group are under way at most: more would only wait for their host. A
// max_in_flight of the group that is lower bounds what its session receives.
const MaxInFlight = PerHost

// Session is what a Worker needs of the group's session, which is one that is polled.
type Session interface {
	Receive(ctx context.Context, limit int) (serving.Event, error)
	Ack(ctx context.Context, set *topicv1.AckSet) ([]*topicv1.Refusal, error)
	Nack(ctx context.Context, set *topicv1.NackSet) ([]*topicv1.Refusal, error)
	Extend(ctx context.Context, set *topicv1.ExtendSet) ([]*topicv1.Refusal, error)
	Return(list []serving.Delivery)
	Touch()
	Ended() string
}

// bodies is the JSON of requests, as the REST API gives it.
var bodies = protojson.MarshalOptions{EmitDefaultValues: true}

// Config holds a Worker's dependencies. All of it is required, unless it says otherwise.
type Config struct {
	Sender       *Sender
	Session      Session
	Topic, Group string
	Principal    string        // the principal whose limit bounds the requests; empty: no limit
	Lease        time.Duration // of the group's messages
	// Target returns the webhook as it is now.
	Target func() Target
	// ID is the id of a message in a group that was moved so often, which repetitions share.
	ID func(m *topicv1.StoredMessage, moves int64) string
	// Gone is called when the webhook wants no more messages. It pauses the subscription, if it has the etag of
	// the Target still.
	Gone func(ctx context.Context, etag string) error
	// Report is called with how the pushes go; failed says that a request has failed just now.
	Report func(s *topicv1.PushStatus, failed bool)
	Logger *slog.Logger
	Clock  func() time.Time // steady
}

// Worker sends the messages of a session.
type Worker struct {
	cfg      Config
	health   *health
	inFlight atomic.Int64
	freed    chan struct{}
	requests sync.WaitGroup
}

// NewWorker makes a Worker.
func NewWorker(c Config) *Worker {
	return &Worker{cfg: c, health: newHealth(), freed: make(chan struct{}, 1)}
}

// Run sends messages until the session ends or stop does. After stop, requests that are under way may end
// until ctx does. Those that are aborted go back without an attempt.
func (w *Worker) Run(ctx, stop context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, stopped := context.WithCancel(stop)
	defer stopped()
	var keeper sync.WaitGroup
	keeper.Go(func() { w.keep(ctx, cancel) })
	defer keeper.Wait()
	defer cancel()
	defer w.requests.Wait()
	defer context.AfterFunc(ctx, stopped)()
	// One message at a time is asked for, and gets its slot before the next one is. So a group of large messages
	// has at most one in memory, not decoded, beside those whose requests are under way.
	for w.await(stop) {
		e, err := w.cfg.Session.Receive(stop, 1)
		switch {
		case err != nil || e.Gone != "":
			return
		case w.health.paused(w.cfg.Clock()): // a request that was under way has failed meanwhile
			w.cfg.Session.Return(e.Deliveries)
			continue
		}
		for i := range e.Deliveries {
			w.start(ctx, stop, &e.Deliveries[i])
		}
	}
}

// keep extends the leases of what is under way or waits for its turn, whose time is bounded otherwise, and
// ends the worker when its session has ended. The session of one that waits for its webhook is called, too.
func (w *Worker) keep(ctx context.Context, cancel func()) {
	every := min(time.Second, w.cfg.Lease/3)
	extend := w.cfg.Clock().Add(w.cfg.Lease / 3)
	for wait.For(ctx, every) == nil {
		if w.cfg.Session.Ended() != "" {
			cancel()
			return
		}
		w.cfg.Session.Touch()
		if now := w.cfg.Clock(); !now.Before(extend) {
			extend = now.Add(w.cfg.Lease / 3)
			_, _ = w.cfg.Session.Extend(ctx, &topicv1.ExtendSet{}) // it fails if the session has ended
		}
	}
}

// await waits until a message may be sent, and reports false if stop ends before.
func (w *Worker) await(stop context.Context) bool {
	for stop.Err() == nil {
		room, pause := w.health.room(w.cfg.Clock(), int(w.inFlight.Load()))
		switch {
		case room > 0:
			return true
		case pause > 0: // it may end before: with a request that was under way
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-w.freed:
			case <-stop.Done():
			}
			timer.Stop()
		default:
			select {
			case <-w.freed:
			case <-stop.Done():
			}
		}
	}
	return false
}

// start waits for a slot for the message of a delivery, and sends it then.
func (w *Worker) start(ctx, stop context.Context, d *serving.Delivery) {
	leave, ok := w.cfg.Sender.enter(stop, w.cfg.Principal, hostOf(w.cfg.Target().URL))
	if !ok {
		w.cfg.Session.Return([]serving.Delivery{*d})
		return
	}
	w.inFlight.Add(1)
	w.requests.Go(func() {
		defer func() {
			w.inFlight.Add(-1)
			select {
			case w.freed <- struct{}{}:
			default:
			}
		}()
		m := read(d)
		o, unfit := w.send(ctx, m)
		leave()
		if unfit != "" {
			w.cfg.Logger.Warn("a message cannot be sent to a webhook, and fails", "topic", w.cfg.Topic, "group", w.cfg.Group,
				"partition", m.partition, "position", m.position, "error", unfit)
			w.nack(ctx, m, unfit)
			return
		}
		w.settle(ctx, m, o)
	})
}

// send sends a message once, or returns why it is unfit for that.
func (w *Worker) send(ctx context.Context, m message) (o outcome, unfit string) {
	if m.message == nil {
		return o, "the message cannot be read"
	}
	if w.health.paused(w.cfg.Clock()) { // it waited for its slot, and others have failed meanwhile
		return outcome{verdict: aborted}, ""
	}
	body, err := bodies.Marshal(&topicv1.PushedMessage{Topic: w.cfg.Topic, Group: w.cfg.Group, Attempt: m.attempt,
		Message: m.stored()})
	if err != nil {
		return o, "the message has no form in JSON"
	}
	target := w.cfg.Target()
	o = w.cfg.Sender.post(ctx, target, w.cfg.ID(m.stored(), m.moves), body)
	o.etag = target.Etag
	return o, ""
}

func (w *Worker) settle(ctx context.Context, m message, o outcome) {
	switch o.verdict {
	case taken:
		w.worked(o)
		w.ack(ctx, m)
	case rejected:
		w.worked(o)
		w.nack(ctx, m, reason(o))
	case aborted:
		w.giveBack(m)
	case gone:
		o.verdict = unavailable
		w.failed(o)
		w.giveBack(m)
		if err := w.cfg.Gone(ctx, o.etag); err != nil && ctx.Err() == nil {
			w.cfg.Logger.Warn("a subscription whose webhook answered 410 cannot be paused", "topic", w.cfg.Topic,
				"group", w.cfg.Group, "error", err)
		}
	default:
		if w.failed(o) {
			w.nack(ctx, m, reason(o))
		} else {
			w.giveBack(m)
		}
	}
}

// reason is what a dead letter says about an outcome.
func reason(o outcome) string {
	if o.status != 0 {
		return fmt.Sprintf("the webhook answered %d", o.status)
	}
	return "the request to the webhook failed: " + o.class
}

func (w *Worker) worked(o outcome) {
	if w.health.works(w.cfg.Clock()) {
		w.cfg.Logger.Info("a webhook takes messages again", "topic", w.cfg.Topic, "group", w.cfg.Group)
	}
	w.report(o)
}

func (w *Worker) failed(o outcome) (counts bool) {
	before, _, _ := w.health.report()
	counts = w.health.failed(w.cfg.Clock(), o)
	if slow, fails, _ := w.health.report(); slow && !before {
		w.cfg.Logger.Warn("a webhook fails: it gets one message at a time", "topic", w.cfg.Topic, "group", w.cfg.Group,
			"status", o.status, "error", o.class, "failures", fails)
	}
	w.report(o)
	return counts
}

// report says how the pushes go.
func (w *Worker) report(o outcome) {
	slow, fails, next := w.health.report()
	s := &topicv1.PushStatus{State: topicv1.PushState_PUSH_STATE_OK, LastStatus: int32(o.status), LastError: o.class,
		ConsecutiveFailures: fails}
	if slow {
		s.State = topicv1.PushState_PUSH_STATE_FAILING
		s.NextAttemptAt = wall(next, w.cfg.Clock(), w.cfg.Sender.clock())
		s.Text = reason(o) + ": the server sends one message at a time, with growing pauses of at most " +
			longestPause.String() + " unless the webhook asks for more, until it takes one"
	}
	w.cfg.Report(s, o.verdict == failed || o.verdict == unavailable)
}

// ack acknowledges a message, and repeats that where it may help: without it the message would be sent again.
func (w *Worker) ack(ctx context.Context, m message) {
	const longest = 5 * time.Second
	for n := 0; ; n++ {
		_, err := w.cfg.Session.Ack(ctx, &topicv1.AckSet{Positions: m.positions()})
		if err == nil || w.cfg.Session.Ended() != "" || wait.For(ctx, wait.Jittered(time.Second, longest, n)) != nil {
			return
		}
	}
}

// nack says that a message failed. A session that has ended refuses it: then the message was given back.
func (w *Worker) nack(ctx context.Context, m message, why string) {
	_, _ = w.cfg.Session.Nack(ctx, &topicv1.NackSet{Positions: m.positions(), Reason: why})
}

// giveBack returns a message without an attempt.
func (w *Worker) giveBack(m message) {
	w.cfg.Session.Return([]serving.Delivery{{Partition: m.partition, Base: m.position, Count: 1}})
}
