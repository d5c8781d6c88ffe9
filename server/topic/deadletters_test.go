package topic

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// noGraveyard fails the making of topics of dead letters while it is on.
type noGraveyard struct {
	store.Store
	on   *atomic.Bool
	name string // of the only one; empty: all
}

func (n noGraveyard) Transact(ctx context.Context, p store.Plan) error {
	if n.on.Load() && strings.HasSuffix(p.Writes[0].Key.PK, n.name+storage.DeadLetterSuffix) {
		return store.ErrUnavailable
	}
	return n.Store.Transact(ctx, p)
}

// A message that failed too often is held until its dead letter is stored, also by the
// next process, and is stored once.
func TestDeadLetterIsStoredFirst(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noGraveyard{s, on, ""} }
		x.restart()
		on.Store(true)
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}})
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 2)
		had := x.want(s, numbers(0, 2))
		x.ack(s, had[1:])
		if _, err := s.Nack(t.Context(), &topicv1.NackSet{Positions: at(had[:1]).GetPositions()}); err != nil {
			t.Fatal(err)
		}
		testkit.Advance(time.Minute)
		if d := x.subscription("t", "g").GetPartitions()[0]; d.GetFloor() != 0 || d.GetPending() != 1 {
			t.Error("it counts as acknowledged though its letter is not stored: ", d)
		}
		x.restart()
		testkit.Advance(time.Second)
		x.want(x.attach("t", "g", "m"), "")
		on.Store(false)
		testkit.Advance(time.Minute)
		if d := x.subscription("t", "g").GetPartitions()[0]; d.GetFloor() != 2 || d.GetPending() != 0 {
			t.Error(d)
		}
		x.subscribe("t.dlq", "undertaker", earliest())
		x.want(x.attach("t.dlq", "undertaker", "m"), "0")
	})
}

// A key whose message failed too often waits, and what follows of it; other keys proceed. It
// resumes when it is unparked, also after a restart.
func TestParkedKey(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{
			Ordering: topicv1.Ordering_ORDERING_KEY, Retry: &topicv1.RetryPolicy{MaxAttempts: 1},
		})
		s := x.attach("t", "g", "m")
		list := messages(0, 4)
		for i, key := range []string{"a", "b", "a", "b"} {
			list[i].Key = key
		}
		if _, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list}); err != nil {
			t.Fatal(err)
		}
		had := x.want(s, "0 1")
		if _, err := s.Nack(t.Context(), &topicv1.NackSet{Positions: at(had[:1]).GetPositions()}); err != nil {
			t.Fatal(err)
		}
		x.ack(s, had[1:])
		x.ack(s, x.want(s, "3"))
		x.restart()
		if n, err := x.Unpark(t.Context(), op, "t", "g", []string{"b"}); n != 0 || err != nil { // nobody is attached
			t.Error(n, err)
		}
		s = x.attach("t", "g", "m")
		x.want(s, "")
		if d := x.subscription("t", "g").GetPartitions()[0]; d.GetParked() != 1 {
			t.Error(d)
		}
		s.End("DETACHED")
		x.restart()
		if n, err := x.Unpark(t.Context(), op, "t", "g", []string{"other"}); n != 0 || err != nil {
			t.Error(n, err)
		}
		if n, err := x.Unpark(t.Context(), op, "t", "g", []string{"a"}); n != 1 || err != nil {
			t.Error(n, err)
		}
		s = x.attach("t", "g", "m")
		x.ack(s, x.want(s, "0"))
		x.ack(s, x.want(s, "2"))
	})
}

// leftover fails the removal of rows while it is on.
type leftover struct {
	store.Store
	on *atomic.Bool
}

func (l leftover) BatchWrite(ctx context.Context, w []store.Write) error {
	if l.on.Load() {
		return store.ErrUnavailable
	}
	return l.Store.BatchWrite(ctx, w)
}

