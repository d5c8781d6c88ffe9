package app_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// The commands on topics, as people type them: from an empty server to a group that reads,
// stops, resumes, goes back and ends. Mistakes are one line; what cannot be undone waits for
// --execute.
func TestTopicCommands(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	_, logs, _ := greeted(t, "127.0.0.1:0", dir)
	m := opsAddress.FindStringSubmatch(logs.String())
	if m == nil {
		t.Fatal(logs)
	}
	line := func(ctx context.Context, args string) (code int, stdout, stderr string) {
		return run(ctx, map[string]string{"PARLEY_OPERATOR": "ada"},
			append([]string{"--data-dir", dir, "--ops-address", m[1], "topics"}, strings.Fields(args)...)...)
	}
	for i, tt := range []struct {
		line, says string
		code       int
	}{
		{"list", "TOPIC", 0},
		{"create orders --semantics pub-sub --message-retention 7d", "message retention            7d", 0},
		{"create orders --message-retention 7d", "nothing was changed", 0},
		{"create orders --max-retention 60d", "its settings were changed", 0},
		{"create orders --partitions 0", "--partitions must be 1 to 256", 2},
		{"create orders --zero-subscription-retention 10m", "must be 1h to 365d", 2},
		{"create orders --partitions 2", "cannot be changed", 1},
		{"create orders --semantics both", "one of pub-sub, queue", 2},
		{"create orders --max-retention soon", "such as 90s", 2},
		{"create", "takes TOPIC", 2},
		{"describe nothing", "TOPIC_NOT_FOUND", 1},
		{"subscribe orders billing --ordering key --where region=eu --lease 1m", "lease       1m", 0},
		{"subscribe orders billing", "was subscribed already", 0},
		{"subscribe orders late --where =eu", "must name a header", 2},
		{"update-subscription orders billing --lease 2m --max-attempts 10", "lease       2m", 0},
		{"update-subscription orders billing --etag old --lease 3m", "etag", 1},
		{"update-subscription orders billing", "takes a flag for each setting that changes", 2},
		{"update-subscription orders billing --no-filter --types sale", "takes --no-filter, or --types and --where", 2},
		{"update-subscription orders nobody --lease 1m", "SUBSCRIPTION_NOT_FOUND", 1},
		{"groups orders billing", "lease       2m", 0},
		{"subscribe orders hooked --push-url http://10.0.0.1/", "the URL must begin with https://", 1},
		{"subscribe orders hooked --push-url https://169.254.169.254/", "not public", 1},
		{"subscribe orders hooked --push-url https://127.0.0.1:1/x --push-secret-file nothing", "no such file", 2},
		{"subscribe orders hooked --push-url https://127.0.0.1:1/x", "which is not shown again: whsec_", 0},
		{"groups orders hooked", "webhook     https://127.0.0.1:1/x", 0},
		{"tail orders --group hooked", "GROUP_PUSHED", 1},
		{"update-subscription orders hooked --no-push --push-url https://a.example.com/", "takes --no-push, or", 2},
		{"update-subscription orders hooked --push-url https://127.0.0.1:1/y", "webhook     https://127.0.0.1:1/y", 0},
		{"update-subscription orders hooked --no-push", "members     0", 0},
		{"cancel orders hooked --execute", "hooked is cancelled", 0},
		{"publish orders one --key k --header region=eu", "0-0", 0},
		{"publish orders two --key k --header region=us", "0-1", 0},
		{"publish orders three --key k --header region=eu --type sale", "0-2", 0},
		{"publish orders x --header region", "must be NAME=VALUE", 2},
		{"get orders 0-1", "  0-1  key=k  region=us  two", 0},
		{"get orders 0-1 --json", `"id":"0-1","key":"k","partition":0,"payload":"dHdv","position":"1"`, 0},
		{"get orders 0-3", "MESSAGE_NOT_FOUND", 1},
		{"get orders one", "message_id", 1},
		{"browse orders", "  0-2  key=k  type=sale  region=eu  three", 0},
		{"browse orders --from 0-1 -n 1", "there may be more: -n 2", 0},
		{"browse orders --from 0-1 -n 1 --json", `"headers":{"region":"us"},"id":"0-1"`, 0},
		{"browse orders --partition 1", "POSITION_OUT_OF_RANGE", 1},
		{"browse orders -n -1", "must not be negative", 2},
		{"tail orders --group billing -n 1", "  0-0  key=k  region=eu  one", 0},
		{"tail orders --group billing -n 1 --json", `"attempt":1,"correlationId":"","deduplicationId":"","headers":{"region":"eu"},"id":"0-2",` +
			`"key":"k","partition":0,"payload":"dGhyZWU=","position":"2"`, 0},
		{"tail orders --group typo", `group typo is not subscribed to orders; "topics subscribe" subscribes it`, 1},
		{"tail nothing --group typo", "TOPIC_NOT_FOUND", 1},
		{"tail orders --group billing --from earliest", "--from is for a new one", 1},
		{"tail orders --group later --create --from 0-1 -n 1", "two", 0},
		{"cancel orders later --execute", "later is cancelled", 0},
		{"tail orders --from 0-1 -n 1", "  0-1  key=k  region=us  two", 0},
		{"tail orders --from earliest --types sale -n 1", "type=sale", 0},
		{"tail orders --from soon", "is not a valid place", 2},
		{"tail orders -n -1", "must not be negative", 2},
		{"groups orders", "billing", 0},
		{"groups orders billing", "partitions  1, 1 at rest", 0},
		{"groups orders billing", "of which 1 did not pass the filter", 0},
		{"status orders 0-0", "acknowledged by  billing", 0},
		{"health orders", "billing        active     yes", 0},
		{"health orders billing", "messages a second", 0},
		{"health orders billing more", "takes TOPIC [GROUP]", 2},
		{"health nothing", "TOPIC_NOT_FOUND", 1},
		{"health orders nobody", "SUBSCRIPTION_NOT_FOUND", 1},
		{"monitors", "nothing needs attention", 0},
		{"monitors orders --kind stuck", "nothing needs attention", 0},
		{"monitors --kind odd", "one of idle, inconsistent", 2},
		{"jobs", "schedule standard", 0},
		{"jobs trim", "topics looked at", 0},
		{"jobs dance", "must be trim, detection or subscriptions", 2},
		{"resurrect orders billing", "INVALID_TRANSITION", 1},
		{"force-complete orders 1d", "nothing was changed", 0},
		{"force-complete orders 0s --group billing --execute", "INVALID_TRANSITION", 1},
		{"force-complete orders 0s --execute", "0 not for living groups any more", 0},
		{"force-complete orders soon", "such as 90s", 2},
		{"subscribe orders gone", "active", 0},
		{"remove-group orders gone", "nothing was changed", 0},
		{"remove-group orders gone --wait 1h", "must be 0s to 20s", 2},
		{"remove-group orders gone --execute", "gone is removed; it held 0 messages", 0},
		{"remove-group orders gone --execute", "SUBSCRIPTION_NOT_FOUND", 1},
		{"audit orders --call RemoveGroup", "RemoveGroup", 0},
		{"audit --actor ada --limit 1", "--page-token", 0},
		{"pause orders billing", "billing is paused", 0},
		{"resume orders billing", "billing is active", 0},
		{"seek orders billing earliest", "nothing was changed", 0},
		{"seek orders billing somewhere", "is not a valid place", 2},
		{"seek orders billing earliest --execute", "REDELIVERED", 0},
		{"tail orders --group billing -n 1", "one", 0},
		{"unpark orders billing", "0 messages unparked", 0},
		{"purge orders", "needs either --before PLACE or --all", 2},
		{"purge orders --all --before 1h", "needs either --before PLACE or --all", 2},
		{"purge orders --before soon", "is not a valid place", 2},
		{"purge orders --all --dry-run", "nothing was removed", 0},
		{"purge orders --before 0-1 --partition 0", "1 messages removed", 0},
		{"publish orders four --key k", "0-3", 0},
		{"purge orders --all", "billing  1", 0},
		{"purge orders --all --json", `"groupCount"`, 0},
		{"browse orders", "", 0},
		{"backfill status orders billing", "status  not-started", 0},
		{"backfill cancel orders billing", "was not started", 1},
		{"backfill start orders billing --scope some", "one of all-retained, pending", 2},
		{"backfill start orders billing --target 1m", "must be 0s to 10s", 2},
		{"backfill start orders billing --max -2", "max_messages", 1},
		{"backfill start orders", "topics backfill start takes TOPIC GROUP", 2},
		{"backfill start orders billing --preset conservative", "5000 at a time, 10000 a second, publishes within 5ms", 0},
		{"backfill start orders billing", "add --again to start another one", 0},
		{"backfill start orders billing --again --watch", "] 100.0 %  0 of 0  completed", 0},
		{"backfill status orders billing --watch --json", `"status":"BACKFILL_STATUS_COMPLETED"`, 0},
		{"backfill cancel orders billing", "is completed", 1},
		{"bindings orders bob subscriber", "bob is subscriber of orders", 0},
		{"bindings orders", "bob        subscriber", 0},
		{"bindings orders bob none", "bob has no role", 0},
		{"bindings orders bob subscriber billing late", "bob is subscriber of orders", 0},
		{"bindings orders", "billing", 0},
		{"bindings orders bob subscriber b*d", "group", 1},
		{"bindings orders bob none", "bob has no role", 0},
		{"bindings orders # publisher", "printable characters", 1},
		{"bindings orders bob", "takes TOPIC [PRINCIPAL ROLE [GROUP...]]", 2},
		{"bindings orders bob king", "not \"king\"", 2},
		{"cancel orders billing", "nothing was changed", 0},
		{"cancel orders billing --execute", "billing is cancelled", 0},
		{"resume orders billing", "INVALID_TRANSITION", 1},
		{"delete orders", "nothing was changed", 0},
		{"delete orders --execute", "orders is deleted", 0},
		{"delete orders --execute", "TOPIC_NOT_FOUND", 1},
		{"list --ops-address nowhere", "must be host:port", 2},
		{"list --bogus", "unknown flag", 2},
		{"dance", "topics needs create", 2},
	} {
		code, stdout, stderr := line(t.Context(), tt.line)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.says) || (code == 0) != (stderr == "") ||
			strings.Count(stderr, "\n") > 1 {
			t.Fatalf("step %d, topics %s: exit code %d, %s%s", i, tt.line, code, stdout, stderr)
		}
	}
}

