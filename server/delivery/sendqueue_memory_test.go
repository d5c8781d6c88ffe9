package delivery

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/delivery/frame"
)

// A frame costs no memory on its way through a queue, one at a time and in batches,
// acknowledged or not.
func TestNoMemoryPerFrame(t *testing.T) {
	f := queuedMessage("c", 1)
	for _, batch := range []int{1, 24, 64} {
		for _, acked := range []bool{false, true} {
			m := newSendQueue(&QueueLimits{Frames: 2048, Bytes: 4 << 20, Unacked: 1000, UnackedBytes: 1 << 20})
			round := func() {
				for range batch {
					m.Push(f)
				}
				m.Signal()
				<-m.Ready()
				if _, frames, _ := m.Take(256); len(frames) != batch {
					t.Fatalf("%d frames were taken", len(frames))
				}
				if acked {
					m.mu.Lock()
					for m.unacked.len() > 0 {
						m.size -= m.unacked.pop().bytes()
					}
					m.mu.Unlock()
				}
			}
			for range 1000 { // until what is remembered is at its bound
				round()
			}
			if n := testing.AllocsPerRun(1000, round); n != 0 {
				t.Errorf("batches of %d, acknowledged: %t: %v allocations each", batch, acked, n)
			}
		}
	}
}

// An idle stream releases what it kept for frames that might come.
func TestIdleQueueIsSmall(t *testing.T) {
	m := newSendQueue(&QueueLimits{Frames: 2048, Bytes: 4 << 20})
	for range 50 {
		m.Push(queuedMessage("c", 1))
	}
	_, frames, _ := m.Take(256)
	if _, err := m.Ack(int64(len(frames)), start); err != nil {
		t.Fatal(err)
	}
	heartbeat := frame.Heartbeat("")
	m.Heartbeat(heartbeat)
	m.Take(256)
	if n := max(len(m.queue.items), len(m.unacked.items), cap(m.taken)); n > leastRing+1 {
		t.Errorf("%d places are kept", n)
	}
}

// Frames come out as they went in, whatever the ring's size and however it was turned.
func TestOrderInTheRing(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := newSendQueue(&QueueLimits{Frames: 300, Bytes: 1 << 30})
		var in, out []*frame.Frame
		for range 100 {
			for range rnd.IntN(150) {
				f := queuedMessage("c", int64(len(in)+1))
				if taken, _ := m.Push(f); taken {
					in = append(in, f)
				}
			}
			first, frames, _ := m.Take(rnd.IntN(200))
			if first != int64(len(out)+1) {
				t.Fatalf("seed %d: position %d follows %d", seed, first, len(out))
			}
			out = append(out, frames...)
		}
		_, frames, _ := m.Take(300)
		if out = append(out, frames...); !slices.Equal(in, out) {
			t.Fatalf("seed %d: %d frames went in, %d came out, or in another order", seed, len(in), len(out))
		}
	}
}
