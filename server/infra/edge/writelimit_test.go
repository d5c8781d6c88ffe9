package edge

import (
	"testing"
	"testing/synctest"
	"time"
)

// A write that takes too long is cut; one that does not is not, whichever write the timer
// was set for.
func TestWriteLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cuts := 0
		l := WriteLimit{After: time.Second, Cut: func() { cuts++ }}
		for n := range 3 {
			l.Start()
			time.Sleep(time.Second)
			synctest.Wait()
			if cuts != n+1 {
				t.Fatalf("write %d: %d cuts, want %d", n, cuts, n+1)
			}
			l.Stop()
		}
		l.After = time.Hour
		l.Start()
		l.fire() // set for the write before
		l.Stop()
		l.fire() // between writes
		l.Close()
		l.After = time.Second
		l.Start()
		l.Stop()
		time.Sleep(time.Minute) // the timer fires
		l.Close()
		l.fire() // was under way
		time.Sleep(2 * time.Hour)
		if cuts != 3 {
			t.Errorf("%d cuts, want the 3 of writes that took too long", cuts)
		}
	})
	var none WriteLimit // of a transport that cannot
	none.Start()
	none.Stop()
	none.Close()
}

// The timer runs on while there are writes: one that hangs is cut although it was set for
// one that did not, and not before its own time.
func TestWriteLimitOutlivesWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at time.Time
		l := WriteLimit{After: 50 * time.Millisecond, Cut: func() { at = time.Now() }}
		for range 120 {
			l.Start()
			l.Stop()
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		l.Start()
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if after := at.Sub(began); after < 50*time.Millisecond || after > 100*time.Millisecond {
			t.Errorf("cut after %v, want 50 to 100 ms", after)
		}
		l.Close()
	})
}

func BenchmarkWriteLimit(b *testing.B) {
	l := WriteLimit{After: time.Hour, Cut: func() { b.Error("cut") }}
	for b.Loop() {
		l.Start()
		l.Stop()
	}
}
