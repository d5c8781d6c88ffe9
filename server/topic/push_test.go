package topic

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/push"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// hooks are webhooks in this process: no socket keeps simulated time from passing.
type hooks struct {
	mu       sync.Mutex
	answer   func(p pushedRequest) int // of a status; negative: no answer
	away     bool                      // there is no connection
	header   http.Header               // of answers
	requests []pushedRequest
	refused  int // connections
	open     int
	most     int // of open
}

// pushedRequest is a request as a webhook gets it.
type pushedRequest struct {
	*topicv1.PushedMessage
	url, id, stamp, signature string
	body                      []byte
	at                        time.Time
	ctx                       context.Context
}

func (p pushedRequest) payload() string { return string(p.GetMessage().GetMessage().GetPayload()) }

// verifies reports whether the signature, or one of several, is made with a secret.
func (p pushedRequest) verifies(secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s.%s.%s", p.id, p.stamp, p.body)
	return err == nil && slices.Contains(strings.Fields(p.signature), "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil)))
}

// Check is that of the guard of package egress, which is tested there.
func (h *hooks) Check(url string) error { return egress.New(egress.Config{}).Check(url) }

// Do answers a request.
func (h *hooks) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	away := h.away
	if away {
		h.refused++
	}
	h.mu.Unlock()
	if away {
		return nil, errors.New("connection refused")
	}
	p := pushedRequest{PushedMessage: &topicv1.PushedMessage{}, url: r.URL.String(), id: r.Header.Get("webhook-id"),
		stamp: r.Header.Get("webhook-timestamp"), signature: r.Header.Get("webhook-signature"), body: body, at: time.Now(),
		ctx: r.Context()}
	if err := protojson.Unmarshal(body, p.PushedMessage); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.requests = append(h.requests, p)
	h.open++
	h.most = max(h.most, h.open)
	answer, header := h.answer, h.header
	h.mu.Unlock()
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		trace.WroteHeaders()
	}
	status := http.StatusNoContent
	if answer != nil {
		status = answer(p)
	}
	h.mu.Lock()
	h.open--
	h.mu.Unlock()
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	if status < 0 {
		return nil, errors.New("connection reset")
	}
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(bytes.NewReader(nil))}, nil
}

func (h *hooks) answers(f func(p pushedRequest) int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = f
}

// leave says that there is no connection, and back that there is, after how many refusals.
func (h *hooks) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away, h.refused = true, 0
}

func (h *hooks) back() (refused int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away = false
	return h.refused
}

func (h *hooks) always(status int) { h.answers(func(pushedRequest) int { return status }) }

// take returns the requests since the last call.
func (h *hooks) take() []pushedRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.requests
	h.requests = nil
	return list
}

// taken are the payloads of the requests since the last call, in order.
func (h *hooks) taken() string {
	var list []string
	for _, p := range h.take() {
		list = append(list, p.payload())
	}
	slices.SortFunc(list, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return strings.Join(list, " ")
}

const hookURL = "https://hooks.example.com/orders"

// pushing runs a test in simulated time, with a topic "orders" that has groups with webhooks.
func pushing(t *testing.T, c *topicv1.SubscriptionConfig, f func(t *testing.T, x *fixture, secret string)) {
	t.Helper()
	bubble(t, func(t *testing.T, x *fixture) {
		x.withHooks()
		x.groups("orders")
		if c == nil {
			c = &topicv1.SubscriptionConfig{}
		}
		c.Push = &topicv1.PushConfig{Url: hookURL}
		r, err := x.create(op, c)
		testkit.Must(t, err)
		f(t, x, r.GetPushSecret())
	})
}

// create subscribes group g of "orders", and set changes it.
func (x *fixture) create(c Caller, config *topicv1.SubscriptionConfig) (*topicv1.CreateSubscriptionResponse, error) {
	return x.CreateSubscription(x.t.Context(), c,
		&topicv1.CreateSubscriptionRequest{Topic: "orders", Group: "g", Config: config})
}

func (x *fixture) set(c Caller, config *topicv1.SubscriptionConfig) (*topicv1.UpdateSubscriptionResponse, error) {
	return x.UpdateSubscription(x.t.Context(), c,
		&topicv1.UpdateSubscriptionRequest{Topic: "orders", Group: "g", Config: config})
}

// withHooks starts the service again with webhooks.
func (x *fixture) withHooks() {
	x.t.Helper()
	x.hooks = &hooks{}
	x.restart()
}

// pass lets time pass, and what is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (x *fixture) pushState(want topicv1.PushState) *topicv1.PushStatus {
	x.t.Helper()
	s := x.subscription("orders", "g").GetPushStatus()
	testkit.Equal(x.t, "push state", s.GetState(), want)
	return s
}

