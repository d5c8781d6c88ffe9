package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of the metrics of chats and memberships. Alert rules and dashboards use them.
const (
	ChatsCreated          = "parley_chat_created_total"
	ChatCreationTime      = "parley_chat_creation_duration_seconds"
	MembershipMutations   = "parley_membership_mutation_total"
	MembershipTime        = "parley_membership_mutation_duration_seconds"
	DirectDedup           = "parley_direct_chat_dedup_total"
	CreationRetries       = "parley_chat_creation_phase2_retries_total"
	ReconciliationFixes   = "parley_chat_reconciliation_corrections_total"
	LifecyclePublishFails = "parley_kafka_lifecycle_publish_failures_total"
)

// Phases of the creation of a chat: the plan that makes it, the members of a group,
// and the events' way to the log.
const (
	PhaseChat    = "1"
	PhaseMembers = "2"
	PhaseLog     = "kafka"
)

// ChatMetrics counts what happens to chats and memberships. Its methods may be called
// from any goroutine.
type ChatMetrics struct {
	created   *prometheus.CounterVec
	creation  *prometheus.HistogramVec
	mutations *prometheus.CounterVec
	mutation  *prometheus.HistogramVec
	dedup     *prometheus.CounterVec
	retries   prometheus.Counter
	publish   *prometheus.CounterVec
}

// Chats adds the metrics of chats and memberships. All their labels are there
// from the start: an alert on growth misses what begins to exist with its first
// count.
func (m *Metrics) Chats() *ChatMetrics {
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	counter := func(name, help string, label string, values ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		m.registry.MustRegister(v)
		return v
	}
	l := &ChatMetrics{
		created: counter(ChatsCreated, "Chats created.", "chat_type", "direct", "group"),
		creation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: ChatCreationTime, Help: "Time of each phase of creating a chat: 1 the chat, 2 its members, kafka its event.",
			Buckets: buckets,
		}, []string{"chat_type", "phase"}),
		mutations: counter(MembershipMutations, "Changes of memberships.", "change_type", "added", "removed", "role_changed"),
		mutation: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: MembershipTime, Help: "Time of a change of a membership, the wait for the chat included.", Buckets: buckets,
		}, []string{"change_type"}),
		dedup: counter(DirectDedup, "Direct chats asked for, by what became of it.", "result", "created", "existing"),
		retries: prometheus.NewCounter(prometheus.CounterOpts{Name: CreationRetries,
			Help: "Chunks of a new group's members that had to be tried again."}),
		publish: counter(LifecyclePublishFails,
			"Attempts to publish an event of a chat or membership that failed; it stays in the outbox.", "event_type",
			"ChatCreated", "ChatUpdated", "MembershipChanged"),
	}
	for _, kind := range []string{"direct", "group"} {
		for _, phase := range []string{PhaseChat, PhaseMembers, PhaseLog} {
			l.creation.WithLabelValues(kind, phase)
		}
	}
	for _, change := range []string{"added", "removed", "role_changed"} {
		l.mutation.WithLabelValues(change)
	}
	m.registry.MustRegister(l.creation, l.mutation, l.retries)
	return l
}

// ChatCreated counts a new chat, "direct" or "group".
func (l *ChatMetrics) ChatCreated(kind string) { l.created.WithLabelValues(kind).Inc() }

// CreationTook records the time of a phase of a creation.
func (l *ChatMetrics) CreationTook(kind, phase string, took time.Duration) {
	l.creation.WithLabelValues(kind, phase).Observe(took.Seconds())
}

// MembershipChanged counts a change: "added", "removed" or "role_changed".
func (l *ChatMetrics) MembershipChanged(change string, took time.Duration) {
	l.mutations.WithLabelValues(change).Inc()
	l.mutation.WithLabelValues(change).Observe(took.Seconds())
}

// DirectAsked counts a direct chat that was asked for.
func (l *ChatMetrics) DirectAsked(existed bool) {
	result := "created"
	if existed {
		result = "existing"
	}
	l.dedup.WithLabelValues(result).Inc()
}

// CreationRetried counts a chunk of members that had to be tried again.
func (l *ChatMetrics) CreationRetried() { l.retries.Inc() }

// PublishFailed counts an event that could not be published. Types that are not of
// chats or memberships are not counted.
func (l *ChatMetrics) PublishFailed(eventType string) {
	switch eventType {
	case "ChatCreated", "ChatUpdated", "MembershipChanged":
		l.publish.WithLabelValues(eventType).Inc()
	}
}
