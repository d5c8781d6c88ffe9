package port_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/testkit"
)

const (
	password = "a password of readers"
	own      = "fanout-workers"
)

func open(t *testing.T) *kafka.Broker {
	t.Helper()
	b, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0",
		Readers: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// stranger is a client by TCP.
func stranger(t *testing.T, b *kafka.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.Addr()), kgo.RequestRetries(0), kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.DisableClientMetrics(),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func reader() kgo.Opt {
	return kgo.SASL(scram.Auth{User: "reader", Pass: password}.AsSha256Mechanism())
}

// publish publishes as Parley does.
func publish(t *testing.T, b *kafka.Broker, value string) {
	t.Helper()
	c, err := kafka.NewTransactional(b.Addr(), "relay", b.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := kafka.Transact(limited(t),
		c, []*kafka.Record{{Topic: kafka.ChatsCreated, Partition: 3, Value: []byte(value)}}); err != nil {
		t.Fatal(err)
	}
}

// Without the password nothing is answered, whoever one says to be.
func TestWithoutThePassword(t *testing.T) {
	b := open(t)
	publish(t, b, "secret")
	for name, opts := range map[string][]kgo.Opt{
		"nobody":         nil,
		"wrong password": {kgo.SASL(scram.Auth{User: "reader", Pass: "x"}.AsSha256Mechanism())},
		"plain":          {kgo.SASL(plain.Auth{User: "reader", Pass: password}.AsMechanism())},
		"admin":          {kgo.SASL(scram.Auth{User: "admin", Pass: "admin"}.AsSha256Mechanism())},
		"parley":         {kgo.SASL(scram.Auth{User: "parley", Pass: ""}.AsSha256Mechanism())},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		res, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, stranger(t, b, opts...))
		cancel()
		if err == nil {
			t.Errorf("%s sees %d topics", name, len(res.Topics))
		}
	}
}

// With the password one reads, alone and in groups; and the broker knows that somebody may.
func TestReaders(t *testing.T) {
	b := open(t)
	publish(t, b, "hello")
	for _, opts := range [][]kgo.Opt{nil, {kgo.ConsumerGroup("mine")}} {
		if b.Watched() {
			t.Error("watched by nobody")
		}
		c := stranger(t, b, append(opts, reader(), kgo.ConsumeTopics(kafka.ChatsCreated),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		fetches := c.PollFetches(limited(t))
		if err := fetches.Err(); err != nil || fetches.NumRecords() != 1 {
			t.Fatalf("%d records, %v", fetches.NumRecords(), err)
		}
		if !b.Watched() {
			t.Error("a reader does not count")
		}
		if len(opts) > 0 {
			if err := c.CommitUncommittedOffsets(limited(t)); err != nil {
				t.Error(err)
			}
		}
		c.Close()
		testkit.Eventually(t, "the reader's connections are gone", func() bool { return !b.Watched() })
	}
}

// Readers change nothing, take no group or producer of ours, and are refused (S-41).
func TestSec_S_41_ReadersOnlyRead(t *testing.T) {
	b := open(t)
	publish(t, b, "one")
	c := stranger(t, b, reader())
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
	drop := kmsg.NewPtrDeleteTopicsRequest()
	dropped := kmsg.NewDeleteTopicsRequestTopic()
	dropped.Topic = kmsg.StringPtr(kafka.ChatsCreated)
	drop.Topics, drop.TopicNames = append(drop.Topics, dropped), []string{kafka.ChatsCreated}
	if res, err := drop.RequestWith(limited(t), c); err == nil {
		refused("delete a topic", nil, res.Topics[0].ErrorCode)
	}
	trim := kmsg.NewPtrDeleteRecordsRequest()
	trimmed := kmsg.NewDeleteRecordsRequestTopic()
	part := kmsg.NewDeleteRecordsRequestTopicPartition()
	part.Partition, part.Offset = 3, 1
	trimmed.Topic, trimmed.Partitions = kafka.ChatsCreated, append(trimmed.Partitions, part)
	trim.Topics = append(trim.Topics, trimmed)
	if res, err := trim.RequestWith(limited(t), c); err == nil {
		refused("delete records", nil, res.Topics[0].Partitions[0].ErrorCode)
	}
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID = kmsg.StringPtr("relay")
	if res, err := init.RequestWith(limited(t), c); err == nil {
		refused("fence the relay", nil, res.ErrorCode)
	}
	refused("produce", c.ProduceSync(limited(t), &kgo.Record{Topic: kafka.ChatsCreated, Value: []byte("x")}).FirstErr(), 0)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = own, -1
	ct, cp := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	cp.Partition, cp.Offset = 3, 100
	ct.Topic, ct.Partitions = kafka.ChatsCreated, append(ct.Partitions, cp)
	commit.Topics = append(commit.Topics, ct)
	if res, err := commit.RequestWith(limited(t), c); err == nil {
		refused("commit for fanout", nil, res.Topics[0].Partitions[0].ErrorCode)
	}
	remove := kmsg.NewPtrDeleteGroupsRequest()
	remove.Groups = []string{own}
	if res, err := remove.RequestWith(limited(t), c); err == nil {
		refused("delete fanout's group", nil, res.Groups[0].ErrorCode)
	}
	joined := make(chan bool, 1)
	member := stranger(t, b, reader(), kgo.ConsumerGroup(own), kgo.ConsumeTopics(kafka.ChatsCreated),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { joined <- true }))
	if err := member.PollFetches(limited(t)).Err(); !errors.Is(err, kerr.GroupAuthorizationFailed) || len(joined) > 0 {
		t.Errorf("a member of fanout's group: %v", err)
	}
	// What the broker would not refuse by itself, or not well, does not reach it.
	for _, req := range []kmsg.Request{
		kmsg.NewPtrWriteTxnMarkersRequest(), kmsg.NewPtrAlterUserSCRAMCredentialsRequest(),
		kmsg.NewPtrDescribeUserSCRAMCredentialsRequest(),
		kmsg.NewPtrDescribeLogDirsRequest(), kmsg.NewPtrElectLeadersRequest(), kmsg.NewPtrShareFetchRequest(),
		kmsg.NewPtrAlterClientQuotasRequest(),
	} {
		if _, err := c.SeedBrokers()[0].Request(limited(t), req); err == nil {
			t.Errorf("a reader's %s is answered", kmsg.NameForKey(req.Key()))
		}
	}
	publish(t, b, "two") // the relay is not fenced
	var values []string
	if err := b.Read(limited(t), kafka.Partition{Topic: kafka.ChatsCreated, ID: 3},
		func(r *kafka.Record) { values = append(values, string(r.Value)) }); err != nil {
		t.Fatal(err)
	}
	if strings.Join(values, " ") != "one two" {
		t.Errorf("the log has %q", values)
	}
}

// The rights are the same after a restart, whatever the broker has kept of them.
func TestRightsSurviveNothing(t *testing.T) {
	dir := t.TempDir()
	cfg := kafka.BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", Readers: "the old password"}
	b, err := kafka.OpenBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	for name, text := range map[string]string{"acls.json": "{", "sasl.json": "{", "quotas.json": "{",
		"broker_configs.json": `{"version":1,"configs":{"log.retention.ms":"1"}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Readers = password
	if b, err = kafka.OpenBroker(cfg); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if res, err := kmsg.NewPtrMetadataRequest().RequestWith(limited(t), stranger(t, b, reader())); err != nil ||
		len(res.Topics) == 0 {
		t.Errorf("a reader is refused: %v", err)
	}
	old := stranger(t, b, kgo.SASL(scram.Auth{User: "reader", Pass: "the old password"}.AsSha256Mechanism()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, old); err == nil {
		t.Error("the old password is taken")
	}
}

// Frames that announce much take no memory, and halves do not stay.
func TestFloods(t *testing.T) {
	b := open(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var conns []net.Conn
	for range 200 { // more than there may be
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		head := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, 60_000), 18)
		_, _ = c.Write(head)
		conns = append(conns, c)
	}
	huge, err := net.Dial("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = huge.Close() }()
	_, _ = huge.Write(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, 64<<10+1), 18))
	closed(t, huge, 2*time.Second)
	publish(t, b, "ours go on")
	// Who has shown a password comes in, and is not pushed out by who has not.
	c := stranger(t, b, reader())
	if _, err := kmsg.NewPtrMetadataRequest().RequestWith(limited(t), c); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if _, err := kmsg.NewPtrMetadataRequest().RequestWith(limited(t), c); err != nil {
		t.Error(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 32<<20 {
		t.Errorf("the connections take %d bytes", n)
	}
	closed(t, conns[0], 2*time.Second) // pushed out
}

// A half request ends its connection after ten seconds, also that of a client whose requests
// need no password.
func TestHalfRequest(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		t.Run(fmt.Sprint("trusted ", trusted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				p := port.New(l, port.Config{Open: trusted})
				defer p.Close()
				ours, theirs := net.Pipe()
				defer ours.Close()
				l.conns <- theirs
				c, err := p.Accept()
				testkit.Must(t, err)
				began := time.Now()
				ended := make(chan time.Duration, 1)
				go func() {
					n, err := c.Read(make([]byte, 100))
					if err == nil {
						t.Errorf("%d bytes of half a request", n)
					}
					ended <- time.Since(began)
				}()
				_, err = ours.Write([]byte{0, 0, 0})
				testkit.Must(t, err)
				if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("the client reads %v, expected the end", err)
				}
				if took := <-ended; took != 10*time.Second {
					t.Errorf("ended after %v", took)
				}
			})
		})
	}
}

// pipes is a listener whose clients are in the same bubble of time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func closed(t *testing.T, c net.Conn, within time.Duration) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err := c.Read(make([]byte, 1))
	if ne := net.Error(nil); err == nil || (errors.As(err, &ne) && ne.Timeout()) {
		t.Errorf("the connection stays open: %v", err)
	}
}

// One fetch does not make the broker build an answer of the whole log.
func TestFetchIsBounded(t *testing.T) {
	b := open(t)
	c, err := kafka.NewProducer(b.Addr(), b.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	value := make([]byte, 900_000)
	_, _ = rand.Read(value)
	for range 12 {
		if err := kafka.Publish(limited(t),
			c, &kafka.Record{Topic: kafka.ChatsCreated, Partition: 3, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MaxWaitMillis = 1<<31-1, 100
	topic, part := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.PartitionMaxBytes = 3, 1<<31-1
	topic.Topic, topic.Partitions = kafka.ChatsCreated, append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	res, err := stranger(t, b, reader(), kgo.MaxVersions(kversion.V3_0_0())).SeedBrokers()[0].Request(limited(t), req)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(res.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches); n == 0 || n > 2<<20 {
		t.Errorf("an answer of %d bytes", n)
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
	if err := (port.Credentials{Address: "127.0.0.1:1", Password: first}).Save(dir); err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(filepath.Join(dir, port.File), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := port.Password(dir); err != nil || other == first || len(other) < 20 {
		t.Error(other, err)
	}
}

// librdkafka continues only if the first version of the handshake is announced.
func TestHandshakeOfOldClients(t *testing.T) {
	b := open(t)
	c, err := net.Dial("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	for _, version := range []int16{0, 2, 3} {
		req := kmsg.NewPtrApiVersionsRequest()
		req.SetVersion(version)
		req.ClientSoftwareName, req.ClientSoftwareVersion = "test", "1"
		id := "x"
		if _, err := c.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(id)).AppendRequest(nil, req, 7)); err != nil {
			t.Fatal(err)
		}
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c, body); err != nil {
			t.Fatal(err)
		}
		res := kmsg.NewPtrApiVersionsResponse()
		res.SetVersion(version)
		if err := res.ReadFrom(body[4:]); err != nil {
			t.Fatal(err)
		}
		for _, k := range res.ApiKeys {
			if k.ApiKey == 17 && (k.MinVersion != 0 || k.MaxVersion != 1) {
				t.Errorf("version %d: handshake %d to %d", version, k.MinVersion, k.MaxVersion)
			}
		}
	}
}
