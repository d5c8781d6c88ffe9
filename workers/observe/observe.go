// Package observe registers the counters of the workers as metrics, in whichever process
// they run.
//
// It owns which counter has which name; the counters belong to the workers, the names to
// package telemetry. Concurrency: the functions are called while a process is built; any
// goroutine may call the functions that they register.
package observe

import (
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/reconcile"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/partitioncount"
)

// Relay registers the counters of the relays of a process and of their slots.
func Relay(m *telemetry.Metrics, set *relay.Set, slots *lease.Manager, topics *partitioncount.Watch) {
	of := func(read func(relay.Stats) float64) func() float64 {
		return func() float64 { return read(set.Stats()) }
	}
	m.Counter(telemetry.RelayPublished, "Records published.",
		of(func(s relay.Stats) float64 { return float64(s.Published) }))
	m.Counter(telemetry.RelayFailures, "Cycles that failed, and attempts to publish for each 10 s without success.",
		of(func(s relay.Stats) float64 { return float64(s.Failures) }))
	m.Counter(telemetry.RelayDropped, "Nudges dropped, for the sweep to make good.",
		of(func(s relay.Stats) float64 { return float64(s.Dropped) }))
	m.Gauge(telemetry.RelayPoisoned, "Outbox rows that cannot be published.",
		of(func(s relay.Stats) float64 { return float64(s.Poisoned) }))
	m.Gauge(telemetry.RelayUnavailable, "Partitions that took no records when they were last tried; their chats wait.",
		of(func(s relay.Stats) float64 { return float64(s.Unavailable) }))
	m.Gauge(telemetry.RelayTopicsOdd,
		"Topics with another number of partitions than declared; nothing is published there.",
		func() float64 { return float64(topics.Repartitioned()) })
	m.Gauge(telemetry.RelayBacklog, "Unpublished outbox rows found by the last sweep.",
		of(func(s relay.Stats) float64 { return float64(s.Backlog) }))
	m.Gauge(telemetry.RelayOldest, "Age of the oldest of them, in seconds.",
		of(func(s relay.Stats) float64 { return s.Oldest.Seconds() }))
	m.Gauge(telemetry.RelaySlots, "Slots of the relay that this process holds.",
		func() float64 { return float64(slots.Stats().Held) })
	m.Gauge(telemetry.RelaySlotsAll, "Slots that all relays share.", func() float64 { return float64(slots.Slots()) })
	m.Counter(telemetry.RelaySlotsLost, "Slots taken by another process, or not renewed in time.",
		func() float64 { return float64(slots.Stats().Lost) })
}

// Search registers the counters of the relay of search events.
func Search(m *telemetry.Metrics, set *relay.Set, topics []string, deadLetters func() int64) {
	for _, topic := range topics {
		m.GaugeOf(telemetry.SearchWaiting,
			"Age of the oldest search event that waits because a partition of its topic refuses records, in seconds.", "topic", topic,
			func() float64 { return set.Waiting()[topic].Seconds() })
	}
	of := func(read func(relay.Stats) float64) func() float64 {
		return func() float64 { return read(set.Stats()) }
	}
	m.Counter(telemetry.SearchPublished, "Search events published, dead letters included.",
		of(func(s relay.Stats) float64 { return float64(s.Published) }))
	m.Counter(telemetry.SearchFailures, "Cycles that failed, and attempts to publish for each 10 s without success.",
		of(func(s relay.Stats) float64 { return float64(s.Failures) }))
	m.Counter(telemetry.SearchDead, "Search events that became dead letters.",
		func() float64 { return float64(deadLetters()) })
	m.Gauge(telemetry.SearchPoisoned, "Outbox rows of search events that cannot be published.",
		of(func(s relay.Stats) float64 { return float64(s.Poisoned) }))
	m.Gauge(telemetry.SearchBacklog, "Unpublished outbox rows of search events found by the last sweep.",
		of(func(s relay.Stats) float64 { return float64(s.Backlog) }))
	m.Gauge(telemetry.SearchOldest, "Age of the oldest of them, in seconds.",
		of(func(s relay.Stats) float64 { return s.Oldest.Seconds() }))
}

// Topics registers for how long relays have been holding back the events of a topic.
func Topics(m *telemetry.Metrics, w *versions.Watch) {
	m.Gauge(telemetry.TopicFrozen,
		"Time for which events of a topic that is migrated have been waiting in the outbox, in seconds; 0 if they do not.",
		func() float64 { return w.Frozen(time.Now()).Seconds() })
}

// Publish measures how long a relay's transactions take, including those that fail: a slow
// broker shows first in them.
func Publish(m *telemetry.Metrics) func(took time.Duration) {
	return m.Histogram(telemetry.PublishTime, "Time of a relay's transaction on Kafka, failed ones included.", .005, .01,
		.025, .05, .1, .25, .5, 1, 2, 5, 10, 30)
}

