package port_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

const password = "a password of readers"

var at = kafka.Partition{Topic: kafka.ChatsCreated, ID: 3}

// partitionKey is a port on a store.
type partitionKey struct {
	*port.Port
	store *embedded.Store
	log   *eventlog.Log
}

// open opens a port on a directory. change changes its configuration; may be nil.
func open(t *testing.T, dir string, change func(*port.Config)) *partitionKey {
	t.Helper()
	p := &partitionKey{store: testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)}
	kept := records.Of(p.store)
	p.log = testkit.Value(eventlog.Open(t.Context(), eventlog.Config{Store: p.store, Clock: time.Now,
		Log: commitlog.NewLocal(kept, time.Now), Logger: slog.New(slog.DiscardHandler),
		Committed: func(ctx context.Context, group string) (map[kafka.Partition]int64, error) {
			return p.Committed(ctx, group)
		}}))(t)
	cfg := port.Config{Log: p.log, Records: kept, Listen: "127.0.0.1:0", Password: password,
		Own: []string{kafka.FanoutGroup, kafka.ProjectorGroup}}
	if change != nil {
		change(&cfg)
	}
	p.Port = testkit.Value(port.Open(t.Context(), cfg))(t)
	t.Cleanup(p.end)
	return p
}

func (p *partitionKey) end() {
	p.Close()
	_ = p.store.Close() // a test may have closed it
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// publish publishes as Parley does.
func (p *partitionKey) publish(t *testing.T, value string) {
	t.Helper()
	testkit.Must(t, p.log.Publish(limited(t), []eventlog.Publication{
		{Records: []*kafka.Record{{Topic: at.Topic, Partition: at.ID, Value: []byte(value)}}}}))
}

// stranger is a client by TCP.
func (p *partitionKey) stranger(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c := testkit.Value(kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(p.Addr()), kgo.RequestRetries(0),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.DisableClientMetrics()}, opts...)...))(t)
	t.Cleanup(c.Close)
	return c
}

func reader() kgo.Opt {
	return kgo.SASL(scram.Auth{User: "reader", Pass: password}.AsSha256Mechanism())
}

// Without the password nothing is answered, whatever user a client names.
func TestWithoutThePassword(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	b.publish(t, "secret")
	for name, opts := range map[string][]kgo.Opt{
		"nobody":         nil,
		"wrong password": {kgo.SASL(scram.Auth{User: "reader", Pass: "x"}.AsSha256Mechanism())},
		"plain":          {kgo.SASL(plain.Auth{User: "reader", Pass: password}.AsMechanism())},
		"admin":          {kgo.SASL(scram.Auth{User: "admin", Pass: "admin"}.AsSha256Mechanism())},
		"parley":         {kgo.SASL(scram.Auth{User: "parley", Pass: ""}.AsSha256Mechanism())},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		res, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, b.stranger(t, opts...))
		cancel()
		if err == nil {
			t.Errorf("%s sees %d topics", name, len(res.Topics))
		}
	}
}

