package api

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/internal/codec"
	"github.com/parley-chat/parley/server/internal/streamwriter"
	"github.com/parley-chat/parley/server/store"
)

// maxBatch is the number of frames in one response.
const maxBatch = 256

// pump sends a stream's frames to its client: first what the client missed, then new
// frames, and a heartbeat when there are none; with once, only what was missed. It returns
// why the stream ended. A stream of events records its cursor.
func pump(
	ctx context.Context, s *delivery.Stream, history store.History, conn connect.StreamingHandlerConn, at *codec.Cursor,
	once bool,
) error {
	p := &sender{stream: s, history: history, out: streamwriter.New(ctx, conn), batch: codec.Batch{Cursor: at},
		opened: time.Now()}
	defer p.out.Close()
	for done := false; !done; {
		// Hello goes out before the first read: it carries the response's headers.
		if ended, err := p.send(); ended || err != nil {
			return err
		}
		var err error
		if done, err = s.Step(ctx); err != nil {
			return err
		}
	}
	if once {
		_, err := p.send()
		return err
	}
	return p.follow(ctx, heartbeat)
}

// sender sends the frames of one stream.
type sender struct {
	stream  *delivery.Stream
	history store.History
	out     *streamwriter.Writer
	batch   codec.Batch
	pace    streamwriter.Pace
	opened  time.Time
	sent    atomic.Int64 // time from opened to the last response
}

// send sends all that is queued. ended says that nothing follows it.
func (p *sender) send() (ended bool, err error) {
	for {
		first, frames, last := p.stream.Take(maxBatch)
		if len(frames) == 0 {
			return last, nil
		}
		p.batch.First, p.batch.Frames, p.batch.Commit = first, frames, p.history.Shown()
		if err := p.out.Send(&p.batch); err != nil {
			return true, err
		}
		if last {
			return true, delivery.EndError(frames[len(frames)-1].EndCode())
		}
		now := time.Now()
		p.sent.Store(int64(now.Sub(p.opened)))
		p.pace.Spend(now)
	}
}

// follow sends frames as they come, and a heartbeat when there were none for a time.
func (p *sender) follow(ctx context.Context, every time.Duration) error {
	defer p.startHeartbeats(every)()
	over := ctx.Done() // asking for it goes through all values that the context has
	for {
		if ended, err := p.send(); ended || err != nil {
			return err
		}
		select {
		case <-over:
			return ctx.Err()
		case <-p.stream.Ready():
			if err := p.pace.Gather(ctx); err != nil {
				return err
			}
		}
	}
}

// startHeartbeats queues a heartbeat whenever there was no response for a time, until stop. Its
// timer is not set for each response, and calls a function: a channel in follow's select would
// be put among the runtime's timers and taken out again with each frame.
func (p *sender) startHeartbeats(every time.Duration) (stop func()) {
	var (
		timer *time.Timer
		over  atomic.Bool
	)
	timer = time.AfterFunc(math.MaxInt64, func() {
		if over.Load() { // this call was under way when the timer was stopped, or the one before
			return
		}
		if left := every - (time.Since(p.opened) - time.Duration(p.sent.Load())); left > 0 {
			timer.Reset(left)
			return
		}
		timer.Reset(every)
		p.stream.Heartbeat()
	})
	timer.Reset(every)
	return func() {
		over.Store(true)
		timer.Stop()
	}
}
