package topic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

func position(id string) *topicv1.Position {
	return &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: id}}
}

func latest() *topicv1.Position {
	return &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}
}

// keyOf is a key whose messages are in a partition.
func keyOf(n, of int32) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint(i); commitlog.PartitionOf(key, of) == n {
			return key
		}
	}
}

// browse returns the ids of all pages of a request, and how many pages these are.
func (x *fixture) browse(r *topicv1.BrowseMessagesRequest) (ids string, pages int) {
	x.t.Helper()
	r = proto.CloneOf(r)
	var list []string
	for pages = 1; pages < 1000; pages++ {
		p, err := x.Browse(x.t.Context(), op, r)
		testkit.Must(x.t, err)
		for _, m := range p.GetMessages() {
			if m.GetMessageId() != fmt.Sprintf("%d-%d", m.GetPartition(), m.GetPosition()) {
				x.t.Errorf("%v", m)
			}
			list = append(list, m.GetMessageId())
		}
		if r.PageToken = p.GetNextPageToken(); r.GetPageToken() == "" {
			break
		}
	}
	return strings.Join(list, " "), pages
}

// A message that the topic has is returned as it was published, to subscribers and administrators. One that
// it does not have is refused, and the text says why.
func TestGetMessage(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		sent := &topicv1.TopicMessage{Key: "k", Type: "order.paid", CorrelationId: "c", Payload: []byte("hello"),
			Headers: map[string]string{"a": "b"}}
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t",
			Messages: []*topicv1.TopicMessage{messages(0, 1)[0], sent}})
		testkit.Must(t, err)
		got, err := x.Message(t.Context(), op, "t", "0-1")
		testkit.Must(t, err)
		at := got.GetMessage().GetPublishTime()
		if at.AsTime().UnixMilli() != x.engine.Clock().UnixMilli() {
			t.Errorf("published at %v", at)
		}
		sent.PublishTime = at
		if got.GetMessageId() != "0-1" || got.GetPosition() != 1 || !proto.Equal(got.GetMessage(), sent) {
			t.Errorf("%v", got)
		}
		x.restart()
		for id, want := range map[string]string{
			"0-2": "message 0-2 has not been published: the next of partition 0 is 0-2",
			"0-9": "message 0-9 has not been published: the next of partition 0 is 0-2",
		} {
			_, err = x.Message(t.Context(), op, "t", id)
			if refusedAs(t, err, refusal.MessageNotFound); !strings.Contains(fmt.Sprint(err), want) {
				t.Error(err)
			}
		}
		x.later(40 * 24 * hour)
		_, err = x.Message(t.Context(), op, "t", "0-1")
		if refusedAs(t, err, refusal.MessageNotFound); !strings.Contains(fmt.Sprint(err), "0-1 is no longer kept") {
			t.Error(err)
		}
		_, err = x.Message(t.Context(), op, "t", "0-99999999999999999999")
		refusedAs(t, err, refusal.InvalidArgument)
		_, err = x.Message(t.Context(), op, "t", "1-0")
		refusedAs(t, err, refusal.PositionOutOfRange)
	})
}

// A page has as many messages, and about as many bytes, as it may. Pages follow each other from any
// position, in one partition or in all. They take nothing from a group or a queue, and need none.
func TestBrowse(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Partitions: 3}) // a queue
		q := x.attach("t", storage.QueueGroup, "m")
		var all []string
		for n := range 3 {
			for i := range 4 {
				all = append(all, fmt.Sprintf("%d-%d", n, i))
			}
		}
		first := x.engine.Clock()
		for range 2 { // of each partition batches 0-1 and 2-3
			for n := range int32(3) {
				x.keyed(0, 2, keyOf(n, 3))
			}
			x.ahead.Add(int64(hour))
		}
		for _, limit := range []int32{0, 1, 2, 5, 12, 100} {
			if ids, _ := x.browse(&topicv1.BrowseMessagesRequest{Topic: "t", MaxMessages: limit}); ids !=
				strings.Join(all, " ") {
				t.Errorf("%d a page: %s", limit, ids)
			}
		}
		one := func(n int32) *int32 { return &n }
		for _, c := range []struct {
			r    *topicv1.BrowseMessagesRequest
			want string
		}{
			{&topicv1.BrowseMessagesRequest{Partition: one(1)}, "1-0 1-1 1-2 1-3"},
			{&topicv1.BrowseMessagesRequest{From: position("1-1")}, "1-1 1-2 1-3"},
			{&topicv1.BrowseMessagesRequest{From: position("2-3"), Partition: one(2)}, "2-3"},
			{&topicv1.BrowseMessagesRequest{From: position("2-4")}, ""},
			{&topicv1.BrowseMessagesRequest{From: latest()}, ""},
			{&topicv1.BrowseMessagesRequest{From: &topicv1.Position{At: &topicv1.Position_Time{
				Time: timestamppb.New(first.Add(hour / 2))}}}, "0-2 0-3 1-2 1-3 2-2 2-3"},
		} {
			c.r.Topic = "t"
			for _, c.r.MaxMessages = range []int32{0, 1} {
				if ids, _ := x.browse(c.r); ids != c.want {
					t.Errorf("%v: %s", c.r, ids)
				}
			}
		}
		if n := len(x.receive(q)); n != 12 {
			t.Errorf("the queue delivers %d", n)
		}
		for want, list := range map[refusal.Reason][]*topicv1.BrowseMessagesRequest{
			refusal.PositionOutOfRange: {{Partition: one(3)}, {From: position("0-5")}, {From: position("3-0")}},
			refusal.InvalidArgument: {
				{Partition: one(1), From: position("0-1")}, {PageToken: "3-0"}, {PageToken: "x"},
				{Partition: one(1), PageToken: "2-0"},
			},
		} {
			for _, r := range list {
				r.Topic = "t"
				_, err := x.Browse(t.Context(), op, r)
				refusedAs(t, err, want)
			}
		}
	})
}

