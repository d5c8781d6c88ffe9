package topic

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// tight is a log on a disk that may be short. It counts how often space is asked for.
type tight struct {
	*commitlog.Local
	short  atomic.Bool
	asked  atomic.Int64
	lookUp atomic.Int64
}

func (l *tight) Short() bool { return l.short.Load() }

func (l *tight) Reclaim(ctx context.Context, least int64) error {
	l.asked.Add(1)
	return l.Local.Reclaim(ctx, least)
}

func (l *tight) Size(ctx context.Context, topic uint64, partitions int32) (int64, error) {
	l.lookUp.Add(1)
	return l.Local.Size(ctx, topic, partitions)
}

// onTightDisk restarts the process with such a log.
func (x *fixture) onTightDisk() *tight {
	d := &tight{}
	x.over = func(l commitlog.Log) commitlog.Log {
		d.Local = l.(*commitlog.Local)
		return d
	}
	x.restart()
	return d
}

// large is a request with so many bytes that do not compress.
func large(topic string, n int) *topicv1.PublishRequest {
	payload := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(payload)
	return &topicv1.PublishRequest{Topic: topic, Messages: []*topicv1.TopicMessage{{Payload: payload}}}
}

// A topic takes as many bytes as it may have, from publishers one by one and at once, and more when
// some were acknowledged and trimmed. A repetition of what it has is answered while it is full, and
// dead letters have no part in it.
func TestFullTopic(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		d := x.onTightDisk()
		const most, each = 1 << 20, 100_000
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MaxBytes: proto.Int64(most), Partitions: 2,
			MessageRetention: seconds(0),
		})
		x.subscribe("t", "g", nil)
		s := x.attach("t", "g", "m")
		numbered := large("t", each)
		numbered.Producer = &topicv1.Producer{Id: "p", Number: 1}
		if _, err := x.Publish(t.Context(), op, numbered); err != nil {
			t.Fatal(err)
		}
		results := make(chan error)
		for range 30 {
			go func() {
				_, err := x.Publish(t.Context(), op, large("t", each))
				results <- err
			}()
		}
		stored := 1
		for range 30 {
			if err := <-results; err == nil {
				stored++
			} else {
				refusedAs(t, err, refusal.TopicFull)
				if !strings.Contains(err.Error(), "1048576 bytes") {
					t.Error(err)
				}
			}
		}
		if stored != 10 {
			t.Errorf("a topic of %d bytes takes %d messages of %d", most, stored, each)
		}
		if n := d.lookUp.Load(); n > 3 {
			t.Errorf("%d looks at the size for 31 publishes within a second", n)
		}
		if n := x.engine.Counters.Full.Load(); n != int64(31-stored) {
			t.Errorf("%d refusals are counted", n)
		}
		again, err := x.Publish(t.Context(), op, numbered)
		if err != nil || !again.GetResults()[0].GetReplayed() {
			t.Errorf("a repetition on a full topic: %v, %v", again, err)
		}
		numbered.Producer.Number = 2
		_, err = x.Publish(t.Context(), op, numbered)
		refusedAs(t, err, refusal.TopicFull)
		list := x.receive(s)
		x.ack(s, list[:4])
		x.later(2 * time.Second)
		if _, err := x.Publish(t.Context(), op, large("t", each)); err != nil {
			t.Errorf("after a trim: %v", err)
		}
		x.configure("t", &topicv1.TopicConfig{MaxBytes: proto.Int64(100 << 20)})
		if _, err := x.Publish(t.Context(), op, large("t", each)); err != nil {
			t.Errorf("with more room: %v", err)
		}
	})
}

// What others than operators set is bounded by the installation's value, which is also that of
// topics which have none.
func TestMaxBytesOfAnInstallation(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.cfg.MaxBytes, x.engine.MaxBytes = 1<<20, 1<<20
		ask := func(c Caller, name string, n int64) error {
			_, err := x.Configure(t.Context(), c, &topicv1.ConfigureTopicRequest{Topic: name,
				Config: &topicv1.TopicConfig{MaxBytes: proto.Int64(n)}})
			return err
		}
		refusedAs(t, ask(maker, "t", 1<<20+1), refusal.InvalidArgument)
		for name, c := range map[string]Caller{"u": maker, "o": op} {
			n := int64(0)
			if name == "o" {
				n = 3 << 20
			}
			if err := ask(c, name, n); err != nil {
				t.Fatal(err)
			}
			stored := 0
			for range 8 {
				if _, err := x.Publish(t.Context(), op, large(name, 500_000)); err == nil {
					stored++
				} else {
					refusedAs(t, err, refusal.TopicFull)
				}
			}
			if want := map[string]int{"u": 2, "o": 6}[name]; stored != want {
				t.Errorf("topic %s takes %d messages of 500,000 bytes, want %d", name, stored, want)
			}
		}
	})
}

// On a disk that is short messages are not taken, so that chats go on; what is there is delivered,
// acknowledged and removed, and space is asked for at once.
func TestShortDisk(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		d := x.onTightDisk()
		x.groups("t", "g")
		x.publish("t", 0, 3)
		d.short.Store(true)
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: messages(3, 1)})
		refusedAs(t, err, refusal.StorageLow)
		s := x.attach("t", "g", "m")
		x.ack(s, x.want(s, numbers(0, 3)))
		before := d.asked.Load()
		if err := x.Delete(t.Context(), op, "t"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if d.asked.Load() == before {
			t.Error("a topic was removed on a short disk, and nobody gives its space back")
		}
		d.short.Store(false)
		x.groups("t", "g")
		x.publish("t", 0, 1)
	})
}

// A principal makes a thousand topics, and others as many; what it has deleted does not count, and
// operators have no such bound.
func TestTopicsOfAPrincipal(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		ask := func(c Caller, name string) error {
			_, err := x.Configure(t.Context(), c, &topicv1.ConfigureTopicRequest{Topic: name})
			return err
		}
		name := func(n int) string { return "t" + strings.Repeat("x", n%100) + "." + strings.Repeat("y", n/100) }
		for n := range 1000 {
			if err := ask(maker, name(n)); err != nil {
				t.Fatal(n, err)
			}
		}
		refusedAs(t, ask(maker, "more"), refusal.TooMany)
		_, err := x.Publish(t.Context(), maker, &topicv1.PublishRequest{Topic: "more", Messages: messages(0, 1)})
		refusedAs(t, err, refusal.TooMany)
		x.restart()
		refusedAs(t, ask(maker, "more"), refusal.TooMany)
		for _, c := range []Caller{op, {Principal: "another", Creator: true}} {
			if err := ask(c, "of-"+c.Principal); err != nil {
				t.Error(err)
			}
		}
		if err := x.Delete(t.Context(), maker, name(7)); err != nil {
			t.Fatal(err)
		}
		if err := ask(maker, "more"); err != nil {
			t.Error(err)
		}
	})
}
