package dynamotest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
)

// Outside is a store for tests in bubbles of testing/synctest: calls are carried out by
// goroutines outside the bubble, so that its time stands still while they are under way and
// continues while a connection only waits to be used again. Rows expire by the caller's
// time. A call takes no time, so that its context does not matter once it has begun.
type Outside struct {
	store *dynamo.Store
	calls chan *call
	free  chan *call
	now   atomic.Int64 // unix seconds, of the latest call
}

type call struct {
	run  func(ctx context.Context)
	done chan struct{}
}

var _ store.Store = (*Outside)(nil)

// callers is how many calls can be under way at once; others wait.
const callers = 16

// NewOutside opens a store without rows, or skips the test. It must be called outside
// the bubble.
func NewOutside(t testing.TB, change ...func(*dynamo.Options)) *Outside {
	t.Helper()
	o := &Outside{calls: make(chan *call), free: make(chan *call, callers)}
	o.store = Fresh(t, append(change, func(c *dynamo.Options) {
		c.Clock = func() time.Time { return time.Unix(o.now.Load(), 0) }
	})...)
	ended := make(chan struct{}, callers)
	for range callers {
		o.free <- &call{done: make(chan struct{})}
		go func() {
			for c := range o.calls {
				c.run(context.Background())
				c.done <- struct{}{}
			}
			ended <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		close(o.calls)
		for range callers {
			<-ended
		}
	})
	return o
}

// outside carries a call out. All channels were made outside the bubble: waiting for
// one of them holds the bubble's time.
func (o *Outside) outside(ctx context.Context, run func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.now.Store(time.Now().Unix())
	c := <-o.free
	var err error
	c.run = func(ctx context.Context) { err = run(ctx) }
	o.calls <- c
	<-c.done
	o.free <- c
	return err
}

// Get implements store.Store.
func (o *Outside) Get(ctx context.Context, key store.Key, c store.Consistency) (it store.Item, err error) {
	err = o.outside(ctx, func(ctx context.Context) (err error) {
		it, err = o.store.Get(ctx, key, c)
		return err
	})
	return it, err
}

// BatchGet implements store.Store.
func (o *Outside) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) (list []store.Item, err error) {
	err = o.outside(ctx, func(ctx context.Context) (err error) {
		list, err = o.store.BatchGet(ctx, keys, c)
		return err
	})
	return list, err
}

// Query implements store.Store.
func (o *Outside) Query(ctx context.Context, q store.Query) (p store.Page, err error) {
	err = o.outside(ctx, func(ctx context.Context) (err error) {
		p, err = o.store.Query(ctx, q)
		return err
	})
	return p, err
}

// Scan implements store.Store.
func (o *Outside) Scan(ctx context.Context, q store.Scan) (p store.Page, err error) {
	err = o.outside(ctx, func(ctx context.Context) (err error) {
		p, err = o.store.Scan(ctx, q)
		return err
	})
	return p, err
}

// Transact implements store.Store.
func (o *Outside) Transact(ctx context.Context, p store.Plan) error {
	return o.outside(ctx, func(ctx context.Context) error { return o.store.Transact(ctx, p) })
}

// BatchWrite implements store.Store.
func (o *Outside) BatchWrite(ctx context.Context, writes []store.Write) error {
	return o.outside(ctx, func(ctx context.Context) error { return o.store.BatchWrite(ctx, writes) })
}

// Durable implements store.Store.
func (o *Outside) Durable(ctx context.Context) error { return o.outside(ctx, o.store.Durable) }

// Close implements store.Store. The store is closed when the test has ended.
func (o *Outside) Close() error { return errors.New("dynamotest: the test closes the store") }
