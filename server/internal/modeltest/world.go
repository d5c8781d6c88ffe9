package modeltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/wait"
)

// Clients are the clients of a principal.
type Clients struct {
	Topics        topicv1connect.TopicServiceClient
	Subscriptions topicv1connect.SubscriptionServiceClient
	Backfills     topicv1connect.BackfillServiceClient
	Consumers     topicv1connect.ConsumerServiceClient
	Admin         topicv1connect.TopicAdminServiceClient
	Ops           opsv1connect.OpsServiceClient
}

// Dial returns clients that call the server at base.
func Dial(c *http.Client, base string, options ...connect.ClientOption) Clients {
	return Clients{topicv1connect.NewTopicServiceClient(c, base, options...),
		topicv1connect.NewSubscriptionServiceClient(c, base, options...),
		topicv1connect.NewBackfillServiceClient(c, base, options...),
		topicv1connect.NewConsumerServiceClient(c, base, options...),
		topicv1connect.NewTopicAdminServiceClient(c, base, options...),
		opsv1connect.NewOpsServiceClient(c, base, options...)}
}

// Config of a World. All fields are required but Simulated.
type Config struct {
	User     Clients // of a principal that may make topics
	Operator Clients // of an operator; only Admin and Ops are used
	Stranger Clients // of a principal that is bound to groups that no one else uses
	Name     string  // of the principal behind Stranger
	Topics   string  // what the names of topics start with
	Seed     uint64
	Pace     time.Duration // a publisher's pause between requests, on average
	Patience time.Duration // how long the groups may take to finish when the publishers have stopped

	// Only names the parts of the world, all if it is empty.
	// They are groups, as topic/group, and publisher, stranger and trim: a publisher that restarts, a
	// principal without rights, and the removal of messages.
	Only []string

	// Simulated says that time passes only while all goroutines wait, and that nothing ends the
	// server. A response is then received at the moment at which it was sent, and each error is one.
	Simulated bool
}

// World is a model client and what it has seen.
type World struct {
	Config
	history
	topics      []*topicState
	tenures     []*group // subscriptions of groups, the cancelled ones too
	deadLetters []*deadLetter

	calm       chan struct{} // closed when members only acknowledge
	publishing tasks
	changing   tasks
	consuming  tasks
	rng        *rand.Rand // guarded by the history's lock
}

// tasks are goroutines that end when they are stopped.
type tasks struct {
	ctx  context.Context
	stop context.CancelFunc
	all  sync.WaitGroup
}

func newTasks(ctx context.Context) tasks {
	ctx, stop := context.WithCancel(ctx)
	return tasks{ctx: ctx, stop: stop}
}

func (t *tasks) end() {
	t.stop()
	t.all.Wait()
}

// topicState is a topic.
type topicState struct {
	short      string // name less what the names of the world start with
	name       string
	config     *topicv1.TopicConfig
	groups     []*group
	published  map[string]*publication // by payload
	order      []*publication
	watermarks []*probe
	purges     []*purging
	flips      []*flipping
	statuses   []*probe
}

// trims reports whether messages go once all groups have acknowledged them.
func (t *topicState) trims() bool { return t.config.GetMessageRetention() != nil }

// remembers reports whether the ids of messages hold over a kill. They are in the log: when messages are removed
// within minutes, a restart forgets their ids, and a repetition is stored again.
func (t *topicState) remembers() bool { return !t.trims() && t.short != changes }

// group is a subscription of a group: after a cancellation the next one is another.
type group struct {
	topic  *topicState
	name   string
	config *topicv1.SubscriptionConfig // at first
	// Completion waits for a steady group: it subscribes before the first publish, and is never moved.
	steady    bool
	mortal    bool // it dies
	ended     bool // it was cancelled
	asks      bool // for a backfill
	waits     bool // for a backfill of what is not complete, before it has members
	streams   int  // members that stream; others poll, but for one that converses if some stream
	born      span
	created   *topicv1.Subscription
	missed    int64                     // what the server said that it lost
	released  *topicv1.ReleasedMessages // the same by cause, in the end
	delivered map[position][]*delivery
	settled   map[position][]*settlement
	controls  []*control
	probes    []*probe
	sessions  []*session
	buried    bool        // operators look after its dead letters
	handled   []*handling // of these
	statuses  []*opsv1.DeadLetter
	members   *tasks
}

// poisonous is the type of messages that no member of a group for dead letters can handle.
const poisonous = "poison"

