// Package opstest is a fixture for tests of what operators do: a broker in the process, an
// in-memory store, a served OpsService, and ways to make dead letters and events.
package opstest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/ops/adminapi"
	"github.com/parley-chat/parley/workers/ops/backups"
	"github.com/parley-chat/parley/workers/ops/parkedkeys"
	"github.com/parley-chat/parley/workers/ops/projections"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
	"github.com/parley-chat/parley/workers/projection/notifications"
)

// Group is the consumer group that has a handler.
const Group = "fanout-workers"

// Secret is content that must not be shown unless asked for.
const Secret = "canary-4711"

// Fixture is a served OpsService.
type Fixture struct {
	Addr  string // of the service
	Kafka string // address of the broker
	Key   *auth.Key
	Store *storetest.Memory
	Chats *chat.Service
	Serde *event.Serde
	// Handle takes redriven records; set it before the first redrive.
	Handle consume.Handler
	Log    *Log
	// Identity are the parts of identity that the service has.
	Identity *Identity
	// Migrator moves topics of the broker; no relay and no consumer runs.
	Migrator *migrate.Migrator

	t     *testing.T
	write func(context.Context, consume.DeadLetter) error
}

// Log is what was logged; it may be read while others write.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// New starts everything, until the test ends.
func New(t *testing.T, server *tls.Config) *Fixture {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b := kafkatest.InProcess(t)
	producer, err := kafka.NewProducer(b.Addr)
	must(err)
	t.Cleanup(producer.Close)
	r := &Fixture{t: t, Kafka: b.Addr, Store: storetest.NewMemory(time.Now), Log: &Log{}}
	r.Key, err = auth.LoadKey(t.TempDir())
	must(err)
	subjects := registry.New(r.Store)
	ids, err := subjects.Events(t.Context())
	must(err)
	r.Serde, err = event.NewSerde(ids, subjects.SubjectsOf)
	must(err)
	r.write = consume.Publisher(producer, func(b []byte) ([]byte, error) { return event.Frame(9, b) })
	r.Chats, err = chat.New(t.Context(), chat.Config{Store: r.Store, Clock: time.Now, Generation: "g", Producer: "p"})
	must(err)
	migrator, err := migrate.New(migrate.Config{
		Store: r.Store, Clock: time.Now, Logger: slog.New(slog.DiscardHandler),
		Cluster: &migrate.Live{
			Store: r.Store, Addr: b.Addr, Registry: subjects,
			AddTopic: func(_ context.Context, t kafka.Topic, _ string) error { return b.Add(t) },
		},
	})
	must(err)
	r.Migrator = migrator
	served := projections.New(projections.Config{
		Store: r.Store, Clock: time.Now, Operator: func(ctx context.Context) string {
			op, _ := ops.Operator(ctx)
			return op.Name
		},
		Operate: &projection.Operate{Definitions: r.definitions(), Store: r.Store, Generation: "g", Clock: time.Now},
	})
	r.Identity = &Identity{store: r.Store}
	services, err := adminapi.Handlers(adminapi.Config{Store: r.Store, Clock: time.Now, Parts: r.Identity.Parts(),
		Operator: func(ctx context.Context) string {
			op, _ := ops.Operator(ctx)
			return op.Name
		}})
	must(err)
	s, err := ops.New(ops.Config{
		Addr: b.Addr, Store: r.Store, Decode: r.Serde.Decode, Key: r.Key, Clock: time.Now,
		Logger: slog.New(slog.NewTextHandler(r.Log, nil)),
		Handlers: map[string]consume.Handler{Group: func(ctx context.Context,
			rec *kafka.Record) error {
			return r.Handle(ctx, rec)
		}},
		Observe: func(string, string, time.Duration) {}, Migrator: migrator,
		Services: append(services, served.Handler, parkedkeys.New(r.Store, time.Now).Handler,
			(&backups.Service{Take: noSnapshot}).Handler),
	})
	must(err)
	srv, err := ops.Listen(t.Context(), s, "127.0.0.1:0", server)
	must(err)
	r.Addr = srv.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *Fixture) definitions() []projection.Definition {
	return []projection.Definition{chatactivity.Definition(), notifications.Definition()}
}

// Projections makes the projections of a process.
func (r *Fixture) Projections() *projection.Set {
	r.t.Helper()
	s, err := projection.New(projection.Config{
		Definitions: r.definitions(), Store: r.Store, Decode: r.Serde.Decode, Addr: r.Kafka, Process: "p",
		History: store.Line("g"),

		Exclusive: true, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Rest: -1, PollEvery: 10 * time.Millisecond,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// Event is the record of a message with Secret in it.
func (r *Fixture) Event(chatID string, n int) *kafka.Record {
	r.t.Helper()
	now := timestamppb.Now()
	e := &eventv1.MessagePersisted{
		Metadata: event.Metadata{
			Type: event.TypeMessagePersisted, ID: chat.NewID("evt_"), ChatID: chatID, At: now.AsTime(),
			Origin: event.Origin{Generation: "g", Producer: "p"},
			Cause:  event.Cause{Actor: "alice"}.Complete("evt_1"), Version: int64(n), MembershipVersion: 1,
		}.Proto(),
		MessageId: chat.NewID("msg_"), ChatId: chatID, Sequence: int64(n), SenderId: "alice", Content: Secret,
		ClientMessageId: "c1", CreatedAt: now,
	}
	value, err := r.Serde.Encode(e)
	if err != nil {
		r.t.Fatal(err)
	}
	return &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 3, Offset: int64(n), Timestamp: time.Now(),
		Key: []byte(chatID), Value: value}
}

// DeadLetter writes the dead letter of a record, and returns its id.
func (r *Fixture) DeadLetter(group string, rec *kafka.Record, reason string) string {
	r.t.Helper()
	d := consume.DeadLetter{Record: rec, Group: group, Consumer: "wrk_1", Reason: reason, FailedAt: time.Now(),
		Attempts: 3}
	if err := r.write(r.t.Context(), d); err != nil {
		r.t.Fatal(err)
	}
	return d.ID()
}

// Chat makes a group chat with messages, whose events are not published yet.
func (r *Fixture) Chat(messages int) string {
	r.t.Helper()
	for _, u := range []string{"alice", "bob"} {
		if err := r.Chats.EnsureUser(r.t.Context(), u); err != nil {
			r.t.Fatal(err)
		}
	}
	c, err := r.Chats.CreateGroup(r.t.Context(), chat.CreateGroup{Caller: "alice", Name: "Tea", Members: []string{"bob"}})
	for n := 0; err == nil && n < messages; n++ {
		_, err = r.Chats.Send(r.t.Context(), chat.Send{Caller: "alice", ChatID: c.ChatID, Content: fmt.Sprint(Secret, n)})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return c.ChatID
}

// Certificates makes an authority that is its own certificate, for both sides.
func Certificates(t *testing.T) (own tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "parley"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(c)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// noSnapshot is for a rig without a data directory.
func noSnapshot(context.Context) (string, func(), error) { return "", nil, backup.ErrElsewhere }
