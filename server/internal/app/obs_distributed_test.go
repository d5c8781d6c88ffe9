//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Moods of a store.
const (
	well = iota
	busy // puts every other request off
	sick // answers with a failure of its own
	away // does not answer
)

// moody stands before DynamoDB and answers as its mood is.
type moody struct {
	mood  atomic.Int32
	n     atomic.Int64
	addr  string
	store *httputil.ReverseProxy
}

func newMoody(t *testing.T, endpoint string) *moody {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	m := &moody{store: httputil.NewSingleHostReverseProxy(u)}
	m.store.Transport = &http.Transport{MaxIdleConnsPerHost: 64}
	m.store.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	s := httptest.NewServer(m)
	t.Cleanup(func() {
		m.mood.Store(well)
		s.CloseClientConnections()
		s.Close()
	})
	m.addr = s.URL
	return m
}

// ServeHTTP implements http.Handler.
func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, kind string) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#`+kind+`","message":"not now"}`)
	}
	switch n := m.n.Add(1); {
	case m.mood.Load() == busy && n%2 == 0:
		fail(http.StatusBadRequest, "ProvisionedThroughputExceededException")
	case m.mood.Load() == sick && n%2 == 0:
		fail(http.StatusInternalServerError, "InternalServerError")
	case m.mood.Load() == away:
		for m.mood.Load() == away && r.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond) // no answer until the mood changes
		}
		panic(http.ErrAbortHandler)
	default:
		m.store.ServeHTTP(w, r)
	}
}

// logged waits until a process has logged a text, and returns how often it has.
func (m *member) logged(ctx context.Context, t *testing.T, text string) int {
	t.Helper()
	until(ctx, t, fmt.Sprintf("%q is logged", text), func() bool { return strings.Contains(m.log.String(), text) })
	return strings.Count(m.log.String(), text)
}

var opsServed = regexp.MustCompile(`operators are served" address=(\S+)`)

// operators starts a worker that serves operators, and returns how commands are sent there.
func (in *installation) operators(t *testing.T) (m *member, command func(args ...string) string) {
	t.Helper()
	m = &member{binary: workersBinary(t),
		args: append(slices.Clone(in.flags), "--ops-listen", "127.0.0.1:0", "run", "ops")}
	in.start(m)
	at := opsServed.FindStringSubmatch(m.log.String())
	if at == nil {
		t.Fatal(m.log.String())
	}
	return m, func(args ...string) string {
		return in.command(append([]string{"--ops-address=" + at[1], "--operator=ada"}, args...)...)
	}
}