// With the password a client reads, alone and in groups, and the port knows that one may.
func TestReaders(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	b.publish(t, "hello")
	for _, opts := range [][]kgo.Opt{nil, {kgo.ConsumerGroup("mine")}} {
		if b.Watched() {
			t.Error("watched without a client")
		}
		c := b.stranger(t, append(opts, reader(), kgo.ConsumeTopics(at.Topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		fetches := c.PollFetches(limited(t))
		if err := fetches.Err(); err != nil || fetches.NumRecords() != 1 {
			t.Fatalf("%d records, %v", fetches.NumRecords(), err)
		}
		if !b.Watched() {
			t.Error("a reader does not count")
		}
		if len(opts) > 0 {
			testkit.Must(t, c.CommitUncommittedOffsets(limited(t)))
		}
		c.Close()
		testkit.Eventually(t, "the reader's connections are gone", func() bool { return !b.Watched() })
	}
}

// Clients of the process need no password and do not count as connections.
func TestClientsOfTheProcess(t *testing.T) {
	b := open(t, t.TempDir(), func(c *port.Config) { c.Connections = 1 })
	b.publish(t, "hello")
	for range 3 {
		c := testkit.Value(kafka.NewReaderWith(b.Options(), b.Addr(), at.Topic))(t)
		defer c.Close()
		testkit.Equal(t, "records", c.PollFetches(limited(t)).NumRecords(), 1)
	}
	testkit.Equal(t, "connections", b.Stats(), port.Stats{})
	if b.Watched() {
		t.Error("the process watches itself")
	}
}

// Readers change nothing, and take no group of ours (S-41).
func TestSec_S_41_ReadersOnlyRead(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	b.publish(t, "one")
	testkit.Must(t, b.Commit(limited(t), kafka.FanoutGroup, map[kafka.Partition]int64{at: 1}))
	c := b.stranger(t, reader())
	refused := func(name string, err error, code int16) {
		t.Helper()
		if err == nil {
			err = kerr.ErrorForCode(code)
		}
		if err == nil {
			t.Errorf("a reader may %s", name)
		}
	}
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "mine", 1, 1
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Topics = append(create.Topics, topic)
	if res, err := create.RequestWith(limited(t), c); err != nil ||
		!errors.Is(kerr.ErrorForCode(res.Topics[0].ErrorCode), kerr.TopicAuthorizationFailed) {
		t.Errorf("create a topic: %v", err)
	}
	refused("produce", c.ProduceSync(limited(t), &kgo.Record{Topic: at.Topic, Value: []byte("x")}).FirstErr(), 0)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = kafka.FanoutGroup, -1
	ct, cp := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	cp.Partition, cp.Offset = at.ID, 100
	ct.Topic, ct.Partitions = at.Topic, append(ct.Partitions, cp)
	commit.Topics = append(commit.Topics, ct)
	if res, err := commit.RequestWith(limited(t), c); err == nil {
		refused("commit for fanout", nil, res.Topics[0].Partitions[0].ErrorCode)
	}
	remove := kmsg.NewPtrDeleteGroupsRequest()
	remove.Groups = []string{kafka.FanoutGroup}
	if res, err := remove.RequestWith(limited(t), c); err == nil {
		refused("delete fanout's group", nil, res.Groups[0].ErrorCode)
	}
	joined := make(chan bool, 1)
	member := b.stranger(t, reader(), kgo.ConsumerGroup(kafka.FanoutGroup), kgo.ConsumeTopics(at.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { joined <- true }))
	if err := member.PollFetches(limited(t)).Err(); !errors.Is(err, kerr.GroupAuthorizationFailed) || len(joined) > 0 {
		t.Errorf("a member of fanout's group: %v", err)
	}
	for _, req := range []kmsg.Request{
		kmsg.NewPtrWriteTxnMarkersRequest(), kmsg.NewPtrAlterUserSCRAMCredentialsRequest(),
		kmsg.NewPtrDescribeUserSCRAMCredentialsRequest(), kmsg.NewPtrDescribeLogDirsRequest(),
		kmsg.NewPtrElectLeadersRequest(), kmsg.NewPtrShareFetchRequest(), kmsg.NewPtrAlterClientQuotasRequest(),
	} {
		if _, err := c.SeedBrokers()[0].Request(limited(t), req); err == nil {
			t.Errorf("a reader's %s is answered", kmsg.NameForKey(req.Key()))
		}
	}
	testkit.Equal(t, "fanout's offset", testkit.Value(b.Committed(limited(t), kafka.FanoutGroup))(t)[at], 1)
	_, end, err := b.log.Bounds(limited(t), at)
	testkit.Must(t, err)
	testkit.Equal(t, "end", end, 1)
}

// Offsets of groups outlive a restart, and their commits are durable. Those of Parley's own groups become so with the
// next sync.
func TestGroupsOutliveARestart(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	b.publish(t, "one")
	b.publish(t, "two")
	testkit.Must(t, b.Commit(limited(t), kafka.FanoutGroup, map[kafka.Partition]int64{at: 1}))
	c := b.stranger(t, reader(), kgo.ConsumerGroup("mine"), kgo.ConsumeTopics(at.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	testkit.Equal(t, "records", c.PollFetches(limited(t)).NumRecords(), 2)
	testkit.Must(t, c.CommitUncommittedOffsets(limited(t)))
	c.Close()
	testkit.Must(t, b.store.Durable(limited(t)))
	b.end()

	b = open(t, dir, nil)
	for group, want := range map[string]int64{kafka.FanoutGroup: 1, "mine": 2, "other": 0} {
		got := testkit.Value(b.Committed(limited(t), group))(t)
		testkit.Equal(t, "offset of "+group, got[at], want)
	}
	b.publish(t, "three")
	c = b.stranger(t, reader(), kgo.ConsumerGroup("mine"), kgo.ConsumeTopics(at.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	list := c.PollFetches(limited(t)).Records()
	if len(list) != 1 || string(list[0].Value) != "three" {
		t.Errorf("after a restart the group reads %d records", len(list))
	}
}

// A log that was moved can end with offsets that do not exist. Its readers, and those that read up to its end, get
// there.
func TestGapAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, nil)
	b.publish(t, "one")
	b.end()
	st := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)
	log := commitlog.NewLocal(records.Of(st), time.Now)
	for _, topic := range testkit.Value(log.EventTopics(t.Context()))(t) {
		if topic.Name == at.Topic {
			testkit.Must(t, log.Skip(t.Context(), []commitlog.Skip{
				{Partition: commitlog.Partition{Topic: topic.Number, Number: at.ID}, End: 7}}))
		}
	}
	testkit.Must(t, st.Close())

	b = open(t, dir, nil)
	spans := testkit.Value(lag.Spans(limited(t), b.Addr(), at.Topic, b.Options()...))(t)
	testkit.Equal(t, "span", spans[at.ID], lag.Span{Partition: at, To: 7})
	var values []string
	testkit.Must(t, lag.Read(limited(t), b.Addr(), spans, func(r *kafka.Record) error {
		values = append(values, string(r.Value))
		return nil
	}, b.Options()...))
	testkit.Equal(t, "values", strings.Join(values, " "), "one")
	testkit.Must(t, b.Commit(limited(t), kafka.FanoutGroup, map[kafka.Partition]int64{at: 1}))
	g := testkit.Value(lag.OfGroup(limited(t), b.Addr(), kafka.FanoutGroup, b.Options()...))(t)
	testkit.Equal(t, "lag", g.Lag, 0)
}

// The process shows itself as the member of a group that it reads for.
func TestGroupOfTheProcess(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	testkit.Must(t, b.Commit(limited(t), kafka.FanoutGroup, map[kafka.Partition]int64{at: 0}))
	left := b.Joined(kafka.FanoutGroup, []string{at.Topic})
	for _, want := range []struct {
		state   string
		members int
	}{{"Stable", 1}, {"Empty", 0}} {
		g := testkit.Value(lag.OfGroup(limited(t), b.Addr(), kafka.FanoutGroup, b.Options()...))(t)
		testkit.Equal(t, "state", g.State, want.state)
		testkit.Equal(t, "members", len(g.Members), want.members)
		if want.members > 0 && (g.Members[0].Partitions != 16 || g.Partitions[0].Member == "") {
			t.Errorf("the member is %+v, a partition %+v", g.Members[0], g.Partitions[0])
		}
		left()
	}
}

// Frames that announce much take no memory, and halves do not stay.
func TestFloods(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	dial := func() net.Conn {
		c := testkit.Value(net.Dial("tcp", b.Addr()))(t)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var conns []net.Conn
	for range 200 { // more than there may be
		c := dial()
		_, _ = c.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, 60_000), 18))
		conns = append(conns, c)
	}
	huge := dial()
	_, _ = huge.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, 64<<10+1), 18))
	closed(t, huge, 2*time.Second)
	// A client that has shown the password comes in, and is not pushed out by those that have not.
	c := b.stranger(t, reader())
	metadata := func() {
		t.Helper()
		testkit.Value(kmsg.NewPtrMetadataRequest().RequestWith(limited(t), c))(t)
	}
	metadata()
	for range 200 {
		dial()
	}
	metadata()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 32<<20 {
		t.Errorf("the connections take %d bytes", n)
	}
	closed(t, conns[0], 2*time.Second) // pushed out
}

