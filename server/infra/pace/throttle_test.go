package pace

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// machine is one on which a send waits for what is before it: each unit of work in the
// background takes it 20 µs, and a send by itself 2 ms.
type machine struct {
	mu   sync.Mutex
	busy time.Time // until then
}

const unit, alone = 20 * time.Microsecond, 2 * time.Millisecond

// work does some units, and returns when they are done.
func (m *machine) work(ctx context.Context, n int64) error {
	m.mu.Lock()
	m.busy = later(m.busy, time.Now()).Add(time.Duration(n) * unit)
	left := time.Until(m.busy)
	m.mu.Unlock()
	return wait.For(ctx, left)
}

// send returns how long one takes now.
func (m *machine) send() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return alone + max(0, time.Until(m.busy))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Beside workers that could use all of the machine, sends take at most twice as long as by
// themselves, 99 of 100 of them; without the throttle they do not. Once there are no sends, all
// goes at once.
func TestSendsBesideWorkers(t *testing.T) {
	for _, throttled := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			live, m := &Window{}, &machine{}
			for range 100 { // sends before the work begins
				live.Observe(time.Now(), alone)
				time.Sleep(5 * time.Millisecond)
			}
			throttle := NewThrottle(live, Limits{Batch: 500, Rate: 50_000}, time.Now)
			var mu sync.Mutex
			var done int64
			for range 4 {
				go func() {
					for ctx.Err() == nil {
						n := int64(500)
						if throttled {
							n, _ = throttle.Wait(ctx, 500)
						}
						if m.work(ctx, n) == nil {
							mu.Lock()
							done += n
							mu.Unlock()
						}
					}
				}()
			}
			var took []time.Duration
			for range 12_000 { // a minute
				d := m.send()
				live.Observe(time.Now(), d)
				took = append(took, d)
				time.Sleep(5 * time.Millisecond)
			}
			slices.Sort(took)
			p99 := took[len(took)*99/100]
			mu.Lock()
			beside := done
			mu.Unlock()
			if throttled {
				if p99 > 2*alone || beside < 60*1000 {
					t.Errorf("99 of 100 sends take up to %v beside %d units in a minute, expected 4 ms and 60,000", p99, beside)
				}
				if throttle.Slowed() == 0 {
					t.Error("nothing was slowed")
				}
			} else if p99 < 4*alone {
				t.Errorf("99 of 100 take up to %v without the throttle: the test shows nothing", p99)
			}
			time.Sleep(sampleAge + time.Second) // nobody sends any more
			mu.Lock()
			before := done
			mu.Unlock()
			time.Sleep(10 * time.Second)
			mu.Lock()
			if rate := (done - before) / 10; rate < 45_000 {
				t.Errorf("%d units a second where nobody sends, expected all that the machine does", rate)
			}
			mu.Unlock()
			cancel()
			synctest.Wait()
		})
	}
}

// What the live path takes by itself is learned: down at once, up within minutes while hardly
// anything goes, so that work continues where sends have become slow for another reason.
func TestThrottleLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := &Window{}
		throttle := NewThrottle(live, Limits{Batch: 640, Rate: 64_000}, time.Now)
		run := func(latency, length time.Duration) (units int64) {
			for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				live.Observe(time.Now(), latency)
				n, _ := throttle.take(640)
				units += n
			}
			return units
		}
		run(2*time.Millisecond, 10*time.Second)
		healthy := run(2*time.Millisecond, 10*time.Second)
		slow := run(8*time.Millisecond, 5*time.Second)
		if slow > healthy/10 {
			t.Errorf("%d units in 5 s beside slow sends, %d in 10 s beside others", slow, healthy)
		}
		run(8*time.Millisecond, 5*time.Minute)
		if again := run(8*time.Millisecond, 10*time.Second); again < healthy/2 {
			t.Errorf("%d units in 10 s when sends are slow by themselves, %d before", again, healthy)
		}
	})
}

// What a worker does not use, another gets; and who waits ends with its context.
func TestSpareIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := &Window{}
		live.Observe(time.Now(), time.Millisecond)
		throttle := NewThrottle(live, Limits{Batch: 6400, Rate: 6400}, time.Now)
		n, err := throttle.Wait(t.Context(), 80)
		if n != 80 || err != nil {
			t.Fatalf("%d, %v; expected 80 of a small batch of 200", n, err)
		}
		throttle.Return(70)
		if n, _ := throttle.take(1000); n != 190 {
			t.Errorf("%d of what is left, expected 190", n)
		}
		if n, _ := throttle.take(1000); n != 0 {
			t.Errorf("%d of nothing", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := throttle.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, expected the context's error", err)
		}
	})
}