func (x *fixture) pending() (n int64) {
	x.t.Helper()
	for _, p := range x.subscription("orders", "g").GetPartitions() {
		n += p.GetPending()
	}
	return n
}

// Each message is one request that a receiver can verify, and an answer of 2xx acknowledges it.
func TestPush(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, secret string) {
		x.publish("orders", 0, 30)
		pass(time.Second)
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 30)
		ids := map[string]bool{}
		for _, p := range list {
			if !p.verifies(secret) {
				t.Errorf("message %s has no valid signature", p.payload())
			}
			ids[p.id] = true
			testkit.Equal(t, "topic and group", p.GetTopic()+" "+p.GetGroup(), "orders g")
			testkit.Equal(t, "attempt", p.GetAttempt(), 1)
			testkit.Equal(t, "message", p.GetMessage().GetMessageId(), "0-"+p.payload())
			testkit.Equal(t, "url", p.url, hookURL)
		}
		testkit.Equal(t, "ids", len(ids), 30)
		testkit.Equal(t, "pending", x.pending(), 0)
		x.pushState(topicv1.PushState_PUSH_STATE_OK)
	})
}

// What the server knows of a secret stands in no answer but one, no line of the log and no row of the audit; a given
// secret stands in none.
func TestSecretIsNotShown(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, made string) {
		given, bad := push.NewSecret(), "whsec_bm90LWxvbmctZW5vdWdo"
		config := &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL + "/2"}}
		again, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{
			Topic: "orders", Group: "g", Config: config, PushSecret: given})
		testkit.Must(t, err)
		change := &topicv1.UpdateSubscriptionRequest{Topic: "orders", Group: "g", Config: config, PushSecret: given}
		updated, err := x.UpdateSubscription(t.Context(), op, change)
		testkit.Must(t, err)
		change.PushSecret = bad
		_, err = x.UpdateSubscription(t.Context(), op, change)
		refusedAs(t, err, refusal.InvalidArgument)
		list, lerr := x.Subscriptions(t.Context(), op, &topicv1.ListSubscriptionsRequest{Topic: "orders"})
		testkit.Must(t, lerr)
		texts := []string{again.String(), updated.String(), err.Error(), list.String(),
			x.subscription("orders", "g").String()}
		x.publish("orders", 0, 3)
		pass(time.Second)
		x.hooks.always(500)
		x.publish("orders", 3, 3)
		pass(time.Minute)
		texts = append(texts, x.logs.String(), x.audit.String())
		for i, text := range texts {
			for _, secret := range []string{made, given, bad} {
				if strings.Contains(text, strings.TrimPrefix(secret, "whsec_")) {
					t.Errorf("text %d shows a secret: %s", i, text)
				}
			}
		}
		if len(again.GetDifferences()) != 2 || made == "" { // of the address and the secret
			t.Errorf("differences %v, secret %q", again.GetDifferences(), made)
		}
	})
}

// A subscription that is there keeps its secret. That the request has another one is a difference, without either.
func TestSecretOfASubscriptionThatIsThere(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, made string) {
		for secret, want := range map[string]string{
			"": "", made: "", push.NewSecret(): "push_secret is another one, not the one of the request"} {
			r, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{Topic: "orders", Group: "g",
				Config: &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}}, PushSecret: secret})
			testkit.Must(t, err)
			var got []string
			for _, d := range r.GetDifferences() {
				got = append(got, fmt.Sprintf("%s is %s, not %s", d.GetName(), d.GetIs(), d.GetAsked()))
			}
			testkit.Equal(t, "differences", strings.Join(got, ";"), want)
		}
		x.publish("orders", 0, 1)
		pass(time.Second)
		if list := x.hooks.take(); len(list) != 1 || !list[0].verifies(made) {
			t.Errorf("requests %v", list)
		}
	})
}

