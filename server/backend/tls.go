package backend

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/parley-chat/parley/server/infra/certificate"
)

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

// clientTLS trusts the authorities in a file, or those of the system.
func clientTLS(ca string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca == "" {
		return t, nil
	}
	pool, err := readPool(ca)
	t.RootCAs = pool
	return t, err
}

func readPool(path string) (*x509.CertPool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCertificates))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it", path)
	}
	return pool, nil
}

// MutualTLS is the configuration of processes that show certificates to each other:
// one's own with its key, read again when they change, and the authority that has signed all;
// nil without files.
func MutualTLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	if ca == "" || cert == "" || key == "" {
		return nil, errors.New("link-ca, link-cert and link-key go together")
	}
	own, err := certificate.Open(cert, key, time.Now, nil)
	if err != nil {
		return nil, fmt.Errorf("link-cert, link-key: %w", err)
	}
	pool, err := readPool(ca)
	if err != nil {
		return nil, fmt.Errorf("link-ca: %w", err)
	}
	return &tls.Config{GetCertificate: own.OfServer, GetClientCertificate: own.OfClient, RootCAs: pool, ClientCAs: pool,
		MinVersion: tls.VersionTLS13}, nil
}
