package delivery

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/delivery/frame"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func limits() *QueueLimits {
	return &QueueLimits{Frames: 4, Bytes: 1 << 20, Unacked: 3, UnackedBytes: 1 << 20, Lease: time.Minute}
}

func queuedMessage(chatID string, sequence int64) *frame.Frame {
	return frame.New(&deliveryv1.Frame{ChatId: chatID, Body: &deliveryv1.Frame_Message{
		Message: &messagev1.Message{ChatId: chatID, Sequence: sequence},
	}}, 0)
}

func push(t *testing.T, m *sendQueue, chatID string, sequence int64) {
	t.Helper()
	if taken, full := m.Push(queuedMessage(chatID, sequence)); !taken || full {
		t.Fatalf("not taken (full: %t)", full)
	}
}

func TestBounds(t *testing.T) {
	m := newSendQueue(limits())
	for i := range int64(4) {
		push(t, m, "c", i+1)
	}
	if taken, full := m.Push(queuedMessage("c", 5)); taken || !full {
		t.Error("a fifth frame was taken")
	}
	m.Close(frame.End(deliveryv1.EndCode_END_CODE_SLOW, 0, "")) // has room always
	first, frames, ended := m.Take(10)
	if first != 1 || len(frames) != 5 || !ended {
		t.Errorf("took %d frames from %d on, ended: %t", len(frames), first, ended)
	}
	if taken, full := m.Push(queuedMessage("c", 6)); taken || full {
		t.Error("something was taken after the end")
	}

	m = newSendQueue(&QueueLimits{Frames: 100, Bytes: 1000})
	big := frame.New(&deliveryv1.Frame{}, 700)
	if taken, _ := m.Push(big); !taken {
		t.Error("the first was not taken")
	}
	if taken, full := m.Push(big); taken || !full {
		t.Error("more bytes were taken than there is room for")
	}
}

// A response stays below what generated clients accept.
func TestTakeIsBounded(t *testing.T) {
	m := newSendQueue(&QueueLimits{Frames: 100, Bytes: 16 << 20})
	for range 5 {
		m.Push(frame.New(&deliveryv1.Frame{}, 400<<10))
	}
	var sizes []int
	next := int64(1)
	for {
		first, frames, _ := m.Take(100)
		if len(frames) == 0 {
			break
		}
		if first != next {
			t.Fatalf("position %d follows %d", first, next)
		}
		next += int64(len(frames))
		sizes = append(sizes, len(frames))
		if next <= 5 {
			<-m.Ready() // what is left is signalled
		}
	}
	if fmt.Sprint(sizes) != "[2 2 1]" {
		t.Errorf("taken by %v", sizes)
	}
	m.Push(frame.New(&deliveryv1.Frame{}, 2<<20)) // alone it goes, whatever its size
	if _, frames, _ := m.Take(100); len(frames) != 1 {
		t.Error("a large frame stays for ever")
	}
}

func TestHeartbeat(t *testing.T) {
	m := newSendQueue(limits())
	m.Heartbeat(frame.Heartbeat(""))
	m.Heartbeat(frame.Heartbeat(""))
	if _, frames, _ := m.Take(10); len(frames) != 1 {
		t.Errorf("%d heartbeats wait", len(frames))
	}
	m.Close(nil)
	m.Heartbeat(frame.Heartbeat(""))
	if _, frames, ended := m.Take(10); len(frames) != 0 || !ended {
		t.Error("a heartbeat after the end")
	}
}

func TestAck(t *testing.T) {
	m := newSendQueue(limits())
	push(t, m, "a", 7)
	push(t, m, "b", 3)
	push(t, m, "a", 8)
	if _, err := m.Ack(1, start); !errors.Is(err, ErrPosition) {
		t.Errorf("acknowledged before it was sent: %v", err)
	}
	m.Take(10)
	got, err := m.Ack(2, start)
	if err != nil || fmt.Sprint(got) != "map[a:7 b:3]" {
		t.Errorf("delivered %v, %v", got, err)
	}
	if got, err := m.Ack(1, start); err != nil || len(got) != 0 {
		t.Errorf("a lower position counts: %v, %v", got, err)
	}
	if got, err := m.Ack(3, start); err != nil || fmt.Sprint(got) != "map[a:8]" {
		t.Errorf("delivered %v, %v", got, err)
	}
	if _, err := m.Ack(4, start); !errors.Is(err, ErrPosition) {
		t.Errorf("beyond the last: %v", err)
	}
}