func closed(t *testing.T, c net.Conn, within time.Duration) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err := c.Read(make([]byte, 1))
	if ne := net.Error(nil); err == nil || (errors.As(err, &ne) && ne.Timeout()) {
		t.Errorf("the connection stays open: %v", err)
	}
}

// Beyond the bound, connections without a password make room; if all have shown it, a new one is refused,
// counted and logged. Connected readers stay, and a closed connection makes room.
func TestConnectionsBeyondTheBound(t *testing.T) {
	var said testkit.Log
	b := open(t, t.TempDir(), func(c *port.Config) {
		c.Connections, c.Logger = 5, slog.New(slog.NewTextHandler(&said, nil))
	})
	reading := func() *kgo.Client {
		c := b.stranger(t, reader())
		testkit.Value(c.SeedBrokers()[0].Request(limited(t), kmsg.NewPtrMetadataRequest()))(t)
		return c
	}
	var strangers []net.Conn
	for range 2 {
		c := testkit.Value(net.Dial("tcp", b.Addr()))(t)
		t.Cleanup(func() { _ = c.Close() })
		strangers = append(strangers, c)
	}
	testkit.Eventually(t, "both are connected", func() bool { return b.Stats().Open == 2 })
	var readers []*kgo.Client
	for range 5 {
		readers = append(readers, reading())
	}
	for _, c := range strangers {
		closed(t, c, 5*time.Second)
	}
	testkit.Equal(t, "connections", b.Stats(), port.Stats{Open: 5, Evicted: 2})
	testkit.Equal(t, "lines", said.String(), "")
	for range 3 {
		c := testkit.Value(net.Dial("tcp", b.Addr()))(t)
		closed(t, c, 5*time.Second)
		_ = c.Close()
	}
	testkit.Equal(t, "connections beyond", b.Stats(), port.Stats{Open: 5, Evicted: 2, Refused: 3})
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "kafka-connections") {
		t.Errorf("operators read %q, expected one line", text)
	}
	for _, c := range readers {
		testkit.Value(c.SeedBrokers()[0].Request(limited(t), kmsg.NewPtrMetadataRequest()))(t)
	}
	readers[0].Close()
	testkit.Eventually(t, "a connection is closed", func() bool { return b.Stats().Open == 4 })
	reading()
}

