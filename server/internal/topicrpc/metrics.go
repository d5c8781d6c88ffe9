package topicrpc

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/topic"
)

// ofCounters reads a counter of a service.
func ofCounters(of func(*topic.Counters) *atomic.Int64) func(*topic.Service) float64 {
	return func(s *topic.Service) float64 { return float64(of(s.Counters()).Load()) }
}

// ofBackfills reads a counter of a service's backfills.
func ofBackfills(of func(*topic.BackfillCounters) *atomic.Int64) func(*topic.Service) float64 {
	return func(s *topic.Service) float64 { return float64(of(&s.Backfills().Counters).Load()) }
}

// measure connects what the services of this process count to the metrics.
func (p *Module) measure() {
	p.measureUse()
	p.measureLedger()
	p.measureBackfills()
	p.measureSubscriptions()
	p.measureGroups()
	p.measureJobs()
}

// gauge is a sum over the services, most the largest value, counter a sum that never goes back.
func (p *Module) gauge(name, help string, read func(*topic.Service) float64) {
	p.cfg.Metrics.Gauge(name, help, p.sums.gauge(read))
}

func (p *Module) most(name, help string, read func(*topic.Service) float64) {
	p.cfg.Metrics.Gauge(name, help, p.sums.most(read))
}

func (p *Module) counter(name, help string, read func(*topic.Service) float64) {
	p.cfg.Metrics.Counter(name, help, p.sums.counter(read))
}

