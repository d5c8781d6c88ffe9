package cli

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/cmdline"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
)

// logs is written by workers while a test reads it.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func writeKey(t *testing.T) string {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The job ops serves operators on DynamoDB, Kafka and Redis: dead letters are listed,
// shown, driven again once, and discarded (K-149); events are published once more
// (KS20); groups are described (K-168).
func TestOperators(t *testing.T) {
	env := map[string]string{"PARLEY_OPS_LISTEN": "127.0.0.1:0", "PARLEY_KEY_FILE": writeKey(t), "PARLEY_OPERATOR": "ada"}
	for name, setting := range map[string]string{
		"PARLEY_TEST_KAFKA": "PARLEY_KAFKA_BROKERS", "PARLEY_TEST_DYNAMODB": "PARLEY_DYNAMODB_ENDPOINT", "PARLEY_TEST_REDIS": "PARLEY_REDIS",
	} {
		if env[setting] = os.Getenv(name); env[setting] == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	id := strings.ToLower(rand.Text()[:10])
	env["PARLEY_DYNAMODB_PREFIX"], env["PARLEY_REDIS_PREFIX"] = id+"_", id+":"
	env["PARLEY_REPLICATION"] = strconv.Itoa(strings.Count(env["PARLEY_KAFKA_BROKERS"], ",") + 1)
	brokers := env["PARLEY_KAFKA_BROKERS"]
	do := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := run(t, env, args...)
		if code != want {
			t.Fatalf("%q: exit code %d, %s%s", args, code, stdout, stderr)
		}
		return stdout + stderr
	}
	do(cmdline.ExitOK, "tables", "apply")
	do(cmdline.ExitOK, "topics", "apply")
	do(cmdline.ExitOK, "schemas", "register")

	ctx, cancel := context.WithCancel(t.Context())
	log, ended := &logs{}, make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"run", "relay", "ops"}, environ(env), log, log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != cmdline.ExitOK {
			t.Errorf("exit code %d", code)
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	served := regexp.MustCompile(`msg="operators are served" address=(\S+)`)
	for served.FindStringSubmatch(log.String()) == nil || !strings.Contains(log.String(), "msg=working") {
		select {
		case code := <-ended:
			ended <- code
			t.Fatalf("exit code %d", code)
		case <-time.After(20 * time.Millisecond):
		}
	}
	env["PARLEY_OPS_ADDRESS"] = served.FindStringSubmatch(log.String())[1]

	eng, err := backend.Open(backend.Config{Distributed: &backend.Distributed{Tables: backend.Tables{Prefix: id + "_", Endpoint: env["PARLEY_DYNAMODB_ENDPOINT"]}}})
	must(t, err)
	t.Cleanup(func() { must(t, eng.Close()) })
	chats, err := chat.New(t.Context(), chat.Config{Store: eng.Store, Clock: time.Now, Generation: eng.Generation, Producer: "test"})
	must(t, err)
	for _, user := range []string{"alice", "bob"} {
		must(t, chats.EnsureUser(t.Context(), user))
	}
	group, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "Tea", Members: []string{"bob"}})
	must(t, err)

	// The event that says so, as a dead letter of fanout's.
	page, err := eng.Store.Query(t.Context(), store.Query{Table: store.Events, PK: group.ChatID, Consistency: store.Strong})
	must(t, err)
	created, err := table.EventFrom(page.Rows[0])
	must(t, err)
	subjects := registry.New(eng.Store)
	ids, err := subjects.Events(t.Context())
	must(t, err)
	value, err := event.Frame(ids[event.TypeChatCreated], created.Payload)
	must(t, err)
	producer, err := kafka.NewProducer(brokers)
	must(t, err)
	t.Cleanup(producer.Close)
	bury := consume.Publisher(producer, func(b []byte) ([]byte, error) { return event.Frame(1, b) })
	var letters []string
	for n := range 2 {
		d := consume.DeadLetter{
			Record: &kafka.Record{Topic: kafka.ChatsCreated, Partition: int32(n), Offset: int64(n) + time.Now().UnixNano(), Key: []byte(group.ChatID), Value: value, Timestamp: time.Now()},
			Group:  "fanout-workers", Consumer: "wrk_1", Reason: "authoritative: a test", FailedAt: time.Now(), Attempts: 1,
		}
		must(t, bury(t.Context(), d))
		letters = append(letters, d.ID())
	}
	if out := do(cmdline.ExitOK, "deadletters", "list", "--key", group.ChatID); strings.Count(out, "authoritative: a test") != 2 {
		t.Fatal(out)
	}
	if out := do(cmdline.ExitOK, "deadletters", "show", letters[0]); !strings.Contains(out, "event     ChatCreated") || strings.Contains(out, "Tea") {
		t.Error(out)
	}
	out := do(cmdline.ExitOK, "deadletters", "redrive", letters[0])
	if !strings.Contains(out, "1 would be redriven") {
		t.Error(out)
	}
	for code := cmdline.ExitFailed; code != cmdline.ExitOK; { // until the process is listed, and may speak to servers
		var stderr string
		if code, out, stderr = run(t, env, "deadletters", "redrive", "--execute", letters[0]); code != cmdline.ExitOK && code != 3 {
			t.Fatal(code, out, stderr)
		}
	}
	if out := do(cmdline.ExitOK, "deadletters", "redrive", "--execute", letters[0]); !strings.Contains(out, "0 chosen") {
		t.Error(out)
	}
	if out := do(cmdline.ExitOK, "deadletters", "discard", "--execute", "--reason", "a test wrote it", "--key", group.ChatID); !strings.Contains(out, "1 chosen, 1 discarded") {
		t.Error(out)
	}
	if out := do(cmdline.ExitOK, "deadletters", "list", "--status", "redriven,discarded", "--key", group.ChatID); !strings.Contains(out, "a test wrote it (by ada)") || strings.Count(out, letters[0]) != 1 {
		t.Error(out)
	}

	// The relay publishes the chat's events, and those that are chosen again.
	part := kafka.Partition{Topic: kafka.ChatsCreated, ID: int32(event.Partition(group.ChatID, int(kafka.Partitions(kafka.ChatsCreated))))}
	published := func() (n int) {
		t.Helper()
		spans, err := lag.Spans(t.Context(), brokers, kafka.ChatsCreated)
		must(t, err)
		must(t, lag.Read(t.Context(), brokers, spans[part.ID:part.ID+1], func(r *kafka.Record) error {
			if string(r.Key) == group.ChatID {
				n++
			}
			return nil
		}))
		return n
	}
	await := func(want int) {
		t.Helper()
		for n := published(); n != want; n = published() {
			if n > want {
				t.Fatalf("published %d times, not %d", n, want)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	await(1)
	for out = ""; !strings.Contains(out, "1 chats, 1 events are published again"); { // its row may still be there for a moment
		out = do(cmdline.ExitOK, "replay", "--execute", "--chat", group.ChatID, "--type", "ChatCreated")
	}
	await(2)
	if out := do(cmdline.ExitFailed, "groups", "describe", id); !strings.Contains(out, "no such consumer group") {
		t.Error(out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
