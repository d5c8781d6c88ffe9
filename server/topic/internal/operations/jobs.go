package operations

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// JobsConfig holds the dependencies of Jobs.
type JobsConfig struct {
	Engine   *serving.Engine
	Audit    func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Schedule string // name of one, see ScheduleOf; it is one that there is
	// EndSilent ends sessions that are not heard from.
	EndSilent func()
}

// Jobs are the jobs.
type Jobs struct {
	cfg              JobsConfig
	engine           *serving.Engine
	detector         *storage.Detector
	heartbeatsFailed int64     // that the detector knows of
	nextCycle        time.Time // of the detector, by the service's clock
	wake             chan struct{}
	every            atomic.Int64 // of the detection, a time.Duration
	rate             rate         // of publishes
	tasks            [kinds]*task
	clockGuard       *clockGuard
	backlog          int64 // after the last trim
	seen             map[partitionPosition]time.Time
	unopened         map[uint64]time.Time // topics that the survey could not open, and when it tries again
	ages             ages
	sizes            sizes // of Trim
	// unstored says that positions of groups could not be stored in this run of Trim: a full disk may
	// take none, and a trim makes room.
	unstored bool

	mu          sync.Mutex
	deadLetters []*undeliverableJob
	written     chan struct{} // there are dead letters
}

// NewJobs makes Jobs that Run runs. They are the engine's Observer.
func NewJobs(c JobsConfig) *Jobs {
	j := &Jobs{
		cfg: c, engine: c.Engine, detector: storage.NewDetector(),
		wake: make(chan struct{}, 1), written: make(chan struct{}, 1),
		clockGuard: newClockGuard(c.Engine.Clock), seen: map[partitionPosition]time.Time{},
		unopened: map[uint64]time.Time{},
		ages:     ages{firsts: map[commitlog.Partition]first{}}, sizes: sizes{of: map[commitlog.Partition]*sized{}},
	}
	j.every.Store(int64(j.schedule().Detection))
	j.tasks = [...]*task{
		Trim:          {cycle: j.trimAll, asks: true},
		Detection:     {cycle: j.detectAll},
		Subscriptions: {cycle: j.cleanAll, asks: true},
	}
	c.Engine.Observer = j
	return j
}

// schedule is the one that is in force.
func (j *Jobs) schedule() Schedule {
	s, _ := ScheduleOf(j.cfg.Schedule, j.rate.value())
	return s
}

// GroupActive says that a group has become active: detection checks it as often as its timeout
// wants.
func (j *Jobs) GroupActive() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Run runs the jobs until the context ends, each in a goroutine of its own.
func (j *Jobs) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, job := range []func(context.Context){
		j.runHeartbeats, j.runDetection, j.runDeadLetters, j.resumeDeadLetters, j.runRetention, j.runSurvey,
	} {
		all.Go(func() { job(ctx) })
	}
	all.Wait()
}
