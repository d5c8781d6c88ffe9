package topic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// mortal is a topic whose complete messages go at once, with the group g, which dies after 10 s of
// silence, and the group h, which has a member.
func mortal(x *fixture, c *topicv1.TopicConfig, limit int64) (h *Session) {
	c.Semantics, c.MessageRetention = topicv1.Semantics_SEMANTICS_PUB_SUB, durationpb.New(0)
	x.configure("t", c)
	g := heartbeatConfig(2, 10)
	g.MaxBackfillMessages = limit
	x.subscribe("t", "g", g)
	x.subscribe("t", "h", nil)
	return x.attach("t", "h", "m")
}

// dies waits until the group g is dead.
func dies(x *fixture) {
	x.t.Helper()
	testkit.Advance(30 * time.Second)
	if s := x.state("t", "g"); s != storage.Dead {
		x.t.Fatalf("the group is %v", s)
	}
}

func (x *fixture) released(group string) string {
	x.t.Helper()
	s := x.subscription("t", group)
	r := s.GetReleased()
	return fmt.Sprint(s.GetGap(), " ", []int64{r.GetDeath(), r.GetBound(), r.GetRetention(), r.GetZombie(), r.GetForced(),
		r.GetSought()})
}

func (x *fixture) wantReleased(when, want string) {
	x.t.Helper()
	if got := x.released("g"); got != want {
		x.t.Errorf("%s: %s, not %s", when, got, want)
	}
}

// HQ-X2: the messages that a dead group held stay for it after the others have read them and a
// trim has run, over a weekend and a restart. It gets these and what was published meanwhile, and nothing
// is released. Completion and the watermark do not wait for it.
func TestWeekend(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		h := mortal(x, &topicv1.TopicConfig{}, 0)
		x.publish("t", 0, 50)
		x.ack(h, x.want(h, numbers(0, 50)))
		dies(x)
		x.publish("t", 50, 10)
		x.ack(h, x.want(h, numbers(50, 10)))
		d, err := x.Topic(t.Context(), op, "t")
		testkit.Must(t, err)
		if p := d.GetPartitions()[0]; p.GetWatermark() != 60 {
			t.Errorf("the dead group holds the watermark: %v", p)
		}
		x.later(time.Minute)
		x.restart()
		x.later(60 * hour)
		if n := x.start0("t"); n != 0 {
			t.Errorf("trimmed to %d", n)
		}
		s := x.attach("t", "g", "m")
		x.later(60 * hour) // what came back is kept, although it is complete
		had := x.want(s, numbers(0, 60))
		x.wantReleased("after the weekend", "false [0 0 0 0 0 0]")
		x.ack(s, had)
		x.later(60 * hour)
		if n := x.start0("t"); n != 60 {
			t.Errorf("trimmed to %d once it has acknowledged them", n)
		}
		x.wantReleased("in the end", "false [0 0 0 0 0 0]")
	})
}

// A group that is dead for longer than dead_retention loses what was due to it, and hears so: in its
// subscription, its health, the counters, the audit, and when a member attaches. A restart between keeps
// it.
func TestDeadRetention(t *testing.T) {
	for _, restart := range []bool{false, true} {
		bubble(t, func(t *testing.T, x *fixture) {
			h := mortal(x, &topicv1.TopicConfig{DeadRetention: durationpb.New(2 * hour)}, 0)
			x.publish("t", 0, 50)
			x.ack(h, x.want(h, numbers(0, 50)))
			dies(x)
			x.later(hour)
			if n := x.start0("t"); n != 0 {
				t.Errorf("trimmed to %d before", n)
			}
			x.later(3 * hour)
			if n := x.start0("t"); n != 50 {
				t.Errorf("trimmed to %d", n)
			}
			if restart {
				x.restart()
			} else if n := x.Counters().Ledger[machine.ByDeath].Load(); n != 50 {
				t.Errorf("counted %d", n)
			}
			x.publish("t", 50, 5) // nobody keeps these for it, but they are there
			x.wantReleased("before it returns", "true [50 0 0 0 0 0]")
			s := x.attach("t", "g", "m")
			x.ack(s, x.want(s, numbers(50, 5)))
			x.wantReleased("after it returned", "true [50 0 0 0 0 0]")
			health, err := x.Admin().Groups(t.Context(), &topicv1.ListGroupsRequest{Topic: "t"})
			testkit.Must(t, err)
			const text = "it does not get 50 messages that were due to it: 50 by death"
			if got := strings.Join(health.GetGroups()[0].GetProblems(), "; "); !strings.Contains(got, text) {
				t.Errorf("health: %q", got)
			}
			if n := x.audit.count("ReleaseDead t ok group g, partition 0, 50 messages, dead for longer than 2h0m0s"); n != 1 {
				t.Error(x.audit.text.String())
			}
		})
	}
}

