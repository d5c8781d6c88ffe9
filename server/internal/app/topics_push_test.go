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
	"github.com/parley-chat/parley/server/infra/testkit"
)

// poison is what a webhook always fails at until it is cured.
const poison = "poison"

// hook is a webhook as integrators write one: it reads JSON and verifies signatures, and fails now and then. Messages
// of a key must come one after the other: two servers that push for the group at the same time would be seen.
type hook struct {
	t      *testing.T
	mu     sync.Mutex
	secret string
	n      int
	cured  bool
	times  map[string]int    // how often a message was taken
	ids    map[string]string // of webhook-id, by message
	at     map[string]bool   // keys of which a request is under way
	last   map[string]int    // number of the newest message of a key that was taken
	failed []int             // attempts at the poison
}

// pushed is the body of a request, as far as the webhook reads it.
type pushed struct {
	Topic, Group string
	Attempt      int
	Message      struct {
		MessageID string `json:"messageId"`
		Message   struct {
			Key     string
			Payload []byte
		}
	}
}

func newHook(t *testing.T) *hook {
	return &hook{t: t, times: map[string]int{}, ids: map[string]string{}, at: map[string]bool{}, last: map[string]int{}}
}

// ServeHTTP implements http.Handler.
func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var p pushed
	if err != nil || json.Unmarshal(body, &p) != nil {
		return // the server was killed in the middle
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.check(r, body, p)
	key := p.Message.Message.Key
	if h.at[key] {
		h.t.Errorf("two requests with messages of key %s at a time", key)
	}
	h.at[key] = true
	h.mu.Unlock()
	time.Sleep(2 * time.Millisecond) // real: a second request of the key would come now
	h.mu.Lock()
	h.at[key] = false
	w.WriteHeader(h.answer(p))
}

// check verifies a request.
func (h *hook) check(r *http.Request, body []byte, p pushed) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(h.secret, "whsec_"))
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
	sign := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
	if err != nil || !slices.Contains(strings.Fields(r.Header.Get("webhook-signature")), sign) {
		h.t.Errorf("a request without a valid signature: %s", body)
	}
	if p.Topic != "hooked" || p.Group != "g" || p.Attempt < 1 || p.Message.MessageID == "" {
		h.t.Errorf("body %s", body)
	}
	id := r.Header.Get("webhook-id")
	if was := h.ids[p.Message.MessageID]; was != "" && was != id {
		h.t.Errorf("message %s has the ids %s and %s", p.Message.MessageID, was, id)
	}
	h.ids[p.Message.MessageID] = id
}

// answer is the status that the webhook answers with.
func (h *hook) answer(p pushed) (status int) {
	m := p.Message.Message
	if string(m.Payload) == poison && !h.cured {
		h.failed = append(h.failed, p.Attempt)
		return http.StatusInternalServerError
	}
	// At a repetition it does not fail: a message that fails at each of its attempts would be parked with its key.
	if h.n++; h.n%11 == 0 && p.Attempt == 1 && string(m.Payload) != poison {
		return http.StatusInternalServerError
	}
	h.times[string(m.Payload)]++
	var number int
	if _, err := fmt.Sscan(string(m.Payload), &number); err == nil {
		// A repetition may come after a kill, but nothing before what it follows was taken.
		if last, ok := h.last[m.Key]; ok && number > last+pushKeys || !ok && number >= pushKeys {
			h.t.Errorf("message %d of key %s comes after %d", number, m.Key, last)
		}
		h.last[m.Key] = max(h.last[m.Key], number)
	}
	return http.StatusOK
}

// wait waits for something that the webhook has seen.
func (h *hook) wait(what string, ok func() bool) {
	h.t.Helper()
	testkit.Eventually(h.t, what, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return ok()
	})
}

// Messages of a round, how many are published at once, and their keys: the number of a message modulo pushKeys.
const pushEach, pushAtOnce, pushKeys = 100, 10, 20

// Each message that was published comes to the webhook at least once and in the order of its key, over kills of the
// real server, with a signature that verifies and one id for all its repetitions; without a kill, once. One that the
// webhook fails at goes to the dead letters after its attempts. No answer of the API but the first shows the secret.
func TestPushOverKills(t *testing.T) {
	t.Parallel()
	pushOverKills(t, alone(t), 3)
}