// Addresses that cannot be listened on are refused with a line that says why.
func TestAddresses(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	for addr, want := range map[string]string{
		"nothing": "must be host:port", "192.0.2.1:0": "loopback only", "localhost:0": "loopback only",
		"127.0.0.1:http": "listen port", b.Addr(): "already in use",
	} {
		p, err := port.Open(t.Context(), port.Config{Listen: addr})
		if err == nil {
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	other := open(t, t.TempDir(), func(c *port.Config) { c.Listen, c.Fallback = b.Addr(), true })
	if other.Addr() == b.Addr() {
		t.Error("two ports have one address")
	}
}

// The file of credentials is private, keeps its password, and is made again if it is
// broken.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	if _, err := port.Load(dir); err == nil {
		t.Error("credentials out of nothing")
	}
	first, err := port.Password(dir)
	if err != nil || len(first) < 20 {
		t.Fatal(first, err)
	}
	testkit.Must(t, port.Credentials{Address: "127.0.0.1:1", Password: first}.Save(dir))
	info, err := os.Stat(filepath.Join(dir, port.File))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	if again, err := port.Password(dir); again != first || err != nil {
		t.Errorf("%q became %q, %v", first, again, err)
	}
	if c, err := port.Load(dir); err != nil || c.Address != "127.0.0.1:1" {
		t.Error(c, err)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, port.File), []byte("x"), 0o600))
	if other, err := port.Password(dir); err != nil || other == first || len(other) < 20 {
		t.Error(other, err)
	}
}