// A revived group with a bound gets the newest messages, and the others count as released by it.
func TestReleasedByTheBound(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		h := mortal(x, &topicv1.TopicConfig{}, 10)
		x.publish("t", 0, 50)
		x.ack(h, x.want(h, numbers(0, 50)))
		dies(x)
		x.publish("t", 50, 50)
		s := x.attach("t", "g", "m")
		x.ack(s, x.want(s, numbers(90, 10)))
		x.wantReleased("revived", "true [0 90 0 0 0 0]")
		x.restart()
		x.wantReleased("after a restart", "true [0 90 0 0 0 0]")
		_, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{
			Topic: "t", Group: "g", To: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-30"}},
		})
		testkit.Must(t, err)
		x.wantReleased("sought back", "true [0 30 0 0 0 0]")
	})
}

// A zombie and what is sought past. The seek is the group's own wish, and no gap.
func TestReleasedOfTheLiving(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 10)
		x.want(s, numbers(0, 10))
		_, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{
			Topic: "t", Group: "g", To: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-4"}},
		})
		testkit.Must(t, err)
		x.wantReleased("sought", "false [0 0 0 0 0 4]")
		x.later(8 * 24 * hour)
		x.wantReleased("zombie", "true [0 0 0 6 0 4]")
		x.publish("t", 10, 5)
		x.later(40 * 24 * hour)
		x.restart()
		x.wantReleased("zombie, again", "true [0 0 0 11 0 4]")
		if n := x.start0("t"); n != 15 {
			t.Errorf("trimmed to %d", n)
		}
		s.End(serving.Broken)
	})
}

// What max_retention removes from a living group counts, also if the process ends before the group's
// position is stored again. What it had acknowledged does not count.
func TestReleasedByRetention(t *testing.T) {
	for _, restart := range []bool{false, true} {
		bubble(t, func(t *testing.T, x *fixture) {
			x.configure("t", &topicv1.TopicConfig{
				Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MaxRetention: durationpb.New(2 * hour),
				CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
			})
			x.subscribe("t", "g", nil)
			s := x.attach("t", "g", "m")
			x.publish("t", 0, 10)
			x.ack(s, x.want(s, numbers(0, 10))[:4])
			x.later(3 * hour)
			if restart {
				x.restart()
			}
			x.wantReleased("after the trim", "true [0 0 6 0 0 0]")
			if n := x.start0("t"); n != 10 {
				t.Errorf("trimmed to %d", n)
			}
		})
	}
}

// When the power fails directly after a trim, the ledger neither counts what a group had acknowledged
// nor counts under another cause.
func TestPowerLossAfterATrim(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(x *fixture, g *Session)
	}{
		{"max_retention", "true [0 0 6 0 0 0]", func(x *fixture, g *Session) {
			x.ack(g, x.want(g, numbers(0, 10))[:4])
			x.later(3 * hour)
		}},
		{"death", "true [6 0 0 0 0 0]", func(x *fixture, g *Session) {
			x.ack(g, x.want(g, numbers(0, 10))[:4])
			g.End(serving.Broken)
			dies(x)
			x.later(hour + time.Minute)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, x *fixture) {
				h := mortal(x, &topicv1.TopicConfig{
					MaxRetention: durationpb.New(2 * hour), DeadRetention: durationpb.New(hour),
					CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
				}, 0)
				g := x.attach("t", "g", "m")
				x.publish("t", 0, 10)
				x.ack(h, x.want(h, numbers(0, 10)))
				c.do(x, g)
				disk := x.disk.PowerLoss(rand.New(rand.NewPCG(1, 2)))
				x.stop()
				x.disk = disk
				x.start()
				if n := x.start0("t"); n != 10 {
					t.Errorf("trimmed to %d", n)
				}
				x.wantReleased("after the power failed", c.want)
			})
		})
	}
}

