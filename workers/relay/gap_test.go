package relay

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/eventlog"
)

// While a new relay publishes what it has read, its predecessor publishes one more row and
// deletes it. The new relay does not wait for that row for ever.
func TestRowThatAnotherRelayPublished(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	before, after := r.relay(), r.relay()
	publish := after.cfg.Publish
	first := true
	after.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		if first { // it has read, and not published yet
			first = false
			r.send(id)
			r.rest(before)
		}
		return publish(ctx, list)
	}
	r.must(after.Cycle(r.ctx))
	r.now = r.now.Add(time.Minute)
	r.send(id)
	r.rest(after)
	r.check(true)
}
