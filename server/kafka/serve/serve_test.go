package serve_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/serve"
)

const (
	password    = "a password of readers"
	events      = "events"
	deadLetters = "letters"
)

func topics() []kafka.Topic {
	return []kafka.Topic{
		{Name: events, ID: [16]byte{1}, Partitions: 4, Configs: map[string]string{"retention.ms": "1000",
			"cleanup.policy": "delete"}},
		{Name: deadLetters, ID: [16]byte{2}, Partitions: 1},
	}
}

// broker is a server on a port of its own.
type broker struct {
	*serve.Server
	log    *memoryLog
	groups *groupsDouble
	addr   string

	mu     sync.Mutex
	known  []string // users of the connections that have shown a password
	ends   []error  // of connections
	served int      // connections that have ended
}

// start starts a server. change changes its configuration; may be nil.
func start(t testing.TB, change func(*serve.Config)) *broker {
	t.Helper()
	l := testkit.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	b := &broker{log: newMemoryLog(topics()...), groups: new(groupsDouble), addr: l.Addr().String()}
	cfg := serve.Config{
		Log: b.log, Groups: b.groups, ClusterID: "cluster", Host: "127.0.0.1", Port: int32(l.Addr().(*net.TCPAddr).Port),
		Configs: map[string]string{"auto.create.topics.enable": "false"},
		Users:   map[string]serve.User{"reader": testkit.Value(serve.NewUser(password))(t)},
		Authenticated: func(_ net.Conn, user string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.known = append(b.known, user)
		},
	}
	if change != nil {
		change(&cfg)
	}
	b.Server = testkit.Value(serve.New(cfg))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				user := ""
				if cfg.Users == nil {
					user = "anyone"
				}
				err := b.Serve(ctx, c, user)
				b.mu.Lock()
				defer b.mu.Unlock()
				b.ends = append(b.ends, err)
				b.served++
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		all.Wait()
	})
	return b
}

func open(c *serve.Config) { c.Users = nil }

func (b *broker) ended() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.served
}

// client is a client with the password.
func (b *broker) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c := testkit.Value(kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.addr), kgo.RequestRetries(0),
		kgo.SASL(scram.Auth{User: "reader", Pass: password}.AsSha256Mechanism()), kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(100 * time.Millisecond)}, opts...)...))(t)
	t.Cleanup(c.Close)
	return c
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// groupsDouble answers each request of groups with an empty response, and remembers who asked.
type groupsDouble struct {
	mu      sync.Mutex
	clients []serve.Client
	wait    bool     // until the connection ends
	lacks   kmsg.Key // a request that it does not answer
	ended   int      // requests whose wait has ended so
}

// coordinated are the versions of the coordinator.
var coordinated = map[kmsg.Key][2]int16{
	kmsg.OffsetCommit: {2, 10}, kmsg.OffsetFetch: {1, 10}, kmsg.OffsetDelete: {0, 0}, kmsg.JoinGroup: {2, 9},
	kmsg.SyncGroup: {0, 5}, kmsg.Heartbeat: {0, 4}, kmsg.LeaveGroup: {0, 5}, kmsg.ListGroups: {0, 5},
	kmsg.DescribeGroups: {0, 6}, kmsg.DeleteGroups: {0, 3},
}

func (g *groupsDouble) Versions(key kmsg.Key) (first, last int16, ok bool) {
	v, ok := coordinated[key]
	return v[0], v[1], ok && key != g.lacks
}

func (g *groupsDouble) Handle(ctx context.Context, c serve.Client, req kmsg.Request) (kmsg.Response, error) {
	g.mu.Lock()
	g.clients = append(g.clients, c)
	wait := g.wait
	g.mu.Unlock()
	if wait {
		<-ctx.Done()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ended++
		return nil, ctx.Err()
	}
	return req.ResponseKind(), nil
}

// raw is a connection that sends requests of any kind.
type raw struct {
	net.Conn
	correlation int32
}

func (b *broker) raw(t testing.TB) *raw {
	t.Helper()
	c := testkit.Value(new(net.Dialer).DialContext(t.Context(), "tcp", b.addr))(t)
	t.Cleanup(func() { _ = c.Close() })
	testkit.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return &raw{Conn: c}
}

// ask sends a request without waiting for its answer.
func (c *raw) ask(req kmsg.Request) error {
	c.correlation++
	_, err := c.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, req, c.correlation))
	return err
}

// frame reads what follows a size.
func (c *raw) frame() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}

// answer reads the answer to a request.
func (c *raw) answer(req kmsg.Request, correlation int32) (kmsg.Response, error) {
	b, err := c.frame()
	if err != nil {
		return nil, err
	}
	if n := int32(binary.BigEndian.Uint32(b)); n != correlation {
		return nil, fmt.Errorf("an answer to request %d, expected %d", n, correlation)
	}
	res := req.ResponseKind()
	b = b[4:]
	if res.IsFlexible() && res.Key() != int16(kmsg.ApiVersions) {
		if b[0] != 0 {
			return nil, fmt.Errorf("%d tags in the header", b[0])
		}
		b = b[1:]
	}
	if err := res.ReadFrom(b); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if again := res.AppendTo(nil); len(again) != len(b) {
		return nil, fmt.Errorf("%d bytes behind the answer", len(b)-len(again))
	}
	return res, nil
}

// send sends a request and reads its answer.
func (c *raw) send(req kmsg.Request) (kmsg.Response, error) {
	if err := c.ask(req); err != nil {
		return nil, err
	}
	return c.answer(req, c.correlation)
}

// ends fails the test unless the connection ends without an answer.
func (c *raw) ends(t testing.TB, what string) {
	t.Helper()
	if b, err := c.frame(); err == nil {
		t.Errorf("%s: answered with %d bytes", what, len(b))
	} else if ne := net.Error(nil); asTimeout(err, &ne) {
		t.Errorf("%s: the connection stays", what)
	}
}
