//go:build !windows

package app_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// installation is several servers and workers on real engines, with names of its own in
// all of them.
type installation struct {
	t     testing.TB
	flags []string
	redis *redis.Client
	keys  string // prefix in Redis
	kafka string
	dir   string

	way     *cutter // to Redis
	servers [2]*member
	workers [2]*member
}

// member is a process that is started again under the same addresses.
type member struct {
	*process
	binary string
	args   []string
	links  *cutter // of a server
}

func newInstallation(t testing.TB) *installation {
	env := map[string]string{}
	for _, name := range []string{"PARLEY_TEST_KAFKA", "PARLEY_TEST_DYNAMODB", "PARLEY_TEST_REDIS"} {
		if env[name] = os.Getenv(name); env[name] == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	id := strings.ToLower(rand.Text()[:10])
	o, err := redis.ParseURL(env["PARLEY_TEST_REDIS"])
	if err != nil {
		t.Fatal(err)
	}
	in := &installation{t: t, way: newCutter(t, o.Addr), redis: redis.NewClient(o), keys: id + ":", kafka: env["PARLEY_TEST_KAFKA"], dir: t.TempDir()}
	t.Cleanup(func() { in.flush(); _ = in.redis.Close() })
	key := filepath.Join(in.dir, "key.pem")
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	in.flags = []string{
		"--store", "dynamodb", "--dynamodb-endpoint", env["PARLEY_TEST_DYNAMODB"], "--dynamodb-prefix", id + "_",
		"--redis", "redis://" + in.way.addr, "--redis-prefix", in.keys, "--kafka-brokers", in.kafka, "--key-file", key,
	}
	brokers := strconv.Itoa(strings.Count(in.kafka, ",") + 1)
	in.command("tables", "apply")
	in.command("--replication", brokers, "topics", "apply")
	in.command("tables", "verify")
	in.command("--replication", brokers, "topics", "verify")
	for i := range in.servers {
		cut := newCutter(t, "")
		in.servers[i] = &member{binary: binary(t), links: cut, args: append([]string{
			"--listen", "127.0.0.1:0", "--link-listen", cut.behind, "--link-address", cut.addr, "--data-dir", filepath.Join(in.dir, "none"),
		}, in.flags...)}
		in.start(in.servers[i])
		in.servers[i].args[1] = in.servers[i].addr // from now on
	}
	for i := range in.workers {
		in.workers[i] = &member{binary: workersBinary(t), args: append(slices.Clone(in.flags), "run", "relay", "fanout", "reconcile")}
		in.start(in.workers[i])
	}
	return in
}

var builtWorkers struct {
	once sync.Once
	err  error
}

// workersBinary builds the workers beside the server, once.
func workersBinary(t testing.TB) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(binary(t)), "workers")
	builtWorkers.once.Do(func() {
		out, err := exec.Command("go", "build", "-o", path, "github.com/parley-chat/parley/workers").CombinedOutput()
		if builtWorkers.err = err; err != nil {
			t.Log(string(out))
		}
	})
	if builtWorkers.err != nil {
		t.Fatal(builtWorkers.err)
	}
	return path
}

// command runs a command of the workers that must succeed.
func (in *installation) command(args ...string) string {
	in.t.Helper()
	out, err := exec.Command(workersBinary(in.t), append(slices.Clone(in.flags), args...)...).CombinedOutput()
	if err != nil {
		in.t.Fatalf("workers %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// start starts a process and waits until it says that it serves or works.
func (in *installation) start(m *member) {
	in.t.Helper()
	p := &process{cmd: exec.Command(m.binary, m.args...), gone: make(chan struct{})}
	p.cmd.Stdout = &p.log
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		in.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		in.t.Fatal(err)
	}
	up := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stderr)
		once := sync.OnceFunc(func() { close(up) })
		for lines.Scan() {
			text := lines.Text()
			_, _ = p.log.Write([]byte(text + "\n"))
			if strings.Contains(text, "msg=listening") || strings.Contains(text, "msg=working") {
				_, rest, _ := strings.Cut(text, " address=")
				p.addr, _, _ = strings.Cut(rest, " ")
				once()
			}
		}
		_ = p.cmd.Wait()
		close(p.gone)
		once()
	}()
	<-up
	select {
	case <-p.gone:
		in.t.Fatalf("%v did not start: %s", m.args[:2], &p.log)
	default:
	}
	m.process = p
	in.t.Cleanup(func() {
		p.kill()
		if in.t.Failed() {
			in.t.Logf("last words of %s: %s", filepath.Base(m.binary), p.log.tail(3<<10))
		}
	})
}

