package app

import (
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/search/record"
)

// searchRetention is how long search events can be published again.
const searchRetention = 7 * 24 * time.Hour

// searchLanes are the streams of search events that a server writes at a time where the
// store is far away.
const searchLanes = 4

// buildSearch makes the service that records search events. The component that publishes
// them adds itself to recorded.
func (p *program) buildSearch() api.Service {
	lanes := 1
	if p.cfg.distributed() {
		lanes = searchLanes
	}
	events := record.New(record.Config{
		Store: p.backend.Store, Clock: p.cfg.clocks.Wall, NewID: chat.NewID, Retention: searchRetention, Lanes: lanes,
		Recorded: func(stream string) {
			if p.recorded != nil {
				p.recorded(stream)
			}
		},
		LogFull: func() bool { return p.searchFull != nil && p.searchFull() },
	})
	p.metrics.Counter(telemetry.SearchRecorded, "Search events stored.",
		func() float64 { return float64(events.Stats().Stored) })
	p.metrics.Counter(telemetry.SearchRefused, "Requests with search events that there was no room for.",
		func() float64 { return float64(events.Stats().Refused) })
	p.metrics.Counter(telemetry.SearchNoRoom, "Requests with search events refused because the event log has no room.",
		func() float64 { return float64(events.Stats().LogFull) })
	return api.NewAnalytics(events).Service()
}

// searchTargets is where search events go.
func searchTargets(text string) (search.Targets, error) {
	targets, err := search.ParseTargets(text)
	if err != nil {
		return nil, fmt.Errorf("search-topics: %w", err)
	}
	return targets, nil
}
