package topic

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

func (x *fixture) watermark(name string) int64 {
	x.t.Helper()
	d, err := x.Topic(x.t.Context(), op, name)
	if err != nil {
		x.t.Fatal(err)
	}
	return d.GetPartitions()[0].GetWatermark()
}

// What a cancelled generation has completed is complete after a restart, too, though nothing
// has happened since the next one began.
func TestCompletionOutlivesTheGeneration(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 10)
		s := x.attach("t", "g", "m")
		x.ack(s, x.want(s, numbers(0, 10)))
		if err := s.Detach(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		x.subscribe("t", "g", nil)
		x.restart()
		if x.status("t", "0-3").GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error("it is not complete any more")
		}
		if n := x.watermark("t"); n != 10 {
			t.Errorf("watermark %d, should be 10", n)
		}
	})
}

// A group that begins below the watermark does not move it back, not by a restart either.
func TestWatermarkStaysWithBackfill(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 10)
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		x.subscribe("t", "h", &topicv1.SubscriptionConfig{
			Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}, Backfill: true,
		})
		x.restart()
		if n := x.watermark("t"); n != 10 {
			t.Errorf("watermark %d, should be 10", n)
		}
	})
}

// Cursors of earlier generations are not kept.
func TestCursorsOfEarlierGenerationsGo(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		for range 5 {
			x.subscribe("t", "g", nil)
			if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
				t.Fatal(err)
			}
		}
		count := func() (n int) {
			q := store.Query{Table: store.Subscriptions, PK: table.CursorPartition(1, 0)}
			for row, err := range store.QueryAll(t.Context(), x.store, q) {
				if err != nil {
					t.Fatal(err)
				}
				if row.Key.SK != table.MachineKey(1, 0).SK {
					n++
				}
			}
			return n
		}
		time.Sleep(2 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d cursors", n)
		}
		x.restart()
		x.subscribe("t", "g", nil)
	})
}

// A member that joins while the last one leaves and ends the subscription keeps it.
func TestLeaveSparesWhoHasJoined(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "joined")
		request := &topicv1.CancelSubscriptionRequest{Topic: "t", Group: "g"}
		if _, err := x.ask(t.Context(), op, "t", "g", storage.Leave, request); err != nil {
			t.Fatal(err)
		}
		x.publish("t", 0, 1)
		x.want(s, "0")
		if err := s.Detach(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if state := x.state("t", "g"); state != storage.Cancelled {
			t.Errorf("without members it is %s", state)
		}
	})
}

// A clock that is set back holds no message longer than its lease.
func TestClockBackHoldsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		a := x.attach("t", "g", "a")
		x.publish("t", 0, 1)
		x.want(a, "0")
		x.ahead.Add(-int64(6 * time.Hour))
		b := x.attach("t", "g", "b")
		time.Sleep(40 * time.Second)
		if n := len(x.receive(a)) + len(x.receive(b)); n != 1 {
			t.Errorf("%d messages come again after the lease", n)
		}
		a.End("DETACHED")
		b.End("DETACHED")
	})
}

// What is unparked is stored when the call returns.
func TestUnparkIsDurable(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 1})
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{
			Exhausted: topicv1.Exhausted_EXHAUSTED_PARK_KEY, Retry: &topicv1.RetryPolicy{MaxAttempts: 1},
		})
		x.publish("t", 0, 1)
		s := x.attach("t", "g", "m")
		if _, err := s.Nack(t.Context(), &topicv1.NackSet{Positions: at(x.want(s, "0")).Positions}); err != nil {
			t.Fatal(err)
		}
		x.want(s, "")
		time.Sleep(3 * time.Second)
		if n, err := x.Unpark(t.Context(), op, "t", "g", nil); n != 1 || err != nil {
			t.Fatalf("%d unparked, %v", n, err)
		}
		if x.engine.Topics.Opened(1).Parts[0].Unsaved("g") {
			t.Error("it is not stored")
		}
		s.End("DETACHED")
	})
}

// Keys of what is parked are read from the log where a restart has forgotten them, also more
// than is kept in memory.
func TestUnparkReadsKeys(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{
			Exhausted: topicv1.Exhausted_EXHAUSTED_PARK_KEY, Retry: &topicv1.RetryPolicy{MaxAttempts: 1},
		})
		s := x.attach("t", "g", "m")
		payload := bytes.Repeat([]byte("x"), 900_000)
		for i := range 12 {
			list := []*topicv1.TopicMessage{{Key: fmt.Sprint(i), Payload: payload}}
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Nack(t.Context(), &topicv1.NackSet{Positions: at(x.receive(s)).Positions}); err != nil {
				t.Fatal(err)
			}
		}
		s.End("DETACHED")
		x.restart()
		if n, err := x.Unpark(t.Context(), op, "t", "g", strings.Fields(numbers(0, 8))); n != 8 || err != nil {
			t.Errorf("%d unparked, %v", n, err)
		}
		if n, err := x.Unpark(t.Context(), op, "t", "g", nil); n != 4 || err != nil {
			t.Errorf("%d unparked, %v", n, err)
		}
	})
}
