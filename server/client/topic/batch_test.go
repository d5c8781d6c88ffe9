package topic

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// Requests hold at most 1,000 messages and 4 MB, in order, under numbers without gaps.
func TestRequestsAreCut(t *testing.T) {
	t.Parallel()
	b := buffer{maxMessages: 10_000, maxBytes: 1 << 30, number: 5}
	if b.take() != nil {
		t.Fatal("a request of nothing")
	}
	for i := range 2500 {
		b.add(newEntry(&Message{Key: string(rune('a' + i%26))}, nil))
	}
	for i, want := range []int{1000, 1000, 500} {
		r := b.take()
		testkit.Equal(t, "messages", len(r.entries), want)
		testkit.Equal(t, "number", r.number, int64(5+i))
		for j, e := range r.entries {
			testkit.Equal(t, "key", e.message.GetKey(), string(rune('a'+(i*1000+j)%26)))
		}
		b.release(r)
	}
	testkit.Equal(t, "what is left", [2]int{b.messages, b.bytes}, [2]int{0, 0})
	for i := range 6 { // those with an id go without a number, by themselves
		m := &Message{Key: string(rune('a' + i))}
		if i%4 > 1 {
			m.DeduplicationId = m.GetKey()
		}
		b.add(newEntry(m, nil))
	}
	for i, want := range []int64{8, 0, 9} {
		r := b.take()
		testkit.Equal(t, "messages", len(r.entries), 2)
		testkit.Equal(t, "number", r.message("t", "p").GetProducer().GetNumber(), want)
		testkit.Equal(t, "uncertain at once", r.uncertain(time.Minute), false)
		testkit.Equal(t, "uncertain after the window", r.uncertain(time.Hour), want == 0)
		testkit.Equal(t, "key", r.entries[0].message.GetKey(), string(rune('a'+2*i)))
	}
	payload := make([]byte, 1<<20)
	for range 7 {
		b.add(newEntry(&Message{Payload: payload}, nil))
	}
	for _, want := range []int{3, 3, 1} {
		r := b.take()
		testkit.Equal(t, "large messages", len(r.entries), want)
		if size := proto.Size(r.message("t", "p")); size > 4_000_000 {
			t.Errorf("a request of %d bytes", size)
		}
	}
}

// The buffer is bounded by messages and by bytes; a message that is larger than all of it has
// room when it is alone.
func TestBufferIsBounded(t *testing.T) {
	t.Parallel()
	b := buffer{maxMessages: 2, maxBytes: 100, number: 1}
	small, large := newEntry(&Message{Key: "k"}, nil), newEntry(&Message{Payload: make([]byte, 200)}, nil)
	if !b.hasRoom(large.size) {
		t.Fatal("a large message has no room in an empty buffer")
	}
	b.add(large)
	if b.hasRoom(small.size) {
		t.Error("there is room behind a message that fills the buffer")
	}
	r := b.take()
	if b.hasRoom(small.size) {
		t.Error("a request under way has given its room back")
	}
	b.release(r)
	b.add(small)
	b.add(small)
	if b.hasRoom(1) {
		t.Error("three messages fit into a buffer of two")
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	busy := connect.NewError(connect.CodeResourceExhausted, errors.New("busy"))
	info, err := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(lastPause)})
	testkit.Must(t, err)
	busy.AddDetail(info)
	large := connect.NewError(connect.CodeResourceExhausted, errors.New("large"))
	detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "TOO_LARGE"})
	testkit.Must(t, err)
	large.AddDetail(detail)
	code := func(c connect.Code) error { return connect.NewError(c, errors.New("no")) }
	r := &retry{random: func() float64 { return 0 }}
	for i, tt := range []struct {
		err  error
		want verdict
	}{
		{code(connect.CodeUnavailable), verdict{pause: firstPause / 2}},
		{errors.New("connection refused"), verdict{pause: firstPause}},
		{code(connect.CodeDeadlineExceeded), verdict{pause: 2 * firstPause}},
		{busy, verdict{pause: lastPause}},
		{large, verdict{final: true, pause: 8 * firstPause}},
		{code(connect.CodeUnauthenticated), verdict{renew: true}},
		{code(connect.CodeUnauthenticated), verdict{renew: true, final: true}},
		{code(connect.CodePermissionDenied), verdict{final: true, pause: 16 * firstPause}},
	} {
		if got := r.failed(tt.err); got != tt.want {
			t.Errorf("step %d, %v: %+v, want %+v", i, tt.err, got, tt.want)
		}
	}
	for range 100 {
		r.failed(code(connect.CodeUnavailable))
	}
	testkit.Equal(t, "the longest pause", r.failed(code(connect.CodeUnavailable)).pause, lastPause/2)
	r.succeeded()
	testkit.Equal(t, "after a success", r.failed(code(connect.CodeUnavailable)), verdict{pause: firstPause / 2})
}
