package app_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// rest sends a request to the REST API and demands a status.
func restDo(t *testing.T, addr, token, method, path, body string, status int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != status {
		t.Fatalf("%s %s: %d, not %d: %s", method, path, res.StatusCode, status, b)
	}
	return string(b)
}

var chatIDs = regexp.MustCompile(`chat_[0-9A-Z]{26}`)

// usual does over REST what moves the metrics of chats, and what is refused.
func usual(t *testing.T, addr, alice string) {
	t.Helper()
	const direct, group = `{"type":"CHAT_TYPE_DIRECT","memberIds":["bob"]}`,
		`{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}`
	restDo(t, addr, alice, "POST", "/chats", direct, 201)
	restDo(t, addr, alice, "POST", "/chats", direct, 200)
	id := chatIDs.FindString(restDo(t, addr, alice, "POST", "/chats", group, 201))
	restDo(t, addr, alice, "PATCH", "/chats/"+id+"/members/bob", `{"role":"MEMBER_ROLE_ADMIN"}`, 200)
	restDo(t, addr, alice, "POST", "/chats/"+id+"/messages", `{"content":"Tea?"}`, 201)
	restDo(t, addr, alice, "DELETE", "/chats/"+id+"/members/bob", "", 204)
	restDo(t, addr, alice, "POST", "/chats/"+id+"/members", `{"userId":"bob"}`, 201)
	restDo(t, addr, "", "GET", "/chats", "", 401)
	restDo(t, addr, "forged", "GET", "/chats", "", 401)
	restDo(t, addr, alice, "POST", "/chats", "{", 400)
}

// ofChats are the series that usual moves in a server.
var ofChats = []string{
	`parley_chat_created_total{chat_type="direct"}`, `parley_chat_created_total{chat_type="group"}`,
	`parley_chat_creation_duration_seconds_count{chat_type="direct",phase="1"}`,
	`parley_chat_creation_duration_seconds_count{chat_type="group",phase="1"}`,
	`parley_chat_creation_duration_seconds_count{chat_type="group",phase="2"}`,
	`parley_membership_mutation_total{change_type="added"}`, `parley_membership_mutation_total{change_type="removed"}`,
	`parley_membership_mutation_total{change_type="role_changed"}`,
	`parley_membership_mutation_duration_seconds_count{change_type="added"}`,
	`parley_membership_mutation_duration_seconds_count{change_type="removed"}`,
	`parley_membership_mutation_duration_seconds_count{change_type="role_changed"}`,
	`parley_direct_chat_dedup_total{result="created"}`, `parley_direct_chat_dedup_total{result="existing"}`,
	`parley_auth_refused_total{reason="missing"}`, `parley_auth_refused_total{reason="invalid"}`,
	"parley_streams_open", "parley_chats_live", "parley_streams_opened_total", "parley_frames_queued_total",
	"parley_store_plans_total",
	`parley_rpc_duration_seconds_count{code="ok",procedure="/parley.chat.v1.ChatService/CreateChat"}`,
	`parley_rpc_duration_seconds_count{code="invalid_argument",procedure="/parley.chat.v1.ChatService/CreateChat"}`,
}

// ofEvents are the series that usual moves where the durable path is.
var ofEvents = []string{
	`parley_chat_creation_duration_seconds_count{chat_type="direct",phase="kafka"}`,
	`parley_chat_creation_duration_seconds_count{chat_type="group",phase="kafka"}`,
	"parley_relay_published_total", "parley_relay_slots", "parley_relay_slots_declared",
	"parley_kafka_publish_seconds_count",
	"parley_fanout_handled_total", "parley_fanout_calls_total", "parley_fanout_rebalances_total",
	"parley_reconcile_passes_total", "parley_projector_handled_total", "parley_projections_folded_total",
}

// The embedded server shows every metric of the table over HTTP after people did what people
// do, and each moves when what it counts happens. L-060, L-170: so does the number of corrections
// of a group whose stored number of members was wrong when the server started.
func TestMetricsOfTheEmbeddedServer(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	unreadable(t, dir) // what fanout cannot read becomes a dead letter
	unreconciled(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// Dead letters are counted at the start and every minute: the second server finds that of the first.
	p := launch(t, dir, "127.0.0.1:0")
	movesOf(ctx, t, ofRepairs, p.addr)
	p.kill()
	p = launch(t, dir, "127.0.0.1:0")
	before := scraped(ctx, t, p.addr)
	for _, m := range shown {
		if m.by&embedded != 0 && m.kind == "counter" && len(before.labels[m.name]) == 0 && before.kinds[m.name] == "" {
			t.Errorf("%s is not there from the start: an alert on growth would miss its first count", m.name)
		}
	}
	follow := newFollower(newUser("bob", token(t, dir, "bob"), p.addr, newTransport(t, false)), nil)
	go follow.run(ctx)
	usual(t, p.addr, token(t, dir, "alice"))
	movesOf(ctx, t, slices.Concat(ofChats, ofEvents, []string{"parley_store_disk_bytes", "parley_log_bytes",
		"parley_dead_letters_open", "parley_dead_letters_oldest_seconds"}), p.addr)
	bob := newUser("bob", token(t, dir, "bob"), p.addr, newTransport(t, false))
	testkit.Value(bob.delivery.Sync(ctx, &deliveryv1.SyncRequest{}))(t)
	e := scraped(ctx, t, p.addr)
	e.conforms(t, embedded)
	alertsGoBy(t, e)
}
