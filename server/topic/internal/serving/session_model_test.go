package serving

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// The session layer's model: members of both kinds that do what members do, on a group whose timers
// run late. It knows of each message when it is due at the latest, and holds the group to it whenever
// all goroutines rest.

const (
	mostLate     = 5 * time.Second // of a timer
	modelLease   = time.Minute
	leaseStep    = modelLease/64 + time.Nanosecond
	modelSteps   = 60
	usualModels  = 25 // of a plain go test, about 2 s
	membersModel = 4
)

// lateTimer is a timer that runs late by a random time.
type lateTimer struct {
	*time.Timer
	late func() time.Duration
}

func (l *lateTimer) Reset(d time.Duration) bool { return l.Timer.Reset(d + l.late()) }

// message is what the model knows of one.
type message struct {
	holder *modelMember // nil: nobody has it
	due    time.Time    // when it is delivered at the latest, if a member is free; of one that is held, when it is lost
	timed  bool         // for that a timer has to run
	done   bool
}

// modelMember is a session with a goroutine that receives.
type modelMember struct {
	s       *Session
	cancel  context.CancelFunc
	stopped chan struct{}
	polling bool // a stream always is
}

type model struct {
	t   *testing.T
	rng *rand.Rand
	x   *fixture

	mu       sync.Mutex
	messages []*message
	members  []*modelMember
	names    int
	trace    []string
}

func (m *model) log(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%6.1f ", time.Since(modelEpoch).Seconds())+fmt.Sprintf(format, args...))
}

// modelEpoch is when the clock of a bubble begins.
var modelEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// runModel runs one schedule and returns what failed, with what led to it.
func runModel(t *testing.T, seed uint64, mistake func(Timer) Timer) (failed string, trace []string) {
	m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 7))}
	var mu sync.Mutex
	lateness := rand.New(rand.NewPCG(seed, 8))
	late := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(lateness.Int64N(int64(mostLate)))
	}
	m.x = newFixture(t, 1000, time.Now)
	m.x.group.cfg.AfterFunc = func(d time.Duration, f func()) Timer {
		var timer Timer = &lateTimer{time.AfterFunc(d+late(), f), late}
		if mistake != nil {
			timer = mistake(timer)
		}
		return timer
	}
	m.x.deadLetters = func([]machine.Undeliverable) {}
	m.x.group.quota.Set(m.rng.Int64N(4)) // 0: no bound
	for range modelSteps {
		m.step()
		synctest.Wait()
		if failed = m.overdue(); failed != "" {
			break
		}
	}
	for len(m.members) > 0 {
		m.leave(0, "DETACHED")
	}
	m.x.group.Close("")
	return failed, m.trace
}

// step does something, or lets time pass.
func (m *model) step() {
	switch n := m.rng.IntN(20); {
	case n < 3:
		k := 1 + m.rng.IntN(4)
		m.mu.Lock()
		for range k {
			m.messages = append(m.messages, &message{due: time.Now()})
		}
		m.mu.Unlock()
		m.log("publish %d", k)
		m.x.publish(k)
	case n < 5:
		if len(m.members) < membersModel {
			m.join(m.rng.IntN(2) == 0)
		}
	case n < 6:
		if len(m.members) > 0 {
			m.leave(m.rng.IntN(len(m.members)), []string{Broken, "DETACHED"}[m.rng.IntN(2)])
		}
	case n < 14:
		m.settle()
	case n < 15:
		m.x.group.quota.Set(m.rng.Int64N(4))
	default:
		d := time.Duration(m.rng.Int64N(int64(modelLease / 2)))
		time.Sleep(d)
		m.log("waited for %v", d)
	}
}

func (m *model) join(polled bool) {
	m.names++
	ctx, cancel := context.WithCancel(context.Background())
	s := m.x.attach(SessionOptions{
		Member: fmt.Sprint(m.names), Messages: 1000, Bytes: 1 << 20, Renew: true, Polled: polled,
	})
	member := &modelMember{s: s, cancel: cancel, stopped: make(chan struct{}), polling: !polled}
	m.log("%s joins, polled %v", s.options.Member, polled)
	m.members = append(m.members, member)
	limit, pause := 1+m.rng.IntN(3), time.Duration(1+m.rng.IntN(20))*time.Second
	go func() {
		defer close(member.stopped)
		for ctx.Err() == nil {
			m.receive(ctx, member, limit, pause)
		}
	}()
}

