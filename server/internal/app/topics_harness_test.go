package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// topicHarness is where a test of topics runs: a server that is alone, or an installation of
// several.
type topicHarness struct {
	t        *testing.T
	servers  []string // addresses; requests go to one after the other
	registry string   // URL
	writer   string   // password of the registry, for ada
	alice    string   // token of a user who may make topics
	// command runs a command as ada.
	command func(args ...string) (code int, stdout, stderr string)
	// replace ends the process that has a topic, which has a group g: without warning, or in good order. When it
	// returns, another process has the topic, and all servers run.
	replace func(topic string, kill bool)
	// logs is all that the servers have logged.
	logs func() string

	turn int
}

var registryAddress = regexp.MustCompile(`registry at (http://\S+)`)

// alone starts a server that is everything in one process.
func alone(t *testing.T, flags ...string) *topicHarness {
	t.Helper()
	dir := t.TempDir()
	flags = append([]string{"--ops-listen", "127.0.0.1:0", "--topic-creators", "alice"}, flags...)
	p := launch(t, dir, "127.0.0.1:0", flags...)
	w := &topicHarness{t: t, servers: []string{p.addr}, alice: token(t, dir, "alice")}
	begun := func() {
		testkit.Eventually(t, "the server says where its registry is", func() bool {
			m := registryAddress.FindStringSubmatch(p.said.String())
			if m != nil {
				w.registry = m[1]
			}
			return m != nil
		})
	}
	begun()
	w.command = func(args ...string) (int, string, string) {
		return run(t.Context(), map[string]string{"PARLEY_OPERATOR": "ada"},
			append([]string{"--data-dir", dir, "--ops-address", opsOf(t, p)}, args...)...)
	}
	var before strings.Builder
	w.logs = func() string { return before.String() + p.log.String() }
	w.replace = func(_ string, kill bool) {
		if !kill {
			p.leave()
		}
		p.kill()
		before.WriteString(p.log.String())
		p = launch(t, dir, p.addr, flags...)
		begun()
	}
	_, operator, stderr := run(t.Context(), nil, "--data-dir", dir, "operators", "token", "ada")
	if w.writer = strings.TrimSpace(operator); w.writer == "" {
		t.Fatal(stderr)
	}
	return w
}

// next is the server for the next request.
func (w *topicHarness) next() (addr string) {
	w.turn++
	return w.servers[w.turn%len(w.servers)]
}

// client returns a client of the next server, as alice.
func (w *topicHarness) client() *topic.Client {
	w.t.Helper()
	c, err := topic.Dial(topic.Config{BaseURL: "http://" + w.next(),
		Token: func(context.Context, bool) (string, error) { return w.alice, nil }})
	testkit.Must(w.t, err)
	return c
}

// rest calls the REST API as alice, until a server answers that has, or reaches, the topic.
func (w *topicHarness) rest(method, path, body string) (status int, text string) {
	w.t.Helper()
	testkit.Eventually(w.t, method+" "+path, func() bool {
		var err error
		status, text, err = w.try(w.next(), method, path, body)
		return err == nil && status != http.StatusServiceUnavailable
	})
	return status, text
}

// try calls the REST API of a server once.
func (w *topicHarness) try(addr, method, path, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+w.alice)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return exchange(req)
}

// exchange sends a request and returns the answer, JSON without spaces.
func exchange(req *http.Request) (int, string, error) {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, "", err
	}
	var compact bytes.Buffer
	if json.Compact(&compact, b) != nil {
		return res.StatusCode, string(b), nil
	}
	return res.StatusCode, compact.String(), nil
}

// line runs a command on topics as ada.
func (w *topicHarness) line(args string) (code int, stdout, stderr string) {
	return w.command(append([]string{"topics"}, strings.Fields(args)...)...)
}

// schemas calls the registry as ada.
func (w *topicHarness) schemas(method, path, body string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.registry+path, strings.NewReader(body))
	testkit.Must(w.t, err)
	req.SetBasicAuth("ada", w.writer)
	status, text, err := exchange(req)
	testkit.Must(w.t, err)
	return status, text
}

// register registers messages of package shop.v1, and returns the schema's id.
func (w *topicHarness) register(subject, messages string) int {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"schemaType": "PROTOBUF",
		"schema": "syntax = \"proto3\"; package shop.v1; " + messages})
	testkit.Must(w.t, err)
	status, text := w.schemas(http.MethodPost, "/subjects/"+subject+"/versions", string(body))
	var answer struct{ ID int }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 {
		w.t.Fatal(status, text, err)
	}
	return answer.ID
}
