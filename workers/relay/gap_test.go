package relay

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// Found by the explorer of delivery: while a new relay published what it had read, the
// one before it published one more row and deleted it. The new one waited for that
// row for ever.
func TestRowThatAnotherRelayPublished(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	before, after := r.relay(), r.relay()
	publish := after.cfg.Publish
	first := true
	after.cfg.Publish = func(ctx context.Context, records []*kafka.Record) error {
		if first { // it has read, and not published yet
			first = false
			r.send(id)
			r.rest(before)
		}
		return publish(ctx, records)
	}
	r.must(after.Cycle(r.ctx))
	r.now = r.now.Add(time.Minute)
	r.send(id)
	r.rest(after)
	r.check(true)
}
