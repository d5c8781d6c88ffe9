package telemetry

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lines is what a log wrote; timers of the limiter write from goroutines of their own.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A loop that fails 4,000 times a second writes five lines and one with their number in
// ten seconds; other messages, and those below a warning, are not held back by it.
func TestRepeatedMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		log := NewLogger(&out, false).With("group", "g")
		for i := range 8_000 {
			log.Warn("consume: will be repeated", "offset", i)
			if i%4_000 == 0 {
				log.Error("another", "offset", i)
				for n := range 10 {
					log.Info("served", "n", n)
				}
			}
		}
		time.Sleep(11 * time.Second)
		log.Warn("consume: will be repeated", "offset", "later")
		synctest.Wait()
		text := out.String()
		for part, want := range map[string]int{
			"consume: will be repeated": 7, "repeated=7995 within=10s": 1, "offset=later": 1, "msg=another": 2, "msg=served": 20,
			"group=g": 29,
		} {
			if n := strings.Count(text, part); n != want {
				t.Errorf("%q stands there %d times, not %d", part, n, want)
			}
		}
		if t.Failed() {
			t.Log(text)
		}
	})
}

// Messages are few; a program that makes them from data cannot fill the memory.
func TestManyMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		log := NewLogger(&out, false)
		for i := range 5_000 {
			log.Warn(fmt.Sprint("message ", i))
		}
		if n := strings.Count(out.String(), "\n"); n != 1_005 {
			t.Errorf("%d lines, not 1,005", n)
		}
		time.Sleep(11 * time.Second)
		if !strings.Contains(out.String(), "repeated=3995") {
			t.Error("nothing says how many were left out")
		}
	})
}
