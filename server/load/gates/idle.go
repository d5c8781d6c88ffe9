package gates

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/load/gates/rig"
)

// Thresholds of a server with many topics.
const (
	startLimit = 5 * time.Second
	idleLimit  = 0.02 // of a processor
	makers     = 64   // calls under way
)

// idle makes many topics and subscriptions, restarts the server, and measures what it takes
// while nothing happens: before anything is used, and once every topic has been.
func idle(ctx context.Context, b *bench) (v verdict, err error) {
	topics, groups := scaled(b, 10_000, 200), 10
	began := time.Now()
	if err := b.populate(ctx, topics, groups); err != nil {
		return v, err
	}
	b.note("made in %v", time.Since(began).Round(time.Second))
	if err := b.server.Stop(); err != nil {
		return v, err
	}
	if b.server, err = rig.Start(ctx, b.cfg.Program, b.server.Dir); err != nil {
		return v, err
	}
	took := b.server.Took
	first := b.server.Usage(ctx)
	closed, err := b.rest(ctx)
	if err != nil {
		return v, err
	}
	if err := b.touch(ctx, topics); err != nil {
		return v, err
	}
	open, err := b.rest(ctx)
	if err != nil {
		return v, err
	}
	last := b.server.Usage(ctx)
	v.tried = fmt.Sprintf("%d topics, %d subscriptions", topics, topics*groups)
	v.result = fmt.Sprintf("start %.2f s; idle %.2f %% of a processor before the topics are used, %.2f %% after; "+
		"memory %.0f MB at first (heap %.0f), %.0f MB at last (heap %.0f)", took.Seconds(), 100*closed, 100*open,
		first.Memory/1e6, first.Heap/1e6, last.Memory/1e6, last.Heap/1e6)
	v.limit = "–"
	v.broke(took > startLimit, "start takes %.1f s", took.Seconds())
	v.broke(closed > idleLimit, "idle takes %.1f %% before the topics are used", 100*closed)
	v.broke(open > idleLimit, "idle takes %.1f %%", 100*open)
	return v, nil
}

// rest waits a moment for what is left to do, and returns what is used while nothing happens:
// each job comes to its turn meanwhile.
func (b *bench) rest(ctx context.Context) (cores float64, err error) {
	if pause(ctx, scaled(b, 10*time.Second, time.Second)) {
		return 0, ctx.Err()
	}
	before := b.server.Usage(ctx)
	if pause(ctx, scaled(b, 2*cleanupEvery, 2*time.Second)) {
		return 0, ctx.Err()
	}
	cores = b.server.Usage(ctx).Cores(before)
	b.note("idle takes %.2f %% of a processor", 100*cores)
	return cores, nil
}

// topicsOfAUser are fewer than one user may make.
const topicsOfAUser = 900

// each calls f with 0 ≤ i < n, many at once, for each i with the same user, and returns the first error.
func (b *bench) each(ctx context.Context, n int, f func(u *rig.User, i int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	users := make([]*rig.User, 1+n/topicsOfAUser)
	for i := range users {
		var err error
		if users[i], err = b.server.UserOf(ctx, i); err != nil {
			return err
		}
		defer users[i].Vanish()
	}
	for range makers {
		all.Go(func() {
			for failed.Load() == nil && ctx.Err() == nil {
				at := int(next.Add(1)) - 1
				if at >= n {
					return
				}
				if err := f(users[at%len(users)], at); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	all.Wait()
	if e := failed.Load(); e != nil {
		return *e
	}
	return ctx.Err()
}

func name(i int) string { return fmt.Sprintf("topic-%05d", i) }

// populate makes topics of groups.
func (b *bench) populate(ctx context.Context, topics, groups int) error {
	return b.each(ctx, topics, func(u *rig.User, i int) error {
		err := u.Configure(ctx, name(i), &topicv1.TopicConfig{})
		for g := 0; g < groups && err == nil; g++ {
			err = u.Subscribe(ctx, name(i), fmt.Sprintf("group-%d", g), nil)
		}
		return err
	})
}

// touch publishes a message to each topic.
func (b *bench) touch(ctx context.Context, topics int) error {
	return b.each(ctx, topics, func(u *rig.User, i int) error {
		_, err := u.Topics.Publish(ctx, &topicv1.PublishRequest{Topic: name(i), Messages: rig.Messages(1)})
		return err
	})
}
