package serving

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/pace"
)

// presets by number. Limits of a preset are all set.
var presets = map[topicv1.BackfillPreset]*topicv1.BackfillLimits{
	topicv1.BackfillPreset_BACKFILL_PRESET_BALANCED:     limits(10_000, 50_000, 10*time.Millisecond, 30*time.Second),
	topicv1.BackfillPreset_BACKFILL_PRESET_CONSERVATIVE: limits(5_000, 10_000, 5*time.Millisecond, 10*time.Second),
	topicv1.BackfillPreset_BACKFILL_PRESET_AGGRESSIVE:   limits(50_000, 200_000, 50*time.Millisecond, 5*time.Minute),
}

func limits(batch, rate int32, target, checkpoint time.Duration) *topicv1.BackfillLimits {
	return &topicv1.BackfillLimits{
		Batch: batch, MaxRate: rate, TargetLatency: durationpb.New(target), CheckpointInterval: durationpb.New(checkpoint),
	}
}

// Limits returns limits, all of them set: a limit that l does not set is the preset's.
func Limits(p topicv1.BackfillPreset, l *topicv1.BackfillLimits) *topicv1.BackfillLimits {
	if p == 0 {
		p = topicv1.BackfillPreset_BACKFILL_PRESET_BALANCED
	}
	all := proto.CloneOf(presets[p])
	if n := l.GetBatch(); n > 0 {
		all.Batch = n
	}
	if n := l.GetMaxRate(); n > 0 {
		all.MaxRate = n
	}
	if d := l.GetTargetLatency(); d.AsDuration() > 0 {
		all.TargetLatency = d
	}
	if d := l.GetCheckpointInterval(); d.AsDuration() > 0 {
		all.CheckpointInterval = d
	}
	return all
}

// newPace makes the pace of a backfill.
func newPace(l *topicv1.BackfillLimits) pace.Pace {
	return pace.New(pace.Limits{Batch: int64(l.GetBatch()), Rate: int64(l.GetMaxRate()),
		Target: l.GetTargetLatency().AsDuration()})
}

// split divides up to most over partitions, in proportion to what each has, and all of it
// if all have together less.
func split(limit int64, has []int64) []int64 {
	var sum int64
	for _, n := range has {
		sum += n
	}
	if limit < 0 || sum <= limit {
		return slices.Clone(has)
	}
	parts := make([]int64, len(has))
	rest := limit
	for i, n := range has {
		parts[i] = int64(float64(n) / float64(sum) * float64(limit))
		parts[i] = min(parts[i], n, rest)
		rest -= parts[i]
	}
	for i := 0; rest > 0; i = (i + 1) % len(has) {
		if parts[i] < has[i] {
			more := min(rest, has[i]-parts[i], max(1, rest/int64(len(has))))
			parts[i] += more
			rest -= more
		}
	}
	return parts
}

// meter measures progress over the last seconds.
type meter struct {
	at   [meterSeconds]time.Time
	done [meterSeconds]int64
	next int
	last time.Time
}

const meterSeconds = 10

// observe notes how much is done, once a second.
func (m *meter) observe(now time.Time, done int64) {
	if !m.last.IsZero() && now.Sub(m.last) < time.Second {
		return
	}
	m.last, m.at[m.next], m.done[m.next] = now, now, done
	m.next = (m.next + 1) % meterSeconds
}

// rate is how much is done a second.
func (m *meter) rate(now time.Time, done int64) float64 {
	oldest := -1
	for i := range m.at {
		if !m.at[i].IsZero() && (oldest < 0 || m.at[i].Before(m.at[oldest])) {
			oldest = i
		}
	}
	if oldest < 0 {
		return 0
	}
	passed := now.Sub(m.at[oldest]).Seconds()
	if passed <= 0 {
		return 0
	}
	return max(0, float64(done-m.done[oldest])/passed)
}
