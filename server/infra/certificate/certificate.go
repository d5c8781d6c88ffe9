// Package certificate shows a certificate that stands in files, and reads them again when they
// change: a renewal needs no restart.
//
// It owns when files are read. It does not own trust in certificates, or the services behind
// them.
//
// Concurrency: a Certificate is safe for concurrent use. Files are read under its mutex,
// at most once a second.
package certificate

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	checkEvery  = time.Second        // after which a handshake checks whether files have changed
	expiresSoon = 7 * 24 * time.Hour // before the end of a certificate, about which the log warns
)

// Certificate is a certificate with its key, in two files. While what is in them is no
// certificate, the one before stays.
type Certificate struct {
	cert, key string
	clock     func() time.Time
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	files   [2]os.FileInfo // of current
	checked time.Time
}

// Open reads a certificate and its key. Without a log nothing is said of what is wrong with the
// files later. Errors fit into one line.
func Open(cert, key string, clock func() time.Time, log *slog.Logger) (*Certificate, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Certificate{cert: cert, key: key, clock: clock, log: log, checked: clock()}
	if _, err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Files are the names of those of a certificate and its key; empty where there is none.
type Files struct{ Cert, Key string }

// OpenAll opens the certificates that there are.
func OpenAll(clock func() time.Time, log *slog.Logger, files ...Files) (list []*Certificate, err error) {
	for _, f := range files {
		if f == (Files{}) {
			continue
		}
		c, err := Open(f.Cert, f.Key, clock, log)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// Public is the configuration of a listener for everybody that shows the certificate: TLS 1.2
// and later, for HTTP/2 and HTTP/1.1.
func (c *Certificate) Public() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.OfServer}
}

// OfServer is for [tls.Config.GetCertificate].
func (c *Certificate) OfServer(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil }

// OfClient is for [tls.Config.GetClientCertificate].
func (c *Certificate) OfClient(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return c.get(), nil
}

// File returns the name of the file with the certificate.
func (c *Certificate) File() string { return c.cert }

// DaysLeft returns the days until the certificate expires; negative after that.
func (c *Certificate) DaysLeft() float64 {
	return c.get().Leaf.NotAfter.Sub(c.clock()).Hours() / 24
}

func (c *Certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	if now.Sub(c.checked).Abs() < checkEvery {
		return c.current
	}
	c.checked = now
	switch changed, err := c.load(); {
	case err != nil:
		c.log.Warn("a certificate cannot be read again; the one before stays", "error", err)
	case changed:
		c.log.Info("a certificate was read again", "file", c.cert, "expires", c.current.Leaf.NotAfter)
	}
	return c.current
}

// load reads the files if they are others than those that were read. The caller holds the
// lock, if others know of c.
func (c *Certificate) load() (changed bool, err error) {
	var files [2]os.FileInfo
	for i, name := range []string{c.cert, c.key} {
		if files[i], err = os.Stat(name); err != nil {
			return false, err
		}
	}
	if c.current != nil && same(files[0], c.files[0]) && same(files[1], c.files[1]) {
		return false, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return false, fmt.Errorf("%s, %s: %w", c.cert, c.key, err)
	}
	if until := pair.Leaf.NotAfter.Sub(c.clock()); until < expiresSoon {
		c.log.Warn("a certificate expires soon, or has", "file", c.cert, "expires", pair.Leaf.NotAfter)
	}
	c.current, c.files = &pair, files
	return true, nil
}

// same reports whether a file is what it was: one that was put in its place is another.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
