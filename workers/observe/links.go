package observe

import (
	"fmt"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/link"
	"github.com/parley-chat/parley/server/routing"
)

// Links registers the counters of links between processes, and the sources of the member
// lists that address them.
func Links(m *telemetry.Metrics, mesh *link.Mesh, r *routing.Recipients) {
	of := func(name, help string, read func(link.Stats) float64) {
		m.Counter(name, help, func() float64 { return read(mesh.Stats()) })
	}
	m.Gauge(telemetry.LinkPeers, "Servers with a link.", func() float64 { return float64(mesh.Stats().Peers) })
	m.Gauge(telemetry.LinkSilent, "Of them, those that do not answer.",
		func() float64 { return float64(mesh.Stats().Unreachable) })
	m.Gauge(telemetry.LinkUnheard,
		"Processes that are listed and that this one does not hear of: its streams miss what they send.",
		func() float64 { return float64(mesh.Stats().Received.Unreachable) })
	of(telemetry.LinkSent, "Envelopes answered, keepalives included.",
		func(s link.Stats) float64 { return float64(s.Sent) })
	of(telemetry.LinkFailed, "Calls to servers that failed.", func(s link.Stats) float64 { return float64(s.Failed) })
	of(telemetry.LinkForwarded, "Messages that the server stored which their chat prefers.",
		func(s link.Stats) float64 { return float64(s.Forwarded) })
	of(telemetry.LinkDropped, "Live changes left to the durable path.",
		func(s link.Stats) float64 { return float64(s.Dropped + s.Unrouted) })
	of(telemetry.DeliverySkipped, "Deliveries left out which only synchronisation makes good.",
		func(s link.Stats) float64 { return float64(s.EpochBumps + s.Lost) })
	of(telemetry.LinkGaps, "Times that something before an envelope was missing, or its sender fell silent.",
		func(s link.Stats) float64 { return float64(s.Received.Gaps + s.Received.Lost) })
	for name, read := range map[string]func(routing.RecipientStats) int64{
		"local":  func(s routing.RecipientStats) int64 { return s.Local },
		"shared": func(s routing.RecipientStats) int64 { return s.Shared },
		"store":  func(s routing.RecipientStats) int64 { return s.Loaded },
	} {
		m.Counter(fmt.Sprintf(telemetry.MemberLists, name), "Member lists that came from there.",
			func() float64 { return float64(read(r.Stats())) })
	}
}