// A topic's dead letters go with it, also if the process ends while they do: who makes a
// topic of that name later finds none of them.
func TestDeadLettersGoWithTheirTopic(t *testing.T) {
	for _, crash := range []bool{false, true} {
		bubble(t, func(t *testing.T, x *fixture) {
			on := &atomic.Bool{}
			x.wrap = func(s store.Store) store.Store { return leftover{s, on} }
			x.restart()
			x.groups("t")
			x.subscribe("t", "g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}})
			s := x.attach("t", "g", "m")
			x.publish("t", 0, 1)
			back := &topicv1.NackSet{Positions: at(x.want(s, "0")).GetPositions()}
			if _, err := s.Nack(t.Context(), back); err != nil {
				t.Fatal(err)
			}
			testkit.Advance(time.Second)
			x.subscribe("t.dlq", "undertaker", earliest())
			u := x.attach("t.dlq", "undertaker", "m")
			x.want(u, "0")
			on.Store(crash)
			if err := x.Delete(t.Context(), op, "t"); (err != nil) != crash {
				t.Fatal(err)
			}
			if e, err := u.Receive(t.Context(), 1); err != nil || e.Gone != "TOPIC_DELETED" {
				t.Error(e, err)
			}
			on.Store(false)
			if crash {
				x.restart()
			}
			for _, name := range []string{"t", "t.dlq"} {
				_, err := x.Topic(t.Context(), op, name)
				refusedAs(t, err, refusal.TopicNotFound)
			}
			if n := x.engine.Catalog.Count(); n != 0 {
				t.Errorf("%d topics remain", n)
			}
			r := &topicv1.ConfigureTopicRequest{Topic: "t"}
			if _, err := x.Configure(t.Context(), maker, r); err != nil {
				t.Fatal(err)
			}
			_, err := x.Topic(t.Context(), maker, "t.dlq")
			refusedAs(t, err, refusal.TopicNotFound)
		})
	}
}

func once() *topicv1.SubscriptionConfig {
	c := earliest()
	c.Retry = &topicv1.RetryPolicy{MaxAttempts: 1}
	return c
}

// fails returns messages that are delivered once.
func (x *fixture) fails(s *Session, had []got, reason string) {
	x.t.Helper()
	back := &topicv1.NackSet{Positions: at(had).GetPositions(), Reason: reason}
	if _, err := s.Nack(x.t.Context(), back); err != nil {
		x.t.Fatal(err)
	}
}

func (x *fixture) deadLetters(name string) (n int64) {
	x.t.Helper()
	d, err := x.Topic(x.t.Context(), op, name+storage.DeadLetterSuffix)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, p := range d.GetPartitions() {
		n += p.GetEnd() - p.GetStart()
	}
	return n
}

// The same message of another generation of its group has a dead letter of its own.
func TestDeadLettersOfGenerations(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.publish("t", 0, 1)
		for n := range int64(2) {
			x.subscribe("t", "g", once())
			s := x.attach("t", "g", "m")
			x.fails(s, x.want(s, "0"), "a"+strings.Repeat("é", 501)) // is cut, not refused
			testkit.Advance(time.Second)
			if has := x.deadLetters("t"); has != n+1 {
				t.Errorf("%d dead letters, not %d", has, n+1)
			}
			if err := s.Detach(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A message that fails again after its group was moved back is a dead letter of its own: that
// from before may be done with. That a process ends meanwhile makes no further one.
func TestDeadLettersAfterAMove(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", once())
		x.publish("t", 0, 2)
		for n := range int64(3) {
			s := x.attach("t", "g", "m")
			x.fails(s, x.want(s, "0 1"), "")
			testkit.Advance(time.Second)
			x.restart()
			if has := x.deadLetters("t"); has != 2*(n+1) {
				t.Errorf("%d dead letters after %d moves", has, n)
			}
			if _, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{
				Topic: "t", Group: "g", To: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}},
			}); err != nil {
				t.Fatal(err)
			}
			x.restart()
		}
	})
}

// Dead letters that wait while their topic is removed and made again, with fewer partitions,
// are nobody's: the process lives, and the new topic has none.
func TestDeadLettersOfATopicThatIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noGraveyard{s, on, ""} }
		x.restart()
		on.Store(true)
		for _, partitions := range []int32{4, 1} {
			x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: partitions})
			x.subscribe("t", "g", once())
			for i := range 20 {
				x.publish("t", i, 1)
			}
			if partitions == 1 {
				break
			}
			s := x.attach("t", "g", "m")
			x.fails(s, x.receive(s), "")
			testkit.Advance(time.Second)
			if err := x.Delete(t.Context(), op, "t"); err != nil {
				t.Fatal(err)
			}
		}
		on.Store(false)
		testkit.Advance(time.Minute)
		if x.engine.Catalog.Topic("t.dlq") != nil {
			t.Error("the new topic has dead letters of the old one")
		}
		x.want(x.attach("t", "g", "m"), numbers(0, 20))
	})
}

