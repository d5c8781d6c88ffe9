package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Option is a setting of a client in addition to those that this package chooses.
type Option = kgo.Opt

// Cluster is how to connect to brokers.
type Cluster struct {
	Brokers   []string    // host:port, some of them
	TLS       *tls.Config // nil: none
	Mechanism string      // of SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; "" for none
	User      string
	Password  string
	// PasswordNow, if given, is asked for each connection, in place of Password.
	PasswordNow func() string
}

// Addr is the brokers in the form that the constructors of clients take.
func (c Cluster) Addr() string { return strings.Join(c.Brokers, ",") }

// Validate checks what can be checked without connecting. Errors do not show the
// password.
func (c Cluster) Validate() error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka: no brokers")
	}
	for _, b := range c.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			return fmt.Errorf("kafka: a broker must be host:port, not %.100q", b)
		}
	}
	_, err := c.sasl()
	return err
}

func (c Cluster) sasl() (sasl.Mechanism, error) {
	if c.Mechanism == "" {
		if c.User != "" {
			return nil, errors.New("kafka: a user needs a SASL mechanism")
		}
		return nil, nil
	}
	if c.User == "" || c.Password == "" {
		return nil, fmt.Errorf("kafka: %.20s needs a user and a password", c.Mechanism)
	}
	switch c.Mechanism {
	case "PLAIN":
		if c.TLS == nil {
			return nil, errors.New("kafka: PLAIN sends the password as it is and needs TLS")
		}
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			return plain.Auth{User: c.User, Pass: c.password()}, nil
		}), nil
	case "SCRAM-SHA-256":
		return scram.Sha256(c.scram), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(c.scram), nil
	default:
		return nil, fmt.Errorf("kafka: SASL mechanism must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, not %.40q", c.Mechanism)
	}
}

// password is the one of a new connection.
func (c Cluster) password() string {
	if c.PasswordNow != nil {
		return c.PasswordNow()
	}
	return c.Password
}

func (c Cluster) scram(context.Context) (scram.Auth, error) {
	return scram.Auth{User: c.User, Pass: c.password()}, nil
}

// Options returns the options by which clients authenticate; Validate has checked them.
func (c Cluster) Options() []Option {
	var list []Option
	if c.TLS != nil {
		list = append(list, kgo.DialTLSConfig(c.TLS.Clone()))
	}
	if m, err := c.sasl(); err == nil && m != nil {
		list = append(list, kgo.SASL(m))
	}
	return list
}

// seeds returns the brokers of an address, which may be several with commas between them.
func seeds(addr string) Option { return kgo.SeedBrokers(strings.Split(addr, ",")...) }