// Created is called by a relay when the creation of a chat is in the log: the last phase of
// its creation.
func Created(l *telemetry.ChatMetrics) func(e *eventv1.ChatCreated, took time.Duration) {
	return func(e *eventv1.ChatCreated, took time.Duration) {
		kind := "group"
		if e.GetChatType() == eventv1.ChatType_CHAT_TYPE_DIRECT {
			kind = "direct"
		}
		l.CreationTook(kind, telemetry.PhaseLog, took)
	}
}

// Fanout registers the counters of fanout's consumer.
func Fanout(m *telemetry.Metrics, e *consume.Engine) {
	of := func(read func(consume.Stats) int64) func() float64 {
		return func() float64 { return float64(read(e.Stats())) }
	}
	m.Counter(telemetry.FanoutHandled, "Records that fanout has handled.",
		of(func(s consume.Stats) int64 { return s.Handled }))
	m.Counter(telemetry.FanoutDead, "Records that became dead letters.",
		of(func(s consume.Stats) int64 { return s.DeadLettered }))
	m.Counter(telemetry.FanoutSkipped,
		"Records skipped because no server could be reached; synchronisation makes up for them.",
		of(func(s consume.Stats) int64 { return s.Skipped }))
	m.Counter(telemetry.FanoutIgnored, "Records of types that only newer versions know.",
		of(func(s consume.Stats) int64 { return s.Ignored }))
	m.Counter(telemetry.FanoutCalls, "Calls of fanout's handler, each with records of one chat.",
		of(func(s consume.Stats) int64 { return s.Calls }))
	m.Counter(telemetry.FanoutHeld, "Times that a partition had to wait.",
		of(func(s consume.Stats) int64 { return s.Pauses }))
	m.Counter(telemetry.FanoutUnwritten, "Times that a dead letter could not be written; its partition waits.",
		of(func(s consume.Stats) int64 { return s.Unwritten }))
	m.Counter(telemetry.FanoutRebalances,
		"Rebalances that assigned partitions to this process; assignments within 30 s are one rebalance.",
		of(func(s consume.Stats) int64 { return s.Rebalances }))
	m.Gauge(telemetry.FanoutLag, "Records that wait to be handled.", of(func(s consume.Stats) int64 { return s.Lag }))
	m.Gauge(telemetry.FanoutOldest, "Age of the oldest of them, in seconds.",
		func() float64 { return e.Stats().Oldest.Seconds() })
	m.Gauge(telemetry.FanoutMembers, "Age of the oldest of them about a membership, in seconds.", func() float64 {
		return oldestOf(e.Stats(), kafka.MembershipsChanged).Seconds()
	})
}

// oldestOf is the age of the oldest record that waits in any version of a declared topic.
func oldestOf(s consume.Stats, topic string) (age time.Duration) {
	for name, of := range s.OldestOf {
		if base, _, ok := versions.Base(name); ok && base == topic {
			age = max(age, of)
		}
	}
	return age
}

// Reconcile registers the counters of the reconciler.
func Reconcile(m *telemetry.Metrics, r *reconcile.Reconciler) {
	of := func(read func(reconcile.Stats) float64) func() float64 {
		return func() float64 { return read(r.Stats()) }
	}
	m.Counter(telemetry.ReconcilePasses, "Passes made.", of(func(s reconcile.Stats) float64 { return float64(s.Passes) }))
	m.Counter(telemetry.ReconcileFailed, "Passes that could not read to the end, and chats that could not be completed.",
		of(func(s reconcile.Stats) float64 { return float64(s.Failed + s.Incomplete) }))
	m.Counter(telemetry.ReconcileDone, "Chats whose pending members became members.",
		of(func(s reconcile.Stats) float64 { return float64(s.Completed) }))
	m.Counter(telemetry.ReconciliationFixes, "Stored numbers of members that were wrong.",
		of(func(s reconcile.Stats) float64 { return float64(s.Corrections) }))
	m.Gauge(telemetry.ReconcilePending, "Chats with pending members that the last pass found.",
		of(func(s reconcile.Stats) float64 { return float64(s.Pending) }))
	m.Gauge(telemetry.ReconcileOldest, "Age of the oldest of them, in seconds.",
		of(func(s reconcile.Stats) float64 { return s.Oldest.Seconds() }))
	m.Counter(telemetry.ReconcileAudited, "Chats that the audit of new chats has read.",
		of(func(s reconcile.Stats) float64 { return float64(s.Audited) }))
	m.Gauge(telemetry.ReconcileAudit, "Seconds within which the audit has read every chat; 0 before its first round.",
		of(func(s reconcile.Stats) float64 {
			if s.AuditSince.IsZero() {
				return 0
			}
			return time.Since(s.AuditSince).Seconds()
		}))
}
