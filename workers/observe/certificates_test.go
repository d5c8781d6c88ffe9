package observe

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// issue puts a certificate that is valid for some days, and its key, into files.
func issue(t *testing.T, days int) certificate.Files {
	t.Helper()
	private := testkit.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().AddDate(0, 0, days).Add(time.Hour)}
	der := testkit.Value(x509.CreateCertificate(rand.Reader, c, c, private.Public(), private))(t)
	own := testkit.Value(x509.MarshalPKCS8PrivateKey(private))(t)
	dir := t.TempDir()
	f := certificate.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for name, block := range map[string]*pem.Block{f.Cert: {Type: "CERTIFICATE", Bytes: der},
		f.Key: {Type: "PRIVATE KEY", Bytes: own}} {
		testkit.Must(t, os.WriteFile(name, pem.EncodeToMemory(block), 0o600))
	}
	return f
}

// Each certificate of a process has its own line, also where one is used twice; where there is none, there is no line.
func TestCertificates(t *testing.T) {
	m := telemetry.NewMetrics()
	links, kafka := issue(t, 3), issue(t, 90)
	list := testkit.Value(certificate.OpenAll(time.Now, slog.New(slog.DiscardHandler), links, kafka, links,
		certificate.Files{}))(t)
	Certificates(m, list...)
	text := scrape(m)
	for file, days := range map[string]string{links.Cert: "3.0", kafka.Cert: "90.0"} {
		if !strings.Contains(text, "\nparley_certificate_days_left{file=\""+file+"\"} "+days) {
			t.Errorf("%s is not valid for %s days: %s", file, days, text)
		}
	}
	if n := strings.Count(text, "\nparley_certificate_days_left{"); n != 2 {
		t.Errorf("%d lines", n)
	}
	for _, half := range []certificate.Files{{Cert: links.Cert}, {Key: links.Key}} {
		if _, err := certificate.OpenAll(time.Now, nil, half); err == nil {
			t.Error("half of a certificate is accepted")
		}
	}
}
