package observe

import (
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/workers/liveness"
)

// Liveness registers the counters of workers that are taken for dead.
func Liveness(m *telemetry.Metrics, l *liveness.Monitor) {
	m.Counter(telemetry.WorkersTaken, "Workers that did not show that they live, so that this one has taken them for dead.",
		func() float64 { return float64(l.Stats().Taken) })
	m.Counter(telemetry.WorkersSilent,
		"Times that this worker did not show for too long that it lives: others took it for dead, if the store answered them.",
		func() float64 { return float64(l.Stats().Silent) })
}
