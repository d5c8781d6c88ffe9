package app_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Programs that show metrics.
const (
	embedded = 1 << iota // the server that is alone
	server               // of an installation
	worker               // with relay, fanout, projector and reconcile
	operator             // a worker with ops
)

// shown are all metrics as operators know them: type, labels, and who shows them.
var shown = []struct {
	name, kind, labels string
	by                 int
}{
	{"parley_rpc_duration_seconds", "histogram", "code procedure", embedded | server},
	{"parley_stream_first_response_seconds", "histogram", "code procedure", embedded | server},
	{"parley_certificate_days_left", "gauge", "file", 0}, // with TLS: TestSec_S_32_TLS
	{"parley_auth_refused_total", "counter", "reason", embedded | server},
	{"parley_revocations_applied_total", "counter", "", embedded | server},
	{"parley_revocations_unreadable_total", "counter", "", embedded | server},
	{"parley_revocations_overflows_total", "counter", "", embedded | server},
	{"parley_revocations_age_seconds", "gauge", "", server},
	{"parley_account_deletions_failing", "gauge", "", embedded | server},
	{"parley_connections_open", "gauge", "", embedded | server},
	{"parley_connections_refused_total", "counter", "", embedded | server},
	{"parley_connections_evicted_total", "counter", "", embedded | server},
	{"parley_connections_cut_total", "counter", "", embedded | server},
	{"parley_requests_refused_total", "counter", "", embedded | server},
	{"parley_codes_requested_total", "counter", "", embedded | server},
	{"parley_codes_refused_total", "counter", "", embedded | server},
	{"parley_codes_wrong_total", "counter", "", embedded | server},
	{"parley_codes_unsent_total", "counter", "", embedded | server},
	{"parley_sessions_opened_total", "counter", "", embedded | server},
	{"parley_sessions_refreshed_total", "counter", "", embedded | server},
	{"parley_sessions_refresh_refused_total", "counter", "", embedded | server},
	{"parley_sessions_reused_total", "counter", "", embedded | server},
	{"parley_sessions_ended_total", "counter", "", embedded | server},
	{"parley_limits_refused_total", "counter", "limit", embedded | server},
	{"parley_limits_alone", "gauge", "", server},
	{"parley_calls_under_way", "gauge", "", embedded | server},
	{"parley_calls_bound", "gauge", "", embedded | server},
	{"parley_calls_shed_total", "counter", "", embedded | server},
	{"parley_streams_open", "gauge", "", embedded | server}, {"parley_chats_live", "gauge", "", embedded | server},
	{"parley_streams_opened_total", "counter", "", embedded | server},
	{"parley_frames_queued_total", "counter", "", embedded | server},
	{"parley_streams_ended_slow_total", "counter", "", embedded | server},
	{"parley_delivery_hole_reads_total", "counter", "", embedded | server},
	{"parley_delivery_member_checks_total", "counter", "", embedded | server},
	{"parley_delivery_marks_total", "counter", "", embedded | server},
	{"parley_delivery_resyncs_total", "counter", "", embedded | server},
	{"parley_delivery_foreign_total", "counter", "", embedded | server},
	{"parley_history_refused_total", "counter", "", embedded | server},

	{"parley_chat_created_total", "counter", "chat_type", embedded | server | worker},
	{"parley_chat_creation_duration_seconds", "histogram", "chat_type phase", embedded | server | worker},
	{"parley_membership_mutation_total", "counter", "change_type", embedded | server | worker},
	{"parley_membership_mutation_duration_seconds", "histogram", "change_type", embedded | server | worker},
	{"parley_direct_chat_dedup_total", "counter", "result", embedded | server | worker},
	{"parley_chat_creation_phase2_retries_total", "counter", "", embedded | server | worker},
	{"parley_kafka_lifecycle_publish_failures_total", "counter", "event_type", embedded | server | worker},
	{"parley_chat_reconciliation_corrections_total", "counter", "", embedded | worker},

	{"parley_topics", "gauge", "", embedded | server}, {"parley_topics_sessions", "gauge", "", embedded | server},
	{"parley_topics_slots", "gauge", "", server}, {"parley_topics_slots_declared", "gauge", "", server},
	{"parley_topics_slots_taken_total", "counter", "", server}, {"parley_topics_slots_lost_total", "counter", "", server},
	{"parley_topics_log_transactions_total", "counter", "", server},
	{"parley_topics_log_transaction_seconds_total", "counter", "", server},
	{"parley_topics_log_messages_total", "counter", "", server},
	{"parley_topics_log_refused_total", "counter", "", server},
	{"parley_topics_log_ended_total", "counter", "", server},
	{"parley_topics_log_waiting_bytes", "gauge", "", server},
	{"parley_topics_log_removals_failed_total", "counter", "", server},
	{"parley_topics_log_offsets_failed_total", "counter", "", server},
	{"parley_topics_streams_open", "gauge", "", embedded | server},
	{"parley_topics_published_total", "counter", "", embedded | server},
	{"parley_topics_blocked_total", "counter", "", embedded | server},
	{"parley_topics_schema_mismatches_total", "counter", "", embedded | server},
	{"parley_topics_unsubscribed_total", "counter", "", embedded | server},
	{"parley_topics_groups_died_total", "counter", "", embedded | server},
	{"parley_topics_released_total", "counter", "", embedded | server},
	{"parley_topics_released_messages_total", "counter", "cause", embedded | server},
	{"parley_topics_detection_braked_total", "counter", "", embedded | server},
	{"parley_topics_backlog_largest", "gauge", "", embedded | server},
	{"parley_topics_open", "gauge", "", embedded | server},
	{"parley_topics_resident_bytes", "gauge", "", embedded | server},
	{"parley_topics_resident_limit_bytes", "gauge", "", embedded | server},
	{"parley_topics_groups_near_timeout", "gauge", "", embedded | server},
	{"parley_topics_heartbeat_writes_total", "counter", "", embedded | server},
	{"parley_topics_heartbeats_failed_total", "counter", "", embedded | server},
	{"parley_topics_dead_letters_total", "counter", "", embedded | server},
	{"parley_topics_trimmed_total", "counter", "", embedded | server},
	{"parley_topics_trims_held_total", "counter", "", embedded | server},
	{"parley_topics_zombies_total", "counter", "", embedded | server},
	{"parley_topics_jobs_failed_total", "counter", "", embedded | server},
	{"parley_topics_publishes_full_total", "counter", "", embedded | server},
	{"parley_topics_backfills_running", "gauge", "", embedded | server},
	{"parley_topics_backfill_left", "gauge", "", embedded | server},
	{"parley_topics_backfill_released_total", "counter", "", embedded | server},
	{"parley_topics_backfill_slowed_total", "counter", "", embedded | server},
	{"parley_topics_backfills_failed_total", "counter", "", embedded | server},
	{"parley_topics_subscriptions", "gauge", "", embedded | server},
	{"parley_topics_subscriptions_active", "gauge", "", embedded | server},
	{"parley_topics_subscriptions_paused", "gauge", "", embedded | server},
	{"parley_topics_subscriptions_dead", "gauge", "", embedded | server},
	{"parley_topics_subscriptions_cancelled", "gauge", "", embedded | server},
	{"parley_topics_tracking_entries", "gauge", "", embedded | server},
	{"parley_topics_overdue_seconds", "gauge", "", embedded | server},
	{"parley_topics_group_lag", "gauge", "group topic", embedded | server},
	{"parley_topics_group_oldest_seconds", "gauge", "group topic", embedded | server},
	{"parley_topics_group_stalled", "gauge", "group topic", embedded | server},
	{"parley_topics_group_delivered_total", "counter", "group topic", embedded | server},
	{"parley_topics_group_redelivered_total", "counter", "group topic", embedded | server},
	{"parley_topics_group_acknowledged_total", "counter", "group topic", embedded | server},
	{"parley_topics_group_leases_expired_total", "counter", "group topic", embedded | server},
	{"parley_topics_group_dead_lettered_total", "counter", "group topic", embedded | server},
	{"parley_topics_group_push_failing", "gauge", "group topic", embedded | server},
	{"parley_topics_group_push_failures_total", "counter", "group topic", embedded | server},
	{"parley_topics_leases_overdue_total", "counter", "", embedded | server},
	{"parley_topics_orphaned_cursors_total", "counter", "", embedded | server},
	{"parley_topics_detection_failed_total", "counter", "", embedded | server},
	{"parley_topics_trim_backlog", "gauge", "", embedded | server},
	{"parley_topics_trim_behind", "gauge", "", embedded | server},
	{"parley_topics_trims_total", "counter", "", embedded | server},
	{"parley_topics_trim_seconds_total", "counter", "", embedded | server},
	{"parley_topics_job_seconds", "gauge", "", embedded | server},
	{"parley_memory_used_percent", "gauge", "", embedded | server},
	{"parley_link_peers", "gauge", "", server | worker | operator},
	{"parley_link_peers_silent", "gauge", "", server | worker | operator},
	{"parley_link_processes_unheard", "gauge", "", server | worker | operator},
	{"parley_link_envelopes_sent_total", "counter", "", server | worker | operator},
	{"parley_link_calls_failed_total", "counter", "", server | worker | operator},
	{"parley_link_messages_forwarded_total", "counter", "", server | worker | operator},
	{"parley_link_live_dropped_total", "counter", "", server | worker | operator},
	{"parley_link_gaps_total", "counter", "", server | worker | operator},
	{"parley_delivery_skipped_total", "counter", "", server | worker | operator},
	{"parley_members_local_total", "counter", "", server | worker | operator},
	{"parley_members_shared_total", "counter", "", server | worker | operator},
	{"parley_members_store_total", "counter", "", server | worker | operator},
	{"parley_nudges_dropped_total", "counter", "", server},
	{"parley_routing_rows", "gauge", "", server},
	{"parley_routing_claims_total", "counter", "", server},
	{"parley_routing_renewals_failed_total", "counter", "", server},

	{"parley_store_plans_total", "counter", "", embedded | server | worker | operator},
	{"parley_store_plans_failed_total", "counter", "", embedded | server | worker | operator},
	{"parley_store_disk_bytes", "gauge", "", embedded},
	{"parley_store_outbox_compactions_total", "counter", "", embedded},
	{"parley_log_bytes", "gauge", "", embedded}, {"parley_backup_last_timestamp_seconds", "gauge", "", embedded},
	{"parley_disk_full", "gauge", "dir", embedded}, {"parley_store_damaged", "gauge", "", embedded},
	{"parley_backup_overdue_seconds", "gauge", "", embedded}, {"parley_backup_failed_total", "counter", "", embedded},
	{"parley_disk_free_bytes", "gauge", "dir", embedded}, {"parley_disk_reserve_bytes", "gauge", "dir", embedded},
	{"parley_disk_hours_left", "gauge", "dir", embedded}, {"parley_disk_slowest_call_seconds", "gauge", "dir", embedded},
	{"parley_log_given_up_records_total", "counter", "", embedded}, {"parley_log_trim_failed", "gauge", "", embedded},
	{"parley_clock_skew_seconds", "gauge", "", embedded | server | worker | operator},
	{"parley_dynamodb_requests_total", "counter", "", server | worker | operator},
	{"parley_dynamodb_conflicts_total", "counter", "", server | worker | operator},
	{"parley_dynamodb_throttled_total", "counter", "", server | worker | operator},
	{"parley_dynamodb_lost_total", "counter", "", server | worker | operator},
	{"parley_dynamodb_read_units_total", "counter", "", server | worker | operator},
	{"parley_dynamodb_write_units_total", "counter", "", server | worker | operator},

	{"parley_search_events_recorded_total", "counter", "", embedded | server},
	{"parley_search_requests_refused_total", "counter", "", embedded | server},
	{"parley_log_unreadable_records", "gauge", "", embedded},
	{"parley_kafka_port_connections_open", "gauge", "", embedded},
	{"parley_kafka_port_connections_refused_total", "counter", "", embedded},
	{"parley_kafka_port_connections_evicted_total", "counter", "", embedded},
	{"parley_search_requests_log_full_total", "counter", "", embedded | server},
	{"parley_search_relay_published_total", "counter", "", embedded | worker},
	{"parley_search_relay_failures_total", "counter", "", embedded | worker},
	{"parley_search_relay_dead_letters_total", "counter", "", embedded | worker},
	{"parley_search_relay_poisoned_rows", "gauge", "", embedded | worker},
	{"parley_search_relay_backlog_rows", "gauge", "", embedded | worker},
	{"parley_search_relay_oldest_seconds", "gauge", "", embedded | worker},
	{"parley_search_relay_waiting_seconds", "gauge", "topic", embedded | worker},

	{"parley_relay_published_total", "counter", "", embedded | worker},
	{"parley_relay_failures_total", "counter", "", embedded | worker},
	{"parley_relay_nudges_dropped_total", "counter", "", embedded | worker},
	{"parley_relay_poisoned_rows", "gauge", "", embedded | worker},
	{"parley_relay_unavailable_partitions", "gauge", "", embedded | worker},
	{"parley_relay_repartitioned_topics", "gauge", "", embedded | worker},
	{"parley_topic_frozen_seconds", "gauge", "", embedded | worker},
	{"parley_relay_backlog_rows", "gauge", "", embedded | worker},
	{"parley_relay_oldest_seconds", "gauge", "", embedded | worker},
	{"parley_relay_slots", "gauge", "", embedded | worker},
	{"parley_relay_slots_lost_total", "counter", "", embedded | worker},
	{"parley_relay_slots_declared", "gauge", "", embedded | worker},
	{"parley_workers_taken_for_dead_total", "counter", "", worker | operator},
	{"parley_workers_silent_total", "counter", "", worker | operator},
	{"parley_kafka_publish_seconds", "histogram", "", embedded | worker},
	{"parley_fanout_handled_total", "counter", "", embedded | worker},
	{"parley_fanout_dead_letters_total", "counter", "", embedded | worker},
	{"parley_fanout_dead_letters_unwritten_total", "counter", "", embedded | worker},
	{"parley_fanout_held_total", "counter", "", embedded | worker},
	{"parley_fanout_skipped_total", "counter", "", embedded | worker},
	{"parley_fanout_ignored_total", "counter", "", embedded | worker},
	{"parley_fanout_calls_total", "counter", "", embedded | worker},
	{"parley_fanout_rebalances_total", "counter", "", embedded | worker},
	{"parley_fanout_lag_records", "gauge", "", embedded | worker},
	{"parley_fanout_oldest_seconds", "gauge", "", embedded | worker},
	{"parley_fanout_memberships_oldest_seconds", "gauge", "", embedded | worker},
	{"parley_projector_handled_total", "counter", "", embedded | worker},
	{"parley_projector_ignored_total", "counter", "", embedded | worker},
	{"parley_projector_dead_letters_total", "counter", "", embedded | worker},
	{"parley_projector_dead_letters_unwritten_total", "counter", "", embedded | worker},
	{"parley_projector_held_total", "counter", "", embedded | worker},
	{"parley_projector_parked_records", "gauge", "", embedded | worker},
	{"parley_projector_lag_records", "gauge", "", embedded | worker},
	{"parley_projector_oldest_seconds", "gauge", "", embedded | worker},
	{"parley_projections_folded_total", "counter", "", embedded | worker},
	{"parley_projections_rebuilt_total", "counter", "", embedded | worker},
	{"parley_projections_conflicts_total", "counter", "", embedded | worker},
	{"parley_projections_stuck_total", "counter", "", embedded | worker},
	{"parley_projections_rebuilds_paused", "gauge", "", embedded | worker},
	{"parley_projections_rebuild_slowed_total", "counter", "", embedded | worker},
	{"parley_projections_rebuild_left_events", "gauge", "", embedded | worker},
	{"parley_dead_letters_open", "gauge", "", embedded | operator},
	{"parley_dead_letters_oldest_seconds", "gauge", "", embedded | operator},
	{"parley_topics_dead_letters_open", "gauge", "", embedded | operator},
	{"parley_parked_keys", "gauge", "", embedded | operator},
	{"parley_parked_records", "gauge", "", embedded | operator},
	{"parley_parked_oldest_seconds", "gauge", "", embedded | operator},
	{"parley_parked_fullest_percent", "gauge", "", embedded | operator},
	{"parley_kafka_under_replicated_partitions", "gauge", "", operator},

	{"parley_reconcile_completed_total", "counter", "", embedded | worker},
	{"parley_reconcile_passes_total", "counter", "", embedded | worker},
	{"parley_reconcile_failures_total", "counter", "", embedded | worker},
	{"parley_reconcile_pending", "gauge", "", embedded | worker},
	{"parley_reconcile_oldest_seconds", "gauge", "", embedded | worker},
	{"parley_reconcile_audited_total", "counter", "", embedded | worker},
	{"parley_reconcile_audit_age_seconds", "gauge", "", embedded | worker},
}

