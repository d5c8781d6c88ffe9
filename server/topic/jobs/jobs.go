// Package jobs does for topics what nobody asks for: it stores heartbeats, detects groups
// that have fallen silent, stores dead letters, moves zombies on, trims, deletes
// subscriptions that ended long ago, and looks how everybody is.
//
// It owns when that happens and what is removed. It does not know what a transition is for
// messages, nor how messages are stored; both it asks for.
//
// Concurrency: a Jobs may be used by many goroutines; Run is called once. Of each job that
// operators see there is one run at a time.
//
// It is one package because all jobs pass over the same topics in use, count in the same
// place and end together.
package jobs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/lifecycle"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/owner"
)

// Config is what Jobs stand on.
type Config struct {
	Store    store.Store
	Log      commitlog.Log
	Catalog  *catalog.Catalog
	Clock    func() time.Time
	Logger   *slog.Logger
	Audit    func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Counters *live.Counters
	Schedule string // name of one, see ScheduleOf; it is one that there is

	// Open returns a topic in use, Hold one that is already: the job releases both. Opened is
	// Hold, All all of these, to look at and not to change.
	Open   func(context.Context, *catalog.Topic) (*live.Topic, error)
	Hold   func(number uint64) *live.Topic
	Opened func(number uint64) *live.Topic
	All    func() []*live.Topic
	// Reader is what a topic's messages are read from. Follow finds what others have written
	// to a topic of chats, and what they have removed.
	Reader func(*catalog.Topic) commitlog.Reader
	Follow func(context.Context, *live.Topic) error
	// Expire marks a group dead that has no members, Revive ends that for one that has.
	Expire, Revive func(ctx context.Context, l *live.Topic, group string) error
	// Stored returns once what a group has changed in a topic is stored.
	Stored func(ctx context.Context, l *live.Topic, group string) error
	// Finish continues the removal of a topic that is marked.
	Finish func(context.Context, *catalog.Topic) error
	// EndSilent ends sessions that are not heard from.
	EndSilent func()
	// Graveyard returns the topic of a topic's dead letters, Append stores some there, all or none.
	Graveyard func(context.Context, *live.Topic) (*live.Topic, error)
	Append    func(context.Context, *live.Topic, []commitlog.Append) error
}

// Jobs are the jobs.
type Jobs struct {
	cfg         Config
	detector    *lifecycle.Detector
	beatsFailed int64     // that the detector knows of
	nextCycle   time.Time // of the detector, by the service's clock
	kick        chan struct{}
	every       atomic.Int64 // of the detection, a time.Duration
	rate        rate         // of publishes
	tasks       [kinds]*task
	wall        *wall
	backlog     int64 // after the last trim
	seen        map[*owner.Partition]pending
	ages        ages

	mu      sync.Mutex
	letters []*letterJob
	written chan struct{} // there are letters
}

// New makes Jobs that Run runs.
func New(c Config) *Jobs {
	j := &Jobs{
		cfg: c, detector: lifecycle.NewDetector(), kick: make(chan struct{}, 1), written: make(chan struct{}, 1),
		wall: newWall(c.Clock), seen: map[*owner.Partition]pending{},
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
	case j.kick <- struct{}{}:
	default:
	}
}

// Run runs the jobs until the context ends, each in a goroutine of its own.
func (j *Jobs) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, job := range []func(context.Context){
		j.runBeats, j.runDetection, j.runLetters, j.resumeLetters, j.runRetention, j.runSurvey,
	} {
		all.Go(func() { job(ctx) })
	}
	all.Wait()
}
