package observe

import (
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/workers/deadletter"
)

// DeadLetters registers how many dead letters wait for an operator.
func DeadLetters(m *telemetry.Metrics, w *deadletter.Watch) {
	m.Gauge(telemetry.DeadLettersOpen, "Dead letters that nobody has redriven or discarded.", func() float64 { return float64(w.Stats().Letters) })
	m.Gauge(telemetry.DeadLettersOldest, "Time since the first of them failed, in seconds.", func() float64 { return w.Stats().Oldest.Seconds() })
}

// Replicas registers how many partitions miss replicas.
func Replicas(m *telemetry.Metrics, under func() int64) {
	m.Gauge(telemetry.KafkaUnderReplica, "Partitions of the declared topics with fewer replicas in sync than replicas.", func() float64 { return float64(under()) })
}