// declared are the names in package telemetry, which is their one home.
func declared(t *testing.T) (list []string) {
	t.Helper()
	files, err := filepath.Glob("../../infra/telemetry/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != gotoken.STRING {
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil || !strings.HasPrefix(name, "parley_") {
				return true
			}
			if !strings.Contains(name, "%s") {
				list = append(list, name)
				return true
			}
			for _, part := range []string{"local", "shared", "store"} {
				list = append(list, fmt.Sprintf(name, part))
			}
			return true
		})
	}
	return list
}

// The table has every metric that is declared, and no other.
func TestTableOfMetrics(t *testing.T) {
	var table []string
	for _, m := range shown {
		table = append(table, m.name)
	}
	names := declared(t)
	slices.Sort(table)
	slices.Sort(names)
	if len(names) < 70 || !slices.Equal(slices.Compact(slices.Clone(names)), table) {
		for _, n := range names {
			if !slices.Contains(table, n) {
				t.Errorf("%s is declared and stands in no table", n)
			}
		}
		for _, n := range table {
			if !slices.Contains(names, n) {
				t.Errorf("%s is not declared", n)
			}
		}
	}
}

// exposition is what a program says at /metrics.
type exposition struct {
	kinds  map[string]string   // by metric
	labels map[string][]string // by metric, of its first series
	series map[string]float64  // by name and labels
}

