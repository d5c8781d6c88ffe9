package scenario

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/server/load/stream"
)

// markServer records how far chats were read, and takes a millisecond for a call.
type markServer struct {
	mu    sync.Mutex
	acks  []map[string]int64
	marks int
}

func (s *markServer) Call(_ context.Context, _, procedure string, message []byte) ([]byte, error) {
	time.Sleep(time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if procedure != deliveryv1connect.DeliveryServiceAckProcedure {
		s.marks++
		return nil, nil
	}
	var req deliveryv1.AckRequest
	if err := proto.Unmarshal(message, &req); err != nil {
		return nil, err
	}
	reads, res := map[string]int64{}, &deliveryv1.AckResponse{}
	for _, k := range req.GetReadMarks() {
		reads[k.GetChatId()] = k.GetSequence()
		res.ReadOutcomes = append(res.ReadOutcomes, &deliveryv1.ReadOutcome{State: &chatv1.MemberState{}})
	}
	s.acks = append(s.acks, reads)
	return proto.Marshal(res)
}

func (s *markServer) Close() {}

// Readers tell at most every so often how far they have read, the latest of each chat, and
// every message counts once it is recorded; or they make a call for each.
func TestMarking(t *testing.T) {
	for name, tt := range map[string]struct {
		every       time.Duration
		acks, marks int
		slowest     time.Duration
	}{
		"with acknowledgements": {100 * time.Millisecond, 4, 0, 101 * time.Millisecond},
		"calls":                 {0, 0, 60, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, rec := &markServer{}, &recorder{}
				m := newMarking(t.Context(), tt.every, func() *recorder { return rec })
				r, l := &reader{person: &person{calls: s}}, stream.NewListener(stream.Handler{})
				for i := range int64(60) { // of two chats, one every 5 ms
					m.note(r, l, stream.Frame{Chat: []byte{byte('a' + i%2)}, Sequence: 1 + i/2, Position: i})
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(time.Second)
				m.close()
				if len(s.acks) != tt.acks || s.marks != tt.marks || rec.recorded.Count() != 60 || rec.asked.Load() != 60 ||
					rec.failed.Load() != 0 {
					t.Errorf("%d acknowledgements, %d marks, %d recorded, %d failed", len(s.acks), s.marks, rec.recorded.Count(),
						rec.failed.Load())
				}
				if slowest := rec.recorded.Max(); slowest < tt.slowest*9/10 || slowest > tt.slowest*11/10 {
					t.Errorf("the slowest was recorded after %v, want %v", slowest, tt.slowest)
				}
				if n := len(s.acks); n > 0 && (s.acks[n-1]["a"] != 30 || s.acks[n-1]["b"] != 30) {
					t.Errorf("the last acknowledgement says %v", s.acks[n-1])
				}
			})
		})
	}
}
