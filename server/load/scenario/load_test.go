package scenario

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/rpc"
	"github.com/parley-chat/parley/server/load/stream"
)

// fakeServer answers calls, or refuses them.
type fakeServer struct {
	calls atomic.Int64
	err   error
	wait  time.Duration
}

func (s *fakeServer) Call(context.Context, string, string, []byte) ([]byte, error) {
	s.calls.Add(1)
	time.Sleep(s.wait)
	return nil, s.err
}

func (s *fakeServer) Close() {}

var _ rpc.Caller = (*fakeServer)(nil)

// newFake is traffic of one chat with three members to a server that takes calls and shows
// nothing.
func newFake(s *fakeServer) *traffic {
	g := &group{id: "chat"}
	for range 3 {
		g.members = append(g.members, &person{calls: s})
	}
	o := Options{Rate: 1_000, Callers: 2, Size: minSize}
	r := &run{Options: o, world: &world{groups: []*group{g}}, base: time.Now()}
	return &traffic{run: r, listeners: []*stream.Listener{}}
}

// A steady rate offers as many sends as it says, however slow each is, and expects each
// that was acknowledged at every member.
func TestPaceOffersItsRate(t *testing.T) {
	s := &fakeServer{wait: 20 * time.Millisecond}
	f, rec := newFake(s), &recorder{number: 1}
	f.pace(t.Context(), rec, 50*time.Millisecond)
	if s.calls.Load() != 50 || rec.acks.Count() != 50 || rec.expected.Load() != 150 || rec.late.Count() != 50 {
		t.Errorf("%d calls, %d acknowledged, %d expected", s.calls.Load(), rec.acks.Count(), rec.expected.Load())
	}
	if rec.acks.Quantile(0) < 20*time.Millisecond {
		t.Errorf("the fastest took %v", rec.acks.Quantile(0))
	}
}

func TestLoopStops(t *testing.T) {
	f, rec := newFake(&fakeServer{}), &recorder{number: 1}
	f.loop(t.Context(), rec, 5*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := rec.acks.Count()
	f.loop(ctx, rec, time.Hour)
	f.pace(ctx, rec, time.Hour)
	if before == 0 || rec.acks.Count() != before {
		t.Errorf("%d sends, %d after the end", before, rec.acks.Count()-before)
	}
}

// Sends that fail are counted, expect nothing, and end the command with an error.
func TestFailuresAreCounted(t *testing.T) {
	f, rec := newFake(&fakeServer{err: errors.New("busy")}), &recorder{number: 1}
	f.pace(t.Context(), rec, 5*time.Millisecond)
	if rec.failed.Load() != 5 || rec.expected.Load() != 0 || (*rec.firstError.Load()).Error() != "busy" {
		t.Errorf("%d failed, %d expected", rec.failed.Load(), rec.expected.Load())
	}
	if v, _ := rec.figures(time.Second, time.Second).Value(failedName); v != 5 {
		t.Errorf("%v failed", v)
	}
}

// A delivery counts for the round that sent it, and once.
func TestDeliveriesAreCountedOnce(t *testing.T) {
	l := stream.NewListener(stream.Handler{})
	f, rec := newFake(&fakeServer{}), &recorder{number: 7}
	f.recorder.Store(rec)
	rec.expected.Store(5)
	frame := func(sequence, round int64) stream.Frame {
		return stream.Frame{Chat: []byte("chat"), Sequence: sequence, Content: stream.AppendStamp(nil, round, 0, minSize)}
	}
	for _, fr := range []stream.Frame{
		frame(1, 6), frame(2, 7), frame(3, 7), frame(3, 7), frame(2, 7), frame(4, 8),
		{Chat: []byte("chat"), Sequence: 5, Content: []byte("hello")},
	} {
		f.take(&reader{person: f.world.groups[0].members[0]}, l, fr)
	}
	if rec.delivered.Load() != 2 || rec.repeated.Load() != 2 || rec.deliveries.Count() != 2 {
		t.Errorf("%d delivered, %d repeated", rec.delivered.Load(), rec.repeated.Load())
	}
	got := rec.figures(time.Second, 2*time.Second)
	for name, want := range map[string]float64{missingName: 3, repeatedName: 2, "delivered": 1} {
		if v, _ := got.Value(name); v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
}

func TestComplete(t *testing.T) {
	for _, name := range []string{failedName, missingName, repeatedName} {
		round := figure.Figures{{Name: failedName}, {Name: missingName}, {Name: repeatedName}}
		report := &figure.Report{Rounds: []figure.Figures{round}}
		if err := complete(report); err != nil {
			t.Errorf("a round without losses: %v", err)
		}
		report.Rounds = append(report.Rounds, figure.Figures{{Name: name, Value: 1}})
		if err := complete(report); err == nil {
			t.Errorf("a round with 1 %s is complete", name)
		}
	}
}