func TestLease(t *testing.T) {
	m := newSendQueue(limits())
	take := func(n int64) {
		for i := range n {
			push(t, m, "c", i+1)
			m.Take(1)
		}
	}
	take(4)
	if m.Overdue(start.Add(time.Hour)) {
		t.Error("a client that never acknowledges is held to a lease")
	}
	if _, err := m.Ack(4, start); err != nil || m.Overdue(start.Add(time.Hour)) {
		t.Error("overdue with nothing to acknowledge")
	}
	take(1)
	if m.Overdue(start.Add(time.Minute)) || !m.Overdue(start.Add(time.Minute+1)) {
		t.Error("the lease is not a minute")
	}
	take(3)
	if !m.Overdue(start) {
		t.Error("four are unacknowledged, three are allowed")
	}
}

// Whatever is taken and acknowledged, the sizes that are kept are those of the frames
// that are there.
func TestSizesStayExact(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		m := newSendQueue(&QueueLimits{Frames: 1 << 14, Bytes: 1 << 30, Unacked: 1 << 14, UnackedBytes: 1 << 30})
		for range 200 {
			switch rnd.IntN(4) {
			case 0, 1:
				m.Push(frame.New(&deliveryv1.Frame{}, rnd.IntN(1000)))
			case 2:
				m.Take(rnd.IntN(5))
			case 3:
				if m.sent > 0 {
					if _, err := m.Ack(1+rnd.Int64N(m.sent), start); err != nil {
						t.Fatal(err)
					}
				}
			}
			waiting, unacked := 0, 0
			for i := range m.queue.len() {
				waiting += m.queue.at(i).Size()
			}
			for i := range m.unacked.len() {
				unacked += m.unacked.at(i).bytes()
			}
			if waiting != m.bytes || unacked != m.size {
				t.Fatalf("seed %d: %d and %d bytes are counted, %d and %d are there", seed, m.bytes, m.size, waiting, unacked)
			}
		}
	}
}

// What is remembered of a client that never acknowledges fits in 16 KB, whatever it was
// sent: many chats, many frames.
func TestMemoryOfClientsThatNeverAcknowledge(t *testing.T) {
	m := newSendQueue(&QueueLimits{Frames: 300, Bytes: 1 << 20})
	peak := uintptr(0)
	for i := range int64(10_000) {
		m.Push(queuedMessage(fmt.Sprint("chat", i%5000), i+1))
		if i%256 == 0 {
			m.Take(256)
		}
		peak = max(peak, unsafe.Sizeof(*m)+uintptr(cap(m.unacked.items))*unsafe.Sizeof(sent{}))
	}
	if peak > 16_000 {
		t.Errorf("%d bytes are held", peak)
	}
	if m.size != m.unacked.len()*queuedMessage("c", 1).Size() {
		t.Errorf("%d frames of %d bytes are remembered", m.unacked.len(), m.size)
	}
	m.Take(300)
	delivered, err := m.Ack(m.sent, start)
	if err != nil || delivered["chat4999"] != 10_000 || len(delivered) < 256 {
		t.Errorf("the first Ack covers %d chats, the last message is %d (%v)", len(delivered), delivered["chat4999"], err)
	}
	if len(m.unacked.items) > keptRing || len(m.queue.items) > keptRing {
		t.Error("memory is held for nothing")
	}
}

// A lower position than before is not a sign of life.
func TestLowerAckDoesNotRenewTheLease(t *testing.T) {
	m := newSendQueue(limits())
	for i := range int64(3) {
		push(t, m, "c", i+1)
	}
	m.Take(3)
	if _, err := m.Ack(2, start); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Ack(1, start.Add(50*time.Second)); err != nil {
		t.Fatal(err)
	}
	if !m.Overdue(start.Add(70 * time.Second)) {
		t.Error("the lease was renewed by a position that was acknowledged before")
	}
	if _, err := m.Ack(2, start.Add(70*time.Second)); err != nil || m.Overdue(start.Add(80*time.Second)) {
		t.Errorf("the same position again does not renew the lease (%v)", err)
	}
}

// BenchmarkNeverAcknowledged says what a stream's client costs that never acknowledges,
// in messages of one chat and of many.
func BenchmarkNeverAcknowledged(b *testing.B) {
	for _, chats := range []int64{1, 5000} {
		b.Run(fmt.Sprintf("chats=%d", chats), func(b *testing.B) {
			frames := make([]*frame.Frame, 5000)
			for i := range frames {
				frames[i] = queuedMessage(fmt.Sprint("chat", int64(i)%chats), int64(i)+1)
			}
			boxes := make([]*sendQueue, 0, b.N)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				m := newSendQueue(&QueueLimits{Frames: 2048, Bytes: 4 << 20})
				for _, f := range frames {
					m.Push(f)
					m.Take(256)
				}
				boxes = append(boxes, m)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(len(boxes)), "bytes/stream")
			runtime.KeepAlive(boxes)
			runtime.KeepAlive(frames)
		})
	}
}
