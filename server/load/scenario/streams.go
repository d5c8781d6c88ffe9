package scenario

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/probe"
	"github.com/parley-chat/parley/server/load/stream"
)

const (
	stormTime  = 2 * time.Minute // in which all streams must be live
	retryPause = 200 * time.Millisecond
	idleSettle = 2 * time.Second // after opening, before memory is read
)

// crowd is many streams and nothing on them.
type crowd struct{ *run }

func beginStorm(_ context.Context, r *run) (round, func(), error) {
	return crowd{r}.storm, r.world.disconnect, nil
}

func beginIdle(_ context.Context, r *run) (round, func(), error) {
	return crowd{r}.idle, r.world.disconnect, nil
}

// opening is how far the streams of a crowd are.
type opening struct {
	live    figure.Histogram // from the dial to having everything
	failed  atomic.Int64     // attempts
	last    atomic.Pointer[error]
	streams []*stream.Listener
}

// open opens a connection for each few clients and a stream for each, workers of them at
// once, and waits until all have everything. One that fails tries again, as clients do.
func (c crowd) open(ctx context.Context, workers int) (*opening, error) {
	ctx, cancel := context.WithTimeout(ctx, stormTime)
	defer cancel()
	people := c.world.people
	o := &opening{streams: make([]*stream.Listener, len(people))}
	stop := c.show.During("opening", 0, func(ctx context.Context) string {
		return fmt.Sprintf("%9d of %d live%s", o.live.Count(), len(people), c.server.Line(ctx))
	})
	defer stop()
	var mu sync.Mutex // guards the list of connections
	per := c.PerConnection
	err := each((len(people)+per-1)/per, workers, func(i int) error {
		few := people[i*per : min((i+1)*per, len(people))]
		began := time.Now()
		for {
			left, err := c.openFew(ctx, &mu, few, o, min((i+1)*per, len(people))-len(few), began)
			if err == nil {
				return nil
			}
			few = left
			o.failed.Add(1)
			o.last.Store(&err)
			select {
			case <-ctx.Done():
				return fmt.Errorf("%d of %d streams after %v: %w", o.live.Count(), len(people), stormTime, err)
			case <-time.After(retryPause):
			}
		}
	})
	return o, err
}

// openFew opens the streams of the clients of one connection that are not open yet.
func (c crowd) openFew(
	ctx context.Context, mu *sync.Mutex, few []*person, o *opening, at int, began time.Time,
) ([]*person, error) {
	conn, err := c.target.Dial(ctx)
	if err != nil {
		return few, err
	}
	mu.Lock()
	c.world.conns = append(c.world.conns, conn)
	mu.Unlock()
	list := make([]*stream.Listener, len(few))
	for i, p := range few {
		if list[i], err = stream.Listen(conn, p.token, stream.Handler{}); err != nil {
			conn.Close() // with the streams that are open already
			return few, err
		}
	}
	for i, l := range list {
		if err := l.Await(ctx); err != nil {
			return few[i:], err
		}
		o.live.Add(time.Since(began))
		o.streams[at] = l
		at++
	}
	return nil, nil
}

// storm opens all streams at once, and closes them before the next round: the clients of a
// server that was restarted.
func (c crowd) storm(ctx context.Context, _ int) (figure.Figures, error) {
	before, began, own := c.server.Read(ctx), time.Now(), probe.ProcessorTime()
	o, err := c.open(ctx, len(c.world.people))
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	own = probe.ProcessorTime() - own
	var f figure.Figures
	n := uint64(len(o.streams))
	f.Add("all live", "s", took.Seconds())
	f.Add("streams", "/s", float64(n)/took.Seconds())
	f.AddQuantiles("live", &o.live)
	f.Add("tried again", "", float64(o.failed.Load()))
	f.Add(missingName, "", float64(ended(o.streams)))
	c.server.Add(&f, before, c.server.Read(ctx), took, "stream", n)
	probe.AddOwn(&f, own, took, "stream", n)
	c.world.disconnect()
	return f, nil
}

// idle holds streams for a time and checks what they cost the server.
func (c crowd) idle(ctx context.Context, n int) (figure.Figures, error) {
	empty := c.server.Read(ctx)
	o, err := c.open(ctx, setupCallers)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, max(c.Warmup, idleSettle)); err != nil {
		return nil, err
	}
	before, began, own := c.server.Read(ctx), time.Now(), probe.ProcessorTime()
	stop := c.show.During(fmt.Sprintf("round %d", n+1), c.Duration, func(ctx context.Context) string {
		return fmt.Sprintf("%9d streams%s", len(o.streams)-ended(o.streams), c.server.Line(ctx))
	})
	defer stop()
	if err := pause(ctx, c.Duration); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after := c.server.Read(ctx)
	var f figure.Figures
	f.Add("streams", "", float64(len(o.streams)))
	f.Add(missingName, "", float64(ended(o.streams)))
	probe.AddIdle(&f, empty, before, after, took, len(o.streams))
	probe.AddOwn(&f, probe.ProcessorTime()-own, took, "", 0)
	c.world.disconnect()
	return f, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
