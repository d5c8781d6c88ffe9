// Package commitlogtest is the contract of logs as a suite of tests, which every
// implementation runs.
//
// It owns no log. Concurrency: the functions are called from tests.
package commitlogtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/commitlog"
)

// Stored is a message that must be in a partition.
type Stored struct {
	Position int64
	Time     int64 // unix ms
	Message  *commitlog.Message
}

// Reader tests a Reader of a partition that holds just these messages, in order, and ends
// with a position. Positions without a message do not exist.
func Reader(t *testing.T, r commitlog.Reader, p commitlog.Partition, start, end int64, want []Stored) {
	t.Helper()
	if s, e, err := r.Bounds(t.Context(), p); err != nil || s != start || e != end {
		t.Fatalf("bounds are %d and %d (%v), want %d and %d", s, e, err, start, end)
	}
	for _, size := range []int{1, 1000, 1 << 20} {
		if err := readFrom(t, r, p, start, end, size, want); err != nil {
			t.Errorf("%d bytes at once: %v", size, err)
		}
	}
	for i := range want {
		if err := readFrom(t, r, p, want[i].Position, end, 1<<20, want[i:]); err != nil {
			t.Errorf("from %d on: %v", want[i].Position, err)
		}
	}
	if got, err := r.Read(t.Context(), p, end, 1<<20); err != nil || len(got) != 0 {
		t.Errorf("at the end there are %d batches, %v", len(got), err)
	}
	if _, err := r.Read(t.Context(), p, end+1, 1<<20); !errors.Is(err, commitlog.ErrBeyondEnd) {
		t.Errorf("beyond the end: %v", err)
	}
	if start > 0 {
		if _, err := r.Read(t.Context(), p, start-1, 1<<20); !errors.Is(err, commitlog.ErrTrimmed) {
			t.Errorf("before the start: %v", err)
		}
	}
	positionsAt(t, r, p, end, want)
}

func readFrom(t *testing.T, r commitlog.Reader, p commitlog.Partition, from, end int64, size int, want []Stored) error {
	t.Helper()
	for next := from; next < end; {
		batches, err := r.Read(t.Context(), p, next, size)
		if err != nil {
			return err
		}
		if len(batches) == 0 {
			break // only voids are left
		}
		for _, b := range batches {
			for i := range b.Count() {
				at := b.Base + int64(i)
				if at < next {
					continue
				}
				if len(want) == 0 || want[0].Position != at {
					return fmt.Errorf("unexpected message at %d", at)
				}
				if err := same(b, i, want[0]); err != nil {
					return err
				}
				want = want[1:]
			}
			next = max(next, b.End())
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("position %d and %d more are missing", want[0].Position, len(want)-1)
	}
	return nil
}

func same(b *commitlog.Batch, i int, want Stored) error {
	got, err := b.Message(i)
	if err != nil {
		return err
	}
	if at := got.GetPublishTime().AsTime().UnixMilli(); at != want.Time || b.Time != want.Time {
		return fmt.Errorf("message at %d has time %d, its batch %d, want %d", want.Position, at, b.Time, want.Time)
	}
	if b.Key(i) != want.Message.GetKey() || b.Type(i) != want.Message.GetType() {
		return fmt.Errorf("message at %d: key %q, type %q", want.Position, b.Key(i), b.Type(i))
	}
	for name, value := range want.Message.GetHeaders() {
		if v, ok := b.Header(i, name); !ok || v != value {
			return fmt.Errorf("message at %d: header %q is %q", want.Position, name, v)
		}
	}
	if v, ok := b.Header(i, "no such header"); ok {
		return fmt.Errorf("message at %d: a header that it does not have is %q", want.Position, v)
	}
	if id := b.ID(i); id != want.Message.GetDeduplicationId() {
		return fmt.Errorf("message at %d: id %q, want %q", want.Position, id, want.Message.GetDeduplicationId())
	}
	ends := endOf(want)
	if at := b.Expiry(i); (at == 0) != ends.IsZero() || at != 0 && !ends.Equal(time.Unix(0, at)) ||
		!ends.IsZero() && !b.Expires() {
		return fmt.Errorf("message at %d ends at %d, want %v", want.Position, at, ends)
	}
	expected := proto.CloneOf(want.Message)
	if delay := expected.GetDelay(); delay != nil {
		due := time.UnixMilli(want.Time).Add(delay.AsDuration())
		if at := b.Delivery(i); !due.Equal(time.Unix(0, at)) || !b.Delays() {
			return fmt.Errorf("message at %d is due at %d, want %v", want.Position, at, due)
		}
		expected.Delay, expected.DeliverTime = nil, timestamppb.New(due)
	} else if at := b.Delivery(i); at != 0 {
		return fmt.Errorf("message at %d is due at %d, and does not wait", want.Position, at)
	}
	if expected.PublishTime, expected.Ttl = got.GetPublishTime(), nil; !ends.IsZero() {
		expected.ExpireTime = timestamppb.New(ends)
	}
	if !proto.Equal(got, expected) {
		return fmt.Errorf("message at %d is %v, want %v", want.Position, got, want.Message)
	}
	return nil
}

// endOf is when a message is over, in whole seconds; zero if it never is.
func endOf(m Stored) time.Time {
	if m.Message.GetTtl() == nil {
		return time.Time{}
	}
	at := time.UnixMilli(m.Time).Add(m.Message.GetTtl().AsDuration())
	if whole := at.Truncate(time.Second); whole.Before(at) {
		return whole.Add(time.Second)
	}
	return at
}

// positionsAt asks around each time for the first position at or after it. One that does not
// exist stands for the next that does.
func positionsAt(t *testing.T, r commitlog.Reader, p commitlog.Partition, end int64, want []Stored) {
	t.Helper()
	for _, around := range want {
		for _, at := range []time.Time{
			time.UnixMilli(around.Time), time.UnixMilli(around.Time - 1), time.UnixMilli(around.Time + 1),
			time.UnixMilli(around.Time).Add(time.Nanosecond),
		} {
			expected := end
			for _, m := range want {
				if !time.UnixMilli(m.Time).Before(at) {
					expected = m.Position
					break
				}
			}
			got, err := r.PositionAt(t.Context(), p, at)
			if err != nil || following(want, got, end) != expected {
				t.Fatalf("position at %v is %d (%v), want %d", at, got, err, expected)
			}
		}
	}
}

// following is the first position from one on that exists.
func following(want []Stored, from, end int64) int64 {
	for _, m := range want {
		if m.Position >= from {
			return m.Position
		}
	}
	return end
}
