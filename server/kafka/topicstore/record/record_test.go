package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
)

// A record says for which group alone it is; nobody who publishes can say so of a message, and
// other producers need no batch of their own.
func TestProducer(t *testing.T) {
	redriven := commitlog.Redriven("billing", "7/orders.dlq/0-1")
	forged := &commitlog.Message{Headers: map[string]string{HeaderProducer: redriven.ID + "/1", "own": "1"}}
	for name, c := range map[string]struct {
		message *commitlog.Message
		by      commitlog.Producer
		want    commitlog.Producer
	}{
		"for one group":           {&commitlog.Message{Key: "k"}, redriven, redriven},
		"of a publisher":          {&commitlog.Message{}, commitlog.Producer{ID: "a/b", Number: 7}, commitlog.Producer{}},
		"of nobody":               {&commitlog.Message{}, commitlog.Producer{}, commitlog.Producer{}},
		"says so itself":          {forged, commitlog.Producer{}, commitlog.Producer{}},
		"of another, says so too": {forged, commitlog.Producer{ID: "p", Number: 1}, commitlog.Producer{}},
		"for one, says so too":    {forged, redriven, redriven},
	} {
		t.Run(name, func(t *testing.T) {
			r := Of("parley.t.orders", 0, time.Now().UnixMilli(), c.message, c.by)
			if got := Producer(r); got != c.want {
				t.Errorf("%+v, not %+v", got, c.want)
			}
			if got := Message(r); !proto.Equal(got, c.message) {
				t.Errorf("%v, not %v", got, c.message)
			}
		})
	}
	ends := &commitlog.Message{ExpireTime: timestamppb.New(time.Unix(1_900_000_000, 0))}
	same := proto.CloneOf(ends)
	same.Headers = map[string]string{HeaderExpires: "5"}
	waits := &commitlog.Message{DeliverTime: timestamppb.New(time.UnixMilli(1_900_000_000_001))}
	both := proto.CloneOf(waits)
	both.DeduplicationId = "id"
	both.ExpireTime, both.Headers = ends.GetExpireTime(), map[string]string{HeaderDelivers: "5"}
	for _, m := range []*commitlog.Message{ends, same, waits, both, {Headers: map[string]string{HeaderExpires: "5"}}} {
		if got := Message(Of("parley.t.orders", 0, 0, m, commitlog.Producer{})); !proto.Equal(got, m) {
			t.Errorf("%v, not %v", got, m)
		}
	}
	for _, text := range []string{"", "x", "-1", "0", "99999999999999999999"} { // of another producer
		r := &kafka.Record{Headers: []kafka.Header{{Key: HeaderExpires, Value: []byte(text)},
			{Key: HeaderDelivers, Value: []byte(text)}}}
		if got := Message(r); got.GetExpireTime() != nil || got.GetDeliverTime() != nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	for _, text := range []string{"", "/", redriven.ID, redriven.ID + "/", redriven.ID + "/x"} {
		r := &kafka.Record{Headers: []kafka.Header{{Key: HeaderProducer, Value: []byte(text)}}}
		if got := Producer(r); got != (commitlog.Producer{}) {
			t.Errorf("%q is of %+v", text, got)
		}
	}
}
