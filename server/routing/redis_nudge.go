package routing

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// nudgeQueue is how many nudges wait for the handler; more are dropped.
const nudgeQueue = 4096

// channel is the channel of a shard. Each shard has its own, so that a nudge goes only to
// the process that works on the shard.
func (r *Redis) channel(shard int) string { return r.prefix + "n:" + strconv.Itoa(shard) }

// Nudge implements Nudges.
func (r *Redis) Nudge(ctx context.Context, list []Nudge) error {
	if err := checkNudges(list); err != nil {
		return err
	}
	if len(list) == 0 {
		return nil
	}
	p := r.c.Pipeline()
	for _, n := range list {
		p.Publish(ctx, r.channel(n.Shard), n.Payload)
	}
	_, err := p.Exec(ctx)
	return translate(err)
}

// Subscribe implements Nudges. A connection that breaks is opened again.
func (r *Redis) Subscribe(ctx context.Context, shards []int, ready func(), handle func(Nudge)) error {
	if err := checkShards(shards); err != nil {
		return err
	}
	channels := make([]string, len(shards))
	for i, shard := range shards {
		channels[i] = r.channel(shard)
	}
	sub := r.c.Subscribe(ctx, channels...)
	defer sub.Close()
	receive := func(m *redis.Message) {
		shard, err := strconv.Atoi(strings.TrimPrefix(m.Channel, r.prefix+"n:"))
		if err == nil && shard >= 0 && len(m.Payload) <= MaxNudge {
			handle(Nudge{Shard: shard, Payload: []byte(m.Payload)})
		}
	}
	for confirmed := 0; confirmed < len(channels); {
		first, err := sub.Receive(ctx)
		if err != nil {
			return translate(err)
		}
		switch m := first.(type) {
		case *redis.Subscription:
			confirmed++
		case *redis.Message:
			receive(m)
		}
	}
	if ready != nil {
		ready()
	}
	messages := sub.Channel(redis.WithChannelSize(nudgeQueue))
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m, ok := <-messages:
			if !ok {
				return ErrUnavailable
			}
			receive(m)
		}
	}
}
