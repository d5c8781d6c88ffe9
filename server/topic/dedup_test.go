package topic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// identified publishes messages in one request, of which each is its id, and returns where they stand and which were
// stored before, such as "0-0 0-1=".
func (x *fixture) identified(name string, list ...*topicv1.TopicMessage) (string, error) {
	r, err := x.Publish(context.Background(), op, &topicv1.PublishRequest{Topic: name, Messages: list})
	var positions []string
	for _, p := range r.GetResults() {
		position := p.GetMessageId()
		if p.GetReplayed() {
			position += "="
		}
		positions = append(positions, position)
	}
	return strings.Join(positions, " "), err
}

func withID(id, payload string) *topicv1.TopicMessage {
	return &topicv1.TopicMessage{DeduplicationId: id, Payload: []byte(payload)}
}

// A message with an id that is known is stored once, and its publish is answered with the position of the first one:
// in other requests, in the same, and after a restart, within five minutes.
func TestDeduplication(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		positions := func(what, want string, list ...*topicv1.TopicMessage) {
			t.Helper()
			got, err := x.identified("t", list...)
			testkit.Must(t, err)
			testkit.Equal(t, what, got, want)
		}
		positions("the first", "0-0 0-1", withID("a", "1"), withID("", "2"))
		positions("again, and another", "0-0= 0-2 0-2=", withID("a", "1"), withID("b", "3"), withID("b", "3"))
		positions("all again", "0-0= 0-2=", withID("a", "1"), withID("b", "3"))
		later := withID("a", "1")
		later.Delay = durationpb.New(time.Hour)
		positions("with another time", "0-0=", later)
		x.restart()
		positions("after a restart", "0-2= 0-0=", withID("b", "3"), withID("a", "1"))
		_, err := x.identified("t", withID("c", "new"), withID("a", "other"))
		refusedAs(t, err, refusal.DeduplicationIDReused)
		_, err = x.identified("t", withID("d", "one"), withID("d", "other"))
		refusedAs(t, err, refusal.DeduplicationIDReused)
		positions("of a request that was refused", "0-3 0-4", withID("c", "4"), withID("d", "5"))
		stored := time.Now()
		_, err = x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{
			withID("e", "")}, Producer: &topicv1.Producer{Id: "p", Number: 1}})
		refusedAs(t, err, refusal.InvalidArgument)
		testkit.Equal(t, "received", payloads(x.work(x.attach("t", "g", "m"))), "1 2 3 4 5")
		testkit.Advance(serving.IDWindow - time.Since(stored) - time.Second)
		positions("within the window", "0-3=", withID("c", "4"))
		testkit.Advance(2 * time.Second)
		positions("after the window", "0-5", withID("c", "other"))
		x.restart()
		positions("after it and a restart", "0-6 0-5=", withID("d", "other"), withID("c", "other"))
	})
}

// An id counts in its partition, which a message without a key has of its id.
func TestDeduplicationInPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Partitions: 8})
		var list []*topicv1.TopicMessage
		for i := range 100 {
			list = append(list, withID(fmt.Sprint("id-", i), "same"))
		}
		first, err := x.identified("t", list...)
		testkit.Must(t, err)
		again, err := x.identified("t", list...)
		testkit.Must(t, err)
		testkit.Equal(t, "again", strings.ReplaceAll(again, "=", ""), first)
		testkit.Equal(t, "repetitions", strings.Count(again, "="), 100)
		keyed := func(key string) *topicv1.TopicMessage {
			m := withID("of keys", "same")
			m.Key = key
			return m
		}
		used := map[int32]bool{}
		for i := range 20 {
			key := fmt.Sprint("key-", i)
			_, err := x.identified("t", keyed(key))
			if n := commitlog.PartitionOf(key, 8); used[n] {
				refusedAs(t, err, refusal.DeduplicationIDReused) // the key is part of the message
			} else {
				testkit.Must(t, err)
				used[n] = true
			}
		}
	})
}

// lossyLog stores what is appended, and says that it has not.
type lossyLog struct {
	commitlog.Log
	on *atomic.Bool
}

func (l lossyLog) Begin(ctx context.Context, appends []commitlog.Append) (*commitlog.Pending, error) {
	p, err := l.Log.Begin(ctx, appends)
	if err == nil && l.on.Load() {
		if err := p.Wait(ctx); err != nil {
			return nil, err
		}
		return nil, errLossy
	}
	return p, err
}

var errLossy = errors.New("the answer is lost")

// After an outcome that is not known the log says what is stored.
func TestDeduplicationAfterAnUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		l := lossyLog{on: &atomic.Bool{}}
		x.over = func(log commitlog.Log) commitlog.Log { l.Log = log; return l }
		x.restart()
		x.groups("t", "g")
		l.on.Store(true)
		if _, err := x.identified("t", withID("a", "1")); !errors.Is(err, errLossy) {
			t.Fatal(err)
		}
		l.on.Store(false)
		got, err := x.identified("t", withID("a", "1"), withID("b", "2"))
		testkit.Must(t, err)
		testkit.Equal(t, "again", got, "0-0= 0-1")
		x.restart()
		testkit.Equal(t, "received", payloads(x.work(x.attach("t", "g", "m"))), "1 2")
	})
}

