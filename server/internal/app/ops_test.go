package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
)

var opsAddress = regexp.MustCompile(`"ops":"([^"]+)"`)

// A running server answers operators' commands, made in the same directory with its own
// key: what fanout cannot read becomes a dead letter that is listed, shown, driven again
// and discarded (K-149, EV73); events are published once more (KS20); groups are
// described (K-168).
func TestOperators(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	bad := unreadable(t, dir)
	greeting, logs, _ := greeted(t, "127.0.0.1:0", dir)
	m := opsAddress.FindStringSubmatch(logs.String())
	if m == nil {
		t.Fatal(logs)
	}
	operate := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := run(t.Context(), map[string]string{"PARLEY_OPERATOR": "ada"},
			append([]string{"--data-dir", dir, "--ops-address", m[1]}, args...)...)
		if code != want || (code == 1) != (stderr != "") {
			t.Fatalf("%q: exit code %d, %s%s", args, code, stdout, stderr)
		}
		return stdout + stderr
	}
	broker := regexp.MustCompile(`on Kafka at (\S+)`).FindStringSubmatch(greeting)[1]
	id := fmt.Sprintf("fanout-workers/messages.persisted/9/%d", bad.Offset)
	testkit.Eventually(t, "fanout has made a dead letter of "+id, func() bool {
		return strings.Contains(operate(0, "deadletters", "list"), id)
	})
	if out := operate(0, "deadletters", "show", id); !strings.Contains(out, "permanent: ") ||
		!strings.Contains(out, "no schema id") {
		t.Error(out)
	}
	if out := operate(3, "deadletters", "redrive", "--execute", id); !strings.Contains(out, "1 failed again") {
		t.Error(out)
	}
	if out := operate(0, "deadletters", "discard", "--execute", "--reason", "a test wrote it", id); !strings.Contains(out,
		"1 discarded") {
		t.Error(out)
	}
	if out := operate(0, "deadletters", "list", "--status", "all"); !strings.Contains(out, "a test wrote it (by ada)") {
		t.Error(out)
	}
	if out := operate(1, "deadletters", "show", "x"); out != "parley: no such dead letter\n" {
		t.Error(out)
	}

	// The demo's users make a chat; its events come to the log, and again.
	alice := newUser("alice", regexp.MustCompile(`=(ey\S+)`).FindStringSubmatch(greeting)[1],
		listening.FindStringSubmatch(greeting)[1], newTransport(t, false))
	made, err := alice.chats.CreateChat(t.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	if out := operate(0, "chats", "members", made.GetOverview().GetChat().GetChatId()); !strings.Contains(out, "bob    member") {
		t.Error(out)
	}
	if out := operate(0, "audit", "list", "--by", "ada"); !strings.Contains(out, "DiscardDeadLetters") {
		t.Error(out)
	}
	held := func() (n int64) {
		t.Helper()
		spans, err := lag.Spans(t.Context(), broker, kafka.ChatsCreated, asReader(t, dir)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range spans {
			n += s.To
		}
		return n
	}
	testkit.Eventually(t, "the chat's event is on Kafka", func() bool { return held() > 0 })
	before := held()
	replay := func(args ...string) (result struct{ Events string }) {
		t.Helper()
		for result.Events != "1" { // until the relay has deleted the row of the first time
			out := operate(0, append([]string{"replay", "--json", "--all-chats", "--type", "ChatCreated"}, args...)...)
			if err := json.Unmarshal([]byte(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]), &result); err != nil {
				t.Fatal(out, err)
			}
		}
		return result
	}
	replay()
	if now := held(); now != before {
		t.Errorf("a dry run published %d offsets", now-before)
	}
	replay("--execute")
	testkit.Eventually(t, "the event is on Kafka once more", func() bool { return held() > before })
	if out := operate(0, "groups", "describe", "fanout-workers"); !strings.Contains(out, "fanout-workers is Stable") {
		t.Error(out)
	}
	if !strings.Contains(logs.String(), `"by":"ada"`) {
		t.Error("the log does not say who it was")
	}

	// Another directory has another key, or none, which is not made.
	other := t.TempDir()
	code, _, stderr := run(t.Context(), nil, "--data-dir", other, "--ops-address", m[1], "deadletters", "list")
	if code != 1 || !strings.Contains(stderr, "no key to make one with") {
		t.Errorf("%d, %s", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(other, "auth.key")); err == nil {
		t.Error("a key was made")
	}
	code, _, stderr = run(t.Context(), nil, "--data-dir", other, "--listen", "127.0.0.1:0", "--kafka-listen",
		"127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen", "0.0.0.0:0")
	if code != 1 || !strings.Contains(stderr, "served on loopback only") || errorLines(stderr) != 1 {
		t.Errorf("%d, %s", code, stderr)
	}
	if code, _, stderr := run(t.Context(), nil, "--data-dir", dir, "deadletters"); code != 2 ||
		strings.Count(stderr, "\n") != 1 {
		t.Errorf("%d, %s", code, stderr)
	}
}

// unreadable puts a record that is no event into the log of a data directory. Only a
// process that has the directory open can.
func unreadable(t *testing.T, dir string) *kafka.Record {
	t.Helper()
	eng, err := backend.Open(backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	}()
	bad := &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 9, Key: []byte("chat_x"), Value: []byte("no event")}
	testkit.Must(t, eng.Publish(t.Context(), []eventlog.Publication{{Records: []*kafka.Record{bad}}}))
	return bad
}

// Strangers read the registry of a running server and change nothing; operators do, and
// even a read-only registry does not keep the server from starting.
func TestRegistryIsOperatorsToChange(t *testing.T) {
	dir := t.TempDir()
	for _, last := range []bool{false, true} {
		greeting, logs, stop := greeted(t, "127.0.0.1:0", dir)
		at := regexp.MustCompile(`registry at (http://\S+)`).FindStringSubmatch(greeting)[1]
		do := func(method, path, body, password string) int {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if password != "" {
				req.SetBasicAuth("ada", password)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			return res.StatusCode
		}
		code, token, stderr := run(t.Context(), nil, "--data-dir", dir, "operators", "token", "ada")
		if code != 0 {
			t.Fatal(stderr)
		}
		token = strings.TrimSpace(token)
		subject := "/subjects/messages.persisted-parley.event.v1.MessagePersisted"
		if got := do("GET", subject+"/versions", "", ""); got != 200 {
			t.Errorf("a reader gets %d", got)
		}
		for _, write := range [][3]string{{"DELETE", subject, ""}, {"PUT", "/mode", `{"mode":"READONLY"}`}} {
			if got := do(write[0], write[1], write[2], ""); got != 401 {
				t.Errorf("a stranger's %s %s: %d", write[0], write[1], got)
			}
			if got := do(write[0], write[1], write[2], token); got != 200 && !last {
				t.Errorf("an operator's %s %s: %d", write[0], write[1], got)
			}
		}
		if !strings.Contains(logs.String(), `"by":"ada"`) {
			t.Error("the log does not say who changed it")
		}
		if code := stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
