package topic

import (
	"errors"
	"fmt"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/operations"
)

// scanned lists the dead letters of a topic's messages.
func (x *fixture) scanned(topic string) (list []operations.DeadLetter) {
	x.t.Helper()
	of, first := operations.DeadLetterSelection{Topic: topic}, operations.DeadLetterPosition{}
	err := x.DeadLetters().Scan(x.t.Context(), of, first, func(l operations.DeadLetter) error {
		list = append(list, l)
		return nil
	})
	if err != nil {
		x.t.Fatal(err)
	}
	return list
}

// A dead letter goes back to the group that gave it up and to no other one, once,
// however often that is repeated, also by a later process; what it was comes with it.
func TestDeadLetterGoesBackToItsGroup(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "other")
		x.subscribe("t", "g", once())
		s, other := x.attach("t", "g", "m"), x.attach("t", "other", "m")
		m := &topicv1.TopicMessage{Key: "k", Type: "placed", CorrelationId: "c", Payload: []byte("0"),
			Headers: map[string]string{"own": "1"}}
		req := &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{m}}
		if _, err := x.Publish(t.Context(), op, req); err != nil {
			t.Fatal(err)
		}
		x.ack(other, x.want(other, "0"))
		began := time.Now()
		x.fails(s, x.want(s, "0"), "no such customer")
		testkit.Advance(time.Second)
		list := x.scanned("t")
		if len(list) != 1 || list[0].LogPosition.ID() != "t.dlq/0-0" || list[0].Group != "g" || list[0].Topic != "t" ||
			list[0].Attempts != 1 || list[0].Reason != "no such customer" || list[0].Position != 0 ||
			list[0].First.Sub(began).Abs() > time.Minute {
			t.Fatalf("%+v", list)
		}
		testkit.Advance(time.Hour)
		for range 3 { // as after crashes before the call was recorded
			if err := x.DeadLetters().Redrive(t.Context(), list[0]); err != nil {
				t.Fatal(err)
			}
			x.restart()
		}
		s, other = x.attach("t", "g", "m"), x.attach("t", "other", "m")
		had := x.want(s, "0")
		if h := had[0].message.GetHeaders(); had[0].attempt != 1 || had[0].message.GetKey() != "k" || h["own"] != "1" ||
			had[0].message.GetType() != "placed" || had[0].message.GetCorrelationId() != "c" ||
			h[operations.HeaderRedriven] != "t.dlq/0-0" || h[operations.HeaderGroup] != "" {
			t.Errorf("%+v", had[0])
		}
		x.want(other, "")
		if d := x.subscription("t", "other"); d.GetFiltered() != 1 {
			t.Errorf("another group: %v", d)
		}
		x.fails(s, had, "still no such customer")
		testkit.Advance(time.Second)
		if list = x.scanned("t"); len(list) != 2 || list[1].LogPosition.ID() != "t.dlq/0-1" || list[1].Position != 1 ||
			list[1].Last.Sub(list[1].First) < time.Hour || !list[1].First.Equal(list[0].First) {
			t.Errorf("%+v", list)
		}
		if x.status("t", "0-1").GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error("what all are done with is not complete")
		}
	})
}

// A dead letter goes back into a queue, too. It does not go to a subscription that has ended, and
// after its topic was removed there is none.
func TestDeadLetterWithoutItsGroup(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", once())
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 1)
		x.fails(s, x.want(s, "0"), "")
		testkit.Advance(time.Second)
		l := x.scanned("t")[0]
		taken := func() bool {
			is, err := x.DeadLetters().Taken(t.Context(), l)
			return is && err == nil
		}
		there := func() bool {
			is, err := x.DeadLetters().There(t.Context(), []operations.DeadLetter{l})
			return err == nil && is[0]
		}
		if _, err := x.Pause(t.Context(), op, "t", "g"); err != nil || !taken() {
			t.Error("a paused group takes messages", err)
		}
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil || taken() {
			t.Error("a cancelled group takes messages", err)
		}
		if err := x.DeadLetters().Redrive(t.Context(), l); !errors.Is(err, operations.ErrDeadLetterGone) {
			t.Error(err)
		}
		if !there() {
			t.Error("the letter is not there any more")
		}
		if err := x.Delete(t.Context(), op, "t"); err != nil {
			t.Fatal(err)
		}
		if there() || taken() || len(x.scanned("")) != 0 {
			t.Error("the letters are there though their topic is not")
		}
	})
}

