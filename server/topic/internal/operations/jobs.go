package operations

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// JobsConfig is what Jobs stand on.
type JobsConfig struct {
	Store    store.Store
	Log      commitlog.Log
	Catalog  *storage.Catalog
	Clock    func() time.Time
	Logger   *slog.Logger
	Audit    func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Counters *serving.Counters
	Schedule string // name of one, see ScheduleOf; it is one that there is

	// Open returns a topic in use, Hold one that is already: the job releases both. Opened is
	// Hold, All all of these, to look at and not to change.
	Open   func(context.Context, *storage.Topic) (*serving.OpenTopic, error)
	Hold   func(number uint64) *serving.OpenTopic
	Opened func(number uint64) *serving.OpenTopic
	All    func() []*serving.OpenTopic
	// Reader is what a topic's messages are read from. Follow finds what others have written
	// to a topic of chats, and what they have removed.
	Reader func(*storage.Topic) commitlog.Reader
	Follow func(context.Context, *serving.OpenTopic) error
	// Expire marks a group dead that has no members, Revive ends that for one that has.
	Expire, Revive func(ctx context.Context, l *serving.OpenTopic, group string) error
	// Stored returns once what a group has changed in a topic is stored.
	Stored func(ctx context.Context, l *serving.OpenTopic, group string) error
	// Finish continues the removal of a topic that is marked.
	Finish func(context.Context, *storage.Topic) error
	// EndSilent ends sessions that are not heard from.
	EndSilent func()
	// Graveyard returns the topic of a topic's dead letters, Append stores some there, all or none.
	Graveyard func(context.Context, *serving.OpenTopic) (*serving.OpenTopic, error)
	Append    func(context.Context, *serving.OpenTopic, []commitlog.Append) error
}

// Jobs are the jobs.
type Jobs struct {
	cfg              JobsConfig
	detector         *storage.Detector
	heartbeatsFailed int64     // that the detector knows of
	nextCycle        time.Time // of the detector, by the service's clock
	wake             chan struct{}
	every            atomic.Int64 // of the detection, a time.Duration
	rate             rate         // of publishes
	tasks            [kinds]*task
	clockGuard       *clockGuard
	backlog          int64 // after the last trim
	seen             map[*serving.Partition]pending
	ages             ages

	mu      sync.Mutex
	letters []*undeliverableJob
	written chan struct{} // there are letters
}

// NewJobs makes Jobs that Run runs.
func NewJobs(c JobsConfig) *Jobs {
	j := &Jobs{
		cfg: c, detector: storage.NewDetector(), wake: make(chan struct{}, 1), written: make(chan struct{}, 1),
		clockGuard: newClockGuard(c.Clock), seen: map[*serving.Partition]pending{},
		ages: ages{firsts: map[commitlog.Partition]first{}},
	}
	j.every.Store(int64(j.schedule().Detection))
	j.tasks = [...]*task{
		Trim:          {cycle: j.trimAll, asks: true},
		Detection:     {cycle: j.detectAll},
		Subscriptions: {cycle: j.cleanAll, asks: true},
	}
	return j
}

// schedule is the one that is in force.
func (j *Jobs) schedule() Schedule {
	s, _ := ScheduleOf(j.cfg.Schedule, j.rate.value())
	return s
}

// Watch says that a group has become active: detection looks at it as often as its timeout
// wants.
func (j *Jobs) Watch() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Run runs the jobs until the context ends, each in a goroutine of its own.
func (j *Jobs) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, job := range []func(context.Context){
		j.runHeartbeats, j.runDetection, j.runLetters, j.resumeLetters, j.runRetention, j.runSurvey,
	} {
		all.Go(func() { job(ctx) })
	}
	all.Wait()
}