// Servers, workers and those of operators show every metric of the table over HTTP; each
// of what people do moves: sends, delivery, repair, links, and requests that are put off or
// without an answer. A store that does not
// answer is reported in one line, and once more when it does.
func TestMetricsOfAnInstallation(t *testing.T) {
	env := map[string]string{}
	for _, name := range []string{"PARLEY_TEST_KAFKA", "PARLEY_TEST_DYNAMODB", "PARLEY_TEST_REDIS"} {
		if env[name] = os.Getenv(name); env[name] == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	store := newMoody(t, env["PARLEY_TEST_DYNAMODB"])
	t.Setenv("PARLEY_TEST_DYNAMODB", store.addr)
	in := newInstallation(t)
	ops, _ := in.operators(t)
	first, second := in.servers[0], in.servers[1]
	alice := in.token("alice")
	for _, at := range []int{0, 1} {
		follow := newFollower(in.user("bob", at), nil)
		go follow.run(ctx)
	}
	usual(t, first.addr, alice)
	movesOf(ctx, t, slices.Concat(ofChats, []string{
		"parley_link_peers", "parley_link_envelopes_sent_total", "parley_routing_rows", "parley_routing_claims_total",
		"parley_members_store_total",
		"parley_dynamodb_requests_total", "parley_dynamodb_read_units_total", "parley_dynamodb_write_units_total",
	}), first.metricsAddr())
	workers := []string{in.workers[0].addr, in.workers[1].addr}
	movesOf(ctx, t, slices.Concat(ofEvents, []string{
		"parley_link_peers", "parley_link_envelopes_sent_total", "parley_dynamodb_requests_total",
		"parley_dynamodb_write_units_total", "parley_store_plans_total",
	}), workers...)
	movesOf(ctx, t, []string{"parley_dynamodb_requests_total"}, ops.addr)
	for addr, program := range map[string]int{
		first.metricsAddr(): server, second.metricsAddr(): server, workers[0]: worker, ops.addr: operator,
	} {
		scraped(ctx, t, addr).conforms(t, program)
	}

	const group = `{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}`
	store.mood.Store(busy)
	restDo(t, first.addr, alice, "POST", "/chats", group, 201)
	movesOf(ctx, t, []string{"parley_dynamodb_throttled_total"}, first.metricsAddr())
	store.mood.Store(sick)
	restDo(t, first.addr, alice, "POST", "/chats", group, 201)
	movesOf(ctx, t, []string{"parley_dynamodb_lost_total"}, first.metricsAddr())

	store.mood.Store(away)
	const cut, back = "DynamoDB does not answer", "DynamoDB answers again"
	for _, m := range []*member{first, second, in.workers[0], ops} {
		if n := m.logged(ctx, t, cut); n != 1 {
			t.Errorf("it is reported %d times", n)
		}
	}
	store.mood.Store(well)
	for _, m := range []*member{first, second, in.workers[0], ops} {
		m.logged(ctx, t, back)
	}
}

// K-168, its last step: another process takes its share of the partitions, which the
// commands of the runbook show.
func TestRunbookScalesFanout(t *testing.T) {
	in := newInstallation(t)
	_, command := in.operators(t)
	steps := runbookSteps(t, "consumer-lag.md")
	if len(steps) != 5 || !slices.Equal(steps[0], []string{"workers groups describe fanout-workers"}) ||
		!slices.Equal(steps[4], []string{"workers run fanout"}) {
		t.Fatalf("%q", steps)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	members := func(n int) func() bool {
		return func() bool {
			text := command(strings.Fields(steps[0][0])[1:]...)
			return strings.Contains(text, "fanout-workers is Stable") && strings.Count(text, " parley-fanout-workers ") == n
		}
	}
	until(ctx, t, "two have the partitions", members(2)) // others' members, which were killed, are gone
	m := &member{binary: workersBinary(t), args: append(slices.Clone(in.flags), strings.Fields(steps[4][0])[1:]...)}
	in.start(m)
	until(ctx, t, "the third has its share", members(3))
	movesOf(ctx, t, []string{"parley_fanout_rebalances_total"}, m.addr)
}

// K-170: partitions are moved to other brokers by the runbook's commands, with Kafka's own
// tool and the runbook's throttle, while Parley publishes; afterwards the throttle is gone,
// the topics are as declared, and Kafka has every message.
func TestRunbookMovesPartitions(t *testing.T) {
	libs := os.Getenv("PARLEY_TEST_KAFKA_LIBS")
	if libs == "" {
		t.Skip("not run: PARLEY_TEST_KAFKA_LIBS is not set")
	}
	in := newInstallation(t)
	if strings.Count(in.kafka, ",") != 2 {
		t.Skip("not run: PARLEY_TEST_KAFKA has less than three brokers, .tools/engines up --brokers 3")
	}
	_, operate := in.operators(t)
	dir := t.TempDir()
	var outputs []string
	steps := runbookSteps(t, "partition-reassignment.md")
	if len(steps) != 3 {
		t.Fatalf("%d steps: %q", len(steps), steps)
	}
	in.user("bob", 0)
	alice := in.token("alice")
	id := chatIDs.FindString(restDo(t, in.servers[0].addr, alice, "POST", "/chats",
		`{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}`, 201))
	send := func() {
		t.Helper()
		restDo(t, in.servers[0].addr, alice, "POST", "/chats/"+id+"/messages", `{"content":"moved"}`, 201)
	}
	send()
	tool := newKafkaTool(t, libs)
	for i, step := range steps {
		text := ""
		for _, line := range step {
			if args, ok := strings.CutPrefix(line, "workers "); ok {
				words := strings.Fields(args)
				if words[0] == "topics" {
					text += in.command(append([]string{"--replication", "3"}, words...)...)
				} else {
					text += operate(words...)
				}
				continue
			}
			line = strings.ReplaceAll(line, "$BROKERS", in.kafka)
			for again := true; again; {
				out := tool.shell(dir, line)
				if again = i == 2 && strings.Contains(out, "still in progress"); !again {
					text += out
				}
			}
		}
		outputs = append(outputs, text)
		send()
		if i == 0 { // as the page says: what it printed is split into two files
			now, then, ok := strings.Cut(text, "Proposed partition reassignment configuration")
			if !ok || !strings.Contains(now, "Current partition replica assignment") {
				t.Fatal(text)
			}
			from := func(s string) []byte { return []byte(s[strings.Index(s, "{") : strings.LastIndex(s, "}")+1]) }
			for name, b := range map[string][]byte{"before.json": from(now), "plan.json": from(then)} {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i, want := range []string{"Proposed partition reassignment", "50000000", "Clearing broker-level throttles"} {
		if !strings.Contains(outputs[i], want) {
			t.Errorf("step %d does not say %q: %s", i+1, want, outputs[i])
		}
	}
	if !strings.Contains(outputs[2], "topics are as declared") {
		t.Error(outputs[2])
	}
	checkLog(t.Context(), t, in.kafka, id, history(t.Context(), t, in.user("alice", 0), id))
}

// kcat and Kafka's console consumer read what an installation publishes to Apache Kafka.
func TestReadersOfApacheKafka(t *testing.T) {
	kcat, tool := readerTool(t, "PARLEY_TEST_KCAT"), newKafkaTool(t, readerTool(t, "PARLEY_TEST_KAFKA_LIBS"))
	in := newInstallation(t)
	in.user("bob", 0)
	id := message(t, in.servers[0].addr, in.token("alice"))
	shows(t, "\n"+id+" ", func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, kcat, "-b", in.kafka, "-C", "-e", "-q", "-t", "messages.persisted", "-X",
			"isolation.level=read_committed", "-f", "\n%k %p\n")
	})
	prints(t, id, func(ctx context.Context) *exec.Cmd { return tool.consumer(ctx, in.kafka, "messages.persisted") })
}