// However large messages are, a page is small, and it has one message at least.
func TestBrowseBytes(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		for range 3 {
			_, err := x.Publish(t.Context(), op, large("t", 1<<20))
			testkit.Must(t, err)
			_, err = x.Publish(t.Context(), op, large("t", 300<<10))
			testkit.Must(t, err)
		}
		r := &topicv1.BrowseMessagesRequest{Topic: "t"}
		if ids, pages := x.browse(r); ids != "0-0 0-1 0-2 0-3 0-4 0-5" || pages < 4 {
			t.Errorf("%d pages: %s", pages, ids)
		}
		for done := false; !done; done = r.GetPageToken() == "" {
			p, err := x.Browse(t.Context(), op, r)
			testkit.Must(t, err)
			if n := proto.Size(p); n > 2<<20+1<<16 {
				t.Errorf("a page has %d bytes", n)
			}
			r.PageToken = p.GetNextPageToken()
		}
	})
}

// holedLog is a log of which a part cannot be read, or was trimmed just now.
type holedLog struct {
	commitlog.Log
	from, to int64
	trims    *atomic.Int32 // so many reads more find that their messages were trimmed
	reads    *atomic.Int32
}

func (l holedLog) Read(ctx context.Context, p commitlog.Partition, from int64, limit int) ([]*commitlog.Batch, error) {
	l.reads.Add(1)
	if from >= l.from && from < l.to {
		return nil, &commitlog.CorruptError{Partition: p, From: from, To: l.to, Cause: store.ErrCorrupt}
	}
	if l.trims.Add(-1) >= 0 {
		return nil, commitlog.ErrTrimmed
	}
	batches, err := l.Log.Read(ctx, p, from, 1)
	return batches, err
}

// What cannot be read is passed over, and what is trimmed meanwhile is left out. A call ends after so many
// reads of the log, whatever these find; the next page continues there.
func TestBrowseOfABadLog(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		l := holedLog{from: 10, to: 20, trims: &atomic.Int32{}, reads: &atomic.Int32{}}
		x.over = func(log commitlog.Log) commitlog.Log { l.Log = log; return l }
		x.restart()
		x.groups("t")
		var want []string
		for i := range 200 {
			x.publish("t", i, 1)
			if i < 10 || i >= 20 {
				want = append(want, fmt.Sprintf("0-%d", i))
			}
		}
		l.trims.Store(3)
		ids, pages := x.browse(&topicv1.BrowseMessagesRequest{Topic: "t", MaxMessages: 1000})
		if ids != strings.Join(want, " ") || pages < 3 || x.logs.count("passed over") != 1 {
			t.Errorf("%d pages: %s", pages, ids)
		}
		l.trims.Store(1 << 20)
		l.reads.Store(0)
		p, err := x.Browse(t.Context(), op, &topicv1.BrowseMessagesRequest{Topic: "t"})
		testkit.Must(t, err)
		if len(p.GetMessages()) > 0 || p.GetNextPageToken() != "0-0" || l.reads.Load() > 64 {
			t.Errorf("%d reads, %v", l.reads.Load(), p)
		}
		_, err = x.Message(t.Context(), op, "t", "0-15")
		if !errors.Is(err, store.ErrCorrupt) {
			t.Error(err)
		}
	})
}
