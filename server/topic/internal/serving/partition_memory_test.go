package serving

import (
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// Many partitions that are published to in a burst keep 16 MiB in all, not 4 MiB each; all
// can be read by all groups nevertheless, in order and once.
func TestMemoryIsBoundedOverAllPartitions(t *testing.T) {
	const limit, partitions, batches, size = 16 << 20, 40, 10, 100_000
	b := newPartitionFixture(t)
	var parts []*Partition
	most := int64(0)
	for n := range partitions {
		p := b.open(uint64(n+1), "g")
		parts = append(parts, p)
		for range batches {
			b.publish(p, 10, size/10)
			most = max(most, b.cfg.Memory.Used())
		}
	}
	if most > limit+size*2 { // one batch is counted before it has room
		t.Errorf("%d bytes are in memory", most)
	}
	if most < limit/2 {
		t.Errorf("only %d bytes were in memory", most)
	}
	if n := len(parts[0].resident.tail.batches); n != 0 {
		t.Errorf("%d batches of what was used least recently are in memory", n)
	}
	if n := len(parts[partitions-1].resident.tail.batches); n != batches {
		t.Errorf("%d batches of what was published last are in memory", n)
	}
	var all sync.WaitGroup
	for _, p := range parts {
		ownedMember(p, "g")
		all.Go(func() {
			for i, at := range b.next(p, "g") {
				if at != int64(i) {
					t.Errorf("position %d, not %d", at, i)
					return
				}
			}
			if p.resident.end != 10*batches {
				t.Errorf("%d messages", p.resident.end)
			}
		})
	}
	all.Wait()
	if n := b.cfg.Memory.Used(); n > limit {
		t.Errorf("%d bytes are in memory after reading", n)
	}
	for _, p := range parts {
		p.Close()
	}
	if n, listed := b.cfg.Memory.Used(), b.cfg.Memory.runs.Len(); n != 0 || listed != 0 {
		t.Errorf("%d bytes and %d partitions remain", n, listed)
	}
}

// What is read again and again stays while others come once.
func TestMemoryKeepsWhatIsUsed(t *testing.T) {
	racetest.SkipSerial(t)
	b := newPartitionFixture(t)
	hot := b.open(1)
	b.publish(hot, 10, 10_000)
	for n := range 300 {
		b.publish(b.open(uint64(n+2)), 10, 10_000)
		hot.mu.Lock()
		_, r := hot.resident.At(5)
		hot.mu.Unlock()
		if r != machine.Resident {
			t.Fatalf("gone after %d others", n)
		}
	}
}

// A run that a call has just read, and what is not durable, stays though there is no room.
func TestMemoryKeepsWhatIsNeeded(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1)
	b.publish(p, 10, 100)
	b.publish(p, 10, 100)
	p.Idle()
	p.Idle()
	if err := p.fetch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	b.publish(p, 10, 100)
	p.resident.end -= 10 // as before it was durable
	p.read(1)
	m := b.cfg.Memory
	m.limit = 1
	m.count(p, &p.resident.tail, false)
	if len(p.resident.tail.batches) != 1 || len(p.resident.cached.batches) != 2 {
		t.Errorf("%d and %d batches", len(p.resident.tail.batches), len(p.resident.cached.batches))
	}
	p.read(-1)
	p.resident.end += 10
	m.count(p, &p.resident.tail, false)
	if n := m.Used(); n != 0 {
		t.Errorf("%d bytes remain", n)
	}
}
