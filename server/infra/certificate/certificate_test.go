package certificate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// issue puts a certificate with a serial number and its key into files.
func issue(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(30 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	testkit.Must(t, err)
	own, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.Must(t, err)
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: own}} {
		testkit.Must(t, os.WriteFile(name+".new", pem.EncodeToMemory(block), 0o600))
		testkit.Must(t, os.Rename(name+".new", name))
	}
}

// Both sides of a connection show what the files have now, if that is a certificate, and look
// once a second at most.
func TestReadAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	issue(t, cert, key, 1)
	c, err := certificate.Open(cert, key, func() time.Time { return now }, nil)
	testkit.Must(t, err)
	want := func(serial int64) {
		t.Helper()
		server, err := c.OfServer(&tls.ClientHelloInfo{})
		testkit.Must(t, err)
		client, err := c.OfClient(&tls.CertificateRequestInfo{})
		testkit.Must(t, err)
		if server.Leaf.SerialNumber.Int64() != serial || client.Leaf.SerialNumber.Int64() != serial {
			t.Errorf("certificates %v and %v, want %d", server.Leaf.SerialNumber, client.Leaf.SerialNumber, serial)
		}
	}
	issue(t, cert, key, 2)
	want(1)
	now = now.Add(time.Second)
	want(2)
	testkit.Must(t, os.WriteFile(key, []byte("none"), 0o600))
	now = now.Add(time.Second)
	want(2)
	issue(t, cert, key, 3)
	now = now.Add(-time.Hour) // a clock that is set back does not matter
	want(3)
	testkit.Must(t, os.Remove(cert))
	now = now.Add(time.Second)
	want(3)
}

// What is wrong with the files is said at the start, in one line.
func TestNone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testkit.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, cert := range []string{file, filepath.Join(dir, "absent")} {
		if c, err := certificate.Open(cert, file, time.Now, slog.New(slog.DiscardHandler)); err == nil || c != nil ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", cert, err)
		}
	}
}
