package pace

import (
	"testing"
	"time"
)

var epoch = time.Unix(1_000_000, 0)

const tick = 20 * time.Millisecond

// HQ-K01, HQ-K04: a pace lets go whole batches, the last one what is left, and never more than its rate.
func TestRate(t *testing.T) {
	p := New(Limits{10_000, 50_000, 10 * time.Millisecond})
	var batches []int64
	for now, left := epoch, int64(25_000); left > 0; now = now.Add(tick) {
		if n := p.Take(now, 0, left); n > 0 {
			left -= n
			batches = append(batches, n)
		}
	}
	if len(batches) != 3 || batches[0] != 10_000 || batches[1] != 10_000 || batches[2] != 5_000 {
		t.Errorf("batches of 25,000: %v", batches)
	}
	for _, rate := range []int64{100, 10_000, 50_000, 200_000} {
		p := New(Limits{10_000, rate, 10 * time.Millisecond})
		var total int64
		const length = 1000 * time.Second
		for now := epoch; now.Before(epoch.Add(length)); now = now.Add(tick) {
			total += p.Take(now, 0, 1<<40)
		}
		limit := rate*1000 + 10_000
		if total > limit || total < rate*950 && rate > 100 {
			t.Errorf("%d a second: %d in 1000 s", rate, total)
		}
	}
}

// HQ-K17: the pause is by what the live path is slower than the target, 5 s at most, and batches are
// smaller meanwhile; both end with it.
func TestThrottle(t *testing.T) {
	gap := func(p *Pace, p95 time.Duration) (int64, time.Duration) {
		now := p.next.Add(time.Second)
		n := p.Take(now, p95, 1<<40)
		return n, p.next.Sub(now) - 6400*time.Microsecond
	}
	p := New(Limits{6400, 1_000_000, 10 * time.Millisecond})
	if n := p.Take(epoch, time.Millisecond, 1<<40); n != 800 {
		t.Errorf("first, beside others: %d", n)
	}
	p.size = 6400
	if n, pause := gap(&p, 10*time.Millisecond); n != 6400 || pause != 0 || p.slow {
		t.Errorf("at the target: %d, then %v", n, pause)
	}
	for i, want := range []int64{3200, 1600, 800, 400, 200, 100, 100} {
		if n, pause := gap(&p, 50*time.Millisecond); n != want || pause != 40*time.Millisecond || !p.slow {
			t.Errorf("time %d at 50 ms: %d, then %v", i, n, pause)
		}
	}
	if _, pause := gap(&p, time.Minute); pause != 5*time.Second {
		t.Errorf("at a minute: a pause of %v", pause)
	}
	for i := range int64(63) {
		if n, pause := gap(&p, time.Millisecond); n != 200+100*i || pause != 0 || p.slow {
			t.Errorf("when nobody is slow: %d, then %v", n, pause)
		}
	}
	if n, _ := gap(&p, 50*time.Millisecond); n != 3200 {
		t.Errorf("slow again: %d", n)
	}
	if n, _ := gap(&p, 0); n != 6400 {
		t.Errorf("when there is nobody: %d", n)
	}
}

// HQ-K24: a live path that suffers from what is let go stays within twice the target: what is let go
// settles where it does. Without the throttle it would not.
func TestLivePathIsProtected(t *testing.T) {
	for _, throttled := range []bool{true, false} {
		p, w := New(Limits{50_000, 200_000, 50 * time.Millisecond}), &Window{}
		// The machine does 60,000 messages a second, and a publish waits for what is before it.
		backlog, total, above := 0.0, int64(0), 0
		for now := epoch; now.Before(epoch.Add(5 * time.Minute)); now = now.Add(time.Millisecond) {
			backlog = max(0, backlog-60)
			latency := time.Millisecond + time.Duration(backlog/60_000*float64(time.Second))
			w.Observe(now, latency)
			if now.Sub(epoch) > 10*time.Second && latency > 100*time.Millisecond {
				above++
			}
			if now.UnixMilli()%20 != 0 {
				continue
			}
			p95 := w.P95(now)
			if !throttled {
				p95 = 0
			}
			n := p.Take(now, p95, 1<<40)
			backlog += float64(n)
			total += n
		}
		if share := float64(above) / 290_000; throttled && (share > 0.05 || total < 1_000_000) {
			t.Errorf("%.1f %% of publishes took longer than 100 ms, %d messages in 5 min", share*100, total)
		} else if !throttled && share < 0.5 {
			t.Errorf("without the throttle %.1f %% took longer: the test shows nothing", share*100)
		}
	}
}

// Of the last 100 samples, and not of old ones.
func TestWindow(t *testing.T) {
	w := &Window{}
	if w.P95(epoch) != 0 {
		t.Error("of nothing")
	}
	for i := range 300 {
		w.Observe(epoch, time.Duration(i))
	}
	if got := w.P95(epoch); got != 294 {
		t.Errorf("of 200 to 299: %d", got)
	}
	if got := w.P95(epoch.Add(sampleAge)); got != 0 {
		t.Errorf("of old ones: %d", got)
	}
	w.Observe(epoch.Add(sampleAge), 7)
	if got := w.P95(epoch.Add(sampleAge)); got != 7 {
		t.Errorf("of one: %d", got)
	}
}
