package backend_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	settings "github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// mutual is the configuration of a process whose certificate is its own authority.
func mutual(t *testing.T, authority string) (c *tls.Config, ca string) {
	t.Helper()
	cert, key := issue(t, t.TempDir())
	if authority == "" {
		authority = cert
	}
	c, err := backend.MutualTLS(authority, cert, key)
	testkit.Must(t, err)
	return c, cert
}

// issue puts a certificate that is its own authority, and its key, into a directory.
func issue(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(30 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	testkit.Must(t, err)
	own, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(t, err)
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	testkit.Must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	testkit.Must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: own}), 0o600))
	return cert, key
}

// The certificate that is shown to Kafka is read again when it changes, as those of links are.
func TestKafkaCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := settings.Settings{}
	s.Kafka.Brokers, s.Kafka.TLS, s.Redis.URL = []string{"127.0.0.1:1"}, true, "redis://127.0.0.1:1"
	s.Kafka.Cert, s.Kafka.Key = issue(t, dir)
	d := testkit.Value(backend.NewDistributed(s))(t)
	shown := func() *x509.Certificate {
		return testkit.Value(d.Kafka.TLS.GetClientCertificate(nil))(t).Leaf
	}
	first := shown()
	issue(t, dir)
	testkit.Eventually(t, "the new certificate is shown", func() bool { return !shown().Equal(first) })
}

// Processes show each other what is in their files: one whose certificate another authority has
// signed is refused, as is one without.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	own, ca := mutual(t, "")
	foreign, _ := mutual(t, ca) // trusts the others, and is not trusted
	meet := func(client *tls.Config) error {
		server := own.Clone()
		server.ClientAuth = tls.RequireAndVerifyClientCert
		client = client.Clone()
		client.ServerName = "127.0.0.1"
		l, err := tls.Listen("tcp", "127.0.0.1:0", server)
		testkit.Must(t, err)
		defer l.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := tls.Dial("tcp", l.Addr().String(), client); err == nil {
				_, _ = c.Read(make([]byte, 1)) // until the server has seen enough
				_ = c.Close()
			}
		}()
		c, err := l.Accept()
		testkit.Must(t, err)
		err = c.(*tls.Conn).HandshakeContext(t.Context()) // in TLS 1.3 the client is done first
		_ = c.Close()
		<-done
		return err
	}
	testkit.Must(t, meet(own))
	if meet(foreign) == nil {
		t.Error("a process of another authority was let in")
	}
	if meet(&tls.Config{RootCAs: own.RootCAs, MinVersion: tls.VersionTLS13}) == nil {
		t.Error("a process without a certificate was let in")
	}
	if c, err := backend.MutualTLS("", "", ""); c != nil || err != nil {
		t.Errorf("without files: %v, %v", c, err)
	}
	if _, err := backend.MutualTLS(ca, "", ""); err == nil {
		t.Error("without a certificate: no error")
	}
}
