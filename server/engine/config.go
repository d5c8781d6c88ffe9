package engine

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/engine/clock"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
)

// Modes of the store, and with it of everything else.
const (
	Embedded = "embedded" // one process, nothing else installed
	DynamoDB = "dynamodb" // many processes, with Redis and, for workers, Kafka
)

// Config says what to open. Most of it is one operator's word to all processes:
// server and workers take it from the same settings ([Configure]).
type Config struct {
	Mode string // Embedded, also if empty, or DynamoDB

	// Embedded.

	DataDir string
	// Kafka is the address of the embedded broker's port; with KafkaFallback a free
	// port is taken where it is in use.
	Kafka         string
	KafkaFallback bool
	Groups        []string // consumer groups that must have read what is trimmed from the log
	AcceptLoss    string   // generation of a store whose loss of data is accepted
	// Clocks tell of a clock that somebody sets; by default those of the machine.
	Clocks clock.Clocks

	// Distributed.

	Prefix, Region, Endpoint string // of DynamoDB
	Brokers                  string // of Kafka, with commas; "" in a process that needs none
	KafkaTLS                 string // "" or off, on
	KafkaCA                  string // file of certificates; "": the system's
	KafkaCert, KafkaKey      string // files; "": no certificate of one's own
	KafkaSASL, KafkaUser     string
	KafkaPassword            config.Secret
	Redis                    string // URL; "" in a process that needs none
	RedisCA                  string // file of certificates; "": the system's
	RedisPassword            config.Secret
	SentinelPassword         config.Secret
	RedisPrefix              string
	// RedisMayWait says that this process works without Redis, if slower: then one that
	// does not answer is no reason not to start. One that refuses is.
	RedisMayWait bool

	Logger *slog.Logger
	// Opening, if given, is told what is opened next, and where it is: that may take a while.
	Opening func(what string)
	Fatal   func(error) // called when nothing that is promised can be kept any more
}

// Configure takes the settings of the distributed mode that server and workers have in
// common. The mode is the caller's to choose.
func Configure(v config.Values) (Config, error) {
	c := Config{
		Prefix: v.Get("PARLEY_DYNAMODB_PREFIX"), Region: v.Get("PARLEY_DYNAMODB_REGION"), Endpoint: v.Get("PARLEY_DYNAMODB_ENDPOINT"),
		Brokers: v.Get("PARLEY_KAFKA_BROKERS"), KafkaTLS: v.Get("PARLEY_KAFKA_TLS"), KafkaCA: v.Get("PARLEY_KAFKA_CA"),
		KafkaCert: v.Get("PARLEY_KAFKA_CERT"), KafkaKey: v.Get("PARLEY_KAFKA_KEY"),
		KafkaSASL: v.Get("PARLEY_KAFKA_SASL"), KafkaUser: v.Get("PARLEY_KAFKA_USER"), KafkaPassword: v.Secret("PARLEY_KAFKA_PASSWORD"),
		Redis: v.Get("PARLEY_REDIS"), RedisCA: v.Get("PARLEY_REDIS_CA"), RedisPrefix: v.Get("PARLEY_REDIS_PREFIX"),
		RedisPassword: v.Secret("PARLEY_REDIS_PASSWORD"), SentinelPassword: v.Secret("PARLEY_REDIS_SENTINEL_PASSWORD"),
	}
	if v.OnCommandLine("redis") && routing.HoldsPassword(c.Redis) {
		return c, errors.New("redis: others can see a password on the command line; give it in PARLEY_REDIS_PASSWORD")
	}
	return c, nil
}

func (c Config) opening(format string, args ...any) {
	if c.Opening != nil {
		c.Opening(fmt.Sprintf(format, args...))
	}
}

// Distributed reports whether other processes share the store.
func (c Config) Distributed() bool { return c.Mode == DynamoDB }

// Validate checks a configuration without opening anything. Errors fit into one line.
func (c Config) Validate() error {
	switch c.Mode {
	case "", Embedded:
		if c.DataDir == "" || c.Kafka == "" {
			return errors.New("engine: a data directory and an address for Kafka are required")
		}
		return nil
	case DynamoDB:
	default:
		return fmt.Errorf("store must be embedded or dynamodb, not %.40q", c.Mode)
	}
	if err := tables.ValidPrefix(c.Prefix); err != nil {
		return err
	}
	if c.Brokers != "" {
		if _, err := c.Cluster(); err != nil {
			return err
		}
	}
	if c.Redis != "" {
		if _, err := c.redis(); err != nil {
			return err
		}
	}
	return nil
}

// Cluster is how to reach Kafka.
func (c Config) Cluster() (kafka.Cluster, error) {
	k := kafka.Cluster{Mechanism: c.KafkaSASL, User: c.KafkaUser, Password: c.KafkaPassword.Reveal()}
	if c.Brokers != "" {
		k.Brokers = strings.Split(c.Brokers, ",")
	}
	switch c.KafkaTLS {
	case "on":
		var err error
		if k.TLS, err = clientTLS(c.KafkaCA); err != nil {
			return k, fmt.Errorf("kafka-ca: %w", err)
		}
		if (c.KafkaCert == "") != (c.KafkaKey == "") {
			return k, errors.New("kafka-cert and kafka-key go together")
		}
		if c.KafkaCert != "" {
			own, err := tls.LoadX509KeyPair(c.KafkaCert, c.KafkaKey)
			if err != nil {
				return k, fmt.Errorf("kafka-cert, kafka-key: %w", err)
			}
			k.TLS.Certificates = []tls.Certificate{own}
		}
	case "", "off":
		if c.KafkaCA != "" || c.KafkaCert != "" || c.KafkaKey != "" {
			return k, errors.New("kafka-ca, kafka-cert and kafka-key need kafka-tls on")
		}
	default:
		return k, fmt.Errorf("kafka-tls must be on or off, not %.40q", c.KafkaTLS)
	}
	return k, k.Validate()
}

func (c Config) redis() (routing.Options, error) {
	o := routing.Options{URL: c.Redis, Password: c.RedisPassword.Reveal(), SentinelPassword: c.SentinelPassword.Reveal(), Prefix: c.RedisPrefix}
	if c.RedisCA != "" {
		var err error
		if o.TLS, err = clientTLS(c.RedisCA); err != nil {
			return o, fmt.Errorf("redis-ca: %w", err)
		}
	}
	return o, o.Validate()
}

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

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
// one's own with its key, and the authority that has signed all; nil without files.
func MutualTLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	if ca == "" || cert == "" || key == "" {
		return nil, errors.New("link-ca, link-cert and link-key go together")
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("link-cert, link-key: %w", err)
	}
	pool, err := readPool(ca)
	if err != nil {
		return nil, fmt.Errorf("link-ca: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: pool, ClientCAs: pool, MinVersion: tls.VersionTLS13}, nil
}
