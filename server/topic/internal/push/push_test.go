package push

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// The example of the specification (standard-webhooks.com, and the tests of its libraries): a receiver with one
// of these libraries can verify what is sent.
func TestSignatureOfTheSpecification(t *testing.T) {
	h := http.Header{}
	testkit.Must(t, sign(h, []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "msg_p5jXN8AQM9LWM0D4loKWxJek",
		time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)))
	testkit.Equal(t, "signature", h.Get("webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	testkit.Equal(t, "id", h.Get("webhook-id"), "msg_p5jXN8AQM9LWM0D4loKWxJek")
	testkit.Equal(t, "timestamp", h.Get("webhook-timestamp"), "1614265330")
}

// Two secrets make two signatures, each of which verifies alone.
func TestSignatureWithTwoSecrets(t *testing.T) {
	secrets := []string{NewSecret(), NewSecret()}
	h := http.Header{}
	testkit.Must(t, sign(h, secrets, "a", time.Unix(7, 0), []byte("b")))
	list := strings.Split(h.Get(SignatureHeader), " ")
	testkit.Equal(t, "signatures", len(list), 2)
	for i, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		testkit.Must(t, err)
		m := hmac.New(sha256.New, key)
		fmt.Fprint(m, "a.7.b")
		testkit.Equal(t, "signature", list[i], "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil)))
	}
}

func TestSecrets(t *testing.T) {
	of := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, s := range []string{of(24), of(64), NewSecret()} {
		if err := CheckSecret(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{"", of(23), of(65), strings.TrimPrefix(of(32), "whsec_"), "whsec_!!!!", of(32) + "\n"} {
		if err := CheckSecret(s); err == nil {
			t.Errorf("%q is accepted", s)
		} else if len(s) > 10 && strings.Contains(err.Error(), s[8:]) {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
	if one, other := NewSecret(), NewSecret(); one == other {
		t.Error("two secrets are the same")
	}
}

func TestVerdicts(t *testing.T) {
	for code, want := range map[int]verdict{
		200: taken, 201: taken, 204: taken, 299: taken, 301: failed, 302: failed, 307: failed, 308: failed, 304: failed,
		400: rejected, 409: rejected, 413: rejected, 415: rejected, 422: rejected,
		401: failed, 403: failed, 404: failed, 405: failed, 408: failed, 418: failed, 410: gone,
		429: unavailable, 503: unavailable, 500: failed, 502: failed, 504: failed, 599: failed,
	} {
		o := answered(&http.Response{StatusCode: code, Header: http.Header{}}, time.Now())
		if o.verdict != want || o.status != code || (o.class == "") != (want == taken) {
			t.Errorf("%d: %+v, want %d", code, o, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "3600": time.Hour, "3601": time.Hour, "2147483647": time.Hour,
		"99999999999999999999": 0, "-5": 0, "1.5": 0, "soon": 0,
		"Wed, 02 Jan 2030 03:04:15 GMT": 10 * time.Second, "Wed, 02 Jan 2030 03:04:00 GMT": 0,
		"Thu, 02 Jan 2040 03:04:05 GMT": time.Hour,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// What was not written says nothing about the message, whatever went wrong.
func TestBroken(t *testing.T) {
	for _, c := range []struct {
		err     error
		written bool
		want    outcome
	}{
		{&egress.Refused{Text: "no"}, false, outcome{verdict: unavailable, class: "refused_address"}},
		{fmt.Errorf("dial: %w", &net.DNSError{Err: "no such host"}), false, outcome{verdict: unavailable, class: "dns"}},
		{errors.New("refused"), false, outcome{verdict: unavailable, class: "connect"}},
		{context.DeadlineExceeded, false, outcome{verdict: unavailable, class: "timeout"}},
		{context.DeadlineExceeded, true, outcome{verdict: failed, class: "timeout"}},
		{errors.New("reset"), true, outcome{verdict: failed, class: "connection"}},
	} {
		if got := broken(c.err, c.written); got != c.want {
			t.Errorf("%v, %t: %+v, want %+v", c.err, c.written, got, c.want)
		}
	}
}

// The window begins with one message, and grows by one with each that the webhook has checked, up to its most.
func TestWindowGrows(t *testing.T) {
	h, now := newHealth(), time.Now()
	for i := range MaxInFlight + 3 {
		room, pause := h.room(now, 0)
		testkit.Equal(t, "room", room, min(i+1, MaxInFlight))
		testkit.Equal(t, "pause", pause, 0)
		h.works(now)
	}
	room, _ := h.room(now, 2)
	testkit.Equal(t, "room beside two", room, MaxInFlight-2)
}

// Failures of the webhook: so many in a row count by the group's policy, then one message at a time is tried
// after growing pauses, of whose failures one in four counts. One that works ends it.
func TestHealthOfAWebhookThatFails(t *testing.T) {
	h, now := newHealth(), time.Now()
	for range 100 {
		h.works(now)
	}
	bad := outcome{verdict: failed, status: 500}
	for i := range slowAfter {
		if !h.failed(now, bad) {
			t.Errorf("failure %d does not count", i)
		}
	}
	if h.failed(now, bad) { // one that was under way
		t.Error("a request that was under way counts")
	}
	var pauses []time.Duration
	counted := 0
	for range 16 {
		room, pause := h.room(now, 0)
		testkit.Equal(t, "room", room, 0)
		pauses = append(pauses, pause)
		now = now.Add(pause)
		room, _ = h.room(now, 0)
		testkit.Equal(t, "room after the pause", room, 1)
		if h.failed(now, bad) {
			counted++
		}
	}
	testkit.Equal(t, "counted", counted, 16/countEvery)
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		testkit.Equal(t, "pause", pauses[i], want*time.Second)
	}
	testkit.Equal(t, "longest pause", pauses[15], longestPause)
	slow, fails, _ := h.report()
	testkit.Equal(t, "slow", slow, true)
	testkit.Equal(t, "failures", fails, slowAfter+17)
	if !h.works(now) {
		t.Error("the recovery is not reported")
	}
	room, pause := h.room(now, 0)
	testkit.Equal(t, "room", room, 2)
	testkit.Equal(t, "pause", pause, 0)
}

// A webhook that cannot be reached is slow at once, and no failure counts. What it asks for is waited for.
func TestHealthOfAWebhookThatIsAway(t *testing.T) {
	h, now := newHealth(), time.Now()
	for range 50 {
		if h.failed(now, outcome{verdict: unavailable}) {
			t.Error("a failure counts that says nothing about the message")
		}
		_, pause := h.room(now, 0)
		now = now.Add(pause)
	}
	h.works(now)
	h.failed(now, outcome{verdict: unavailable, wait: 10 * time.Minute})
	_, pause := h.room(now, 0)
	testkit.Equal(t, "pause", pause, 10*time.Minute)
	if !h.paused(now.Add(10*time.Minute-1)) || h.paused(now.Add(10*time.Minute)) {
		t.Error("the pause is not the one that was asked for")
	}
}

// A message that was under way and is taken does not end the time that the webhook has asked for, nor does a
// failure shorten it. It ends a pause after failures.
func TestRetryAfterLasts(t *testing.T) {
	h, now := newHealth(), time.Now()
	h.failed(now, outcome{verdict: unavailable, wait: time.Hour})
	if h.works(now.Add(time.Minute)) {
		t.Error("the webhook counts as one that works again")
	}
	h.failed(now.Add(time.Minute), outcome{verdict: unavailable, wait: time.Minute})
	_, pause := h.room(now.Add(2*time.Minute), 0)
	testkit.Equal(t, "pause", pause, 58*time.Minute)
	slow, _, next := h.report()
	testkit.Equal(t, "slow", slow, true)
	testkit.Equal(t, "next", next, now.Add(time.Hour))
	if now = now.Add(time.Hour); !h.works(now) {
		t.Error("the recovery is not reported")
	}
	h.failed(now, outcome{verdict: unavailable})
	h.works(now)
	room, pause := h.room(now, 0)
	testkit.Equal(t, "room", room, 2)
	testkit.Equal(t, "pause", pause, 0)
}

// rejecting one message after the other does not make a webhook slow: it works.
func TestRejectionsDoNotSlow(t *testing.T) {
	h, now := newHealth(), time.Now()
	for range 10 * slowAfter {
		h.failed(now, outcome{verdict: failed})
		h.works(now)
	}
	slow, _, _ := h.report()
	testkit.Equal(t, "slow", slow, false)
}

// A host has so many requests, a principal and a process as well; what waits for one host takes no place of
// another, what waits of one principal none of another, and one that ends makes room. Names without requests
// are forgotten.
func TestSlotsOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSender(nil, time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var under atomic.Int64
		release := make(chan struct{})
		take := func(principal, host string, n int) {
			for range n {
				go func() {
					if leave, ok := s.enter(ctx, principal, host); ok {
						under.Add(1)
						<-release
						under.Add(-1)
						leave()
					}
				}()
			}
			synctest.Wait()
		}
		take("", "a", PerHost+10)
		testkit.Equal(t, "requests to a host", under.Load(), PerHost)
		for i := range PerPrincipal {
			take("ann", fmt.Sprint("of ann", i), 2)
		}
		testkit.Equal(t, "requests to a host and of a principal", under.Load(), PerHost+PerPrincipal)
		for i := range MaxRequests/PerHost - 2 {
			take(fmt.Sprint("other", i), fmt.Sprint("b", i), PerHost)
		}
		testkit.Equal(t, "requests", under.Load(), MaxRequests)
		take("ben", "c", 1)
		testkit.Equal(t, "requests at the bound", under.Load(), MaxRequests)
		release <- struct{}{}
		synctest.Wait()
		testkit.Equal(t, "requests after one has ended", under.Load(), MaxRequests)
		cancel() // those that wait leave
		synctest.Wait()
		close(release)
		synctest.Wait()
		testkit.Equal(t, "names", len(s.principals.byName)+len(s.hosts.byName)+len(s.all.byName), 0)
	})
}

func TestHostOf(t *testing.T) {
	for url, want := range map[string]string{
		"https://A.Example.com.:8443/x": "a.example.com", "https://a.example.com/": "a.example.com",
		"https://[::1]:9/": "::1", "%": "",
	} {
		testkit.Equal(t, url, hostOf(url), want)
	}
}
