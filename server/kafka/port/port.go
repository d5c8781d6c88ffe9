// Package port is the Kafka port of the event log in the store: one broker that other processes on this machine read
// from by TCP, and clients of this process by connections in memory.
//
// Loopback is not trusted: every account on the machine can connect. So the port accepts a bounded number of
// connections, and requires a password, from a file in the data directory, which permits reading topics and using
// groups other than Parley's own. Clients of this process do not use TCP, so that strangers cannot use up their
// connections. No client writes through the port.
//
// The package owns connections, credentials and where the rows of consumer groups are. It does not own the protocol
// (package serve), what happens in groups (package group) or the log.
//
// Concurrency: a Port is safe for concurrent use.
package port

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/kafka/serve"
	"github.com/parley-chat/parley/server/store"
)

// clusterID is what clients see as the id of the cluster.
const clusterID = "parley"

// own is the user of clients of this process.
const own = "parley"

// Config is what a Port is made of. All fields without another word are required.
type Config struct {
	Log serve.Log
	// Records keep the groups.
	Records store.Records
	// Listen is an address of loopback, host:port; port 0 is a free one.
	Listen   string
	Fallback bool // use a free port if the one in Listen is in use
	// Connections bounds those by TCP; 0: DefaultConnections.
	Connections int
	Password    string // of readers
	// Own are Parley's groups: readers can only read them, and their offsets do not expire.
	Own    []string
	Logger *slog.Logger // may be nil
}

// Port serves.
type Port struct {
	listener *listener
	server   *serve.Server
	groups   *group.Coordinator

	mu      sync.Mutex
	reading map[string][]string // topics that this process reads, by group
}

// Open starts a port. Errors fit into one line.
func Open(ctx context.Context, cfg Config) (*Port, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l, err := listen(cfg.Listen, cfg.Fallback)
	if err != nil {
		return nil, err
	}
	p, err := open(ctx, cfg, l)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	p.listener.start()
	return p, nil
}

func open(ctx context.Context, cfg Config, l net.Listener) (*Port, error) {
	reader, err := serve.NewUser(cfg.Password)
	if err != nil {
		return nil, fmt.Errorf("prepare the Kafka port: %w", err)
	}
	catalog := serve.NewCatalog(cfg.Log)
	p := &Port{reading: map[string][]string{}}
	p.groups, err = group.New(ctx, group.Config{
		Store: Rows(cfg.Records, cfg.Own), Topics: topics{catalog}, Logger: cfg.Logger,
		Forbidden: func(c group.Client, name string) bool {
			return c.Credential != own && slices.Contains(cfg.Own, name)
		},
		Permanent: func(name string) bool { return slices.Contains(cfg.Own, name) },
	})
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	p.server, err = serve.New(serve.Config{
		Log: cfg.Log, Groups: groups{p.groups, catalog, p}, ClusterID: clusterID, Host: addr.IP.String(),
		Port:  int32(addr.Port),
		Users: map[string]serve.User{User: reader},
		Authenticated: func(c net.Conn, _ string) {
			p.listener.trust(c)
		},
	})
	if err != nil {
		p.groups.Close()
		return nil, fmt.Errorf("prepare the Kafka port: %w", err)
	}
	p.listener = &listener{tcp: l, limit: cmp.Or(cfg.Connections, DefaultConnections), log: cfg.Logger,
		serve: func(ctx context.Context, c net.Conn, ours bool) {
			user := ""
			if ours {
				user = own
			}
			_ = p.server.Serve(ctx, c, user) // why a client's connection has ended is the client's concern
		}}
	return p, nil
}

// Addr is the address to connect to.
func (p *Port) Addr() string { return p.listener.tcp.Addr().String() }

// Options are what clients of this process need.
func (p *Port) Options() []kafka.Option { return []kafka.Option{kgo.Dialer(p.listener.dial)} }

// Stats returns the counters.
func (p *Port) Stats() Stats { return p.listener.stats() }

// Watched reports whether a client is connected by TCP that has shown the password.
func (p *Port) Watched() bool { return p.listener.watched() }

// Close ends all connections, and returns once the store is no longer used.
func (p *Port) Close() {
	p.listener.close()
	p.groups.Close()
}

// topics are those of the log, as groups know them.
type topics struct{ catalog *serve.Catalog }

func (t topics) ByName(name string) (group.Topic, bool) { return known(t.catalog.ByName(name)) }

func (t topics) ByID(id [16]byte) (group.Topic, bool) { return known(t.catalog.ByID(id)) }

func known(t kafka.Topic, ok bool) (group.Topic, bool) {
	return group.Topic{Name: t.Name, ID: t.ID, Partitions: t.Partitions}, ok
}

// groups are the coordinator, as the server knows it.
type groups struct {
	*group.Coordinator
	topics *serve.Catalog
	port   *Port
}

func (g groups) Versions(key kmsg.Key) (first, last int16, ok bool) {
	v, ok := group.Versions()[key]
	return v.Min, v.Max, ok
}

func (g groups) Handle(ctx context.Context, c serve.Client, req kmsg.Request) (kmsg.Response, error) {
	res, err := g.Coordinator.Handle(ctx, group.Client{Credential: c.User, ID: c.ID, Host: c.Host}, req)
	if err != nil {
		return nil, err
	}
	return g.shown(res), nil
}
