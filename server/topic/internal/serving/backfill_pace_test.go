package serving

import (
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

var epoch = time.Unix(1_000_000, 0)

// HQ-K01, HQ-K02, HQ-K03, HQ-K04, HQ-K05, HQ-K07: the presets have the figures that they are known for, and single
// limits go before them.
func TestPresets(t *testing.T) {
	for _, tt := range []struct {
		preset             topicv1.BackfillPreset
		batch, rate        int32
		target, checkpoint time.Duration
	}{
		{topicv1.BackfillPreset_BACKFILL_PRESET_UNSPECIFIED, 10_000, 50_000, 10 * time.Millisecond, 30 * time.Second},
		{topicv1.BackfillPreset_BACKFILL_PRESET_BALANCED, 10_000, 50_000, 10 * time.Millisecond, 30 * time.Second},
		{topicv1.BackfillPreset_BACKFILL_PRESET_CONSERVATIVE, 5_000, 10_000, 5 * time.Millisecond, 10 * time.Second},
		{topicv1.BackfillPreset_BACKFILL_PRESET_AGGRESSIVE, 50_000, 200_000, 50 * time.Millisecond, 5 * time.Minute},
	} {
		l := Limits(tt.preset, nil)
		if l.GetBatch() != tt.batch || l.GetMaxRate() != tt.rate || l.GetTargetLatency().AsDuration() != tt.target ||
			l.GetCheckpointInterval().AsDuration() != tt.checkpoint {
			t.Errorf("%s: %v", tt.preset, l)
		}
	}
	l := Limits(0, &topicv1.BackfillLimits{Batch: 7, MaxRate: 8, TargetLatency: durationpb.New(9),
		CheckpointInterval: durationpb.New(10)})
	if l.GetBatch() != 7 || l.GetMaxRate() != 8 || l.GetTargetLatency().GetNanos() != 9 ||
		l.GetCheckpointInterval().GetNanos() != 10 {
		t.Errorf("limits one by one: %v", l)
	}
	if Limits(0, nil).GetBatch() != 10_000 || DefaultMessages != 1_000_000 || SmallBackfill != 100_000 ||
		checkpointEvery != 100_000 {
		t.Error("the defaults have changed")
	}
}

// What is divided is no more than there is anywhere, and all that may be.
func TestSplit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		has := make([]int64, 1+rng.IntN(20))
		var sum int64
		for i := range has {
			if rng.IntN(3) > 0 {
				has[i] = rng.Int64N(1 << rng.IntN(40))
			}
			sum += has[i]
		}
		limit := rng.Int64N(1<<rng.IntN(41)) - 1
		parts, got := split(limit, has), int64(0)
		for i := range parts {
			if parts[i] < 0 || parts[i] > has[i] {
				t.Fatalf("%d of %v: %v", limit, has, parts)
			}
			got += parts[i]
		}
		if want := min(sum, limit); limit >= 0 && got != want || limit < 0 && got != sum {
			t.Fatalf("%d of %v: %v, together %d", limit, has, parts, got)
		}
	}
}

// The rate is of the last seconds.
func TestBackfillMeter(t *testing.T) {
	var m meter
	if m.rate(epoch, 5) != 0 {
		t.Error("of nothing")
	}
	for i := range 100 {
		m.observe(epoch.Add(time.Duration(i)*time.Second), int64(i)*10)
	}
	if r := m.rate(epoch.Add(99*time.Second), 990); r != 10 {
		t.Errorf("%v a second", r)
	}
	for i := range 100 {
		m.observe(epoch.Add(time.Duration(100+i)*time.Second), 1000)
	}
	if r := m.rate(epoch.Add(200*time.Second), 1000); r != 0 {
		t.Errorf("%v a second at rest", r)
	}
}
