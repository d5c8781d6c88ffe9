package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/probe"
	"github.com/parley-chat/parley/server/load/stream"
)

const (
	maxInFlight = 4_096           // sends at once of a steady rate; then it waits, and waiting sends count as slow
	stallTime   = 5 * time.Second // without a delivery, after which the rest is missing
)

// Names of the figures without which a run has failed.
const (
	failedName   = "failed"
	missingName  = "missing"
	repeatedName = "repeated"
)

// recorder is what happens in a round.
type recorder struct {
	number                    int64
	acks, deliveries, marks   figure.Histogram // marks: calls
	recorded                  figure.Histogram // from when a message came until it was marked as read
	late                      figure.Histogram // how much later than due a send began
	expected, delivered       atomic.Int64     // messages on streams
	repeated, receipts, asked atomic.Int64     // asked: messages to be marked
	failed                    atomic.Int64
	firstError                atomic.Pointer[error]
}

func (rec *recorder) fail(err error) {
	rec.failed.Add(1)
	rec.firstError.CompareAndSwap(nil, &err)
}

// traffic is sends, with everybody listening.
type traffic struct {
	*run
	recorder  atomic.Pointer[recorder]
	listeners []*stream.Listener
	marking   *marking // nil: no client marks
	rounds    int64
}

func beginPaced(ctx context.Context, r *run) (round, func(), error) {
	t, err := r.newTraffic(ctx, false)
	return t.round(t.pace), t.close, err
}

func beginClosed(ctx context.Context, r *run) (round, func(), error) {
	t, err := r.newTraffic(ctx, false)
	return t.round(t.loop), t.close, err
}

func beginReceipts(ctx context.Context, r *run) (round, func(), error) {
	t, err := r.newTraffic(ctx, true)
	return t.round(t.pace), t.close, err
}

func (r *run) newTraffic(ctx context.Context, marks bool) (*traffic, error) {
	t := &traffic{run: r}
	t.recorder.Store(&recorder{})
	if err := r.world.connect(ctx); err != nil || r.NoStreams {
		return t, err
	}
	if marks {
		t.marking = newMarking(ctx, r.MarkEvery, t.recorder.Load)
	}
	t.listeners = make([]*stream.Listener, len(r.world.people))
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return t, each(len(t.listeners), setupCallers, func(i int) (err error) {
		p := &reader{person: r.world.people[i]}
		t.listeners[i], err = stream.Listen(p.conn, p.token, stream.Handler{
			Message: func(l *stream.Listener, f stream.Frame) { t.take(p, l, f) },
			Receipt: func() { t.recorder.Load().receipts.Add(1) },
		})
		if err != nil {
			return err
		}
		return t.listeners[i].Await(ctx)
	})
}

func (t *traffic) close() {
	t.world.disconnect() // after which no listener has anything to mark
	if t.marking != nil {
		t.marking.close()
	}
}

// take counts a message that came on a stream. Those of another round are counted by none.
func (t *traffic) take(p *reader, l *stream.Listener, f stream.Frame) {
	rec := t.recorder.Load()
	number, due, ok := stream.ParseStamp(f.Content)
	if !ok || number != rec.number {
		return
	}
	if l.Repeats(f) {
		rec.repeated.Add(1)
		return
	}
	rec.deliveries.Add(time.Since(t.base) - due)
	rec.delivered.Add(1)
	if t.marking != nil {
		t.marking.note(p, l, f)
	}
}

// choose picks a chat and one of its members.
func (t *traffic) choose(chance *rand.Rand) (*group, *person) {
	g := t.world.groups[chance.IntN(len(t.world.groups))]
	return g, g.members[chance.IntN(len(g.members))]
}

// send sends a message that was due at a time.
func (t *traffic) send(ctx context.Context, rec *recorder, g *group, from *person, due time.Duration) {
	id := ""
	if t.ClientIDs {
		id = uuid.NewString()
	}
	text := stream.AppendStamp(make([]byte, 0, t.Size), rec.number, due, t.Size)
	_, err := from.calls.Call(ctx, from.token, messagev1connect.MessageServiceSendMessageProcedure,
		stream.SendRequest(g.id, id, text))
	if err != nil {
		rec.fail(err)
		return
	}
	rec.acks.Add(time.Since(t.base) - due)
	if t.listeners != nil {
		rec.expected.Add(int64(len(g.members)))
	}
}

// pace sends at a steady rate, regardless of the outcome of the sends before. Each counts
// from when it was due, so that a server that stalls is not asked less.
func (t *traffic) pace(ctx context.Context, rec *recorder, d time.Duration) {
	chance := rand.New(rand.NewPCG(t.Seed, uint64(rec.number)))
	room := make(chan struct{}, maxInFlight)
	var sends sync.WaitGroup
	clock := probe.NewClock()
	defer clock.Close()
	begin := time.Since(t.base)
	for i := 0; ctx.Err() == nil; i++ {
		due := begin + time.Duration(float64(i)*float64(time.Second)/t.Rate)
		if due >= begin+d {
			break
		}
		clock.Sleep(due - time.Since(t.base))
		room <- struct{}{}
		rec.late.Add(time.Since(t.base) - due)
		g, from := t.choose(chance)
		sends.Go(func() {
			t.send(ctx, rec, g, from, due)
			<-room
		})
	}
	sends.Wait()
}

