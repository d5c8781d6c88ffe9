//go:build !windows

package app_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/wait"
)

const (
	// catchUp is how long the durable path may take after a fault, takeover how long a worker
	// that was killed is taken for one that is only slow.
	catchUp  = 30 * time.Second
	takeover = 6 * time.Second

	// usualLag is what the durable path takes on a machine that has time for it. Where it
	// takes longer before or after a fault as well, for want of processors, it may take as
	// much longer after the fault, up to maxStretch times.
	usualLag   = 2 * time.Second
	maxStretch = 5

	topicSlots = 16 // by default

	// defaultFaults is the first kinds once each; the others repeat them in other ways.
	defaultFaults = 12
)

// trouble does faults to an installation under load.
type trouble struct {
	t      *testing.T
	ctx    context.Context
	in     *installation
	load   *load
	probe  *lagProbe
	topics *topicLoad // of TestDistributed
}

// fault is something that happens to machines.
type fault struct {
	name    string
	engines bool // happens to an engine
	group   bool // kills members of fanout's group
	// do returns when the fault is over. round counts the faults of the kind, so that each
	// time another machine has it.
	do func(round int)
}

func (x *trouble) kinds() []fault {
	in := x.in
	return []fault{
		{name: "a server is killed", do: func(round int) { in.again(in.servers[round%2]) }},
		{name: "all of Redis is flushed", do: func(int) {
			for range 3 {
				in.flush()
				x.load.more(10)
			}
		}},
		{name: "a worker is killed", group: true, do: func(round int) { in.again(in.workers[round%2]) }},
		{name: "links are cut again and again", do: func(int) {
			for range 5 {
				in.servers[0].links.cut()
				in.servers[1].links.cut()
				x.load.more(10)
			}
		}},
		{name: "a broker is killed", engines: true, do: func(round int) {
			broker := in.engines.brokers[round%len(in.engines.brokers)]
			in.engines.kill(broker)
			x.pass(12 * time.Second) // the others have noticed
			in.engines.start(broker)
		}},
		{name: "Redis is killed and comes back empty", engines: true, do: func(int) {
			in.engines.kill("redis")
			x.pass(12 * time.Second) // longer than leases last
			in.engines.start("redis")
		}},
		{name: "a worker stands still for longer than its leases and its session", do: func(round int) {
			x.standStill(in.workers[round%2])
		}},
		{name: "a server stands still for longer than its lease", do: func(round int) {
			m := in.servers[round%2]
			m.freeze(true)
			x.sleep(12 * time.Second)
			m.freeze(false)
		}},
		{name: "no link reaches a server", do: func(round int) {
			links := in.servers[round%2].links
			links.shut(true)
			x.pass(12 * time.Second)
			links.shut(false)
		}},
		{name: "Redis is out of reach", do: func(int) {
			in.way.shut(true)
			x.pass(12 * time.Second)
			in.way.shut(false)
		}},
		{name: "a broker stands still", engines: true, do: func(round int) {
			broker := in.engines.brokers[round%len(in.engines.brokers)]
			in.engines.freeze(broker)
			x.pass(15 * time.Second)
			in.engines.thaw(broker)
		}},
		{name: "the store is out of reach", do: func(int) {
			in.tables.shut(true)
			x.sleep(12 * time.Second) // longer than leases last
			in.tables.shut(false)
		}},
		{name: "both workers are killed and Redis is flushed", group: true, do: func(int) {
			in.again(in.workers[0])
			in.again(in.workers[1])
			in.flush()
		}},
		{name: "the store stands still", engines: true, do: func(int) {
			in.engines.freeze("dynamodb")
			x.sleep(5 * time.Second)
			in.engines.thaw("dynamodb")
		}},
		{name: "a server and a broker are killed", engines: true, do: func(round int) {
			broker := in.engines.brokers[round%len(in.engines.brokers)]
			in.engines.kill(broker)
			in.again(in.servers[(round+1)%2])
			x.load.more(50)
			in.engines.start(broker)
		}},
	}
}

