package app_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/testkit"
)

// hook is a webhook as integrators write one: it reads JSON and verifies signatures, and fails now and then.
type hook struct {
	t      *testing.T
	mu     sync.Mutex
	secret string
	n      int
	taken  map[string]bool
	ids    map[string]string // of webhook-id, by message
}

// ServeHTTP implements http.Handler.
func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var p struct {
		Topic, Group string
		Attempt      int
		Message      struct {
			MessageID string `json:"messageId"`
			Message   struct{ Payload []byte }
		}
	}
	if err != nil || json.Unmarshal(body, &p) != nil {
		return // the server was killed in the middle
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(h.secret, "whsec_"))
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
	sign := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
	if err != nil || !slices.Contains(strings.Fields(r.Header.Get("webhook-signature")), sign) {
		h.t.Errorf("a request without a valid signature: %s", body)
	}
	if p.Topic != "orders" || p.Group != "shop" || p.Attempt < 1 || p.Message.MessageID == "" {
		h.t.Errorf("body %s", body)
	}
	id := r.Header.Get("webhook-id")
	if was := h.ids[p.Message.MessageID]; was != "" && was != id {
		h.t.Errorf("message %s has the ids %s and %s", p.Message.MessageID, was, id)
	}
	h.ids[p.Message.MessageID] = id
	if h.n++; h.n%11 == 0 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h.taken[string(p.Message.Message.Payload)] = true
}

// Each message that was published comes to the webhook at least once, over kills of the real server, with a signature
// that verifies and one id for all its repetitions. No answer of the API but the first shows the secret.
func TestPushOverKills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := &hook{t: t, taken: map[string]bool{}, ids: map[string]string{}}
	receiver := httptest.NewServer(h)
	defer receiver.Close()
	p := launch(t, dir, "127.0.0.1:0", "--topic-creators", "carol")
	bearer := token(t, dir, "carol")
	dial := func() *topic.Client {
		c, err := topic.Dial(topic.Config{BaseURL: "http://" + p.addr,
			Token: func(context.Context, bool) (string, error) { return bearer, nil }})
		testkit.Must(t, err)
		return c
	}
	_, err := dial().Topics().ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "orders",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2}})
	testkit.Must(t, err)
	made := rest(t, p, bearer, http.MethodPost, "/api/v1/topics/orders/subscriptions",
		`{"group":"shop","config":{"push":{"url":"`+receiver.URL+`/orders"},"retry":{"initialBackoff":"0.1s"}}}`)
	h.mu.Lock()
	h.secret, _ = made["pushSecret"].(string)
	h.mu.Unlock()
	const rounds, each = 4, 100
	for i := range rounds {
		c := dial()
		for n := range each {
			_, err := c.Topics().Publish(t.Context(), &topicv1.PublishRequest{Topic: "orders",
				Messages: []*topicv1.TopicMessage{{Key: fmt.Sprint(n), Payload: fmt.Append(nil, i*each+n)}}})
			testkit.Must(t, err)
		}
		if i < rounds-1 {
			p.kill()
			p = launch(t, dir, p.addr, "--topic-creators", "carol")
		}
	}
	testkit.Eventually(t, "all messages are pushed", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.taken) == rounds*each
	})
	testkit.Eventually(t, "everything is acknowledged", func() bool {
		got := rest(t, p, bearer, http.MethodGet, "/api/v1/topics/orders/subscriptions/shop", "")
		text, err := json.Marshal(got)
		testkit.Must(t, err)
		if strings.Contains(string(text), h.secret) {
			t.Fatalf("an answer shows the secret: %s", text)
		}
		return strings.Count(string(text), `"pending":"0"`) == 2 && strings.Contains(string(text), "PUSH_STATE_OK")
	})
	if strings.Contains(p.log.String(), h.secret) {
		t.Error("the log shows the secret")
	}
}

// rest calls the server by REST.
func rest(t *testing.T, p *process, bearer, method, path, body string) map[string]any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.addr+path, strings.NewReader(body))
	testkit.Must(t, err)
	r.Header.Set("Authorization", "Bearer "+bearer)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	testkit.Equal(t, path+" "+string(text), res.StatusCode, http.StatusOK)
	got := map[string]any{}
	testkit.Must(t, json.Unmarshal(text, &got))
	return got
}
