package api

import (
	"testing"
	"time"
)

// A write that takes too long is cut; one that does not is not, whenever the timer
// of it, or of the write before, is noticed.
func TestLimit(t *testing.T) {
	cut := make(chan struct{}, 10)
	l := writeLimit{cut: func() { cut <- struct{}{} }}
	for range 3 {
		l.start(time.Millisecond)
		<-cut
		l.stop()
	}
	l.start(time.Hour)
	l.fire() // of the write before
	l.stop()
	l.start(-time.Second)
	l.mu.Lock() // the timer fires, and waits
	time.Sleep(20 * time.Millisecond)
	l.until = time.Time{} // what stop does
	l.mu.Unlock()
	l.fire()
	select {
	case <-cut:
		t.Error("cut without a reason")
	case <-time.After(20 * time.Millisecond):
	}
	var none writeLimit // of a transport that cannot
	none.start(0)
	none.stop()
}

func BenchmarkLimit(b *testing.B) {
	l := writeLimit{cut: func() { b.Error("cut") }}
	for b.Loop() {
		l.start(time.Hour)
		l.stop()
	}
}