// receive receives once. A poll waits for 10 s, and the next one comes after a pause.
func (m *model) receive(ctx context.Context, member *modelMember, limit int, pause time.Duration) {
	if !member.s.options.Polled {
		e, err := member.s.Receive(ctx, 1000)
		m.received(member, e, err)
		return
	}
	poll, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	m.mu.Lock()
	member.polling = true
	m.mu.Unlock()
	e, err := member.s.Receive(poll, limit)
	m.mu.Lock()
	member.polling = false
	m.mu.Unlock()
	m.received(member, e, err)
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func (m *model) received(member *modelMember, e Event, err error) {
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for i := range e.Deliveries {
		e.Deliveries[i].each(func(from, to int64) {
			for p := from; p < to; p++ {
				// Its lease began when it was delivered, which is now: members rest in Receive only.
				*m.messages[p] = message{holder: member, due: now.Add(modelLease + leaseStep), timed: true}
			}
		})
	}
	for _, lost := range e.LeaseLost {
		for p := lost.GetBase(); p < lost.GetBase()+lost.GetCount(); p++ {
			if x := m.messages[p]; x.holder == member && !x.due.After(now) {
				*x = message{due: now}
			}
		}
	}
}

// leave ends a session. What it had is due at once.
func (m *model) leave(i int, why string) {
	member := m.members[i]
	m.members = append(m.members[:i:i], m.members[i+1:]...)
	m.log("%s leaves: %s", member.s.options.Member, why)
	member.s.End(why)
	member.cancel()
	<-member.stopped
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.messages {
		if x.holder == member {
			*x = message{due: time.Now()}
		}
	}
}

// settle acknowledges, returns or extends a message that a member has, or was lost meanwhile.
func (m *model) settle() {
	m.mu.Lock()
	var held []int64
	for p, x := range m.messages {
		if x.holder != nil {
			held = append(held, int64(p))
		}
	}
	if len(held) == 0 {
		m.mu.Unlock()
		return
	}
	p := held[m.rng.IntN(len(held))]
	member := m.messages[p].holder
	m.mu.Unlock()
	at := []*topicv1.Positions{{Base: p}}
	var refusals []*topicv1.Refusal
	var err error
	var after message
	what := m.rng.IntN(5)
	switch delay := time.Duration(m.rng.Int64N(int64(2 * modelLease))); what {
	case 0:
		refusals, err = member.s.Nack(m.t.Context(), &topicv1.NackSet{Positions: at, Delay: durationpb.New(delay)})
		after = message{due: time.Now().Add(delay), timed: true}
	case 1:
		refusals, err = member.s.Extend(m.t.Context(), &topicv1.ExtendSet{Positions: at})
		after = message{holder: member, due: time.Now().Add(modelLease + leaseStep), timed: true}
	default:
		refusals, err = member.s.Ack(m.t.Context(), &topicv1.AckSet{Positions: at})
		after = message{done: true}
	}
	testkit.Must(m.t, err)
	m.log("%s settles %d by %d: %v", member.s.options.Member, p, what, refusals)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(refusals) == 0 {
		*m.messages[p] = after
	}
}

// overdue says which message should be with a member and is not, "" if there is none: it was due for
// longer than a timer may be late, or at all if no timer has to run, and a member receives that has
// nothing.
func (m *model) overdue() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.x.group.quota.Full() {
		return ""
	}
	for _, member := range m.members {
		busy := false
		for _, x := range m.messages {
			busy = busy || x.holder == member
		}
		if busy || !member.polling {
			continue
		}
		for p, x := range m.messages {
			latest := x.due
			if x.timed {
				latest = latest.Add(mostLate)
			}
			if !x.done && latest.Before(now) {
				return fmt.Sprintf("%d is due since %v, and %s waits", p, now.Sub(x.due), member.s.options.Member)
			}
		}
	}
	return ""
}

// once is a timer that is not set again once it has run.
type once struct{ Timer }

func (o once) Reset(time.Duration) bool { return false }

// first is a timer that is not set to an earlier time than it was.
type first struct {
	Timer
	at *time.Time
}

func (f first) Reset(d time.Duration) bool {
	at := time.Now().Add(d)
	if at.Before(*f.at) {
		return false
	}
	*f.at = at
	return f.Timer.Reset(d)
}

// The model notices timers that are not set when they should be.
func TestModelOfSessionsFindsMistakes(t *testing.T) {
	for name, mistake := range map[string]func(Timer) Timer{
		"a timer that has run is not set again": func(timer Timer) Timer { return once{timer} },
		"a timer is not set to an earlier time": func(timer Timer) Timer { return first{timer, new(time.Time)} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				found := ""
				synctest.Test(t, func(t *testing.T) { found, _ = runModel(t, seed, mistake) })
				if found != "" {
					t.Logf("seed %d: %s", seed, found)
					return
				}
			}
			t.Error("not found")
		})
	}
}

// HQ-F02, HQ-F03: however late timers are, every message that is due is with a member within one step
// after its timer ran, if one receives. PARLEY_TOPIC_OPERATIONS is the number of steps or the time for
// them.
func TestModelOfSessions(t *testing.T) {
	first := testkit.Seed(t, 1)
	for n := range testkit.NewBudget(t, "PARLEY_TOPIC_OPERATIONS", usualModels, modelSteps).Rounds() {
		seed := first + uint64(n)
		synctest.Test(t, func(t *testing.T) {
			if failed, trace := runModel(t, seed, nil); failed != "" {
				for _, line := range trace {
					t.Log(line)
				}
				t.Fatalf("seed %d: %s", seed, failed)
			}
		})
	}
}
