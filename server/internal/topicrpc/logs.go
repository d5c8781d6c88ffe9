package topicrpc

import (
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
)

// measureLogs connects what the logs of this server's slots did to the metrics.
func (p *Module) measureLogs() {
	c, m := &p.logs, p.cfg.Metrics
	counter := func(name, help string, n *atomic.Int64) {
		m.Counter(name, help, func() float64 { return float64(n.Load()) })
	}
	counter(telemetry.TopicLogCommitted, "Transactions of Kafka in which messages of topics were stored.", &c.Transactions)
	m.Counter(telemetry.TopicLogTime, "Seconds that these took.",
		func() float64 { return time.Duration(c.Time.Load()).Seconds() })
	counter(telemetry.TopicLogMessages, "Messages of topics stored in Kafka.", &c.Messages)
	counter(telemetry.TopicLogRefused, "Such transactions that were not committed, or of which that is not known.",
		&c.Refused)
	counter(telemetry.TopicLogEnded, "Times that a slot's log had to be opened again.", &c.Ended)
	m.Gauge(telemetry.TopicLogWaiting, "Bytes of messages of topics that wait to be stored in Kafka.",
		func() float64 { return float64(c.Waiting.Load()) })
	counter(telemetry.TopicLogRemovals, "Partitions whose trimmed messages could not be removed from Kafka.",
		&c.RemovalsFailed)
	counter(telemetry.TopicLogOffsets, "Times that a group's offsets could not be shown in Kafka.", &c.OffsetsFailed)
}
