package explorer

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// A device whose streams bring nothing, because a proxy holds them back, shows what the store has all the same.

func TestBufferedSchedules(t *testing.T) {
	schedules(t, 600, 250, 2, &bug{buffered: true})
}

// enoughPolls of a device without anything else happening show that the world is at rest: they take longer than
// every other wait.
const enoughPolls = 8

// behindBuffer puts some devices behind a proxy that holds streams back. They notice early, so that they poll
// within a schedule.
func (d *phone) behindBuffer() {
	if d.w.bug.buffered && d.w.choose.chance(600) {
		d.buffered, d.cfg.Silence = true, 200*time.Millisecond
	}
}

// holds reports whether the device's next stream is held back.
func (d *phone) holds() bool { return d.buffered && (d.w.calm || d.w.choose.chance(800)) }

// pace is the time between two steps: where devices poll, much passes now and then.
func (w *world) pace() time.Duration {
	if w.bug.buffered && w.choose.chance(100) {
		return time.Second
	}
	return 3 * time.Millisecond
}

// called counts the polls since the last call of another kind, of any device.
func (d *phone) called(c device.Call) {
	switch c.Kind {
	case device.Sync:
		if req, ok := c.Request.(*deliveryv1.SyncRequest); ok && req.GetPageToken() == "" {
			d.idle++
		}
	case device.Subscribe, device.CloseStream, device.Ack, device.Extend:
	default:
		for _, o := range d.w.phones {
			o.idle = 0
		}
	}
}

// A poll that lacks a chat must be noticed: nothing else brings what it has.
func init() {
	bugs = append(bugs, bug{name: "a poll leaves out a chat", buffered: true,
		answer: func(_ *world, _ string, res proto.Message) {
			if r, ok := res.(*deliveryv1.SyncResponse); ok && !r.GetFull() && len(r.GetOverviews()) > 1 {
				r.Overviews = r.GetOverviews()[1:]
			}
		}})
}