// Ctrl-C ends a tail with 0; a group of its own ends with it, another one continues, and what
// it showed is acknowledged.
func TestTailIsInterrupted(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	_, logs, _ := greeted(t, "127.0.0.1:0", dir)
	m := opsAddress.FindStringSubmatch(logs.String())
	if m == nil {
		t.Fatal(logs)
	}
	line := func(ctx context.Context, args ...string) string {
		t.Helper()
		line := append([]string{"--data-dir", dir, "--ops-address", m[1], "topics"}, args...)
		code, stdout, stderr := run(ctx, nil, line...)
		if code != 0 {
			t.Errorf("topics %q: exit code %d, %s", args, code, stderr)
		}
		return stdout
	}
	line(t.Context(), "create", "t", "--semantics", "pub-sub")
	line(t.Context(), "subscribe", "t", "kept")
	line(t.Context(), "publish", "t", "hello")
	ctx, interrupt := context.WithCancel(t.Context())
	shown := make(chan string, 2)
	go func() { shown <- line(ctx, "tail", "t", "--from", "earliest") }()
	go func() { shown <- line(ctx, "tail", "t", "--group", "kept") }()
	testkit.Eventually(t, "both have acknowledged it", func() bool {
		var res struct {
			Subscriptions []struct{ Processed, State string }
		}
		testkit.Must(t, json.Unmarshal([]byte(line(t.Context(), "groups", "t", "--json")), &res))
		return len(res.Subscriptions) == 2 && res.Subscriptions[0].Processed == "1" && res.Subscriptions[1].Processed == "1"
	})
	interrupt()
	for range 2 {
		if out := <-shown; strings.Count(out, "hello") != 1 {
			t.Errorf("shown: %q", out)
		}
	}
	out := line(t.Context(), "groups", "t")
	if !strings.Contains(out, "kept           active") || strings.Count(out, "cancelled") != 1 {
		t.Error(out)
	}
}

