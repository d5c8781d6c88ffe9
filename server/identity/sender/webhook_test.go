package sender_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/parley-chat/parley/server/identity/sender"
	"github.com/parley-chat/parley/server/infra/testkit"
)

const secret = "a secret of sixteen"

// hook is a program that takes codes, and answers with statuses in their order, the last one
// from then on.
type hook struct {
	mu       sync.Mutex
	statuses []int
	requests []*http.Request
	bodies   []string
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, _ := io.ReadAll(r.Body)
	h.requests, h.bodies = append(h.requests, r), append(h.bodies, string(b))
	status := h.statuses[0]
	h.statuses = h.statuses[min(1, len(h.statuses)-1):]
	w.Header().Set("Location", "/elsewhere")
	w.WriteHeader(status)
}

// RoundTrip makes the hook a network of its own, for bubbles of testing/synctest.
func (h *hook) RoundTrip(r *http.Request) (*http.Response, error) {
	if h.statuses == nil {
		h.requests = append(h.requests, r)
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// A delivery is signed: who has the secret can tell that it is this installation's, and how old.
func TestWebhookOverHTTP(t *testing.T) {
	h := &hook{statuses: []int{204}}
	srv := httptest.NewServer(h)
	defer srv.Close()
	w := &sender.Webhook{URL: srv.URL + "/codes", Secret: secret, Client: sender.NewWebhookClient(), Clock: clock}
	testkit.Must(t, w.Check())
	testkit.Must(t, w.Send(t.Context(), message(t, "+49 151 2345678")))
	r := h.requests[0]
	var body map[string]string
	testkit.Must(t, json.Unmarshal([]byte(h.bodies[0]), &body))
	testkit.Equal(t, "body", body, map[string]string{"kind": "phone", "identifier": "+491512345678", "code": "042117",
		"expires_at": "2030-03-01T09:35:00Z"})
	if r.Method != http.MethodPost || r.URL.Path != "/codes" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Parley-Delivery") == "" {
		t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}
	if signature := sender.Sign(secret, now, []byte(h.bodies[0])); r.Header.Get("Parley-Signature") != signature {
		t.Errorf("signature %s, expected %s", r.Header.Get("Parley-Signature"), signature)
	}
}

// The form of a signature does not change: programs of others check it.
func TestSignature(t *testing.T) {
	// printf '1898587800.{}' | openssl dgst -sha256 -hmac 'a secret of sixteen'
	testkit.Equal(t, "signature", sender.Sign(secret, now, []byte("{}")),
		"t=1898587800,v1=ff41dd525506ea0eed3d6036e761479812c0d4baa95552e8cc14ae2168073043")
}

// What may pass is tried four times with one id, what is refused for good once, and
// no redirection is followed.
func TestWebhookRetries(t *testing.T) {
	for _, c := range []struct {
		statuses []int
		calls    int
		ok       bool
	}{
		{[]int{200}, 1, true}, {[]int{503, 429, 408, 202}, 4, true}, {[]int{500}, 4, false}, {[]int{400}, 1, false},
		{[]int{503, 403}, 2, false}, {[]int{307}, 1, false}, {[]int{302, 200}, 1, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &hook{statuses: slices.Clone(c.statuses)}
			client := sender.NewWebhookClient()
			client.Transport = h
			w := &sender.Webhook{URL: "https://codes.example.com/x?key=hidden", Secret: secret, Client: client, Clock: clock}
			err := w.Send(t.Context(), message(t, "ann@example.com"))
			if (err == nil) != c.ok || len(h.requests) != c.calls {
				t.Errorf("%v: %d calls, %v", c.statuses, len(h.requests), err)
			}
			for _, r := range h.requests {
				if id := r.Header.Get("Parley-Delivery"); id != h.requests[0].Header.Get("Parley-Delivery") || id == "" {
					t.Errorf("%v: another id %q", c.statuses, id)
				}
			}
			if said := fmt.Sprint(err); strings.Contains(said, "042117") || strings.Contains(said, "ann@") ||
				strings.Contains(said, "hidden") {
				t.Errorf("%v: %s", c.statuses, said)
			}
		})
	}
}

// An address that cannot be called is tried again, and errors do not have it.
func TestWebhookAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, client := &hook{}, sender.NewWebhookClient()
		client.Transport = h
		w := &sender.Webhook{URL: "https://codes.example.com/secret-path", Secret: secret, Client: client, Clock: clock}
		err := w.Send(t.Context(), message(t, "ann@example.com"))
		if err == nil || strings.Contains(err.Error(), "secret-path") ||
			!strings.Contains(err.Error(), "connection refused") || len(h.requests) != 4 {
			t.Errorf("%d calls, %v", len(h.requests), err)
		}
	})
}

func TestWebhookSettings(t *testing.T) {
	for url, ok := range map[string]bool{
		"https://codes.example.com/x": true, "http://127.0.0.1:9/x": true, "http://[::1]:9": true,
		"http://codes.example.com": false, "http://localhost:9": false, "": false, "codes": false,
		"ftp://codes.example.com":                 false,
		"https://user:password@codes.example.com": false, "https://": false,
	} {
		if err := (&sender.Webhook{URL: url, Secret: secret}).Check(); (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
	}
	if err := (&sender.Webhook{URL: "https://codes.example.com", Secret: "short"}).Check(); err == nil {
		t.Error("a short secret is taken")
	}
}