// A message that is parked is a dead letter until its key proceeds: by its delivery or,
// if it is discarded, without it. A restart, and nobody attached, change nothing.
func TestParkedMessageIsADeadLetter(t *testing.T) {
	for _, discard := range []bool{false, true} {
		bubble(t, func(t *testing.T, x *fixture) {
			x.groups("t")
			x.subscribe("t", "g", &topicv1.SubscriptionConfig{
				Ordering: topicv1.Ordering_ORDERING_KEY, Retry: &topicv1.RetryPolicy{MaxAttempts: 2},
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
			x.ack(s, had[1:])
			x.fails(s, had[:1], "")
			x.ack(s, x.want(s, "3"))
			testkit.Advance(time.Minute)
			x.fails(s, x.want(s, "0"), "")
			x.restart()
			found := x.scanned("t")
			if len(found) != 1 || found[0].LogPosition.ID() != "t/0-0/g" || found[0].Attempts != 2 ||
				string(found[0].Message.GetPayload()) != "0" {
				t.Fatalf("%+v", found)
			}
			do, rest := x.DeadLetters().Redrive, "0"
			if discard {
				do, rest = x.DeadLetters().Discard, "2"
			}
			if err := do(t.Context(), found[0]); err != nil {
				t.Fatal(err)
			}
			if err := do(t.Context(), found[0]); !errors.Is(err, operations.ErrDeadLetterGone) {
				t.Error("twice: ", err)
			}
			x.restart()
			if now := x.scanned("t"); len(now) != 0 {
				t.Errorf("%+v", now)
			}
			s = x.attach("t", "g", "m")
			x.ack(s, x.want(s, rest))
			if !discard {
				x.ack(s, x.want(s, "2"))
			}
		})
	}
}

// Dead letters are found by group, by position, and from a position on.
func TestSelectDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		for _, name := range []string{"t", "u"} {
			x.configure(name, &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 3})
			for _, g := range []string{"g", "h"} {
				x.subscribe(name, g, once())
				s := x.attach(name, g, "m")
				if g == "g" {
					for i := range 20 {
						x.publish(name, i, 1)
					}
				}
				x.fails(s, x.receive(s), "")
				testkit.Advance(time.Second)
			}
		}
		all := x.scanned("")
		if len(all) != 80 {
			t.Fatalf("%d letters", len(all))
		}
		count := func(sel operations.DeadLetterSelection, from operations.DeadLetterPosition) (n int) {
			err := x.DeadLetters().Scan(t.Context(), sel, from, func(l operations.DeadLetter) error {
				if l.LogPosition.Compare(from) < 0 {
					t.Errorf("%v comes before %v", l.LogPosition, from)
				}
				n++
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		for i, l := range all {
			if i > 0 && all[i-1].LogPosition.Compare(l.LogPosition) >= 0 {
				t.Fatalf("%v is behind %v", l.LogPosition, all[i-1].LogPosition)
			}
			if p, ok := operations.DeadLetterPositionOf(l.LogPosition.ID()); !ok || p != l.LogPosition {
				t.Errorf("%s is read as %v", l.LogPosition.ID(), p)
			}
			if n := count(operations.DeadLetterSelection{}, l.LogPosition); n != len(all)-i {
				t.Errorf("from %v on there are %d, not %d", l.LogPosition, n, len(all)-i)
			}
			one := operations.DeadLetterSelection{Positions: []operations.DeadLetterPosition{l.LogPosition}}
			if n := count(one, operations.DeadLetterPosition{}); n != 1 {
				t.Errorf("%v is found %d times", l.LogPosition, n)
			}
		}
		for name, c := range map[string]struct {
			sel  operations.DeadLetterSelection
			want int
		}{
			"topic": {operations.DeadLetterSelection{Topic: "t"}, 40},
			"group": {operations.DeadLetterSelection{Group: "h"}, 40},
			"log":   {operations.DeadLetterSelection{Logs: map[string]bool{"u.dlq": true}}, 40},
			"both":  {operations.DeadLetterSelection{Topic: "t", Group: "g", Dead: true}, 20},
			"none":  {operations.DeadLetterSelection{Topic: "v"}, 0},
		} {
			if n := count(c.sel, operations.DeadLetterPosition{}); n != c.want {
				t.Errorf("%s: %d, not %d", name, n, c.want)
			}
		}
		for _, id := range []string{"", "t", "t/", "t/0", "t/0-", "t/-1-0", "t/0--1", "t/0-0/g/x",
			"g/t/0/0", fmt.Sprint("t/", 1<<40, "-0")} {
			if p, ok := operations.DeadLetterPositionOf(id); ok {
				t.Errorf("%q is the place %v", id, p)
			}
		}
	})
}