// measureUse connects what comes and goes.
func (p *Module) measureUse() {
	counter := func(name, help string, of func(*topic.Counters) *atomic.Int64) {
		p.counter(name, help, ofCounters(of))
	}
	p.gauge(telemetry.TopicsKnown, "Topics that this server has.",
		func(s *topic.Service) float64 { return float64(s.Sizes().Topics) })
	p.gauge(telemetry.TopicSessions, "Members of groups that are attached.",
		func(s *topic.Service) float64 { return float64(s.Sizes().Sessions) })
	p.cfg.Metrics.Gauge(telemetry.TopicStreams, "Open streams of consumers.",
		func() float64 { return float64(p.streams.Len()) })
	counter(telemetry.TopicPublished, "Messages published to topics.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Published })
	counter(telemetry.TopicBlocked, "Publishes refused because no subscription was active.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Blocked })
	counter(telemetry.TopicMismatched, "Publishes refused because a payload was not as the topic's schema says.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Mismatched })
	counter(telemetry.TopicUnsubscribed, "Publishes to a topic without an active subscription.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Unsubscribed })
	counter(telemetry.TopicGroupsDied, "Groups that were not heard from for their timeout.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Died })
	counter(telemetry.TopicReleased, "Messages that groups held when they died or were cancelled. A group that returns gets them.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Released })
	counter(telemetry.TopicDetectionBraked, "Times that no group was declared dead because too many seemed to be.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Braked })
	p.most(telemetry.TopicBacklog, "Positions from what a group has not acknowledged to the end, at most.",
		func(s *topic.Service) float64 { return float64(s.LargestBacklog()) })
	p.gauge(telemetry.TopicsOpen, "Topics in use, whose partitions are in memory.",
		func(s *topic.Service) float64 { return float64(s.Sizes().Open) })
	p.gauge(telemetry.TopicResident, "Bytes of messages of topics in memory.",
		func(s *topic.Service) float64 { return float64(s.Sizes().Resident) })
	p.gauge(telemetry.TopicResidentLimit, "Bytes of messages of topics in memory beyond which some are freed.",
		func(s *topic.Service) float64 { return float64(s.Sizes().ResidentLimit) })
	p.gauge(telemetry.TopicNearTimeout, "Groups that were not heard from for 80 percent of their timeout.",
		ofCounters(func(c *topic.Counters) *atomic.Int64 { return &c.NearTimeout }))
	counter(telemetry.TopicHeartbeatWrites, "Writes of heartbeats, many groups in each.",
		func(c *topic.Counters) *atomic.Int64 { return &c.HeartbeatWrites })
	counter(telemetry.TopicHeartbeatsFailed, "Heartbeats that could not be stored.",
		func(c *topic.Counters) *atomic.Int64 { return &c.HeartbeatsFailed })
	counter(telemetry.TopicDeadLetters, "Messages that went to a topic of dead letters.",
		func(c *topic.Counters) *atomic.Int64 { return &c.DeadLetters })
	counter(telemetry.TopicTrimmed, "Messages removed because no group needs them any more, or by a purge.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Trimmed })
	counter(telemetry.TopicTrimsSkipped, "Times that a group kept a partition from being trimmed.",
		func(c *topic.Counters) *atomic.Int64 { return &c.TrimsSkipped })
	counter(telemetry.TopicZombies, "Times that a group was moved on because its position did not move.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Zombies })
	counter(telemetry.TopicPublishesFull, "Publishes refused because the topic has as many bytes as it may, or the disk is short.",
		func(c *topic.Counters) *atomic.Int64 { return &c.Full })
	counter(telemetry.TopicJobsFailed, "Rounds of a job of topics that failed.",
		func(c *topic.Counters) *atomic.Int64 { return &c.JobsFailed })
}

// measureLedger connects, by cause, what was taken from groups.
func (p *Module) measureLedger() {
	for c, cause := range topic.ReleaseCauses() {
		p.cfg.Metrics.CounterOf(telemetry.TopicLedger, "Messages that were due to a group and were taken from it. "+
			"Each time counts for one that the group gets back.", "cause", cause,
			p.sums.counter(ofCounters(func(n *topic.Counters) *atomic.Int64 { return &n.Ledger[c] })))
	}
}

// measureBackfills connects what backfills did.
func (p *Module) measureBackfills() {
	p.gauge(telemetry.BackfillsRunning, "Backfills that run.",
		func(s *topic.Service) float64 { return float64(s.Backfills().Running()) })
	p.gauge(telemetry.BackfillLeft, "Messages that backfills that run have left.",
		ofBackfills(func(c *topic.BackfillCounters) *atomic.Int64 { return &c.Left }))
	p.counter(telemetry.BackfillReleased, "Messages that backfills let go.",
		ofBackfills(func(c *topic.BackfillCounters) *atomic.Int64 { return &c.Released }))
	p.counter(telemetry.BackfillSlowed, "Batches of backfills that paused because publishes were slow.",
		ofBackfills(func(c *topic.BackfillCounters) *atomic.Int64 { return &c.Slowed }))
	p.counter(telemetry.BackfillsFailed, "Backfills that failed.",
		ofBackfills(func(c *topic.BackfillCounters) *atomic.Int64 { return &c.Failed }))
}

// measureSubscriptions connects what a scan of all subscriptions found.
func (p *Module) measureSubscriptions() {
	gauge := func(name, help string, of ...func(*topic.Gauges) *atomic.Int64) {
		p.gauge(name, help, func(s *topic.Service) (sum float64) {
			for _, n := range of {
				sum += float64(n(&s.Counters().Gauges).Load())
			}
			return sum
		})
	}
	active := func(g *topic.Gauges) *atomic.Int64 { return &g.Active }
	paused := func(g *topic.Gauges) *atomic.Int64 { return &g.Paused }
	dead := func(g *topic.Gauges) *atomic.Int64 { return &g.Dead }
	cancelled := func(g *topic.Gauges) *atomic.Int64 { return &g.Cancelled }
	gauge(telemetry.TopicSubsActive, "Subscriptions that receive.", active)
	gauge(telemetry.TopicSubsPaused, "Subscriptions that are paused.", paused)
	gauge(telemetry.TopicSubsDead, "Subscriptions whose groups fell silent.", dead)
	gauge(telemetry.TopicSubsCancelled, "Subscriptions that have ended and are not forgotten yet.", cancelled)
	gauge(telemetry.TopicSubs, "Subscriptions.", active, paused, dead, cancelled)
	gauge(telemetry.TopicTracked, "Runs of positions, and retries, that are kept of the topics in use.",
		func(g *topic.Gauges) *atomic.Int64 { return &g.Tracked })
	p.most(telemetry.TopicOverdue, "Time since the oldest end of a lease, or due retry, that was not acted on.",
		func(s *topic.Service) float64 { return time.Duration(s.Counters().Gauges.Overdue.Load()).Seconds() })
}

// measureGroups connects the metrics of groups.
func (p *Module) measureGroups() {
	others := fmt.Sprintf(" The groups beyond the first %d are one, with the names %s.", topic.ShownGroups,
		topic.AllGroups)
	gauge := func(name, help string) telemetry.Family { return telemetry.Family{Name: name, Help: help + others} }
	counter := func(name, help string) telemetry.Family {
		return telemetry.Family{Name: name, Help: help + others, Counter: true}
	}
	p.cfg.Metrics.Families([]string{"topic", "group"}, []telemetry.Family{
		gauge(telemetry.GroupLag, "Messages that the group is to acknowledge."),
		gauge(telemetry.GroupOldest, "Age of the oldest message that the active group is to acknowledge."),
		gauge(telemetry.GroupStalled, "1 if the group gets nothing in a partition although a member waits, for longer than a lease."),
		counter(telemetry.GroupDelivered, "Deliveries to members of the group."),
		counter(telemetry.GroupRedelivered, "Deliveries to members of the group of messages that had failed before."),
		counter(telemetry.GroupAcknowledged, "Messages that members of the group acknowledged."),
		counter(telemetry.GroupLeasesExpired, "Deliveries to members of the group whose lease ended."),
		counter(telemetry.GroupDeadLettered, "Messages that the group gave up, and that went to the topic of dead letters."),
		gauge(telemetry.GroupPushFailing, "1 if the server does not get the group's messages to their webhook."),
		counter(telemetry.GroupPushFailures, "Requests to the group's webhook that failed."),
	}, func(emit func(of []string, values ...float64)) {
		for _, v := range p.groups.Values(p.cfg.Clock()) {
			emit([]string{v.Topic, v.Group}, float64(v.Lag), v.Oldest.Seconds(), float64(v.Stalled), float64(v.Delivered),
				float64(v.Redelivered), float64(v.Acknowledged), float64(v.LeasesExpired), float64(v.DeadLettered),
				float64(v.PushFailing), float64(v.PushFailures))
		}
	})
}

// measureJobs connects what jobs did.
func (p *Module) measureJobs() {
	p.counter(telemetry.TopicLeasesOverdue, "Messages whose lease or retry was due for more than a second without a timer.",
		ofCounters(func(c *topic.Counters) *atomic.Int64 { return &c.LeasesOverdue }))
	p.gauge(telemetry.TopicTrimBacklog, "Messages that were older than their retention after the last trim.",
		ofCounters(func(c *topic.Counters) *atomic.Int64 { return &c.TrimBacklog }))
	p.most(telemetry.TopicTrimBehind, "Trims in a row after which there were more of these than before.",
		ofCounters(func(c *topic.Counters) *atomic.Int64 { return &c.TrimBehind }))
	p.counter(telemetry.TopicOrphans, "Cursors of no subscription that were deleted.",
		ofCounters(func(c *topic.Counters) *atomic.Int64 { return &c.Orphans }))
	p.counter(telemetry.TopicDetectionFailed, "Groups that could not be marked dead, or revived.",
		ofCounters(func(c *topic.Counters) *atomic.Int64 { return &c.DetectionFailed }))
	p.counter(telemetry.TopicTrims, "Runs of the trim.",
		func(s *topic.Service) float64 { n, _ := s.Jobs().Trims(); return float64(n) })
	p.counter(telemetry.TopicTrimTime, "Seconds that trims took.",
		func(s *topic.Service) float64 { _, took := s.Jobs().Trims(); return took.Seconds() })
	p.most(telemetry.TopicJobTime, "Seconds that the longest of the jobs' last runs took.",
		func(s *topic.Service) float64 { return s.Jobs().Slowest().Seconds() })
}

// measureSlots connects the counters of slots to the metrics.
func (p *Module) measureSlots() {
	m := p.cfg.Metrics
	m.Gauge(telemetry.TopicSlots, "Slots of topics that this server holds.",
		func() float64 { return float64(p.slots.Stats().Held) })
	m.Gauge(telemetry.TopicSlotsAll, "Slots that the topics are dealt to.",
		func() float64 { return float64(p.slots.Slots()) })
	m.Counter(telemetry.TopicSlotsTaken, "Slots of topics that this server has taken over.",
		func() float64 { return float64(p.slots.Stats().Acquired) })
	m.Counter(telemetry.TopicSlotsLost, "Slots of topics taken by another server, or not renewed in time.",
		func() float64 { return float64(p.slots.Stats().Lost) })
}
