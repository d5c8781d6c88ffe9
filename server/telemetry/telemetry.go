// Package telemetry is what operators see of a process: the logger, and the names of all
// metrics in one place.
//
// It owns names and formats; the packages that do the work feed them through
// values given to them, or are asked at scrape time. Nothing that users wrote,
// and no token, is ever logged or made a label.
package telemetry

import (
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewLogger makes a logger; json for machines, else text for a terminal. It
// redacts attributes that are named like a secret.
func NewLogger(w io.Writer, json bool) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: redact}
	if json {
		return slog.New(limit(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(limit(slog.NewTextHandler(w, opts)))
}

// Metrics are the process's metrics.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
	refused  *prometheus.CounterVec
}

// NewMetrics makes a registry of its own, with the Go and process collectors.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    RPCTime,
			Help:    "Time from the first byte of a request to its answer; streams count their lifetime.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"procedure", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: AuthRefused,
			Help: "Requests refused at the gate, which are no RPCs yet.",
		}, []string{"reason"}),
	}
	m.registry.MustRegister(m.requests, m.refused, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Request counts an RPC; code is "ok" or the name of connect's code.
func (m *Metrics) Request(procedure, code string, took time.Duration) {
	m.requests.WithLabelValues(procedure, code).Observe(took.Seconds())
}

// Refusals are the reasons there are, which are 0 until something is refused.
func (m *Metrics) Refusals(reasons ...string) {
	for _, r := range reasons {
		m.refused.WithLabelValues(r)
	}
}

// Refused counts a request that was refused at the gate. A reason is one of few.
func (m *Metrics) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Gauge adds a metric that is read when it is scraped.
func (m *Metrics) Gauge(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

// Counter adds a metric that only grows and is read when it is scraped.
func (m *Metrics) Counter(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
}

// Histogram adds a metric of times, and returns what records them. Buckets are in seconds.
func (m *Metrics) Histogram(name, help string, buckets ...float64) func(took time.Duration) {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return func(took time.Duration) { h.Observe(took.Seconds()) }
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Names of the metrics. Those of chats and memberships stand beside what counts them.
const (
	RPCTime     = "parley_rpc_duration_seconds"
	AuthRefused = "parley_auth_refused_total"

	LinkPeers       = "parley_link_peers"
	LinkSent        = "parley_link_envelopes_sent_total"
	LinkFailed      = "parley_link_calls_failed_total"
	LinkDropped     = "parley_link_live_dropped_total"
	LinkGaps        = "parley_link_gaps_total"
	LinkSilent      = "parley_link_peers_silent"
	LinkUnheard     = "parley_link_processes_unheard"
	DeliverySkipped = "parley_delivery_skipped_total"
	MemberLists     = "parley_members_%s_total" // local, shared or store
	NudgesDropped   = "parley_nudges_dropped_total"
	RoutingRows     = "parley_routing_rows"
	RoutingClaims   = "parley_routing_claims_total"
	RoutingFailures = "parley_routing_renewals_failed_total"

	Connections        = "parley_connections_open"
	ConnectionsRefused = "parley_connections_refused_total"
	ConnectionsEvicted = "parley_connections_evicted_total"
	ConnectionsCut     = "parley_connections_cut_total"
	RequestsRefused    = "parley_requests_refused_total"

	StreamsOpen      = "parley_streams_open"
	ChatsLive        = "parley_chats_live"
	StreamsOpened    = "parley_streams_opened_total"
	FramesQueued     = "parley_frames_queued_total"
	HoleReads        = "parley_delivery_hole_reads_total"
	MemberChecks     = "parley_delivery_member_checks_total"
	SlowStreams      = "parley_streams_ended_slow_total"
	StreamMarks      = "parley_delivery_marks_total"
	StreamResyncs    = "parley_delivery_resyncs_total"
	ForeignChanges   = "parley_delivery_foreign_total"
	StorePlans       = "parley_store_plans_total"
	StoreFailed      = "parley_store_plans_failed_total"
	StoreBytes       = "parley_store_disk_bytes"
	StoreCompactions = "parley_store_outbox_compactions_total"
	ClockSkew        = "parley_clock_skew_seconds"
	DynamoRequests   = "parley_dynamodb_requests_total"
	DynamoConflicts  = "parley_dynamodb_conflicts_total"
	DynamoThrottled  = "parley_dynamodb_throttled_total"
	DynamoLost       = "parley_dynamodb_lost_total"
	DynamoReadUnits  = "parley_dynamodb_read_units_total"
	DynamoWriteUnits = "parley_dynamodb_write_units_total"
	RelayPublished   = "parley_relay_published_total"
	RelayFailures    = "parley_relay_failures_total"
	RelayDropped     = "parley_relay_nudges_dropped_total"
	RelayPoisoned    = "parley_relay_poisoned_rows"
	RelayUnavailable = "parley_relay_unavailable_partitions"
	RelayBacklog     = "parley_relay_backlog_rows"
	RelayOldest      = "parley_relay_oldest_seconds"
	RelaySlots       = "parley_relay_slots"
	TopicFrozen      = "parley_topic_frozen_seconds"
	RelaySlotsLost   = "parley_relay_slots_lost_total"
	RelaySlotsAll    = "parley_relay_slots_declared"
	RelayTopicsOdd   = "parley_relay_repartitioned_topics"
	PublishTime      = "parley_kafka_publish_seconds"
	FanoutHandled    = "parley_fanout_handled_total"
	FanoutDead       = "parley_fanout_dead_letters_total"
	FanoutHeld       = "parley_fanout_held_total"
	FanoutSkipped    = "parley_fanout_skipped_total"
	FanoutIgnored    = "parley_fanout_ignored_total"
	FanoutCalls      = "parley_fanout_calls_total"
	FanoutRebalances = "parley_fanout_rebalances_total"
	FanoutLag        = "parley_fanout_lag_records"
	FanoutOldest     = "parley_fanout_oldest_seconds"
	FanoutMembers    = "parley_fanout_memberships_oldest_seconds"
	FanoutUnwritten  = "parley_fanout_dead_letters_unwritten_total"
	LogBytes         = "parley_log_bytes"

	DeadLettersOpen   = "parley_dead_letters_open"
	DeadLettersOldest = "parley_dead_letters_oldest_seconds"
	KafkaUnderReplica = "parley_kafka_under_replicated_partitions"

	ReconcileDone    = "parley_reconcile_completed_total"
	ReconcilePasses  = "parley_reconcile_passes_total"
	ReconcileFailed  = "parley_reconcile_failures_total"
	ReconcilePending = "parley_reconcile_pending"
	ReconcileOldest  = "parley_reconcile_oldest_seconds"
	ReconcileAudited = "parley_reconcile_audited_total"
	ReconcileAudit   = "parley_reconcile_audit_age_seconds"
)
