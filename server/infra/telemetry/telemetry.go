// Package telemetry is what operators see of a process: the logger, and the names of all
// metrics in one place.
//
// It owns names and formats; the packages that do the work feed them through
// values given to them, or are asked at scrape time. Nothing that users wrote,
// and no token, is ever logged or made a label; names of topics and of groups are.
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
	first    *prometheus.HistogramVec
	refused  *prometheus.CounterVec
}

// NewMetrics makes a registry of its own, with the Go and process collectors.
func NewMetrics() *Metrics {
	buckets := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    RPCTime,
			Help:    "Time from the first byte of a request to its answer; streams count their lifetime.",
			Buckets: buckets,
		}, []string{"procedure", "code"}),
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    StreamFirst,
			Help:    "Time from the first byte of a stream's request to its first response, or to its end without one.",
			Buckets: buckets,
		}, []string{"procedure", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: AuthRefused,
			Help: "Requests refused at the gate, which are no RPCs yet.",
		}, []string{"reason"}),
	}
	m.registry.MustRegister(m.requests, m.first, m.refused, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Request counts an RPC; code is "ok" or the name of connect's code.
func (m *Metrics) Request(procedure, code string, took time.Duration) {
	m.requests.WithLabelValues(procedure, code).Observe(took.Seconds())
}

// First counts a stream when its first response was sent, with "ok", or when it ended without one.
func (m *Metrics) First(procedure, code string, took time.Duration) {
	m.first.WithLabelValues(procedure, code).Observe(took.Seconds())
}

// Streams names a procedure of streams, whose first responses are counted from 0.
func (m *Metrics) Streams(procedure string) { m.first.WithLabelValues(procedure, "ok") }

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

// GaugeOf adds a metric for one value of a label, which is read when it is scraped. Calls for other values
// of the label must have the same help.
func (m *Metrics) GaugeOf(name, help, label, value string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help,
		ConstLabels: prometheus.Labels{label: value}}, read))
}

// Family is a metric with labels. A counter only grows, and a gauge does not.
type Family struct {
	Name, Help string
	Counter    bool
}

// Families adds metrics whose labels have values that come and go. A scrape calls read, which calls
// emit once for each set of values of the labels, with the values of all metrics in their order.
func (m *Metrics) Families(labels []string, all []Family, read func(emit func(of []string, values ...float64))) {
	f := &families{read: read}
	for _, x := range all {
		kind := prometheus.GaugeValue
		if x.Counter {
			kind = prometheus.CounterValue
		}
		f.kinds = append(f.kinds, kind)
		f.descriptions = append(f.descriptions, prometheus.NewDesc(x.Name, x.Help, labels, nil))
	}
	m.registry.MustRegister(f)
}

// families is the collector of Families.
type families struct {
	descriptions []*prometheus.Desc
	kinds        []prometheus.ValueType
	read         func(emit func(of []string, values ...float64))
}

// Describe sends the descriptions of the metrics.
func (f *families) Describe(to chan<- *prometheus.Desc) {
	for _, d := range f.descriptions {
		to <- d
	}
}

// Collect sends the values of the metrics.
func (f *families) Collect(to chan<- prometheus.Metric) {
	f.read(func(of []string, values ...float64) {
		for i, v := range values {
			to <- prometheus.MustNewConstMetric(f.descriptions[i], f.kinds[i], v, of...)
		}
	})
}

// Counters adds a counter with a label, which is 0 for each of some values, and returns what
// counts.
func (m *Metrics) Counters(name, help, label string, values ...string) func(value string) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	m.registry.MustRegister(v)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return func(value string) { v.WithLabelValues(value).Inc() }
}

// Counter adds a metric that only grows and is read when it is scraped.
func (m *Metrics) Counter(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
}