// freeze has the process stand still, or go on.
func (m *member) freeze(on bool) {
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	_ = m.cmd.Process.Signal(sig)
}

// flush loses everything that Redis has of this installation, at once.
func (in *installation) flush() {
	err := in.redis.Eval(context.Background(), `for _,k in ipairs(redis.call('KEYS',ARGV[1]..'*')) do redis.call('DEL',k) end`, nil, in.keys).Err()
	if err != nil && err != redis.Nil {
		in.t.Error(err)
	}
}

func (in *installation) token(user string) string {
	in.t.Helper()
	out, err := exec.Command(binary(in.t), append(slices.Clone(in.flags), "token", user)...).Output()
	if err != nil {
		in.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (in *installation) user(name string, server int) *user {
	u := newUser(name, in.token(name), in.servers[server].addr, newTransport(in.t, false))
	// The first request makes the user known.
	if _, err := call(in.t.Context(), u.delivery.Sync, &deliveryv1.SyncRequest{}); err != nil {
		in.t.Fatal(err)
	}
	return u
}

// TestTwoServers: what is done at one server is seen at the other, acknowledgements find
// their stream, and a user's own state follows to all devices.
func TestTwoServers(t *testing.T) {
	in := newInstallation(t)
	for _, m := range in.servers {
		if text := m.log.String(); strings.Contains(text, "eyJ") {
			t.Errorf("a token in what is logged: %s", text)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	bob, alice, elsewhere := in.user("bob", 0), in.user("alice", 1), in.user("bob", 1)
	created, err := call(ctx, alice.chats.CreateChat, &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	chatID := created.GetChat().GetChat().GetChatId()
	stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var hello *deliveryv1.Hello
	var last int64
	until := func(what string, ok func(*deliveryv1.Frame) bool) *deliveryv1.Frame {
		t.Helper()
		for stream.Receive() {
			msg := stream.Msg()
			var found *deliveryv1.Frame
			for i, f := range msg.GetFrames() {
				last = msg.GetFirstPosition() + int64(i)
				if h := f.GetHello(); h != nil {
					hello = h
				}
				if found == nil && ok(f) {
					found = f
				}
			}
			if found != nil {
				return found
			}
		}
		t.Fatalf("the stream ended before %s: %v", what, stream.Err())
		return nil
	}
	until("it was open", func(f *deliveryv1.Frame) bool { return f.GetHeartbeat().GetToken() != "" })
	for i := range 20 {
		text := fmt.Sprint("hello ", i)
		if _, err := call(ctx, alice.messages.SendMessage, &messagev1.SendMessageRequest{ChatId: chatID, Content: text, ClientMessageId: uuid.NewString()}); err != nil {
			t.Fatal(err)
		}
		until(text, func(f *deliveryv1.Frame) bool { return f.GetMessage().GetContent() == text })
	}
	// The same over the other server.
	if _, err := elsewhere.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: last}); err != nil {
		t.Fatalf("ack at another server: %v", err)
	}
	_, err = elsewhere.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: last + 1000})
	if connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("ack of what was not sent: %v", err)
	}
	_, err = alice.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: last})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("ack of another user's stream: %v", err)
	}
	if _, err := elsewhere.delivery.Extend(ctx, &deliveryv1.ExtendRequest{StreamId: hello.GetStreamId()}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("extended with the token of another session: %v", err)
	}
	if _, err := bob.delivery.Extend(ctx, &deliveryv1.ExtendRequest{StreamId: hello.GetStreamId()}); err != nil {
		t.Errorf("extend: %v", err)
	}
	if _, err := elsewhere.messages.MarkRead(ctx, &messagev1.MarkReadRequest{ChatId: chatID, Sequence: 20}); err != nil {
		t.Fatal(err)
	}
	until("the receipt", func(f *deliveryv1.Frame) bool { return f.GetReceipt().GetReadSequence() == 20 })
}

