package delivery

import (
	"testing"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

func message(version int64) *eventv1.MessagePersisted {
	return &eventv1.MessagePersisted{Metadata: &eventv1.EventMetadata{Version: version}, ChatId: "c", Sequence: version}
}

// Changes in any order are walked one by one; what was walked is not taken in again.
func TestOrder(t *testing.T) {
	var l changeLog
	for _, v := range []int64{5, 3, 4, 8} {
		l.Receive(message(v))
	}
	if c := l.Next(2); c != nil {
		t.Fatalf("version %d without a position", c.Version)
	}
	l.Start(3)
	var walked []int64
	for c := l.Next(2); c != nil; c = l.Next(2) {
		walked = append(walked, c.Version)
	}
	if len(walked) != 2 || l.Version != 5 || l.Newest != 8 {
		t.Fatalf("walked %v, version %d, wanted %d", walked, l.Version, l.Newest)
	}
	if l.Receive(message(5)) {
		t.Error("what was walked is fresh")
	}
	l.Fill(message(6))
	l.Complete()
	if c := l.Next(2); c == nil || c.Version != 6 || l.Newest != 8 {
		t.Errorf("%v, wanted %d", c, l.Newest)
	}
	if _, ok := l.Since(3); ok {
		t.Error("more is kept than was asked for")
	}
	if missed, ok := l.Since(4); !ok || len(missed) != 2 || missed[0].Version != 5 {
		t.Errorf("since 4: %v", missed)
	}
	if missed, ok := l.Since(6); !ok || len(missed) != 0 {
		t.Errorf("since 6: %v", missed)
	}
}

// What is delivered out of order is bounded, what was read is not: it would be read again.
func TestBound(t *testing.T) {
	var l changeLog
	l.Start(0)
	for v := int64(2); v < 1000; v++ {
		l.Receive(message(v))
	}
	if len(l.waiting) != 64 || l.Newest != 999 {
		t.Errorf("%d changes wait, wanted is %d", len(l.waiting), l.Newest)
	}
	l.Receive(message(1)) // the one that is missing always fits
	for v := int64(1); v <= 65; v++ {
		if c := l.Next(32); c == nil || c.Version != v {
			t.Fatalf("%v where %d should be", c, v)
		}
	}
	for v := int64(67); v < 167; v++ {
		l.Fill(message(v))
	}
	if len(l.waiting) != 100 {
		t.Errorf("%d changes wait that were read", len(l.waiting))
	}
}