// A command that follows says at once that no server is there; it waits for one only after
// it has spoken to one.
func TestTopicsWithoutServer(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	_, _, stop := greeted(t, "127.0.0.1:0", dir)
	stop()
	const nobody = "127.0.0.1:1" // the address that the server had may be another test's by now
	for _, line := range []string{"publish orders hello", "tail orders", "tail orders --group billing", "list"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		code, stdout, stderr := run(ctx, nil,
			append([]string{"--data-dir", dir, "--ops-address", nobody, "topics"}, strings.Fields(line)...)...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, nobody) ||
			ctx.Err() != nil {
			t.Errorf("topics %s: exit code %d, %s%s", line, code, stdout, stderr)
		}
		cancel()
	}
}

// To follow a group that is there is not an administrative call: nothing is recorded.
func TestTailOfGroupIsNotRecorded(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	_, logs, _ := greeted(t, "127.0.0.1:0", dir)
	m := opsAddress.FindStringSubmatch(logs.String())
	if m == nil {
		t.Fatal(logs)
	}
	line := func(args string) string {
		t.Helper()
		code, stdout, stderr := run(t.Context(), nil,
			append([]string{"--data-dir", dir, "--ops-address", m[1]}, strings.Fields(args)...)...)
		if code != 0 {
			t.Fatalf("%s: exit code %d, %s", args, code, stderr)
		}
		return stdout
	}
	line("topics create t --semantics pub-sub")
	line("topics subscribe t g")
	line("topics publish t hello")
	line("topics tail t --group g -n 1")
	if out := line("audit"); strings.Count(out, "CreateSubscription") != 1 || strings.Contains(out, " \n") {
		t.Errorf("%q", out)
	}
}

