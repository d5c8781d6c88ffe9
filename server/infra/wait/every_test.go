package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Every calls once an interval, from its end on; a slow call is made up for once; nothing follows the
// end of the context.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		var at []time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			wait.Every(ctx, time.Second, func() {
				at = append(at, time.Since(begin))
				if len(at) == 2 {
					time.Sleep(2500 * time.Millisecond)
				}
			})
		}()
		time.Sleep(5500 * time.Millisecond)
		cancel()
		<-done
		time.Sleep(time.Minute)
		want := []time.Duration{1000, 2000, 4500, 5000}
		if len(at) != len(want) {
			t.Fatalf("called at %v", at)
		}
		for i := range want {
			if at[i] != want[i]*time.Millisecond {
				t.Errorf("call %d at %v, want %d ms", i, at[i], want[i])
			}
		}
	})
}
