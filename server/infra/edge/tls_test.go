package edge

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/edge/h2"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// secured is a listener with TLS whose certificate the test writes.
type secured struct {
	t          *testing.T
	addr       string
	cert, key  string
	guard      *Guard
	pool       *x509.CertPool
	mu         sync.Mutex
	at         time.Time
	log        strings.Builder
	calls      sync.WaitGroup
	serialNext int64
}

func (s *secured) clock() time.Time { s.mu.Lock(); defer s.mu.Unlock(); return s.at }

func (s *secured) pass(d time.Duration) { s.mu.Lock(); defer s.mu.Unlock(); s.at = s.at.Add(d) }

// Write implements io.Writer, for the log.
func (s *secured) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

func (s *secured) said(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.log.String(), text)
}

// issue writes a new certificate, which clients trust, until a time from now.
func (s *secured) issue(valid time.Duration) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(s.t, err)
	s.serialNext++
	c := &x509.Certificate{SerialNumber: big.NewInt(s.serialNext), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"chat.example.com"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	testkit.Must(s.t, err)
	own, err := x509.MarshalPKCS8PrivateKey(key)
	testkit.Must(s.t, err)
	parsed, err := x509.ParseCertificate(der)
	testkit.Must(s.t, err)
	s.pool.AddCert(parsed)
	s.put(s.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	s.put(s.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: own}))
}

// put puts a file in another's place, as those who renew certificates do.
func (s *secured) put(path string, text []byte) {
	s.t.Helper()
	testkit.Must(s.t, os.WriteFile(path+".new", text, 0o600))
	testkit.Must(s.t, os.Rename(path+".new", path))
}

func serveTLS(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{t: t, cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), pool: x509.NewCertPool(),
		at: time.Now()}
	s.issue(30 * 24 * time.Hour)
	log := slog.New(slog.NewTextHandler(s, nil))
	c, err := certificate.Open(s.cert, s.key, s.clock, log)
	testkit.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	s.addr, s.guard = l.Addr().String(), New(l, Limits{Connections: 100}, log)
	s.guard.Secure(c.Public())
	srv := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "HTTP/%d", r.ProtoMajor)
	}), log.Handler())
	s.guard.Install(srv.Server)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(s.guard) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return s
}

// get asks over a connection of its own, and returns the answer and the serial number of the
// certificate.
func (s *secured) get(change func(*tls.Config), version2 bool) (body string, serial int64, err error) {
	config := &tls.Config{RootCAs: s.pool, ServerName: "chat.example.com", MinVersion: tls.VersionTLS12}
	if change != nil {
		change(config)
	}
	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: version2, DisableKeepAlives: true}
	if !version2 {
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+s.addr, http.NoBody)
	if err != nil {
		return "", 0, err
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", 0, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), res.TLS.PeerCertificates[0].SerialNumber.Int64(), err
}

// Both versions of HTTP are spoken in TLS 1.2 and 1.3, and nothing older; who expects another
// name or authority goes no further; who speaks plain HTTP gets an explanation (S-32).
func TestSec_S_32_PublicListener(t *testing.T) {
	s := serveTLS(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, h := range []struct {
			two  bool
			want string
		}{{false, "HTTP/1"}, {true, "HTTP/2"}} {
			body, _, err := s.get(func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version }, h.two)
			if err != nil || body != h.want {
				t.Errorf("%x: %q, %v, want %s", version, body, err, h.want)
			}
		}
	}
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.1":         func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
		"another name":    func(c *tls.Config) { c.ServerName = "other.example.com" },
		"other authority": func(c *tls.Config) { c.RootCAs = x509.NewCertPool() },
		"expired":         func(c *tls.Config) { c.Time = func() time.Time { return time.Now().Add(31 * 24 * time.Hour) } },
	} {
		if body, _, err := s.get(change, false); err == nil {
			t.Errorf("%s: %s", name, body)
		}
	}
	c, err := net.Dial("tcp", s.addr)
	testkit.Must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: chat.example.com\r\n\r\n")
	testkit.Must(t, err)
	answer, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(answer), "speaks HTTPS") {
		t.Errorf("plain HTTP: %q, %v", answer, err)
	}
}

// A certificate that is renewed while clients come and go is shown from then on, and none of
// them fails. What is no certificate changes nothing.
func TestCertificateIsReadAgain(t *testing.T) {
	s := serveTLS(t)
	want := func(serial int64) {
		t.Helper()
		if _, got, err := s.get(nil, true); err != nil || got != serial {
			t.Errorf("certificate %d, %v; want %d", got, err, serial)
		}
	}
	want(1)
	for range 3 {
		s.issue(30 * 24 * time.Hour)
	}
	all := s.pool.Clone() // during the change clients trust those before and after
	stop, failed := make(chan struct{}), make(chan error, 1)
	s.calls.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, _, err := s.get(func(c *tls.Config) { c.RootCAs = all }, true); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		}
	})
	want(1) // not looked again yet
	for range 5 {
		s.pass(2 * time.Second)
		want(4)
	}
	close(stop)
	s.calls.Wait()
	select {
	case err := <-failed:
		t.Errorf("during the change: %v", err)
	default:
	}
	s.put(s.cert, []byte("none"))
	s.pass(2 * time.Second)
	want(4)
	testkit.Must(t, os.Remove(s.key))
	s.pass(2 * time.Second)
	want(4)
	if s.said("cannot be read again") == 0 || s.said("was read again") != 1 {
		t.Errorf("the log: %s", s.log.String())
	}
	s.issue(time.Hour)
	s.pass(2 * time.Second)
	want(5)
	if s.said("expires soon") != 1 {
		t.Errorf("nothing is said of a certificate that expires: %s", s.log.String())
	}
}

// Frames without a reason cut a connection within TLS, too.
func TestSec_S_28_FloodWithinTLS(t *testing.T) {
	s := serveTLS(t)
	c, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: s.pool, ServerName: "chat.example.com",
		NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	testkit.Must(t, err)
	defer c.Close()
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Fatalf("protocol %q", p)
	}
	_, err = io.WriteString(c, h2.Preface)
	testkit.Must(t, err)
	f := http2.NewFramer(c, c)
	testkit.Must(t, f.WriteSettings())
	go func() { _, _ = io.Copy(io.Discard, c) }()
	for err == nil { // a flood ends by being cut
		err = f.WritePing(false, [8]byte{1})
	}
	testkit.Eventually(t, "the flood is counted", func() bool { return s.guard.Stats().Flooded == 1 })
	if body, _, err := s.get(nil, true); err != nil || body != "HTTP/2" {
		t.Errorf("another client: %q, %v", body, err)
	}
}
