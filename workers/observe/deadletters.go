package observe

import (
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/workers/consume/parked"
	"github.com/parley-chat/parley/workers/deadletter"
)

// DeadLetters registers how many dead letters wait for an operator.
func DeadLetters(m *telemetry.Metrics, w *deadletter.Watch) {
	m.Gauge(telemetry.DeadLettersOpen, "Dead letters of events that were neither redriven nor discarded.",
		func() float64 { return float64(w.Stats().DeadLetters) })
	m.Gauge(telemetry.DeadLettersOldest, "Time since the first of them failed, in seconds.",
		func() float64 { return w.Stats().Oldest.Seconds() })
	m.Gauge(telemetry.TopicDeadLettersOpen, "Dead letters of topics that were neither redriven nor discarded.",
		func() float64 { return float64(w.Stats().Topics) })
}

// Parked registers what consumer groups have parked.
func Parked(m *telemetry.Metrics, w *parked.Watch) {
	m.Gauge(telemetry.ParkedKeys, "Keys whose records wait as dead letters, in order, until an operator releases them.",
		func() float64 { return float64(w.Standing().Keys) })
	m.Gauge(telemetry.ParkedRecords, "Records of these keys.", func() float64 { return float64(w.Standing().Records) })
	m.Gauge(telemetry.ParkedOldest, "Time since the first of these keys was parked, in seconds.",
		func() float64 { return w.Standing().Oldest.Seconds() })
	m.Gauge(telemetry.ParkedFullest,
		"How much of what may be parked of a partition is, in percent, where it is most; at 100 the partition waits.",
		func() float64 { return float64(w.Standing().Fullest) })
}

// Replicas registers how many partitions miss replicas.
func Replicas(m *telemetry.Metrics, under func() int64) {
	m.Gauge(telemetry.KafkaUnderReplica, "Partitions of the declared topics with fewer replicas in sync than replicas.",
		func() float64 { return float64(under()) })
}
