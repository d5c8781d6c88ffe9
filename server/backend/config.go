package backend

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/search"
)

// Config says what to open: one of Embedded and Distributed, and what both need.
type Config struct {
	Embedded    *Embedded
	Distributed *Distributed

	Logger *slog.Logger
	// Opening, if given, is called with what is opened next, and where it is: that may take
	// a while.
	Opening func(what string)
	Fatal   func(error) // called when no promise can be kept any more
}

// Embedded is the mode with one process and nothing else installed.
type Embedded struct {
	DataDir string
	// Kafka is the address of the Kafka port; with KafkaFallback a free
	// port is taken where it is in use.
	Kafka         string
	KafkaFallback bool
	// KafkaConnections bounds the connections of other programs to that port; 0: the default.
	KafkaConnections int
	LogBytes         int64          // cap of what the event log copies; 0: 512 MB
	AcceptLoss       string         // generation of a store whose loss of data is accepted
	DiskReserve      uint64         // bytes of the disk that must be free for writes; 0 for the default
	Search           search.Targets // where search events go; nil: to the declared topics
	// Clocks are compared to find out whether the wall clock was set; by default those of
	// the machine.
	Clocks clock.Clocks
}

// Distributed is the mode with many processes, with Redis and, for workers, Kafka.
type Distributed struct {
	Tables Tables
	Kafka  kafka.Cluster   // without brokers in a process that needs none
	Redis  routing.Options // without a URL in a process that needs none
	// RedisMayWait says that this process works without Redis, if slower: then Redis that
	// does not answer is no reason not to start. Redis that refuses is.
	RedisMayWait bool
}

// Validate checks a configuration without opening anything. Errors fit into one line.
func (c Config) Validate() error {
	switch {
	case (c.Embedded == nil) == (c.Distributed == nil):
		return errors.New("backend: one of the modes is required")
	case c.Embedded != nil && (c.Embedded.DataDir == "" || c.Embedded.Kafka == ""):
		return errors.New("backend: a data directory and an address for Kafka are required")
	case c.Distributed != nil:
		return c.Distributed.validate()
	}
	return nil
}

func (d *Distributed) validate() error {
	if err := d.Tables.validate(); err != nil {
		return err
	}
	if len(d.Kafka.Brokers) > 0 {
		if err := d.Kafka.Validate(); err != nil {
			return err
		}
	}
	if d.Redis.URL != "" {
		return d.Redis.Validate()
	}
	return nil
}

func (c Config) opening(format string, args ...any) {
	if c.Opening != nil {
		c.Opening(fmt.Sprintf(format, args...))
	}
}

// NewDistributed builds the distributed mode from settings, which server and workers have
// in common. It reads the files of certificates.
func NewDistributed(s config.Settings) (*Distributed, error) {
	d := &Distributed{Tables: Tables(s.DynamoDB)}
	if s.Redis.OnCommandLine && routing.HoldsPassword(s.Redis.URL) {
		return nil, errors.New("redis: others can see a password on the command line; give it in PARLEY_REDIS_PASSWORD")
	}
	if err := d.Tables.validate(); err != nil {
		return nil, err
	}
	var err error
	if d.Kafka, err = newCluster(s); err != nil {
		return nil, err
	}
	if d.Redis, err = newRedis(s); err != nil {
		return nil, err
	}
	return d, d.validate()
}

func newCluster(s config.Settings) (kafka.Cluster, error) {
	in := s.Kafka
	k := kafka.Cluster{Brokers: in.Brokers, Mechanism: in.SASL, User: in.User, Password: in.Password.Reveal(),
		PasswordNow: in.Password.Reveal}
	switch {
	case len(k.Brokers) == 0:
		return k, nil
	case !in.TLS && (in.CA != "" || in.Cert != "" || in.Key != ""):
		return k, errors.New("kafka-ca, kafka-cert and kafka-key need kafka-tls on")
	case !in.TLS:
		return k, nil
	}
	var err error
	if k.TLS, err = clientTLS(in.CA); err != nil {
		return k, fmt.Errorf("kafka-ca: %w", err)
	}
	if (in.Cert == "") != (in.Key == "") {
		return k, errors.New("kafka-cert and kafka-key go together")
	}
	if in.Cert != "" {
		own, err := certificate.Open(in.Cert, in.Key, time.Now, nil)
		if err != nil {
			return k, fmt.Errorf("kafka-cert, kafka-key: %w", err)
		}
		k.TLS.GetClientCertificate = own.OfClient
	}
	return k, nil
}

func newRedis(s config.Settings) (o routing.Options, err error) {
	in := s.Redis
	o = routing.Options{URL: in.URL, Password: in.Password.Reveal(), PasswordNow: in.Password.Reveal,
		SentinelPassword: in.SentinelPassword.Reveal(), Prefix: in.Prefix}
	if in.URL != "" && in.CA != "" {
		if o.TLS, err = clientTLS(in.CA); err != nil {
			return o, fmt.Errorf("redis-ca: %w", err)
		}
	}
	return o, nil
}
