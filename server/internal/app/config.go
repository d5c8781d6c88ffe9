package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/identity/issuer"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/internal/identitymodule"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/search"
)

// Defaults of the configuration.
const (
	DefaultListen  = config.DefaultListen
	DefaultDataDir = config.DefaultDataDir
	DefaultKafka   = config.DefaultKafka
	DefaultLink    = config.DefaultLink
)

// Config is what an operator can set, and what follows from it.
type Config struct {
	config.Settings
	// Backend is the mode, with everything that it opens.
	Backend backend.Config

	linkTLS    *tls.Config // of links and operators; nil for no TLS
	onLoopback bool        // the listener's address is
	clocks     clock.Clocks

	searchTargets search.Targets // where search events go
	limitTable    limit.Table    // how often what may be done
	issuers       []issuer.Trust // of tokens that sign people in
	pushAllow     egress.Allowed // by webhooks of topics
}

func (c Config) distributed() bool { return c.Backend.Distributed != nil }

// newConfig builds a configuration from settings. It checks what belongs to one mode and
// not to the other.
func newConfig(s config.Settings) (Config, error) {
	c := Config{Settings: s, clocks: clock.System()}
	if err := topicrpc.CheckCreators(s.TopicCreators); err != nil {
		return c, err
	}
	var err error
	if c.pushAllow, err = egress.ParseAllowed(s.TopicPushAllow); err != nil {
		return c, fmt.Errorf("topic-push-allow: %w", err)
	}
	if c.searchTargets, err = searchTargets(s.SearchTopics); err != nil {
		return c, err
	}
	if err := identitymodule.CheckSettings(s); err != nil {
		return c, err
	}
	if c.issuers, err = issuer.Parse(s.Issuers); err != nil {
		return c, fmt.Errorf("issuers: %w", err)
	}
	if c.limitTable, err = limit.ParseTable(s.Limits); err != nil {
		return c, err
	}
	if s.Store != "embedded" && s.Backup.Dir != "" {
		return c, errors.New("backup-dir is for a data directory: with store dynamodb use the backups of its tables")
	}
	if s.Store == "embedded" {
		if err := backup.CheckTarget(s.Backup.Dir, s.DataDir); err != nil {
			return c, fmt.Errorf("backup-dir: %w", err)
		}
		if s.Redis.URL != "" || len(s.Kafka.Brokers) > 0 {
			return c, errors.New("redis and kafka-brokers need store dynamodb")
		}
		c.Backend.Embedded = &backend.Embedded{DataDir: s.DataDir, Kafka: s.KafkaListen,
			KafkaFallback: s.KafkaListen == DefaultKafka, AcceptLoss: s.AcceptLoss,
			KafkaConnections: s.KafkaConnections, DiskReserve: s.DiskReserve, LogBytes: int64(s.EventLogMegabytes) << 20,
			Search: c.searchTargets}
		return c, nil
	}
	if c.Backend.Distributed, err = backend.NewDistributed(s); err != nil {
		return c, err
	}
	switch {
	case s.Redis.URL == "":
		return c, errors.New("store dynamodb needs redis, through which servers find each other")
	case s.KeyFile == "":
		return c, errors.New("store dynamodb needs key-file: all servers must have the same key")
	}
	if s.Links.Address == "" && isUnspecified(s.Links.Listen) {
		return c, errors.New("link-address is needed where link-listen is all addresses: others must find one")
	}
	if _, port, err := net.SplitHostPort(s.Links.Address); s.Links.Address != "" &&
		(err != nil || port == "0" || isUnspecified(s.Links.Address)) {
		return c, fmt.Errorf("link-address must be one address that other processes can call, not %q", s.Links.Address)
	}
	c.linkTLS, err = c.readLinkTLS()
	return c, err
}

func (c Config) readLinkTLS() (*tls.Config, error) {
	return backend.MutualTLS(c.Links.CA, c.Links.Cert, c.Links.Key)
}

// withLinkTLS reads the certificates of links, which an embedded server needs for
// operators only.
func (c Config) withLinkTLS() (Config, error) {
	if c.linkTLS != nil {
		return c, nil
	}
	var err error
	if c.linkTLS, err = c.readLinkTLS(); err != nil {
		return c, fmt.Errorf("links: %w", err)
	}
	return c, nil
}

// isUnspecified reports whether an address is all of a machine's.
func isUnspecified(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err != nil || host == "" || (ip != nil && ip.IsUnspecified())
}
