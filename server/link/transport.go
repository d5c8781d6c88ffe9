package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/parley-chat/parley/server/routing"
)

// Limits of the transport.
const (
	maxRequest = 16 << 20 // one change may be a whole plan
	maxAnswer  = 4 << 10
	maxHeader  = 8 << 10
	maxSkew    = time.Minute // between the clocks of two processes
	// maxConnections leaves descriptors for clients, regardless of the number of processes
	// that connect here.
	maxConnections = 2 * routing.MaxServers
	maxStreams     = 1000 // of a connection; beyond it there is another one
)

func (m *Mesh) url(addr string) string {
	if m.cfg.TLS != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// newClient uses HTTP/2 only: many calls share a connection, and its pings detect a lost
// one.
func newClient(t *tls.Config) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(t != nil)
	protocols.SetUnencryptedHTTP2(t == nil)
	tr := &http.Transport{
		Protocols: &protocols, DialContext: (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second,
			WriteByteTimeout: 5 * time.Second},
	}
	if t != nil {
		tr.TLSClientConfig = t.Clone()
	}
	// No redirect, no proxy: an address names a process of this installation.
	return &http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Serve serves the links of other processes on a listener until ctx ends. With a TLS
// configuration clients must present certificates of its ClientCAs.
func (m *Mesh) Serve(ctx context.Context, l net.Listener, t *tls.Config) error {
	var protocols http.Protocols
	protocols.SetHTTP2(t != nil)
	protocols.SetUnencryptedHTTP2(t == nil)
	srv := &http.Server{
		Handler: m.Handler(), Protocols: &protocols, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(m.cfg.Logger.Handler(), slog.LevelWarn),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 15 * time.Second,
			PingTimeout: 10 * time.Second},
	}
	l = netutil.LimitListener(l, maxConnections)
	if t != nil {
		l = tls.NewListener(l, serverTLS(t))
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("link: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		_ = srv.Close()
	}
	<-failed //nolint:errcheck // http.ErrServerClosed
	return nil
}

func serverTLS(t *tls.Config) *tls.Config {
	t = t.Clone()
	t.ClientAuth = tls.RequireAndVerifyClientCert
	t.NextProtos = []string{"h2"}
	t.MinVersion = tls.VersionTLS13
	return t
}
