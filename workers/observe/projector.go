package observe

import (
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/projection"
)

// Projector registers the counters of the projector's consumer.
func Projector(m *telemetry.Metrics, e *consume.Engine) {
	of := func(read func(consume.Stats) int64) func() float64 {
		return func() float64 { return float64(read(e.Stats())) }
	}
	m.Counter(telemetry.ProjectorHandled, "Records that the projector has handled.",
		of(func(s consume.Stats) int64 { return s.Handled }))
	m.Counter(telemetry.ProjectorIgnored, "Records that say nothing to any projection.",
		of(func(s consume.Stats) int64 { return s.Ignored }))
	m.Counter(telemetry.ProjectorDead, "Records that became dead letters, those of parked keys included.",
		of(func(s consume.Stats) int64 { return s.DeadLettered }))
	m.Counter(telemetry.ProjectorUnwritten, "Times that a dead letter could not be written; its partition waits.",
		of(func(s consume.Stats) int64 { return s.Unwritten }))
	m.Counter(telemetry.ProjectorHeld, "Times that a partition had to wait.",
		of(func(s consume.Stats) int64 { return s.Pauses }))
	m.Gauge(telemetry.ProjectorParked, "Records that are parked behind a dead letter of their chat.",
		of(func(s consume.Stats) int64 { return s.ParkedRecords }))
	m.Gauge(telemetry.ProjectorLag, "Records that wait to be handled.", of(func(s consume.Stats) int64 { return s.Lag }))
	m.Gauge(telemetry.ProjectorOldest, "Age of the oldest of them, in seconds.",
		func() float64 { return e.Stats().Oldest.Seconds() })
}

// Projections registers what was done for all projections.
func Projections(m *telemetry.Metrics, set *projection.Set) {
	of := func(read func(projection.Stats) int64) func() float64 {
		return func() float64 {
			var sum int64
			for _, name := range set.Names() {
				sum += read(set.Stats(name))
			}
			return float64(sum)
		}
	}
	m.Counter(telemetry.ProjectionFolded, "Events that records brought into projections.",
		of(func(s projection.Stats) int64 { return s.Folded }))
	m.Counter(telemetry.ProjectionRebuilt, "Events that rebuilds brought into projections.",
		of(func(s projection.Stats) int64 { return s.Rebuilt }))
	m.Counter(telemetry.ProjectionRaces, "Changes of projections that another worker was faster with; they are made again.",
		of(func(s projection.Stats) int64 { return s.Conflicts }))
	m.Counter(telemetry.ProjectionStuck, "Times that an event of the store could not be read, live or in a rebuild; its chat waits there.",
		of(func(s projection.Stats) int64 { return s.Stuck }))
	m.Gauge(telemetry.ProjectionPaused, "Rebuilds that are paused, by an operator or because their builds have gaps.",
		of(func(s projection.Stats) int64 { return s.Paused }))
	m.Counter(telemetry.ProjectionSlowed, "Turns of rebuilds at which sends were slow: the rebuilds go slower then.",
		func() float64 { return float64(set.Slowed()) })
	m.Gauge(telemetry.ProjectionToDo, "Events that the rebuilds of this process still have to read.",
		of(func(s projection.Stats) int64 { return max(0, s.ToDo-s.Done) }))
}