// New makes a world. Nothing is called before Start.
func New(c Config) *World {
	return &World{Config: c, calm: make(chan struct{}), rng: rand.New(rand.NewPCG(c.Seed, 1))}
}

// Start makes topics and groups and starts publishers, members, and those that change groups. They
// end with ctx at the latest. It is not called while the server is away.
func (w *World) Start(ctx context.Context) error {
	w.publishing, w.changing, w.consuming = newTasks(ctx), newTasks(ctx), newTasks(ctx)
	for _, t := range w.plan() {
		w.topics = append(w.topics, t)
		if _, err := w.User.Topics.ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{
			Topic: t.name, Config: t.config}); err != nil {
			return err
		}
		if _, err := w.User.Topics.SetBinding(ctx, &topicv1.SetBindingRequest{Topic: t.name, Principal: w.Name,
			Role: topicv1.Role_ROLE_SUBSCRIBER, Groups: []string{"strange-*"}}); err != nil {
			return err
		}
		for _, g := range t.groups {
			if err := w.subscribe(ctx, g); err != nil {
				return err
			}
		}
	}
	for _, t := range w.topics {
		for n := range 2 {
			w.publishing.all.Go(func() { w.publish(t, fmt.Sprint("p", n)) })
		}
		for _, g := range t.groups {
			w.attend(g)
		}
		w.changing.all.Go(func() { w.watch(t) })
	}
	if w.has("publisher") {
		w.publishing.all.Go(func() { w.publishRestarting(w.topics[0]) })
	}
	w.change()
	return nil
}

// has reports whether something is part of the world.
func (w *World) has(what string) bool {
	return len(w.Only) == 0 || slices.Contains(w.Only, what)
}

// Killed records that the server ends now. Back says that it is there again.
func (w *World) Killed() {
	at := w.stamp()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outages = append(w.outages, span{at, stamp{1 << 62, at.at.Add(time.Hour)}})
}

// Back records that the server that was killed is there again.
func (w *World) Back() {
	at := w.stamp()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outages[len(w.outages)-1].ret = at
}

// String says how much a world has seen.
func (w *World) String() string {
	published, deliveries, acknowledged := 0, 0, 0
	for _, t := range w.topics {
		published += len(t.order)
	}
	for _, g := range w.tenures {
		for _, list := range g.delivered {
			deliveries += len(list)
		}
		for _, list := range g.settled {
			acknowledged += len(list)
		}
	}
	return fmt.Sprintf("%d messages, %d subscriptions, %d deliveries, %d answers, %d dead letters, %d kills", published,
		len(w.tenures), deliveries, acknowledged, len(w.deadLetters), len(w.outages))
}

// find records that the server broke its contract.
func (w *World) find(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report(format, args...)
}

// report is find for those that hold the lock. A broken server breaks the same promise again and
// again: the first findings say enough.
func (w *World) report(format string, args ...any) {
	if len(w.findings) < 200 {
		w.findings = append(w.findings, fmt.Sprintf(format, args...))
	}
}

// chance is a random number below n.
func (w *World) chance(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// around is a random time from half of d to one and a half.
func (w *World) around(d time.Duration) time.Duration {
	return d/2 + time.Duration(w.chance(int(d)))
}

// sleep waits, and reports whether the context goes on.
func sleep(ctx context.Context, d time.Duration) bool { return wait.For(ctx, d) == nil }

// transient reports whether an error is that of a server that is away, so that a repetition of the
// call may succeed.
func transient(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled,
		connect.CodeDeadlineExceeded:
		return err != nil
	}
	return false
}

// errStopped says that a call was given up because the run is over.
var errStopped = errors.New("the run is over")

// timeout is longer than each call takes at a server that works.
const timeout = 40 * time.Second

// try makes a call once.
func try[Q, S any](ctx context.Context, f func(context.Context, *Q) (*S, error), req *Q) (*S, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return f(ctx, req)
}

// until repeats a call until it has an answer, and returns the span from the first try on.
func until[Q, S any](
	ctx context.Context, w *World, f func(context.Context, *Q) (*S, error), req *Q,
) (*S, span, error) {
	s := span{call: w.stamp()}
	for {
		res, err := try(ctx, f, req)
		s.ret = w.stamp()
		if !transient(err) {
			return res, s, err
		}
		if w.Simulated && ctx.Err() == nil {
			return nil, s, fmt.Errorf("a server that is there fails: %w", err)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return nil, s, errors.Join(errStopped, err)
		}
	}
}
