package commitlogtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/commitlog"
)

// request are the appends of a request of producer p to two partitions: the first half of its
// messages goes to partition 0, the second half to partition 1. With fewer than two messages
// partition 1 remembers the number only.
func (f *fixture) request(number int64, list ...*commitlog.Message) []commitlog.Append {
	a := commitlog.Append{Partition: f.at, Messages: list[:(len(list)+1)/2],
		Producer: commitlog.Producer{ID: "p", Number: number}, Request: commitlog.HashOf(list)}
	b := a
	b.Partition.Number, b.Messages = 1, list[len(a.Messages):]
	return []commitlog.Append{a, b}
}

// stays is called with a function that must store nothing, and remember nothing.
func (f *fixture) stays(t *testing.T, what string, try func()) {
	t.Helper()
	state := func() (all string) {
		for n := range int32(2) {
			p := commitlog.Partition{Topic: f.at.Topic, Number: n}
			_, end, err := f.Bounds(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			known, err := f.Remembered(t.Context(), p, "p")
			if err != nil {
				t.Fatal(err)
			}
			all += fmt.Sprintln(n, end, known)
		}
		return all
	}
	before := state()
	try()
	if after := state(); after != before {
		t.Errorf("%s: the log was\n%sand is\n%s", what, before, after)
	}
}

func rich() *commitlog.Message {
	return &commitlog.Message{Key: "k", Type: "t", CorrelationId: "c", Payload: []byte("payload"),
		Headers: map[string]string{"a": "1", "b": "2", "c": "3", "d": "4"}}
}

// The same number with the same messages is a repetition; with anything else it is refused and
// nothing of it is stored, whichever partitions its messages go to.
func requests(t *testing.T, f *fixture) {
	for n, first := range [][]*commitlog.Message{{rich(), rich(), Message(1), Message(2)}, {rich()}} {
		number := int64(n + 1)
		done, err := f.Append(t.Context(), f.request(number, first...))
		if err != nil || done[0].Replayed || done[1].Replayed || done[1].Count != len(first)/2 {
			t.Fatalf("request %d: %+v, %v", number, done, err)
		}
		f.stays(t, "a repetition", func() {
			for range 8 { // each time the headers have another order
				again, err := f.Append(t.Context(), f.request(number, first...))
				if err != nil || !again[0].Replayed || !again[0].Same || again[0].Base != done[0].Base ||
					!again[1].Replayed || !again[1].Same || again[1].Count != done[1].Count {
					t.Fatalf("request %d again: %+v, %v", number, again, err)
				}
			}
		})
		for what, change := range map[string]func(*commitlog.Message){
			"payload":     func(m *commitlog.Message) { m.Payload = []byte("another") },
			"no payload":  func(m *commitlog.Message) { m.Payload = nil },
			"key":         func(m *commitlog.Message) { m.Key = "l" },
			"type":        func(m *commitlog.Message) { m.Type = "" },
			"correlation": func(m *commitlog.Message) { m.CorrelationId = "d" },
			"header":      func(m *commitlog.Message) { m.Headers["a"] = "2" },
			"new header":  func(m *commitlog.Message) { m.Headers["e"] = "" },
			"ttl":         func(m *commitlog.Message) { m.Ttl = durationpb.New(time.Minute) },
			"delay":       func(m *commitlog.Message) { m.Delay = durationpb.New(time.Minute) },
			"time":        func(m *commitlog.Message) { m.DeliverTime = timestamppb.New(time.Unix(1<<33, 0)) },
			"id":          func(m *commitlog.Message) { m.DeduplicationId = "d" },
			"no header":   func(m *commitlog.Message) { delete(m.Headers, "d") },
			"moved text":  func(m *commitlog.Message) { m.Key, m.Type = "kt", "" },
		} {
			other := append([]*commitlog.Message{proto.CloneOf(first[0])}, first[1:]...)
			change(other[0])
			f.refused(t, what, f.request(number, other...), commitlog.ErrProducerReuse)
			swapped := f.request(number, other...)
			swapped[0].Partition, swapped[1].Partition = swapped[1].Partition, swapped[0].Partition
			f.refused(t, what+", at other partitions", swapped, commitlog.ErrProducerReuse)
			f.refused(t, what+", at one of them", f.request(number, other...)[:1], commitlog.ErrProducerReuse)
		}
		f.refused(t, "more messages", f.request(number, append(first, rich(), rich())...), commitlog.ErrProducerReuse)
	}
	list := []*commitlog.Message{Message(1), Message(2), rich(), rich()}
	f.refused(t, "another order", f.request(1, list...), commitlog.ErrProducerReuse)
	list = []*commitlog.Message{rich(), Message(9)}
	if done, err := f.Append(t.Context(), f.request(3, list...)); err != nil || done[0].Replayed {
		t.Errorf("what was refused stands in the way: %+v, %v", done, err)
	}
	known, err := f.Remembered(t.Context(), f.at, "p")
	if err != nil || len(known) != 3 || known[0].Number != 1 || known[2].Number != 3 || known[0].Count != 2 {
		t.Errorf("%+v are remembered, %v", known, err)
	}
}

func (f *fixture) refused(t *testing.T, what string, list []commitlog.Append, want error) {
	t.Helper()
	f.stays(t, what, func() {
		if done, err := f.Append(t.Context(), list); !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v", what, done, err)
		}
	})
}

