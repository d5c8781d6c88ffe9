package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Who is over a limit learns that and until when, by each protocol; operators see which limit it
// was, others nothing of it.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--limits", "send=1/h:3, new_send=off")
	tr := newTransport(t, false)
	alice, bob := newUser("alice", token(t, dir, "alice"), p.addr, tr), newUser("bob", token(t, dir, "bob"), p.addr, tr)
	made, err := alice.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT,
		MemberIds: []string{"bob"}})
	testkit.Must(t, err)
	chat := made.GetOverview().GetChat().GetChatId()
	say := func(u *user) error {
		_, err := u.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: chat, Content: "hello"})
		return err
	}
	for range 3 {
		testkit.Must(t, say(alice))
	}
	over := new(connect.Error)
	if err := say(alice); !asError(err, &over) || over.Code() != connect.CodeResourceExhausted ||
		reasonOf(over) != "RATE_LIMITED" {
		t.Fatalf("a fourth message: %v", err)
	}
	wait := time.Duration(0)
	for _, d := range over.Details() {
		if v, err := d.Value(); err == nil {
			if retry, ok := v.(*errdetails.RetryInfo); ok {
				wait = retry.GetRetryDelay().AsDuration()
			}
		}
	}
	after, err := strconv.Atoi(over.Meta().Get("Retry-After"))
	if err != nil || wait <= 59*time.Minute || wait > time.Hour || time.Duration(after)*time.Second < wait {
		t.Errorf("retry after %v, header %q", wait, over.Meta().Get("Retry-After"))
	}
	status, body := ask(t, &http.Client{Transport: bearer{token(t, dir, "alice"), tr}}, http.MethodPost,
		"http://"+p.addr+"/api/v1/chats/"+chat+"/messages", func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{"content":"hello"}`))
			r.Header.Set("Content-Type", "application/json")
		})
	if status != http.StatusTooManyRequests || !strings.Contains(body, "RATE_LIMITED") {
		t.Errorf("REST: %d %s", status, body)
	}
	testkit.Must(t, say(bob))
	if n := scrape(t, p.addr, `parley_limits_refused_total{limit="send"}`); n != 2 {
		t.Errorf("%v refusals are counted", n)
	}
}

// asError is errors.As for errors of calls.
func asError(err error, to **connect.Error) bool {
	e, ok := err.(*connect.Error) //nolint:errorlint // clients return it as it is
	*to = e
	return ok
}

// reasonOf is the reason of an error.
func reasonOf(err *connect.Error) string {
	for _, d := range err.Details() {
		if v, e := d.Value(); e == nil {
			if info, ok := v.(*errdetails.ErrorInfo); ok {
				return info.GetReason()
			}
		}
	}
	return ""
}

// Who makes direct chats to people who do not answer makes no more of them; an answer makes
// room for one.
func TestUnansweredChats(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--limits", "unanswered=1/d:2")
	tr := newTransport(t, false)
	people := map[string]*user{}
	for _, name := range []string{"alice", "b", "c", "d", "e"} {
		people[name] = newUser(name, token(t, dir, name), p.addr, tr)
		_, err := people[name].chats.ListChats(t.Context(), &chatv1.ListChatsRequest{}) // now there is such a user
		testkit.Must(t, err)
	}
	to := func(name string) (string, error) {
		made, err := people["alice"].chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{name}})
		return made.GetOverview().GetChat().GetChatId(), err
	}
	chat, err := to("b")
	testkit.Must(t, err)
	say := func(u *user) {
		t.Helper()
		_, err := u.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: chat, Content: "hello"})
		testkit.Must(t, err)
	}
	say(people["alice"])
	_, err = to("c")
	testkit.Must(t, err)
	over := new(connect.Error)
	if _, err := to("d"); !asError(err, &over) || reasonOf(over) != "RATE_LIMITED" {
		t.Fatalf("a third chat without an answer: %v", err)
	}
	say(people["b"])
	if _, err := to("d"); err != nil {
		t.Fatalf("after an answer: %v", err)
	}
	for range 5 { // the same chats again
		if again, err := to("b"); err != nil || again != chat {
			t.Fatalf("the chat that there is: %s, %v", again, err)
		}
	}
	if _, err := to("e"); !asError(err, &over) || reasonOf(over) != "RATE_LIMITED" {
		t.Fatalf("again a third chat without an answer: %v", err)
	}
}

// A user's newest stream ends the oldest of too many, and an address has so many streams
// whoever opens them (S-29).
func TestSec_S_29_StreamsOfUsersAndAddresses(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--max-streams-per-user", "2", "--max-streams-per-address", "3",
		"--behind-proxy", "127.0.0.0/8")
	tr := newTransport(t, false)
	open := func(name, address string) (*connect.ServerStreamForClient[deliveryv1.SubscribeResponse], bool) {
		t.Helper()
		u := newUser(name, token(t, dir, name), p.addr, forwarded{tr, address})
		s, err := u.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
		testkit.Must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s, s.Receive()
	}
	first, ok := open("alice", "198.51.100.1")
	if !ok {
		t.Fatal(first.Err())
	}
	for range 2 {
		if s, ok := open("alice", "198.51.100.1"); !ok {
			t.Fatal(s.Err())
		}
	}
	for first.Receive() { // until it is ended
	}
	if e := new(connect.Error); !asError(first.Err(), &e) || reasonOf(e) != "REPLACED" {
		t.Errorf("the oldest of three streams: %v", first.Err())
	}
	if s, ok := open("bob", "198.51.100.1"); !ok {
		t.Fatal(s.Err())
	}
	s, ok := open("carol", "203.0.113.9, 198.51.100.1")
	if e := new(connect.Error); ok || !asError(s.Err(), &e) || reasonOf(e) != "RATE_LIMITED" {
		t.Errorf("a fourth stream of an address: %t, %v", ok, s.Err())
	}
	if s, ok := open("carol", "198.51.100.2"); !ok {
		t.Errorf("another address: %v", s.Err())
	}
}

// With a certificate the listener speaks TLS, and nobody is warned of what others can read; what
// is for operators stays away from it. With half of one the server does not start (S-32).
func TestSec_S_32_TLS(t *testing.T) {
	dir := t.TempDir()
	pool, cert, key := certificate(t, dir)
	p := launch(t, filepath.Join(dir, "data"), "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key,
		"--metrics-listen", "127.0.0.1:0")
	days := scrape(t, p.metricsListener(t), `parley_certificate_days_left{file="`+cert+`"}`)
	leaf := testkit.Value(tls.LoadX509KeyPair(cert, key))(t).Leaf
	if want := time.Until(leaf.NotAfter).Hours() / 24; days < want-1 || days > want+1 {
		t.Errorf("%v days are left of the certificate, want %v", days, want)
	}
	testkit.Eventually(t, "the last line of the start is read", func() bool {
		return strings.Contains(p.log.String(), "msg=listening")
	})
	if strings.Contains(p.log.String(), "without TLS") || !strings.Contains(p.said.String(), "https://") {
		t.Errorf("%s%s", &p.said, &p.log)
	}
	_, port, err := net.SplitHostPort(p.addr)
	testkit.Must(t, err)
	for two, want := range map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: two}
		if !two {
			tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		t.Cleanup(tr.CloseIdleConnections)
		c := &http.Client{Transport: tr}
		for path, status := range map[string]int{"/healthz": 200, "/metrics": 404, "/": 200} {
			res, err := c.Get("https://localhost:" + port + path)
			testkit.Must(t, err)
			body, err := io.ReadAll(res.Body)
			testkit.Must(t, err)
			if res.StatusCode != status || res.Proto != want ||
				path == "/" && strings.Contains(string(body), "http://localhost") {
				t.Errorf("%s: %d %s, want %d %s: %.200s", path, res.StatusCode, res.Proto, status, want, body)
			}
			_ = res.Body.Close()
		}
		hc := &http.Client{Transport: bearer{token(t, filepath.Join(dir, "data"), "alice"), tr}}
		s, err := deliveryv1connect.NewDeliveryServiceClient(hc, "https://localhost:"+port).
			Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
		if err != nil || !s.Receive() {
			t.Errorf("%s: a stream: %v, %v", want, err, s.Err())
		}
		_ = s.Close()
	}
	if code, _, errs := run(t.Context(), nil, "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--kafka-listen",
		"127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--tls-cert", cert); code == 0 ||
		!strings.Contains(errs, "go together") {
		t.Errorf("half a certificate: %d, %s", code, errs)
	}
}

// certificate writes a certificate of localhost and its key, and returns who trusts it.
func certificate(t *testing.T, dir string) (pool *x509.CertPool, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(30 * 24 * time.Hour), DNSNames: []string{"localhost"}, IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	testkit.Must(t, err)
	own, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(t, err)
	parsed, err := x509.ParseCertificate(der)
	testkit.Must(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	testkit.Must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	testkit.Must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: own}), 0o600))
	return pool, cert, key
}
