package backend

import (
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store/dynamo"
)

// Measure connects what the backends count to metrics; each has its own beside those that
// all have.
func (e *Backend) Measure(m *telemetry.Metrics) {
	m.Counter(telemetry.StorePlans, "Plans committed.", func() float64 { return float64(e.plans().committed) })
	m.Counter(telemetry.StoreFailed, "Plans with failed conditions.", func() float64 { return float64(e.plans().failed) })
	m.Gauge(telemetry.ClockSkew, "Seconds by which this machine's clock differs from the store's, at least, or was set where the store is in this process.", func() float64 { return e.skew().Abs().Seconds() })
	if e.dynamo != nil {
		of := func(name, help string, read func(dynamo.Stats) float64) {
			m.Counter(name, help, func() float64 { return read(e.dynamo.Stats()) })
		}
		of(telemetry.DynamoRequests, "Requests to DynamoDB, repetitions included.",
			func(s dynamo.Stats) float64 { return float64(s.Requests) })
		of(telemetry.DynamoConflicts, "Requests that met another transaction.",
			func(s dynamo.Stats) float64 { return float64(s.Conflicts) })
		of(telemetry.DynamoThrottled, "Requests and items that DynamoDB put off.",
			func(s dynamo.Stats) float64 { return float64(s.Throttled) })
		of(telemetry.DynamoLost, "Requests without an answer, or with a failure of the service.",
			func(s dynamo.Stats) float64 { return float64(s.Lost) })
		of(telemetry.DynamoReadUnits, "Read units that answered requests cost.",
			func(s dynamo.Stats) float64 { return s.ReadUnits })
		of(telemetry.DynamoWriteUnits, "Write units that answered requests cost.",
			func(s dynamo.Stats) float64 { return s.WriteUnits })
		return
	}
	m.Counter(telemetry.StoreCompactions, "Compactions of the outbox.",
		func() float64 { return float64(e.embedded.Stats().Compactions) })
	m.Gauge(telemetry.StoreBytes, "Bytes of the store on disk.",
		func() float64 { return float64(e.embedded.Stats().DiskBytes) })
	m.Gauge(telemetry.StoreDamaged, "1 since a file of the store could not be read as it was written.",
		func() float64 { return indicator(e.Damaged()) })
	e.measureDisk(m)
	m.Gauge(telemetry.KafkaPortOpen, "Open connections of other programs to the embedded Kafka port.",
		func() float64 { return float64(e.events.port.Stats().Open) })
	m.Counter(telemetry.KafkaPortRefused,
		"Connections to the embedded Kafka port closed at once, because as many as allowed had shown the password.",
		func() float64 { return float64(e.events.port.Stats().Refused) })
	m.Counter(telemetry.KafkaPortEvicted, "Connections to the embedded Kafka port without a password, closed to make room.",
		func() float64 { return float64(e.events.port.Stats().Evicted) })
	m.Gauge(telemetry.LogUnreadable,
		"Records of the embedded event log that could not be read since the start, which readers do not get.",
		func() float64 { return float64(e.events.Unreadable()) })
	m.Counter(telemetry.LogGivenUp,
		"Records that were removed from the embedded event log before a group of Parley had read them.",
		func() float64 { return float64(e.events.LostToReaders()) })
	m.Gauge(telemetry.LogBytes, "Bytes of the embedded event log, without the rows that references lead to.", func() float64 { return float64(e.LogBytes()) })
}

type plans struct{ committed, failed int64 }

func (e *Backend) plans() plans {
	if e.dynamo != nil {
		s := e.dynamo.Stats()
		return plans{s.Plans, s.Failed}
	}
	s := e.embedded.Stats()
	return plans{s.Plans, s.Failed}
}
