package topic

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// noCursorReads fails the reads of cursors while it is on.
type noCursorReads struct {
	store.Store
	on *atomic.Bool
}

func (n noCursorReads) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if n.on.Load() && q.Table == store.Subscriptions {
		return store.Page{}, store.ErrUnavailable
	}
	return n.Store.Query(ctx, q)
}

// A message that a member returned for the last time becomes a dead letter although the process
// ends before the dead letter is stored, no member attaches again and no call uses the topic.
// When the heartbeat timeout is over, the group is dead and the message would be gone.
func TestDeadLettersNeedNoMember(t *testing.T) {
	keyed := once()
	keyed.Ordering, keyed.Exhausted = topicv1.Ordering_ORDERING_KEY, topicv1.Exhausted_EXHAUSTED_DEAD_LETTER
	for name, config := range map[string]*topicv1.SubscriptionConfig{"any order": once(), "in order of key": keyed} {
		for _, paused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/paused %t", name, paused), func(t *testing.T) { deadLettersWithoutMember(t, config, paused) })
		}
	}
}

func deadLettersWithoutMember(t *testing.T, config *topicv1.SubscriptionConfig, paused bool) {
	bubble(t, func(t *testing.T, x *fixture) {
		on, unread := &atomic.Bool{}, &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noCursorReads{noGraveyard{s, on, ""}, unread} }
		x.restart()
		x.groups("t")
		x.subscribe("t", "g", config)
		x.publish("t", 0, 3)
		on.Store(true)
		s := x.attach("t", "g", "m")
		x.fails(s, x.want(s, numbers(0, 3))[:2], "no such customer")
		s.End("DETACHED")
		if paused {
			if _, err := x.Pause(t.Context(), op, "t", "g"); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Advance(time.Second)
		unread.Store(true)
		x.restart()
		testkit.Advance(time.Minute) // the cursors cannot be read
		unread.Store(false)
		testkit.Advance(time.Minute) // the dead letters cannot be stored
		on.Store(false)
		testkit.Advance(time.Minute)
		if x.engine.Catalog.Topic("t.dlq") == nil {
			t.Fatal("there are no dead letters")
		}
		if n := x.deadLetters("t"); n != 2 {
			t.Errorf("%d dead letters", n)
		}
		if d := x.subscription("t", "g").GetPartitions()[0]; d.GetPending() != 1 {
			t.Error("what has a letter is not acknowledged: ", d)
		}
	})
}

// noCursorWrites fails the writes of cursors and subscriptions while it is on.
type noCursorWrites struct {
	store.Store
	on *atomic.Bool
}

func (n noCursorWrites) Transact(ctx context.Context, p store.Plan) error {
	ofGroups := func(w store.Write) bool { return w.Key.Table == store.Subscriptions }
	if n.on.Load() && slices.ContainsFunc(p.Writes, ofGroups) {
		return store.ErrUnavailable
	}
	return n.Store.Transact(ctx, p)
}

// A dead letter that was stored before the process ended, while its message was not acknowledged
// yet, is stored once, although the message fails again at another time and for another reason.
func TestDeadLetterOfASecondFailure(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noCursorWrites{s, on} }
		x.restart()
		x.groups("t")
		x.subscribe("t", "g", once())
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 1)
		x.fails(s, x.want(s, numbers(0, 1)), "the topic of letters is made")
		testkit.Advance(time.Minute)
		testkit.Equal(t, "letters", x.deadLetters("t"), 1)
		x.publish("t", 1, 1)
		had := x.want(s, numbers(1, 1))
		on.Store(true)
		x.fails(s, had, "no such customer")
		testkit.Advance(10 * time.Second)
		testkit.Equal(t, "letters before the end", x.deadLetters("t"), 2)
		x.restart()
		on.Store(false)
		s = x.attach("t", "g", "m")
		x.fails(s, x.want(s, numbers(1, 1)), "another reason")
		testkit.Advance(time.Minute)
		testkit.Equal(t, "letters after the second failure", x.deadLetters("t"), 2)
		d := x.subscription("t", "g").GetPartitions()[0]
		testkit.Equal(t, "pending", d.GetPending(), 0)
	})
}