// Publishers that send the same messages at the same time, in many orders and of several partitions, store each once
// and all learn where it stands. Those that give up store nothing twice either.
func TestDeduplicationAtTheSameTime(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Partitions: 4})
		const publishers, ids = 8, 60
		positions := make([]map[string]string, publishers)
		var wg sync.WaitGroup
		for n := range publishers {
			positions[n] = map[string]string{}
			wg.Go(func() {
				for i := 0; i < ids; i += 3 {
					var list []*topicv1.TopicMessage
					for k := range 6 { // half of them are in the next request as well
						at := (i + k + n*7) % ids
						if n%2 == 1 {
							at = ids - 1 - at
						}
						list = append(list, withID(fmt.Sprint("id-", at), fmt.Sprint(at)))
					}
					if n == 0 && i%2 == 0 {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*50*time.Microsecond)
						_, _ = x.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t", Messages: list})
						cancel()
					}
					r, err := x.Publish(context.Background(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
					if err != nil {
						t.Error(err)
						return
					}
					for j, p := range r.GetResults() {
						id := list[j].GetDeduplicationId()
						if was, ok := positions[n][id]; ok && was != p.GetMessageId() {
							t.Errorf("%s is %s, and was %s", id, p.GetMessageId(), was)
						}
						positions[n][id] = p.GetMessageId()
					}
				}
			})
		}
		wg.Wait()
		for n := range publishers {
			testkit.Equal(t, fmt.Sprint("places of ", n), positions[n], positions[0])
		}
		testkit.Equal(t, "ids", len(positions[0]), ids)
		testkit.Equal(t, "stored", len(x.work(x.attach("t", "", "m"))), ids)
	})
}

// A clock that was ahead keeps no id for longer than the window, and what was published by it makes no other id known
// for longer.
func TestDeduplicationAndTheClock(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		publish := func(want string, list ...*topicv1.TopicMessage) {
			t.Helper()
			got, err := x.identified("t", list...)
			testkit.Must(t, err)
			testkit.Equal(t, "place", got, want)
		}
		x.ahead.Store(int64(time.Hour))
		publish("0-0", withID("a", "1"))
		x.ahead.Store(0)
		publish("0-1 0-2", withID("b", "2"), withID("a", "of today"))
		testkit.Advance(serving.IDWindow + time.Second)
		publish("0-3", withID("b", "another"))
	})
}

// A repetition is answered also where no message is stored any more: the topic is full, or as many wait as may.
func TestRepetitionsWhereThereIsNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{MaxBytes: proto.Int64(1 << 20)})
		first := withID("a", strings.Repeat("x", 1000))
		first.Delay = durationpb.New(time.Hour)
		got, err := x.identified("t", first)
		testkit.Must(t, err)
		testkit.Equal(t, "the first", got, "0-0")
		for i := 0; err == nil; i++ {
			_, err = x.identified("t", withID(fmt.Sprint(i), strings.Repeat("y", 100_000)))
		}
		refusedAs(t, err, refusal.TopicFull)
		got, err = x.identified("t", first)
		testkit.Must(t, err)
		testkit.Equal(t, "again", got, "0-0=")
		_, err = x.identified("t", first, withID("new", strings.Repeat("z", 100_000)))
		refusedAs(t, err, refusal.TopicFull)
	})
}

// As many ids are known of a partition as may be: more are refused, messages without an id are not. Ids whose window is
// over have no share in that, nor have those of a topic at rest.
func TestManyIDs(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		const each = 2000
		fill := func(topic string, from, n int) error {
			for i := from; i < from+n; i += each {
				list := make([]*topicv1.TopicMessage, each)
				for k := range list {
					list[k] = withID(fmt.Sprint(i+k), "")
				}
				if _, err := x.identified(topic, list...); err != nil {
					return err
				}
			}
			return nil
		}
		testkit.Must(t, fill("t", 0, serving.MaxIDs))
		_, err := x.identified("t", withID("one more", ""))
		refusedAs(t, err, refusal.TooMany)
		again, err := x.identified("t", withID("7", ""), withID("8", ""))
		testkit.Must(t, err)
		testkit.Equal(t, "those that are known", again, "0-7= 0-8=")
		x.publish("t", 0, 10)
		x.restart()
		_, err = x.identified("t", withID("one more", ""))
		refusedAs(t, err, refusal.TooMany)
		for n := range serving.MaxAllIDs/serving.MaxIDs - 1 {
			name := fmt.Sprint("other-", n)
			x.groups(name, "g")
			testkit.Must(t, fill(name, 0, serving.MaxIDs))
		}
		x.groups("last", "g")
		_, err = x.identified("last", withID("a", ""))
		refusedAs(t, err, refusal.TooMany)
		testkit.Advance(serving.IDWindow)
		testkit.Must(t, fill("last", 0, serving.MaxIDs))
	})
}