// TestDistributed loads two servers and kills servers and workers, loses all of Redis and
// cuts links while it does; then every acknowledged message is there once, in its place,
// was shown once and in order, and is on Kafka. PARLEY_KILLS sets the number of faults.
func TestDistributed(t *testing.T) {
	in := newInstallation(t)
	faults := 8
	if s := os.Getenv("PARLEY_KILLS"); s != "" {
		var err error
		if faults, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	const groups, writers = 3, 6
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(faults)*time.Minute)
	defer cancel()
	bob, alice := in.user("bob", 0), in.user("alice", 1)
	var chats []string
	for i := range groups {
		res, err := call(ctx, alice.chats.CreateChat, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", i), MemberIds: []string{"bob"},
		})
		if err != nil {
			t.Fatal(err)
		}
		chats = append(chats, res.GetChat().GetChat().GetChatId())
	}
	follow, stopFollowing := context.WithCancel(ctx)
	followers := []*follower{newFollower(bob, chats), newFollower(alice, chats)}
	var following sync.WaitGroup
	for _, f := range followers {
		following.Go(func() { f.run(follow) })
	}
	var acks acked
	acks.cond = sync.NewCond(&acks.mu)
	write, stopWriting := context.WithCancel(ctx)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			sender := []*user{alice, bob}[w%2]
			for write.Err() == nil {
				req := &messagev1.SendMessageRequest{ChatId: chats[mathrand.N(len(chats))], ClientMessageId: uuid.NewString(), Content: fmt.Sprint("from ", w, ": ", mathrand.Int())}
				res, err := call(ctx, sender.messages.SendMessage, req)
				if err != nil {
					t.Error(err)
					return
				}
				acks.add(req, res)
			}
		})
	}
	again := func(m *member) { m.kill(); in.start(m) }
	for i := range faults {
		acks.wait(30 + mathrand.N(150))
		switch i % 8 {
		case 0:
			again(in.servers[0])
		case 1:
			in.flush()
		case 2:
			again(in.workers[i/8%2])
		case 3:
			for range 5 {
				in.servers[0].links.cut()
				in.servers[1].links.cut()
				acks.wait(10)
			}
		case 4:
			again(in.servers[1])
		case 5:
			again(in.workers[0])
			again(in.workers[1])
			in.flush()
		case 6: // Redis is away for longer than leases last
			in.way.shut(true)
			time.Sleep(12 * time.Second)
			acks.wait(20) // people go on
			in.way.shut(false)
		case 7: // a server stands still for longer than its lease, and goes on
			in.servers[0].freeze(true)
			time.Sleep(12 * time.Second)
			in.servers[0].freeze(false)
		}
	}
	acks.wait(50)
	stopWriting()
	writing.Wait()
	for _, id := range chats {
		stored := history(ctx, t, bob, id)
		head := checkHistory(ctx, t, bob, id, stored)
		checkAcks(t, acks.byChat(id), stored)
		for _, f := range followers {
			if err := f.await(ctx, id, head); err != nil {
				t.Fatalf("%s's stream did not reach version %d of %s: %v", f.u.name, head, id, err)
			}
			f.check(t, id, stored)
		}
		checkLog(ctx, t, in.kafka, id, stored)
	}
	stopFollowing()
	following.Wait()
	t.Logf("%d faults, %d acknowledged messages, %d and %d streams", faults, len(acks.list), followers[0].streams, followers[1].streams)
}

// BenchmarkAcrossServers is a message's way from a sender at one server to a reader at
// another, over DynamoDB Local, Redis and a link.
func BenchmarkAcrossServers(b *testing.B) {
	in := newInstallation(b)
	ctx := b.Context()
	bob, alice := in.user("bob", 0), in.user("alice", 1)
	created, err := call(ctx, alice.chats.CreateChat, &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		b.Fatal(err)
	}
	chatID := created.GetChat().GetChat().GetChatId()
	stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	shown := make(chan string, 1024)
	go func() {
		defer close(shown)
		for stream.Receive() {
			for _, f := range stream.Msg().GetFrames() {
				if id := f.GetMessage().GetClientMessageId(); id != "" || f.GetHeartbeat().GetToken() != "" {
					shown <- id
				}
			}
		}
	}()
	<-shown // the stream is open
	for b.Loop() {
		id := uuid.NewString()
		if _, err := call(ctx, alice.messages.SendMessage, &messagev1.SendMessageRequest{ChatId: chatID, Content: "hello", ClientMessageId: id}); err != nil {
			b.Fatal(err)
		}
		for got := range shown {
			if got == id {
				break
			}
		}
	}
}

// cutter stands in front of an address, cuts connections and lets none through.
type cutter struct {
	addr, behind string

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

// newCutter makes a way to an address, or to a free one that a server is to take.
func newCutter(t testing.TB, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: l.Addr().String(), behind: to}
	if to == "" {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.behind = free.Addr().String()
		_ = free.Close()
	}
	t.Cleanup(func() { _ = l.Close(); c.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", c.behind)
			if err != nil {
				_ = in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			if c.closed {
				_ = in.Close()
			}
			c.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = bufio.NewReader(way[0]).WriteTo(way[1])
					_ = way[0].Close()
					_ = way[1].Close()
				}()
			}
		}
	}()
	return c
}

// shut cuts all connections and lets no new ones through, or lets them again.
func (c *cutter) shut(on bool) {
	c.mu.Lock()
	c.closed = on
	c.mu.Unlock()
	c.cut()
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}