// loop has callers that send one message after the other.
func (t *traffic) loop(ctx context.Context, rec *recorder, d time.Duration) {
	end := time.Since(t.base) + d
	var callers sync.WaitGroup
	for i := range t.Callers {
		callers.Go(func() {
			chance := rand.New(rand.NewPCG(t.Seed+uint64(rec.number)<<32, uint64(i)))
			for due := time.Since(t.base); due < end && ctx.Err() == nil; due = time.Since(t.base) {
				g, from := t.choose(chance)
				t.send(ctx, rec, g, from, due)
			}
		})
	}
	callers.Wait()
}

// round measures one phase of sends, after one that is not measured.
func (t *traffic) round(send func(context.Context, *recorder, time.Duration)) round {
	return func(ctx context.Context, n int) (figure.Figures, error) {
		if t.Warmup > 0 {
			t.phase(ctx, fmt.Sprintf("warmup %d", n+1), t.Warmup, send)
		}
		before, began := t.server.Read(ctx), time.Now()
		own := probe.ProcessorTime()
		rec, took := t.phase(ctx, fmt.Sprintf("round %d", n+1), t.Duration, send)
		own = probe.ProcessorTime() - own
		if err := rec.firstError.Load(); err != nil && rec.acks.Count() == 0 {
			return nil, *err
		}
		f := rec.figures(took, time.Since(began))
		f.Add("streams ended", "", float64(ended(t.listeners)))
		t.server.Add(&f, before, t.server.Read(ctx), time.Since(began), "send", rec.acks.Count())
		probe.AddOwn(&f, own, time.Since(began), "send", rec.acks.Count())
		if err := rec.firstError.Load(); err != nil {
			fmt.Fprintf(t.cfg.Stdout, "round %d: the first failure: %v\n", n+1, explain(*err))
		}
		return f, nil
	}
}

// phase sends for a time and waits for what is under way; took is how long the sends took.
func (t *traffic) phase(
	ctx context.Context, name string, d time.Duration, send func(context.Context, *recorder, time.Duration),
) (rec *recorder, took time.Duration) {
	t.rounds++
	rec = &recorder{number: t.rounds}
	t.recorder.Store(rec)
	stop := t.show.During(name, d, func(ctx context.Context) string { return t.line(ctx, rec) })
	defer stop()
	calls, cancel := context.WithTimeout(ctx, d+callTime)
	defer cancel()
	began := time.Now()
	send(calls, rec, d)
	took = time.Since(began)
	t.drain(ctx, rec)
	return rec, took
}

// drain waits until everything has arrived, or nothing more does.
func (t *traffic) drain(ctx context.Context, rec *recorder) {
	progress, since := int64(-1), time.Now()
	for ctx.Err() == nil {
		marked := int64(rec.recorded.Count()) + rec.failed.Load()
		if rec.delivered.Load() >= rec.expected.Load() && marked >= rec.asked.Load() {
			return
		}
		if now := rec.delivered.Load() + marked; now != progress {
			progress, since = now, time.Now()
		} else if time.Since(since) > stallTime {
			return
		}
		_ = wait.For(ctx, 2*time.Millisecond)
	}
}

// figures of a round; took is how long its sends took, all how long until the last delivery.
func (rec *recorder) figures(took, all time.Duration) (f figure.Figures) {
	f.Add("sends", "/s", float64(rec.acks.Count())/took.Seconds())
	if n := rec.delivered.Load(); n > 0 {
		f.Add("delivered", "/s", float64(n)/all.Seconds())
	}
	f.AddQuantiles("ack", &rec.acks)
	f.AddQuantiles("delivery", &rec.deliveries)
	f.AddQuantiles("mark", &rec.marks)
	f.AddQuantiles("recorded", &rec.recorded)
	if rec.late.Count() > 0 {
		f.Add("begun late p99", "ms", float64(rec.late.Quantile(0.99))/1e6)
	}
	if rec.asked.Load() > 0 {
		f.Add("marks", "/s", float64(rec.recorded.Count())/all.Seconds())
		f.Add("mark calls", "/s", float64(rec.marks.Count())/all.Seconds())
		f.Add("receipts", "/s", float64(rec.receipts.Load())/all.Seconds())
	}
	f.Add(failedName, "", float64(rec.failed.Load()))
	f.Add(missingName, "", float64(max(0, rec.expected.Load()-rec.delivered.Load())))
	f.Add(repeatedName, "", float64(rec.repeated.Load()))
	return f
}

// ended is how many streams are there no more.
func ended(list []*stream.Listener) (n int) {
	for _, l := range list {
		if l.IsLost() {
			n++
		}
	}
	return n
}

// line is the progress line of a round for the person who watches the test.
func (t *traffic) line(ctx context.Context, rec *recorder) string {
	return fmt.Sprintf("%9d sent  %10d delivered  ack %s/%s ms  delivery %s/%s ms  %d failed%s", rec.acks.Count(),
		rec.delivered.Load(), ms(rec.acks.Quantile(0.5)), ms(rec.acks.Quantile(0.99)), ms(rec.deliveries.Quantile(0.5)),
		ms(rec.deliveries.Quantile(0.99)), rec.failed.Load(), t.server.Line(ctx))
}

func ms(d time.Duration) string { return figure.Format(float64(d) / float64(time.Millisecond)) }
