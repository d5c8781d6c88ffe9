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
// server and workers read it from the same flags and variables ([Config.Bind]).
type Config struct {
	Mode string // Embedded, also if empty, or DynamoDB

	// Embedded.

	DataDir string
	// Kafka is the address of the embedded broker's port; with KafkaFallback a free
	// port is taken where it is in use.
	Kafka         string
	KafkaFallback bool
	Groups        []string // consumer groups that must have read what is trimmed from the log

	// Distributed.

	Prefix, Region, Endpoint string // of DynamoDB
	Brokers                  string // of Kafka, with commas; "" in a process that needs none
	KafkaTLS                 string // "" or off, on
	KafkaCA                  string // file of certificates; "": the system's
	KafkaSASL, KafkaUser     string
	KafkaPassword            string
	Redis                    string // URL; "" in a process that needs none
	RedisCA                  string // file of certificates; "": the system's
	RedisPassword            string
	RedisPrefix              string

	Logger *slog.Logger
	Fatal  func(error) // called when nothing that is promised can be kept any more
}

// Text makes a setting: where it goes, its flag, its variable, its default, and what
// it is.
type Text func(p *string, name, env, fallback, help string)

// Bind declares the settings of the distributed mode. Passwords have no flag: others
// could see it.
func (c *Config) Bind(text Text, getenv func(string) string) {
	text(&c.Mode, "store", "PARLEY_STORE", Embedded, "embedded: everything in this process; dynamodb: one of many processes")
	text(&c.Prefix, "dynamodb-prefix", "PARLEY_DYNAMODB_PREFIX", tables.DefaultPrefix, "prefix of the names of DynamoDB's tables")
	text(&c.Region, "dynamodb-region", "PARLEY_DYNAMODB_REGION", "", "region of DynamoDB; default: AWS's own settings")
	text(&c.Endpoint, "dynamodb-endpoint", "PARLEY_DYNAMODB_ENDPOINT", "", "URL of DynamoDB; default: the region's; http:// is DynamoDB Local")
	text(&c.Brokers, "kafka-brokers", "PARLEY_KAFKA_BROKERS", "", "brokers of Kafka, host:port with commas between them")
	text(&c.KafkaTLS, "kafka-tls", "PARLEY_KAFKA_TLS", "off", "on or off")
	text(&c.KafkaCA, "kafka-ca", "PARLEY_KAFKA_CA", "", "file with the certificates to trust; default: the system's")
	text(&c.KafkaSASL, "kafka-sasl", "PARLEY_KAFKA_SASL", "", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with the password in PARLEY_KAFKA_PASSWORD")
	text(&c.KafkaUser, "kafka-user", "PARLEY_KAFKA_USER", "", "user at Kafka")
	text(&c.Redis, "redis", "PARLEY_REDIS", "", "redis://[user@]host:port[,host:port], or rediss:// for TLS, with the password in PARLEY_REDIS_PASSWORD")
	text(&c.RedisCA, "redis-ca", "PARLEY_REDIS_CA", "", "file with the certificates to trust; default: the system's")
	text(&c.RedisPrefix, "redis-prefix", "PARLEY_REDIS_PREFIX", "parley:", "prefix of all keys and channels")
	c.KafkaPassword, c.RedisPassword = getenv("PARLEY_KAFKA_PASSWORD"), getenv("PARLEY_REDIS_PASSWORD")
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
	k := kafka.Cluster{Mechanism: c.KafkaSASL, User: c.KafkaUser, Password: c.KafkaPassword}
	if c.Brokers != "" {
		k.Brokers = strings.Split(c.Brokers, ",")
	}
	switch c.KafkaTLS {
	case "on":
		var err error
		if k.TLS, err = clientTLS(c.KafkaCA); err != nil {
			return k, fmt.Errorf("kafka-ca: %w", err)
		}
	case "", "off":
		if c.KafkaCA != "" {
			return k, errors.New("kafka-ca needs kafka-tls on")
		}
	default:
		return k, fmt.Errorf("kafka-tls must be on or off, not %.40q", c.KafkaTLS)
	}
	return k, k.Validate()
}

func (c Config) redis() (routing.Options, error) {
	o := routing.Options{URL: c.Redis, Password: c.RedisPassword, Prefix: c.RedisPrefix}
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
		return nil, errors.New("a certificate, its key and the authority's certificate go together")
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	pool, err := readPool(ca)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: pool, ClientCAs: pool, MinVersion: tls.VersionTLS13}, nil
}