func pushOverKills(t *testing.T, w *topicHarness, kills int) {
	h := newHook(t)
	receiver := httptest.NewServer(h)
	defer receiver.Close()
	defer func() {
		if t.Failed() {
			_, text, err := w.try(w.next(), "GET", "/topics/hooked/subscriptions/g", "")
			t.Log(text, err)
		}
	}()
	if status, text := w.rest("PUT", "/topics/hooked",
		`{"config":{"semantics":"SEMANTICS_PUB_SUB","partitions":2}}`); status != 200 {
		t.Fatal(status, text)
	}
	_, text := w.rest("POST", "/topics/hooked/subscriptions", `{"group":"g","config":{"push":{"url":"`+receiver.URL+
		`/orders"},"ordering":"ORDERING_KEY","retry":{"initialBackoff":"0.1s","maxAttempts":4}}}`)
	var made struct{ PushSecret string }
	testkit.Must(t, json.Unmarshal([]byte(text), &made))
	h.mu.Lock()
	h.secret = made.PushSecret
	h.mu.Unlock()
	for i := range kills + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for n := i * pushEach; n < (i+1)*pushEach; {
			r := &topicv1.PublishRequest{Topic: "hooked", Producer: &topicv1.Producer{Id: "p", Number: int64(n + 1)}}
			for len(r.GetMessages()) < pushAtOnce {
				r.Messages = append(r.Messages, &topicv1.TopicMessage{Key: fmt.Sprint(n % pushKeys), Payload: fmt.Append(nil, n)})
				n++
			}
			_, err := call(ctx, w.client().Topics().Publish, r)
			testkit.Must(t, err)
		}
		cancel()
		if i == 0 {
			h.wait("all messages are pushed", func() bool { return len(h.times) == pushEach })
			w.acknowledged(h.secret)
		}
		if i < kills {
			w.replace("hooked", true)
		}
	}
	h.wait("all messages are pushed", func() bool { return len(h.times) == (kills+1)*pushEach })
	w.acknowledged(h.secret)
	for n := range pushEach {
		testkit.Equal(t, fmt.Sprint("times that message ", n, " was taken, before the first kill"), h.times[fmt.Sprint(n)], 1)
	}
	w.deadLetter(t, h)
	if strings.Contains(w.logs(), h.secret) {
		t.Error("a log shows the secret")
	}
}

// acknowledged waits until the group of the webhook has acknowledged everything.
func (w *topicHarness) acknowledged(secret string) {
	w.t.Helper()
	testkit.Eventually(w.t, "everything is acknowledged", func() bool {
		_, text := w.rest("GET", "/topics/hooked/subscriptions/g", "")
		if strings.Contains(text, secret) {
			w.t.Fatalf("an answer shows the secret: %s", text)
		}
		return strings.Count(text, `"pending":"0"`) == 2 && strings.Contains(text, "PUSH_STATE_OK")
	})
}

// deadLetter publishes what the webhook fails at. It becomes a dead letter after its attempts, and is pushed again
// when an operator redrives it to a webhook that is repaired.
func (w *topicHarness) deadLetter(t *testing.T, h *hook) {
	t.Helper()
	_, err := w.client().Topics().Publish(t.Context(), &topicv1.PublishRequest{Topic: "hooked",
		Messages: []*topicv1.TopicMessage{{Key: "ill", Payload: []byte(poison)}}})
	testkit.Must(t, err)
	testkit.Eventually(t, "the dead letter", func() bool {
		code, out, _ := w.command("deadletters", "list", "--source", "topics")
		return code == 0 && strings.Contains(out, "hooked/") && strings.Contains(out, "parked with its key")
	})
	h.mu.Lock()
	testkit.Equal(t, "attempts", fmt.Sprint(h.failed), "[1 2 3 4]")
	h.cured = true
	h.mu.Unlock()
	code, out, errs := w.command("deadletters", "redrive", "--topic", "hooked", "--execute")
	if code != 0 || !strings.Contains(out, "1 redriven") {
		t.Fatal(code, out, errs)
	}
	h.wait("the dead letter is pushed", func() bool { return h.times[poison] == 1 })
}
