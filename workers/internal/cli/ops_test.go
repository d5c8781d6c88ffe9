package cli

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
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
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
)

// logs is a log that workers write while a test reads it.
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
	testkit.Must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(t, err)
	path := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return path
}

// The job ops serves operators on DynamoDB, Kafka and Redis: dead letters are listed, shown,
// redriven once, and discarded (K-149); events are published again (KS20); groups are described
// (K-168).
func TestOperators(t *testing.T) {
	env := map[string]string{"PARLEY_OPS_LISTEN": "127.0.0.1:0", "PARLEY_KEY_FILE": writeKey(t), "PARLEY_OPERATOR": "ada"}
	for name, setting := range map[string]string{
		"PARLEY_TEST_KAFKA": "PARLEY_KAFKA_BROKERS", "PARLEY_TEST_DYNAMODB": "PARLEY_DYNAMODB_ENDPOINT",
		"PARLEY_TEST_REDIS": "PARLEY_REDIS",
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
			t.Fatalf("%q: exit code %d, expected %d: %s%s", args, code, want, stdout, stderr)
		}
		return stdout + stderr
	}
	do(cmdline.ExitOK, "tables", "apply")
	do(cmdline.ExitOK, "kafka", "apply")
	do(cmdline.ExitOK, "schemas", "register")

	ctx, cancel := context.WithCancel(t.Context())
	log, ended := &logs{}, make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"run", "relay", "ops"}, environ(env), log, log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != cmdline.ExitOK {
			t.Errorf("the workers ended with exit code %d, expected 0", code)
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	served := regexp.MustCompile(`msg="operators are served" address=(\S+)`)
	testkit.Eventually(t, "the workers' jobs and the operators' address in the log", func() bool {
		select {
		case code := <-ended:
			ended <- code
			t.Fatalf("the workers ended with exit code %d, expected them to run", code)
		default:
		}
		return served.MatchString(log.String()) && strings.Contains(log.String(), "msg=working")
	})
	env["PARLEY_OPS_ADDRESS"] = served.FindStringSubmatch(log.String())[1]

	eng, err := backend.Open(backend.Config{
		Distributed: &backend.Distributed{Tables: backend.Tables{Prefix: id + "_",
			Endpoint: env["PARLEY_DYNAMODB_ENDPOINT"]}, Redis: routing.Options{URL: env["PARLEY_REDIS"], Prefix: id + ":"}}})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, eng.Close()) })
	chats, err := chat.New(t.Context(),
		chat.Config{Store: eng.Store, Clock: time.Now, Generation: eng.Generation, Producer: "test"})
	testkit.Must(t, err)
	for _, user := range []string{"alice", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), user))
	}
	group, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "Tea", Members: []string{"bob"}})
	testkit.Must(t, err)

	// What servers count together is seen here, too.
	rates, err := limit.ParseTable("")
	testkit.Must(t, err)
	limits, err := limit.New(limit.Config{Table: rates, Clock: time.Now, Shared: limit.Redis{Redis: eng.Routing}})
	testkit.Must(t, err)
	left := func() (n int) {
		out := do(cmdline.ExitOK, "limits", "show", "send", "alice")
		if _, err := fmt.Sscanf(out, "left %d", &n); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return n
	}
	before := left()
	testkit.Must(t, limits.Check(t.Context(), limit.Send, "alice", 40))
	if after := left(); after > before-30 || after < before-40 {
		t.Errorf("of the limit of sends %d are left, %d before 40 were taken", after, before)
	}
	out := do(cmdline.ExitOK, "limits", "list")
	if !strings.Contains(out, "send") || strings.Contains(out, "cannot be reached") {
		t.Error(out)
	}

	// The event of its creation, as a dead letter of the group fanout.
	page, err := eng.Store.Query(t.Context(),
		store.Query{Table: store.Events, PK: group.ChatID, Consistency: store.Strong})
	testkit.Must(t, err)
	created, err := table.EventFrom(page.Rows[0])
	testkit.Must(t, err)
	subjects := registry.New(eng.Store)
	ids, err := subjects.Events(t.Context())
	testkit.Must(t, err)
	value, err := event.Frame(ids[event.TypeChatCreated], created.Payload)
	testkit.Must(t, err)
	producer, err := kafka.NewProducer(brokers)
	testkit.Must(t, err)
	t.Cleanup(producer.Close)
	write := consume.Publisher(producer, func(b []byte) ([]byte, error) { return event.Frame(1, b) })
	var deadLetters []string
	for n := range 2 {
		d := consume.DeadLetter{
			Record: &kafka.Record{Topic: kafka.ChatsCreated, Partition: int32(n), Offset: int64(n) + time.Now().UnixNano(),
				Key: []byte(group.ChatID), Value: value, Timestamp: time.Now()},
			Group: "fanout-workers", Consumer: "wrk_1", Reason: "authoritative: a test", FailedAt: time.Now(), Attempts: 1,
		}
		testkit.Must(t, write(t.Context(), d))
		deadLetters = append(deadLetters, d.ID())
	}
	if out := do(cmdline.ExitOK, "deadletters", "list", "--key", group.ChatID); strings.Count(out,
		"authoritative: a test") != 2 {
		t.Fatal(out)
	}
	if out := do(cmdline.ExitOK, "deadletters", "show", deadLetters[0]); !strings.Contains(out, "event     ChatCreated") ||
		strings.Contains(out, "Tea") {
		t.Error(out)
	}
	out = do(cmdline.ExitOK, "deadletters", "redrive", deadLetters[0])
	if !strings.Contains(out, "1 would be redriven") {
		t.Error(out)
	}
	testkit.Eventually(t, "a redrive, once the process is listed and may connect to servers", func() bool {
		code, stdout, stderr := run(t, env, "deadletters", "redrive", "--execute", deadLetters[0])
		if code != cmdline.ExitOK && code != 3 {
			t.Fatalf("redrive: exit code %d, expected 0 or 3: %s%s", code, stdout, stderr)
		}
		return code == cmdline.ExitOK
	})
	if out := do(cmdline.ExitOK, "deadletters", "redrive", "--execute", deadLetters[0]); !strings.Contains(out,
		"0 chosen") {
		t.Error(out)
	}
	if out := do(cmdline.ExitOK, "deadletters", "discard", "--execute", "--reason", "a test wrote it", "--key",
		group.ChatID); !strings.Contains(out, "1 chosen, 1 discarded") {
		t.Error(out)
	}
	if out := do(cmdline.ExitOK, "deadletters", "list", "--status", "redriven,discarded", "--key",
		group.ChatID); !strings.Contains(out, "a test wrote it (by ada)") || strings.Count(out, deadLetters[0]) != 1 {
		t.Error(out)
	}

	// The relay publishes the chat's events, and those that are chosen again.
	part := kafka.Partition{Topic: kafka.ChatsCreated,
		ID: int32(event.Partition(group.ChatID, int(kafka.Partitions(kafka.ChatsCreated))))}
	published := func() (n int) {
		t.Helper()
		spans, err := lag.Spans(t.Context(), brokers, kafka.ChatsCreated)
		testkit.Must(t, err)
		testkit.Must(t, lag.Read(t.Context(), brokers, spans[part.ID:part.ID+1], func(r *kafka.Record) error {
			if string(r.Key) == group.ChatID {
				n++
			}
			return nil
		}))
		return n
	}
	await := func(want int) {
		t.Helper()
		testkit.Eventually(t, strconv.Itoa(want)+" records of the creation", func() bool {
			n := published()
			if n > want {
				t.Fatalf("published %d times, expected %d", n, want)
			}
			return n == want
		})
	}
	await(1)
	testkit.Eventually(t, "a replay, once the event's own row is deleted", func() bool {
		out = do(cmdline.ExitOK, "replay", "--execute", "--chat", group.ChatID, "--type", "ChatCreated")
		return strings.Contains(out, "1 chats, 1 events are published again")
	})
	await(2)
	if out := do(cmdline.ExitFailed, "groups", "describe", id); !strings.Contains(out, "no such consumer group") {
		t.Error(out)
	}
}