// A number that only a part of its partitions remembers is refused: of one that they forgot it is
// not known whether all of it was stored.
func forgottenParts(t *testing.T, f *fixture) {
	first := []*commitlog.Message{rich(), Message(1)}
	if _, err := f.Append(t.Context(), f.request(1, first...)); err != nil {
		t.Fatal(err)
	}
	for n := range int64(commitlog.ProducerWindow) {
		one := f.request(n+2, Message(int(n)))[:1] // partition 1 does not remember it
		if _, err := f.Append(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	f.refused(t, "forgotten in partition 0", f.request(1, first...), commitlog.ErrProducerNumber)
	f.refused(t, "in partition 0 only", f.request(9, Message(7), Message(8)), commitlog.ErrProducerReuse)
	one := f.request(9, Message(7)) // whose number partition 1 need not have
	f.stays(t, "remembered with its messages", func() {
		if done, err := f.Append(t.Context(), one); err != nil || !done[0].Same || !done[1].Replayed {
			t.Errorf("%+v, %v", done, err)
		}
	})
	whole := []*commitlog.Message{Message(3), Message(4)}
	part := f.request(100, whole...)
	if _, err := f.Append(t.Context(), part[:1]); err != nil {
		t.Fatal(err)
	}
	f.refused(t, "a part of the same request", part, commitlog.ErrProducerNumber)
}

// Numbers that earlier releases stored have no hash: a repetition is one if it has as many
// messages in each partition.
func unhashed(t *testing.T, f *fixture) {
	old := func(number int64, list ...*commitlog.Message) (appends []commitlog.Append) {
		for _, a := range f.request(number, list...) {
			if a.Request = [16]byte{}; len(a.Messages) > 0 {
				appends = append(appends, a)
			}
		}
		return appends
	}
	for number, list := range [][]*commitlog.Message{{Message(0)}, {Message(1)}, {Message(2), Message(3)}} {
		if _, err := f.Append(t.Context(), old(int64(number), list...)); err != nil {
			t.Fatal(err)
		}
	}
	f.stays(t, "repetitions", func() {
		for number, list := range [][]*commitlog.Message{{Message(0)}, {rich()}, {rich(), Message(4)}} {
			done, err := f.Append(t.Context(), f.request(int64(number), list...))
			if err != nil || !done[0].Replayed || done[0].Same || !done[1].Replayed {
				t.Errorf("number %d: %+v, %v", number, done, err)
			}
		}
	})
	f.refused(t, "another count", f.request(0, rich(), rich(), rich()), commitlog.ErrProducerReuse)
	f.refused(t, "more partitions", f.request(1, Message(1), rich()), commitlog.ErrProducerReuse)
	f.refused(t, "fewer partitions", f.request(2, Message(2)), commitlog.ErrProducerReuse)
	if _, err := f.Append(t.Context(), f.request(3, rich())); err != nil {
		t.Fatal(err)
	}
	f.stays(t, "a hash is asked for by the repetition alone", func() {
		if done, err := f.Append(t.Context(), old(3, rich())); err != nil || !done[0].Replayed || done[0].Same {
			t.Errorf("%+v, %v", done, err)
		}
	})
}