var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)

func scraped(ctx context.Context, t *testing.T, addr string) exposition {
	t.Helper()
	lines, err := exposed(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	e := exposition{map[string]string{}, map[string][]string{}, map[string]float64{}}
	for _, line := range lines {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" {
			e.kinds[f[2]] = f[3]
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		e.series[strings.TrimSuffix(line, " "+m[3])] = v
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && e.kinds[base] == "histogram" {
				name = base
			}
		}
		var labels []string
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		slices.Sort(labels)
		e.labels[name] = labels
	}
	return e
}

// conforms checks that a program shows the metrics of the table, under Parley's prefix, and
// no other.
func (e exposition) conforms(t *testing.T, program int) {
	t.Helper()
	known := map[string]bool{}
	for _, m := range shown {
		if m.by&program == 0 {
			continue
		}
		known[m.name] = true
		if e.kinds[m.name] != m.kind || strings.Join(e.labels[m.name], " ") != m.labels {
			t.Errorf("%s is %q with labels %q, not a %s with %q", m.name, e.kinds[m.name], e.labels[m.name], m.kind, m.labels)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.kinds)) {
		if !known[name] && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") &&
			!slices.Contains([]string{"parley_rpc_duration_seconds", "parley_stream_first_response_seconds",
				"parley_auth_refused_total"}, name) {
			t.Errorf("%s is shown and stands in no table", name)
		}
	}
}

// missing are those of series that are not above zero.
func (e exposition) missing(series []string) (list []string) {
	for _, name := range series {
		if e.series[name] <= 0 {
			list = append(list, name)
		}
	}
	return list
}

// movesOf waits until series are above zero, each at some time in one of some programs.
func movesOf(ctx context.Context, t *testing.T, series []string, addrs ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // what Kafka does not answer is given up after a minute
	defer cancel()
	for left := series; ; time.Sleep(50 * time.Millisecond) { // between two scrapes
		for _, addr := range addrs {
			left = scraped(t.Context(), t, addr).missing(left)
		}
		if len(left) == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Errorf("these did not move:\n%s", strings.Join(left, "\n"))
			return
		}
	}
}
