package sender_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/sender"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// mailServer takes mail by SMTP and keeps it with the commands that came.
type mailServer struct {
	listener net.Listener
	tls      *tls.Config // nil: it has none
	implicit bool
	refuse   string // answer to RCPT
	silent   bool   // it says nothing
	leaving  string // answer to QUIT; "": 221

	mu       sync.Mutex
	commands []string
	mails    []string
	secure   bool // mail came over TLS
	wg       sync.WaitGroup
}

// certificate makes a certificate for 127.0.0.1 and the pool that trusts it.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	testkit.Must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der := testkit.Value(x509.CreateCertificate(rand.Reader, c, c, public, private))(t)
	pool := x509.NewCertPool()
	pool.AddCert(testkit.Value(x509.ParseCertificate(der))(t))
	return &tls.Config{MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}, pool
}

func (s *mailServer) start(t *testing.T) {
	t.Helper()
	s.listener = testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	s.wg.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.wg.Wait()
	})
}

// serve speaks SMTP with one client.
func (s *mailServer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if s.silent {
		_, _ = io.Copy(io.Discard, conn) // until the client has had enough
		return
	}
	if s.implicit {
		conn = tls.Server(conn, s.tls)
	}
	secure := s.implicit
	lines := bufio.NewReader(conn)
	say := func(text string) { _, _ = io.WriteString(conn, text+"\r\n") }
	say("220 mail")
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		s.mu.Lock()
		s.commands = append(s.commands, line)
		s.mu.Unlock()
		switch verb, _, _ := strings.Cut(line, " "); verb {
		case "EHLO":
			say("250-mail")
			if s.tls != nil && !secure {
				say("250-STARTTLS")
			}
			say("250 AUTH PLAIN")
		case "STARTTLS":
			say("220 go")
			conn = tls.Server(conn, s.tls)
			lines, secure = bufio.NewReader(conn), true
		case "AUTH":
			say("235 in")
		case "RCPT":
			if s.refuse != "" {
				say(s.refuse)
				continue
			}
			say("250 ok")
		case "DATA":
			say("354 go")
			var text strings.Builder
			for {
				line, err := lines.ReadString('\n')
				if err != nil || line == ".\r\n" {
					break
				}
				text.WriteString(line)
			}
			s.mu.Lock()
			s.mails, s.secure = append(s.mails, text.String()), secure
			s.mu.Unlock()
			say("250 taken")
		case "QUIT":
			say(cmp.Or(s.leaving, "221 bye"))
			return
		default:
			say("250 ok")
		}
	}
}

func (s *mailServer) sender() *sender.SMTP {
	return &sender.SMTP{Address: s.listener.Addr().String(), From: "Parley <codes@parley.example>", Clock: clock}
}

// Mail is sent over TLS, upgraded or from the first byte, with the user's password, and has the code.
func TestMail(t *testing.T) {
	config, pool := certificate(t)
	for _, implicit := range []bool{false, true} {
		s := &mailServer{tls: config, implicit: implicit}
		s.start(t)
		w := s.sender()
		testkit.Must(t, w.Check())
		w.Implicit, w.User, w.Password = implicit, "parley", "pass word"
		w.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		testkit.Must(t, w.Send(t.Context(), message(t, "Ann@Example.com")))
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.mails) != 1 || !s.secure {
			t.Fatalf("%d mails, secure %v", len(s.mails), s.secure)
		}
		commands := strings.Join(s.commands, "\n")
		for _, want := range []string{"MAIL FROM:<codes@parley.example>", "RCPT TO:<ann@example.com>",
			"AUTH PLAIN " + base64.StdEncoding.EncodeToString([]byte("\x00parley\x00pass word"))} {
			if !strings.Contains(commands, want) {
				t.Errorf("%s is missing in\n%s", want, commands)
			}
		}
		m := testkit.Value(mail.ReadMessage(strings.NewReader(s.mails[0])))(t)
		body := testkit.Value(io.ReadAll(m.Body))(t)
		for header, want := range map[string]string{"From": `"Parley" <codes@parley.example>`, "To": "ann@example.com",
			"Subject": "Your code to sign in", "Date": "Fri, 01 Mar 2030 09:30:00 +0000", "Auto-Submitted": "auto-generated"} {
			testkit.Equal(t, header, m.Header.Get(header), want)
		}
		at := strings.Index(string(body), "042117")
		if at < 100 || !strings.HasSuffix(m.Header.Get("Message-ID"), "@parley.example>") {
			t.Errorf("%v\n%s", m.Header, body)
		}
	}
}

// A server whose certificate nobody vouches for gets neither mail nor password; one on this machine
// may do without TLS.
func TestMailWithoutTrust(t *testing.T) {
	config, _ := certificate(t)
	for _, implicit := range []bool{false, true} {
		s := &mailServer{tls: config, implicit: implicit}
		s.start(t)
		w := s.sender()
		w.Implicit, w.User, w.Password = implicit, "parley", "pass word"
		if err := w.Send(t.Context(), message(t, "ann@example.com")); err == nil {
			t.Error("a certificate of nobody is trusted")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if text := strings.Join(s.commands, "\n"); len(s.mails) != 0 || strings.Contains(text, "AUTH") ||
			strings.Contains(text, "MAIL") {
			t.Errorf("%s", text)
		}
	}
	s := &mailServer{}
	s.start(t)
	testkit.Must(t, s.sender().Send(t.Context(), message(t, "ann@example.com")))
}

// What a mail server says of an address does not get into the log.
func TestMailRefused(t *testing.T) {
	s := &mailServer{refuse: "550 ann@example.com does not live here, whatever 042117 says"}
	s.start(t)
	err := s.sender().Send(t.Context(), message(t, "ann@example.com"))
	if err == nil || strings.Contains(err.Error(), "ann@") || strings.Contains(err.Error(), "042117") ||
		!strings.Contains(err.Error(), "does not live here") {
		t.Error(err)
	}
}

// A mail that the server took was sent, whatever the server says afterwards.
func TestMailIsSentWhenItIsTaken(t *testing.T) {
	s := &mailServer{leaving: "421 too busy to say good-bye"}
	s.start(t)
	testkit.Must(t, s.sender().Send(t.Context(), message(t, "ann@example.com")))
	s.mu.Lock()
	defer s.mu.Unlock()
	testkit.Equal(t, "mails", len(s.mails), 1)
}

// A mail server that says nothing is left when the time is over.
func TestMailServerHangs(t *testing.T) {
	s := &mailServer{silent: true}
	s.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.sender().Send(ctx, message(t, "ann@example.com")); err == nil {
		t.Error("it was sent")
	}
}

func TestMailSettings(t *testing.T) {
	for name, x := range map[string]struct {
		s  sender.SMTP
		ok bool
	}{
		"whole":       {sender.SMTP{Address: "mail.example.com:587", From: "codes@example.com"}, true},
		"with a name": {sender.SMTP{Address: "mail.example.com:587", From: "Parley <codes@example.com>"}, true},
		"no port":     {sender.SMTP{Address: "mail.example.com", From: "codes@example.com"}, false},
		"no sender":   {sender.SMTP{Address: "mail.example.com:587"}, false},
		"two headers": {sender.SMTP{Address: "mail.example.com:587", From: "a@example.com\r\nBcc: b@example.com"}, false},
	} {
		if err := x.s.Check(); (err == nil) != x.ok || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, fmt.Sprint(err))
		}
	}
}