// standStill stops a worker that holds slots for 40 s: another takes its slots and its
// partitions over. When it resumes it still believes that they are its own, until its
// leases and Kafka tell it otherwise.
func (x *trouble) standStill(m *member) {
	x.t.Helper()
	for held := 0.0; held == 0; x.sleep(100 * time.Millisecond) {
		var err error
		if held, err = m.metric(x.ctx, telemetry.RelaySlots); err != nil {
			x.t.Fatal(err)
		}
	}
	before := strings.Count(m.log.String(), "lease: lost")
	m.freeze(true)
	x.pass(40 * time.Second)
	m.freeze(false)
	for strings.Count(m.log.String(), "lease: lost") == before {
		select {
		case <-m.gone:
			x.t.Fatalf("the worker ended: %s", m.log.tail(2<<10))
		default:
			x.sleep(100 * time.Millisecond)
		}
	}
}

// pass lets time pass in which people keep sending.
func (x *trouble) pass(d time.Duration) {
	x.t.Helper()
	x.sleep(d)
	x.load.more(20)
}

func (x *trouble) sleep(d time.Duration) {
	x.t.Helper()
	select {
	case <-x.ctx.Done():
		x.t.Fatal(x.ctx.Err())
	case <-time.After(d):
	}
}

// suffer does a fault and waits until what it left behind is caught up with.
func (x *trouble) suffer(f fault, round int) {
	x.t.Helper()
	calm, err := x.probe.drain(x.ctx, x.load.shown())
	if err != nil {
		x.t.Fatalf("before %q: %v", f.name, err)
	}
	calmTopics, err := x.topics.drain(x.ctx)
	if err != nil {
		x.t.Fatalf("before %q: topics: %v", f.name, err)
	}
	x.load.more(30)
	x.load.latency()
	begun := time.Now()
	f.do(round)
	lasted := time.Since(begun)
	var topics sync.WaitGroup
	defer topics.Wait()
	topics.Go(func() { x.topicsRecovered(f.name, calmTopics) })
	x.recovered(f.name, f.group, calm)
	x.t.Logf("%s: %v, live %s", f.name, lasted.Round(time.Millisecond), x.load.latency())
}

// recovered checks that the durable path has caught up with the moment of the call in time. group
// says that the group lost a member or all its coordinators.
func (x *trouble) recovered(name string, group bool, calm delay) {
	x.t.Helper()
	bound := catchUp
	if group {
		bound += takeover
	}
	ctx, cancel := context.WithTimeout(x.ctx, maxStretch*bound)
	defer cancel()
	took, err := x.probe.drain(ctx, x.load.shown())
	if err != nil {
		x.t.Fatalf("after %q: %v", name, err)
	}
	if took.all > bound { // in want of processors?
		after, err := x.probe.drain(ctx, x.load.shown())
		if err != nil {
			x.t.Fatalf("long after %q: %v", name, err)
		}
		stretch := min(max(1, float64(max(calm.all, after.all))/float64(usualLag)), maxStretch)
		if took.all > time.Duration(stretch*float64(bound)) {
			x.t.Errorf("after %q the lag took %v to go, not %v; it was %v before and %v after", name, took, bound, calm, after)
		}
	}
	x.t.Logf("%s: the lag took %v to go, was %v before", name, took, calm)
}

// topicsRecovered checks that each topic takes messages again and that groups have caught up with
// them in time, and that each slot has one owner.
func (x *trouble) topicsRecovered(name string, calm time.Duration) {
	ctx, cancel := context.WithTimeout(x.ctx, maxStretch*catchUp)
	defer cancel()
	began := time.Now()
	err := x.topics.more(ctx)
	if err == nil {
		_, err = x.topics.drain(ctx)
	}
	took := time.Since(began)
	if err != nil {
		x.t.Errorf("after %q: topics: %v", name, err)
		return
	}
	stretch := min(max(1, float64(calm)/float64(usualLag)), maxStretch)
	if took > time.Duration(stretch*float64(catchUp)) {
		x.t.Errorf("after %q the lag of topics took %v to go, not %v; it was %v before", name, took, catchUp, calm)
	}
	for owned := 0.0; owned != topicSlots; {
		owned = 0
		for _, s := range x.in.servers {
			n, err := s.metric(ctx, telemetry.TopicSlots)
			if err != nil && ctx.Err() == nil {
				x.t.Error(err)
				return
			}
			owned += n
		}
		if ctx.Err() != nil {
			x.t.Errorf("after %q %v slots of topics have an owner, not %d", name, owned, topicSlots)
			return
		}
		_ = wait.For(ctx, 100*time.Millisecond)
	}
	x.t.Logf("%s: the lag of topics took %v to go, was %v before", name, took.Round(time.Millisecond),
		calm.Round(time.Millisecond))
}