// The bound in bytes holds: of what only dead groups keep the oldest goes, and counts. What is within the
// bound comes back.
func TestDeadRetentionBytes(t *testing.T) {
	for _, c := range []struct {
		name      string
		config    *topicv1.TopicConfig
		all, some bool // are let go
	}{
		{"within", &topicv1.TopicConfig{DeadRetentionBytes: proto.Int64(64 << 20)}, false, false},
		{"beyond", &topicv1.TopicConfig{DeadRetentionBytes: proto.Int64(1 << 20)}, false, true},
		{"none", &topicv1.TopicConfig{DeadRetentionBytes: proto.Int64(0)}, true, true},
		{"a topic that is nearly full", &topicv1.TopicConfig{MaxBytes: proto.Int64(4 << 20)}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, x *fixture) {
				h := mortal(x, c.config, 0)
				dies(x)
				const n = 60 // of 64 KiB
				for i := range n {
					m := messages(i, 1)
					m[0].Payload = make([]byte, 64<<10)
					if i%20 == 19 {
						x.later(time.Minute)
					}
					_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: m})
					testkit.Must(t, err)
					x.ack(h, x.receive(h))
				}
				x.later(time.Minute)
				start := x.start0("t")
				size, err := x.engine.Log.Size(t.Context(), x.engine.Catalog.Topic("t").Number, 1)
				testkit.Must(t, err)
				switch {
				case c.all && start != n, !c.some && start != 0, c.some && !c.all && (start == 0 || start >= n-8):
					t.Errorf("trimmed to %d", start)
				case c.some && size > 4<<20*3/4, c.config.GetDeadRetentionBytes() == 1<<20 && size > 1<<20+64<<10:
					t.Errorf("%d bytes are left", size)
				}
				x.wantReleased("bytes", fmt.Sprintf("%t [0 %d 0 0 0 0]", start > 0, start))
				x.restart()
				s := x.attach("t", "g", "m")
				if got := len(x.receive(s)); int64(got) != n-start {
					t.Errorf("%d of %d come back", got, n-start)
				}
				x.wantReleased("returned", fmt.Sprintf("%t [0 %d 0 0 0 0]", start > 0, start))
			})
		})
	}
}

// A topic that is full takes messages again within a minute, if what fills it is kept for a dead group.
func TestFullOfTheDead(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		h := mortal(x, &topicv1.TopicConfig{MaxBytes: proto.Int64(1 << 20)}, 0)
		dies(x)
		publish := func() error {
			m := messages(0, 1)
			m[0].Payload = make([]byte, 100<<10)
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: m})
			return err
		}
		stored := 0
		for publish() == nil {
			x.ack(h, x.receive(h))
			if stored++; stored > 20 {
				t.Fatal("it is never full")
			}
		}
		testkit.Advance(90 * time.Second)
		if err := publish(); err != nil {
			t.Error(err)
		}
		if n := x.start0("t"); n == 0 || x.released("g") != fmt.Sprintf("true [0 %d 0 0 0 0]", n) {
			t.Errorf("trimmed to %d: %s", n, x.released("g"))
		}
	})
}

// On a disk that is short nothing is kept for dead groups alone, and a trim does not wait for its time.
func TestShortDiskOfTheDead(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		disk := x.onTightDisk()
		h := mortal(x, &topicv1.TopicConfig{}, 0)
		x.publish("t", 0, 10)
		x.ack(h, x.want(h, numbers(0, 10)))
		dies(x)
		x.later(time.Minute)
		if n := x.start0("t"); n != 0 {
			t.Errorf("trimmed to %d with room on the disk", n)
		}
		disk.short.Store(true)
		testkit.Advance(90 * time.Second)
		if n := x.start0("t"); n != 10 {
			t.Errorf("trimmed to %d on a short disk", n)
		}
		x.wantReleased("a short disk", "true [0 10 0 0 0 0]")
	})
}
