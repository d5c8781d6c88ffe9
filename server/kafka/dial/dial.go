// Package dial makes the first connection to a Kafka cluster and explains in one line why
// there is none.
//
// It owns the messages for operators; settings and clients are package kafka's.
// Concurrency: everything is safe for concurrent use.
package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
)

// retryPause is between attempts to reach a broker for the first time.
const retryPause = 250 * time.Millisecond

// untilReady waits until a broker answers, or ctx ends. It returns at once where waiting
// cannot help; the error is one line that says what to check.
func untilReady(ctx context.Context, c kafka.Cluster, cl *kafka.Client) error {
	err, _ := wait.UntilReady(ctx, retryPause, cl.Ping, func(err error) (error, bool) { return explain(c, err) })
	return err
}

// explain returns one line for the operator about an error of the first connection; final
// says that a retry cannot help.
func explain(c kafka.Cluster, err error) (clear error, final bool) {
	var (
		eof       *kgo.ErrFirstReadEOF
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		op        *net.OpError
	)
	at := c.Addr()
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Errorf("kafka: %s refuses user %.100q: kafka-user or PARLEY_KAFKA_PASSWORD is wrong", at, c.User), true
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return fmt.Errorf("kafka: %s does not offer the SASL mechanism %s: set kafka-sasl otherwise", at, c.Mechanism), true
	case errors.Is(err, kerr.IllegalSaslState):
		return fmt.Errorf("kafka: %s does not ask for SASL: set kafka-sasl otherwise", at), true
	case errors.As(err, &authority):
		return fmt.Errorf("kafka: the certificate of %s is not signed by an authority in kafka-ca", at), true
	case errors.As(err, &host), errors.As(err, &invalid):
		return fmt.Errorf("kafka: the certificate of %s is not good: %w", at, err), true
	case strings.Contains(err.Error(), "remote error: tls"):
		return fmt.Errorf("kafka: %s refuses this process's certificate (kafka-cert) or TLS version: %w", at, err), true
	case errors.As(err, &record):
		return fmt.Errorf("kafka: %s does not speak TLS: set kafka-tls to off, or take its other port", at), true
	case c.TLS != nil && errors.Is(err, io.EOF) && !errors.As(err, &eof):
		return fmt.Errorf("kafka: %s ends the handshake of TLS: does it speak TLS?", at), false
	case c.TLS == nil && (errors.As(err, &eof) || strings.Contains(err.Error(), "tls alert")):
		return fmt.Errorf("kafka: %s ends the connection at once: does it want TLS (kafka-tls on) or a user (kafka-sasl)?",
			at), errors.As(err, &eof) || strings.Contains(err.Error(), "tls alert")
	case strings.Contains(err.Error(), "HTTP response"):
		return fmt.Errorf("kafka: %s speaks HTTP: is kafka-brokers right?", at), true
	case errors.As(err, &eof) && c.Mechanism == "":
		return fmt.Errorf("kafka: %s ends the connection at once: does it want a user (kafka-sasl)?", at), true
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("kafka: no broker of %s can be reached: %w", at, op.Err), false
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("kafka: no broker of %s answers", at), false
	}
	return fmt.Errorf("kafka: %s: %w", at, err), false
}

// Connect makes a client for administration and waits until brokers accept it. If none
// answers it retries for patience, because brokers may be starting at the same time.
// Errors are one line that names the setting to check; Close must be called.
func Connect(ctx context.Context, c kafka.Cluster, patience time.Duration) (*kafka.Admin, error) {
	a, err := kafka.NewAdmin(c)
	if err != nil {
		return nil, err
	}
	first, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := untilReady(first, c, a.Client()); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}