// Users give the same commands with their own tokens, and may do what their bindings say. The commands
// of operators say that they are none for users.
func TestTopicCommandsOfUsers(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	greeting, _, _ := greeted(t, "127.0.0.1:0", dir, "--topic-creators", "alice")
	base := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(greeting)
	as := map[string]string{"nobody": filepath.Join(dir, "no-token")}
	for _, user := range []string{"alice", "bob"} {
		as[user] = filepath.Join(t.TempDir(), "token")
		testkit.Must(t, os.WriteFile(as[user], []byte(token(t, dir, user)+"\n"), 0o600))
	}
	for i, tt := range []struct {
		user, line, says string
		code             int
	}{
		{"alice", "create orders --semantics pub-sub", "orders", 0},
		{"bob", "create mine", "TOPIC_FORBIDDEN", 1},
		{"bob", "publish orders one", "TOPIC_FORBIDDEN", 1},
		{"alice", "bindings orders bob subscriber billing", "", 0},
		{"bob", "subscribe orders billing", "billing", 0},
		{"bob", "subscribe orders others", "TOPIC_FORBIDDEN", 1},
		{"alice", "publish orders one", "0-0", 0},
		{"bob", "tail orders --group billing -n 1", "one", 0},
		{"bob", "groups orders billing", "partitions  1, 1 at rest", 0},
		{"alice", "health orders", "topics health is for operators: without url and token-file", 2},
		{"alice", "jobs", "topics jobs is for operators", 2},
		{"nobody", "list", "no such file", 1},
	} {
		line := append([]string{"--data-dir", dir, "topics"}, strings.Fields(tt.line)...)
		code, stdout, stderr := run(t.Context(), nil, append(line, "--url", base, "--token-file", as[tt.user])...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.says) || strings.Count(stderr, "\n") > 1 {
			t.Fatalf("step %d, topics %s of %s: exit code %d, %s%s", i, tt.line, tt.user, code, stdout, stderr)
		}
	}
	for flags, says := range map[string]string{
		"--url " + base: "url and token-file go together", "--token-file " + as["alice"]: "url and token-file go together",
		"--url ftp://x --token-file " + as["alice"]: "url must be like",
	} {
		line := append([]string{"--data-dir", dir, "topics", "list"}, strings.Fields(flags)...)
		if code, _, stderr := run(t.Context(), nil, line...); code != 2 || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit code %d, %s", flags, code, stderr)
		}
	}
}