// Dead letters that cannot be stored hold up those of no other topic.
func TestDeadLettersDoNotWaitForOthers(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noGraveyard{s, on, "bad"} }
		x.restart()
		on.Store(true)
		for _, name := range []string{"bad", "good"} {
			x.groups(name)
			x.subscribe(name, "g", once())
			x.publish(name, 0, 1)
			s := x.attach(name, "g", "m")
			x.fails(s, x.want(s, "0"), "")
		}
		testkit.Advance(time.Second)
		if n := x.deadLetters("good"); n != 1 {
			t.Errorf("%d dead letters", n)
		}
		on.Store(false)
		testkit.Advance(time.Minute)
		if n := x.deadLetters("bad"); n != 1 {
			t.Errorf("%d dead letters in the end", n)
		}
	})
}

// badLog has positions that cannot be read, and counts writes.
type badLog struct {
	commitlog.Log
	bad    func(position int64) bool
	writes atomic.Int64
}

func (l *badLog) Read(ctx context.Context, p commitlog.Partition, from int64, n int) ([]*commitlog.Batch, error) {
	if n == 1 && l.bad(from) {
		return nil, &commitlog.CorruptError{Partition: p, From: from, To: from + 1, Cause: store.ErrCorrupt}
	}
	return l.Log.Read(ctx, p, from, n)
}

func (l *badLog) Begin(ctx context.Context, a []commitlog.Append) (*commitlog.Pending, error) {
	l.writes.Add(1)
	return l.Log.Begin(ctx, a)
}

// Dead letters that come together take one write, and one that cannot be read any more stops
// neither them nor its group.
func TestDeadLettersTogether(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		log := &badLog{bad: func(position int64) bool { return position == 50 }}
		x.over = func(l commitlog.Log) commitlog.Log { log.Log = l; return log }
		x.restart()
		x.groups("t")
		x.subscribe("t", "g", once())
		for i := range 100 {
			x.publish("t", i, 1)
		}
		s := x.attach("t", "g", "m")
		had := x.want(s, numbers(0, 100))
		before := log.writes.Load()
		x.fails(s, had, "")
		testkit.Advance(time.Minute)
		if n, w := x.deadLetters("t"), log.writes.Load()-before; n != 99 || w > 3 {
			t.Errorf("%d dead letters in %d writes", n, w)
		}
		if d := x.subscription("t", "g").GetPartitions()[0]; d.GetFloor() != 100 || d.GetPending() != 0 {
			t.Error(d)
		}
	})
}

// A removal that fails, or whose caller goes, comes to its end: by another call, or by
// itself, and meanwhile nobody has the name.
func TestRemovalComesToItsEnd(t *testing.T) {
	for _, again := range []bool{true, false} {
		bubble(t, func(t *testing.T, x *fixture) {
			on := &atomic.Bool{}
			x.wrap = func(s store.Store) store.Store { return leftover{s, on} }
			x.restart()
			x.groups("t", "g")
			on.Store(true)
			if err := x.Delete(t.Context(), op, "t"); err == nil {
				t.Fatal("no error")
			}
			if err := x.Delete(t.Context(), op, "t"); err == nil {
				t.Error("it is said to be removed")
			}
			if err := x.Delete(t.Context(), maker, "t"); err == nil {
				t.Error("anybody may continue")
			}
			on.Store(false)
			if again {
				if err := x.Delete(t.Context(), op, "t"); err != nil {
					t.Error(err)
				}
			} else {
				testkit.Advance(2 * time.Minute)
			}
			refusedAs(t, x.Delete(t.Context(), op, "t"), refusal.TopicNotFound)
			x.groups("t", "g")
		})
	}
}

// cancelling ends the caller's context when a topic is marked.
type cancelling struct {
	store.Store
	cancel atomic.Pointer[context.CancelFunc]
}

func (c *cancelling) Transact(ctx context.Context, p store.Plan) error {
	err := c.Store.Transact(ctx, p)
	if cancel := c.cancel.Load(); cancel != nil && p.Writes[0].Key == table.TopicKey("t") {
		(*cancel)()
	}
	return err
}

func TestRemovalOutlivesItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		c := &cancelling{}
		x.wrap = func(s store.Store) store.Store { c.Store = s; return c }
		x.restart()
		x.groups("t", "g")
		ctx, cancel := context.WithCancel(t.Context())
		c.cancel.Store(&cancel)
		if err := x.Delete(ctx, op, "t"); err != nil || ctx.Err() == nil || x.engine.Catalog.Topic("t") != nil {
			t.Error(err, ctx.Err())
		}
	})
}
