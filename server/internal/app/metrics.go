package app

import (
	"strconv"
	"time"

	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/memory"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store/table"
)

// measure connects the counters of others to the metrics.
func (p *program) measure() {
	p.metrics.Streams(deliveryv1connect.DeliveryServiceSubscribeProcedure)
	p.metrics.Refusals("missing", "expired", "invalid", "unavailable")
	hub := func(name, help string, counter bool, read func(delivery.Stats) float64) {
		value := func() float64 { return read(p.hub.Stats()) }
		if counter {
			p.metrics.Counter(name, help, value)
		} else {
			p.metrics.Gauge(name, help, value)
		}
	}
	hub(telemetry.StreamsOpen, "Open streams.", false, func(s delivery.Stats) float64 { return float64(s.Streams) })
	hub(telemetry.ChatsLive, "Chats with at least one open stream.", false,
		func(s delivery.Stats) float64 { return float64(s.Chats) })
	hub(telemetry.StreamsOpened, "Streams opened.", true, func(s delivery.Stats) float64 { return float64(s.Opened) })
	hub(telemetry.FramesQueued, "Frames queued for streams.", true,
		func(s delivery.Stats) float64 { return float64(s.Frames) })
	hub(telemetry.HoleReads, "Reads of events that did not come by themselves.", true,
		func(s delivery.Stats) float64 { return float64(s.GapFills) })
	hub(telemetry.MemberChecks, "Reads of member lists.", true,
		func(s delivery.Stats) float64 { return float64(s.MembershipReads) })
	hub(telemetry.SlowStreams, "Streams ended because they were too slow.", true,
		func(s delivery.Stats) float64 { return float64(s.Slow) })
	hub(telemetry.StreamMarks, "Times that something may have been lost on the way to all streams.", true,
		func(s delivery.Stats) float64 { return float64(s.Invalidations) })
	hub(telemetry.StreamResyncs, "Synchronisations of streams because of that.", true,
		func(s delivery.Stats) float64 { return float64(s.Resyncs) })
	hub(telemetry.ForeignChanges, "Changes of another generation of the store, left out.", true,
		func(s delivery.Stats) float64 { return float64(s.OtherGeneration) })
	p.metrics.Counter(telemetry.HistoryRefused, "Calls of clients that were shown what the store does not have.",
		func() float64 { return float64(p.api.OtherHistories()) })
	p.metrics.Gauge(telemetry.MemoryUsed, "Share of the memory that the process may use and does, in percent.",
		func() float64 { return memory.UsedPercent() })
	p.backend.Measure(p.metrics)
}

// meter connects what commands report to the metrics of chats and memberships.
func meter(l *telemetry.ChatMetrics) chat.Meter {
	kinds := map[table.Type]string{table.Direct: "direct", table.Group: "group"}
	return chat.Meter{
		ChatCreated: func(k table.Type) { l.ChatCreated(kinds[k]) },
		CreationTook: func(k table.Type, phase int, took time.Duration) {
			l.CreationTook(kinds[k], strconv.Itoa(phase), took)
		},
		CreationRetried:   l.CreationRetried,
		DirectAsked:       l.DirectAsked,
		MembershipChanged: func(op chat.Operation, took time.Duration) { l.MembershipChanged(op.ChangeType(), took) },
	}
}