// CounterOf is Counter for one value of a label. Calls for other values of the label must have the same
// help.
func (m *Metrics) CounterOf(name, help, label, value string, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help,
		ConstLabels: prometheus.Labels{label: value}}, read))
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
	StreamFirst = "parley_stream_first_response_seconds"
	AuthRefused = "parley_auth_refused_total"

	CertificateDays = "parley_certificate_days_left"

	RevocationsApplied = "parley_revocations_applied_total"
	RevocationsAge     = "parley_revocations_age_seconds"

	RevocationsUnreadable = "parley_revocations_unreadable_total"
	RevocationsOverflows  = "parley_revocations_overflows_total"

	DeletionsFailing = "parley_account_deletions_failing"

	LinkPeers       = "parley_link_peers"
	LinkSent        = "parley_link_envelopes_sent_total"
	LinkFailed      = "parley_link_calls_failed_total"
	LinkDropped     = "parley_link_live_dropped_total"
	LinkForwarded   = "parley_link_messages_forwarded_total"
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

	LimitsRefused = "parley_limits_refused_total"
	LimitsAlone   = "parley_limits_alone"
	CallsUnderWay = "parley_calls_under_way"
	CallsBound    = "parley_calls_bound"
	CallsShed     = "parley_calls_shed_total"

	StreamsOpen           = "parley_streams_open"
	ChatsLive             = "parley_chats_live"
	StreamsOpened         = "parley_streams_opened_total"
	FramesQueued          = "parley_frames_queued_total"
	HoleReads             = "parley_delivery_hole_reads_total"
	MemberChecks          = "parley_delivery_member_checks_total"
	SlowStreams           = "parley_streams_ended_slow_total"
	StreamMarks           = "parley_delivery_marks_total"
	StreamResyncs         = "parley_delivery_resyncs_total"
	ForeignChanges        = "parley_delivery_foreign_total"
	HistoryRefused        = "parley_history_refused_total"
	TopicsKnown           = "parley_topics"
	TopicSessions         = "parley_topics_sessions"
	TopicSlots            = "parley_topics_slots"
	TopicSlotsAll         = "parley_topics_slots_declared"
	TopicSlotsTaken       = "parley_topics_slots_taken_total"
	TopicSlotsLost        = "parley_topics_slots_lost_total"
	TopicLogCommitted     = "parley_topics_log_transactions_total"
	TopicLogTime          = "parley_topics_log_transaction_seconds_total"
	TopicLogMessages      = "parley_topics_log_messages_total"
	TopicLogRefused       = "parley_topics_log_refused_total"
	TopicLogEnded         = "parley_topics_log_ended_total"
	TopicLogWaiting       = "parley_topics_log_waiting_bytes"
	TopicLogRemovals      = "parley_topics_log_removals_failed_total"
	TopicLogOffsets       = "parley_topics_log_offsets_failed_total"
	TopicStreams          = "parley_topics_streams_open"
	TopicPublished        = "parley_topics_published_total"
	TopicBlocked          = "parley_topics_blocked_total"
	TopicMismatched       = "parley_topics_schema_mismatches_total"
	TopicUnsubscribed     = "parley_topics_unsubscribed_total"
	TopicGroupsDied       = "parley_topics_groups_died_total"
	TopicReleased         = "parley_topics_released_total"
	TopicLedger           = "parley_topics_released_messages_total"
	TopicDetectionBraked  = "parley_topics_detection_braked_total"
	TopicBacklog          = "parley_topics_backlog_largest"
	TopicsOpen            = "parley_topics_open"
	TopicResident         = "parley_topics_resident_bytes"
	TopicResidentLimit    = "parley_topics_resident_limit_bytes"
	TopicNearTimeout      = "parley_topics_groups_near_timeout"
	TopicHeartbeatWrites  = "parley_topics_heartbeat_writes_total"
	TopicHeartbeatsFailed = "parley_topics_heartbeats_failed_total"
	TopicDeadLetters      = "parley_topics_dead_letters_total"
	TopicDeadLettersOpen  = "parley_topics_dead_letters_open"
	TopicTrimmed          = "parley_topics_trimmed_total"
	TopicTrimsSkipped     = "parley_topics_trims_held_total"
	TopicZombies          = "parley_topics_zombies_total"
	TopicPublishesFull    = "parley_topics_publishes_full_total"
	TopicJobsFailed       = "parley_topics_jobs_failed_total"
	BackfillsRunning      = "parley_topics_backfills_running"
	BackfillLeft          = "parley_topics_backfill_left"
	BackfillReleased      = "parley_topics_backfill_released_total"
	BackfillSlowed        = "parley_topics_backfill_slowed_total"
	BackfillsFailed       = "parley_topics_backfills_failed_total"

	TopicSubsActive      = "parley_topics_subscriptions_active"
	TopicSubsPaused      = "parley_topics_subscriptions_paused"
	TopicSubsDead        = "parley_topics_subscriptions_dead"
	TopicSubsCancelled   = "parley_topics_subscriptions_cancelled"
	TopicSubs            = "parley_topics_subscriptions"
	TopicTracked         = "parley_topics_tracking_entries"
	TopicOverdue         = "parley_topics_overdue_seconds"
	GroupLag             = "parley_topics_group_lag"
	GroupOldest          = "parley_topics_group_oldest_seconds"
	GroupStalled         = "parley_topics_group_stalled"
	GroupDelivered       = "parley_topics_group_delivered_total"
	GroupRedelivered     = "parley_topics_group_redelivered_total"
	GroupAcknowledged    = "parley_topics_group_acknowledged_total"
	GroupLeasesExpired   = "parley_topics_group_leases_expired_total"
	GroupDeadLettered    = "parley_topics_group_dead_lettered_total"
	GroupPushFailing     = "parley_topics_group_push_failing"
	GroupPushFailures    = "parley_topics_group_push_failures_total"
	TopicLeasesOverdue   = "parley_topics_leases_overdue_total"
	TopicOrphans         = "parley_topics_orphaned_cursors_total"
	TopicDetectionFailed = "parley_topics_detection_failed_total"
	TopicTrimBacklog     = "parley_topics_trim_backlog"
	TopicTrimBehind      = "parley_topics_trim_behind"
	TopicTrims           = "parley_topics_trims_total"
	TopicTrimTime        = "parley_topics_trim_seconds_total"
	TopicJobTime         = "parley_topics_job_seconds"
	MemoryUsed           = "parley_memory_used_percent"

	StorePlans       = "parley_store_plans_total"
	StoreFailed      = "parley_store_plans_failed_total"
	StoreBytes       = "parley_store_disk_bytes"
	StoreDamaged     = "parley_store_damaged"
	DiskFull         = "parley_disk_full"
	DiskFree         = "parley_disk_free_bytes"
	DiskReserve      = "parley_disk_reserve_bytes"
	DiskHoursLeft    = "parley_disk_hours_left"
	DiskSlowest      = "parley_disk_slowest_call_seconds"
	BackupLast       = "parley_backup_last_timestamp_seconds"
	BackupOverdue    = "parley_backup_overdue_seconds"
	BackupFailed     = "parley_backup_failed_total"
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
	WorkersTaken     = "parley_workers_taken_for_dead_total"
	WorkersSilent    = "parley_workers_silent_total"

	CodesRequested    = "parley_codes_requested_total"
	CodesRefused      = "parley_codes_refused_total"
	CodesWrong        = "parley_codes_wrong_total"
	CodesUnsent       = "parley_codes_unsent_total"
	SessionsOpened    = "parley_sessions_opened_total"
	SessionsRefreshed = "parley_sessions_refreshed_total"
	SessionsRefused   = "parley_sessions_refresh_refused_total"
	SessionsReused    = "parley_sessions_reused_total"
	SessionsEnded     = "parley_sessions_ended_total"

	SearchRecorded   = "parley_search_events_recorded_total"
	SearchRefused    = "parley_search_requests_refused_total"
	SearchNoRoom     = "parley_search_requests_log_full_total"
	SearchPublished  = "parley_search_relay_published_total"
	SearchFailures   = "parley_search_relay_failures_total"
	SearchDead       = "parley_search_relay_dead_letters_total"
	SearchPoisoned   = "parley_search_relay_poisoned_rows"
	SearchBacklog    = "parley_search_relay_backlog_rows"
	SearchOldest     = "parley_search_relay_oldest_seconds"
	SearchWaiting    = "parley_search_relay_waiting_seconds"
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
	LogUnreadable    = "parley_log_unreadable_records"
	LogGivenUp       = "parley_log_given_up_records_total"
	KafkaPortOpen    = "parley_kafka_port_connections_open"
	KafkaPortRefused = "parley_kafka_port_connections_refused_total"
	KafkaPortEvicted = "parley_kafka_port_connections_evicted_total"
	LogTrimFailed    = "parley_log_trim_failed"

	ProjectorHandled   = "parley_projector_handled_total"
	ProjectorIgnored   = "parley_projector_ignored_total"
	ProjectorDead      = "parley_projector_dead_letters_total"
	ProjectorUnwritten = "parley_projector_dead_letters_unwritten_total"
	ProjectorHeld      = "parley_projector_held_total"
	ProjectorParked    = "parley_projector_parked_records"
	ProjectorLag       = "parley_projector_lag_records"
	ProjectorOldest    = "parley_projector_oldest_seconds"
	ProjectionFolded   = "parley_projections_folded_total"
	ProjectionRebuilt  = "parley_projections_rebuilt_total"
	ProjectionRaces    = "parley_projections_conflicts_total"
	ProjectionStuck    = "parley_projections_stuck_total"
	ProjectionSlowed   = "parley_projections_rebuild_slowed_total"
	ProjectionToDo     = "parley_projections_rebuild_left_events"
	ProjectionPaused   = "parley_projections_rebuilds_paused"

	DeadLettersOpen   = "parley_dead_letters_open"
	DeadLettersOldest = "parley_dead_letters_oldest_seconds"
	ParkedKeys        = "parley_parked_keys"
	ParkedRecords     = "parley_parked_records"
	ParkedOldest      = "parley_parked_oldest_seconds"
	ParkedFullest     = "parley_parked_fullest_percent"
	KafkaUnderReplica = "parley_kafka_under_replicated_partitions"

	ReconcileDone    = "parley_reconcile_completed_total"
	ReconcilePasses  = "parley_reconcile_passes_total"
	ReconcileFailed  = "parley_reconcile_failures_total"
	ReconcilePending = "parley_reconcile_pending"
	ReconcileOldest  = "parley_reconcile_oldest_seconds"
	ReconcileAudited = "parley_reconcile_audited_total"
	ReconcileAudit   = "parley_reconcile_audit_age_seconds"
)
