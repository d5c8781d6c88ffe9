package h2

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// goroutine is the number of the goroutine that calls it.
func goroutine() string {
	b := make([]byte, 64)
	return string(bytes.Fields(b[:runtime.Stack(b, false)])[1])
}

// A worker that is idle works again, before another one begins.
func TestWorkersWorkAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which ends when all goroutines have
		var w workers
		var did []string
		for range 3 {
			w.do(func() { did = append(did, goroutine()) })
			synctest.Wait()
		}
		testkit.Equal(t, "workers", []string{did[1], did[2]}, []string{did[0], did[0]})
		w.end()
	})
}

// Nobody waits for a worker, few stay idle, and with the end none.
func TestWorkersAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w workers
		release, at := make(chan bool), 0
		for range 2 * maxIdle {
			w.do(func() {
				at++
				<-release
			})
			synctest.Wait()
		}
		testkit.Equal(t, "at work", at, 2*maxIdle)
		close(release)
		synctest.Wait()
		testkit.Equal(t, "idle", len(w.idle), maxIdle)
		later := make(chan bool)
		w.do(func() { <-later })
		synctest.Wait()
		w.end()
		testkit.Equal(t, "idle at the end", len(w.idle), 0)
		done := false
		w.do(func() { done = true }) // there is a worker for it, who ends
		synctest.Wait()
		testkit.Equal(t, "done", done, true)
		close(later)
	})
}