// After a change of the secret both sign for a day, and then the new one alone. No message is repeated for it.
func TestChangedSecret(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, old string) {
		fresh := push.NewSecret()
		hold := make(chan struct{})
		x.hooks.answers(func(pushedRequest) int { <-hold; return 200 })
		x.publish("orders", 0, 1)
		pass(time.Second)
		_, err := x.UpdateSubscription(t.Context(), op,
			&topicv1.UpdateSubscriptionRequest{Topic: "orders", Group: "g", PushSecret: fresh})
		testkit.Must(t, err)
		close(hold)
		pass(time.Second)
		x.publish("orders", 1, 1)
		pass(24*time.Hour - 3*time.Second)
		x.publish("orders", 2, 1)
		pass(3 * time.Second)
		x.restart()
		x.publish("orders", 3, 1)
		pass(2 * time.Second)
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 4)
		for i, want := range []struct{ old, fresh bool }{{true, false}, {true, true}, {true, true}, {false, true}} {
			testkit.Equal(t, fmt.Sprint("old secret signs request ", i), list[i].verifies(old), want.old)
			testkit.Equal(t, fmt.Sprint("new secret signs request ", i), list[i].verifies(fresh), want.fresh)
		}
		testkit.Equal(t, "url", list[3].url, hookURL)
	})
}

// A group with a webhook has the server as its only member, and one whose webhook is removed any.
func TestPushedGroupIsNotPulled(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		_, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "orders", Group: "g", Member: "m"}, false)
		refusedAs(t, err, refusal.GroupPushed)
		_, err = x.UpdateSubscription(t.Context(), op, &topicv1.UpdateSubscriptionRequest{Topic: "orders", Group: "g",
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"push"}}})
		testkit.Must(t, err)
		pass(2 * time.Second)
		x.publish("orders", 0, 2)
		x.want(x.attach("orders", "g", "m"), "0 1")
		testkit.Equal(t, "requests", x.hooks.taken(), "")
		if s := x.subscription("orders", "g"); s.GetPushStatus() != nil || s.GetConfig().GetPush() != nil {
			t.Errorf("the webhook is still shown: %v", s)
		}
	})
}

// A group that members pull becomes one with a webhook: their sessions end, and what they had is pushed.
func TestPulledGroupBecomesPushed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.withHooks()
		x.groups("orders", "g")
		s := x.attach("orders", "g", "m")
		x.publish("orders", 0, 2)
		x.want(s, "0 1")
		r, err := x.set(op, &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}})
		testkit.Must(t, err)
		pass(time.Second)
		testkit.Equal(t, "session", s.Ended(), "DRAINING")
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 2)
		for _, p := range list {
			if !p.verifies(r.GetPushSecret()) || p.GetAttempt() != 1 {
				t.Errorf("request %v", p)
			}
		}
	})
}

// The group of a queue is pushed as well.
func TestPushOfAQueue(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.withHooks()
		x.configure("jobs", nil)
		x.publish("jobs", 0, 3)
		_, err := x.UpdateSubscription(t.Context(), op, &topicv1.UpdateSubscriptionRequest{Topic: "jobs", Group: "$queue",
			Config: &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}}})
		testkit.Must(t, err)
		pass(time.Second)
		testkit.Equal(t, "requests", x.hooks.taken(), "0 1 2")
	})
}

// What is wrong with a webhook is said at once, and nothing is stored.
func TestInvalidWebhooks(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.withHooks()
		x.groups("orders", "pulled")
		for _, c := range []struct{ url, secret string }{
			{}, {"http://hooks.example.com/", ""}, {"https://169.254.169.254/", ""}, {"https://u:p@hooks.example.com/", ""},
			{"https://[fd00::1]/", ""}, {hookURL, "short"}, {hookURL, "whsec_AAAA"}, {"", push.NewSecret()},
		} {
			config := &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: c.url}}
			_, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{
				Topic: "orders", Group: "g", Config: config, PushSecret: c.secret})
			refusedAs(t, err, refusal.InvalidArgument)
			_, err = x.UpdateSubscription(t.Context(), op, &topicv1.UpdateSubscriptionRequest{
				Topic: "orders", Group: "pulled", Config: config, PushSecret: c.secret})
			refusedAs(t, err, refusal.InvalidArgument)
		}
		if s := x.subscription("orders", "pulled"); s.GetConfig().GetPush() != nil {
			t.Errorf("a webhook is stored: %v", s)
		}
		_, err := x.Subscription(t.Context(), op, "orders", "g")
		refusedAs(t, err, refusal.SubscriptionNotFound)
	})
}

// Without a way out nothing is pushed, and the answer says so.
func TestServerWithoutWebhooks(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("orders")
		_, err := x.create(op, &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}})
		refusedAs(t, err, refusal.InvalidArgument)
	})
}

// String returns what was written.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
