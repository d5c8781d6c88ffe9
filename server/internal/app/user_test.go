//go:build !windows

package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// balanced is a user behind a balancer: each connection goes to the next server that
// takes it.
func (in *installation) balanced(name string) *user {
	in.t.Helper()
	key, err := auth.ReadKey(in.flags[slices.Index(in.flags, "--key-file")+1])
	if err != nil {
		in.t.Fatal(err)
	}
	token, err := key.Issue(name, time.Now(), time.Hour)
	if err != nil {
		in.t.Fatal(err)
	}
	var addrs []string // they stay the same
	for _, s := range in.servers {
		addrs = append(addrs, s.addr)
	}
	tr := newTransport(in.t, false)
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var errs []error
		for _, i := range mathrand.Perm(len(addrs)) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addrs[i])
			if err == nil {
				return c, nil
			}
			errs = append(errs, err)
		}
		return nil, errors.Join(errs...)
	}
	u := newUser(name, token, "balancer.test:80", tr)
	if _, err := call(in.t.Context(), u.delivery.Sync, &deliveryv1.SyncRequest{}); err != nil {
		in.t.Fatal(err)
	}
	return u
}

// stop asks a process to end, as a deploy does, and returns its exit code.
func (m *member) stop() int {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	<-m.gone
	return m.cmd.ProcessState.ExitCode()
}

// TestRollingRestart deploys a new version of everything, one process after the other, while
// a hundred members of one chat, at whatever server takes them, write and read: each process
// ends in good order, each member is shown each message once, in its place, and no stream
// resynchronises because of a message that is known to have been passed on.
func TestRollingRestart(t *testing.T) {
	in := newInstallation(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	const members, writers = 100, 4
	users := make([]*user, members)
	var ids []string
	for i := range users {
		users[i] = in.balanced(fmt.Sprint("member", i))
		ids = append(ids, users[i].name)
	}
	created, err := call(ctx, users[0].chats.CreateChat,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "All", MemberIds: ids[1:]})
	if err != nil {
		t.Fatal(err)
	}
	chatID := created.GetOverview().GetChat().GetChatId()
	follow, stopFollowing := context.WithCancel(ctx)
	var following, writing sync.WaitGroup
	var followers []*follower
	for _, u := range users {
		f := newFollower(u, []string{chatID})
		followers = append(followers, f)
		following.Go(func() { f.run(follow) })
	}
	var acks acked
	acks.cond = sync.NewCond(&acks.mu)
	write, stopWriting := context.WithCancel(ctx)
	for w := range writers {
		writing.Go(func() {
			for n := 0; write.Err() == nil; n++ {
				req := &messagev1.SendMessageRequest{ChatId: chatID, ClientMessageId: uuid.NewString(),
					Content: fmt.Sprint("from ", w, ": ", n)}
				res, err := call(ctx, users[(w+n)%members].messages.SendMessage, req)
				if err != nil {
					t.Error(err)
					return
				}
				acks.add(req, res)
			}
		})
	}
	_, page := upgradePage(t)
	typed := 0
	run := func(block string) {
		for line := range strings.Lines(block) {
			if words := strings.Fields(line); len(words) > 0 {
				in.command(words[1:]...) // the first one is workers
				typed++
			}
		}
	}
	blocks := shellBlocks(page)
	run(blocks[0])
	for _, m := range []*member{in.servers[0], in.workers[0], in.servers[1], in.workers[1]} {
		acks.wait(30)
		if code := m.stop(); code != 0 {
			t.Errorf("%v ended with %d: %s", m.args, code, m.log.tail(2<<10))
		}
		acks.wait(30) // the other one does it alone
		if m == in.servers[0] || m == in.servers[1] {
			if text := m.log.String(); !strings.Contains(text, "draining") || strings.Contains(text, "cutting them off") {
				t.Errorf("the server did not drain: %s", m.log.tail(2<<10))
			}
		}
		in.start(m)
	}
	run(blocks[1])
	testkit.Equal(t, "lines of the page on upgrades", typed, 6)
	acks.wait(50)
	stopWriting()
	writing.Wait()
	stored := history(ctx, t, users[0], chatID)
	head := checkHistory(ctx, t, users[0], chatID, stored)
	checkAcks(t, acks.byChat(chatID), stored)
	streams := 0
	for _, f := range followers {
		if err := f.await(ctx, chatID, head); err != nil {
			t.Fatalf("%s's stream did not reach version %d: %v", f.u.name, head, err)
		}
		f.check(t, chatID, stored)
		streams += f.streams
	}
	checkLog(ctx, t, in.kafka, chatID, stored)
	for _, s := range in.servers {
		// What is under way to a server that ends may count as skipped: its streams have gone.
		for _, name := range []string{"parley_streams_ended_slow_total", "parley_link_processes_unheard"} {
			if v, err := s.metric(ctx, name); err != nil || v != 0 {
				t.Errorf("%s is %v after a deploy, %v", name, v, err)
			}
		}
	}
	server, worker := scraped(ctx, t, in.servers[0].metricsAddr()), scraped(ctx, t, in.workers[0].addr)
	for _, name := range regexp.MustCompile("`(parley_[a-z_]+)`").FindAllStringSubmatch(readme(t), -1) {
		_, ofServer := server.labels[name[1]]
		_, ofWorker := worker.labels[name[1]]
		if !ofServer && !ofWorker {
			t.Errorf("the README has operators watch %s, which nobody shows", name[1])
		}
	}
	stopFollowing()
	following.Wait()
	t.Logf("%d messages to %d members over %d streams", len(stored), members, streams)
}

// get asks a process for a page and returns the status, 0 where it does not answer.
func (m *member) get(ctx context.Context, path string) int {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.addr+path, nil)
	if err != nil {
		return 0
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// until asks again and again until it is so.
func until(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestUnreachableServer: nobody reaches a server's links, though Redis lists it. Its users
// are shown everything all the same, later; it holds nobody up who starts; metrics tell. Then
// it is killed, with a stream that others acknowledge.
func TestUnreachableServer(t *testing.T) {
	in := newInstallation(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	bob, alice, elsewhere := in.user("bob", 0), in.user("alice", 1), in.user("bob", 1)
	created, err := call(ctx, alice.chats.CreateChat,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	chatID := created.GetOverview().GetChat().GetChatId()
	follow, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	f := newFollower(bob, []string{chatID})
	var following sync.WaitGroup
	following.Go(func() { f.run(follow) })
	send := func(text string) int64 {
		t.Helper()
		res, err := call(ctx, alice.messages.SendMessage,
			&messagev1.SendMessageRequest{ChatId: chatID, Content: text, ClientMessageId: uuid.NewString()})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetVersion()
	}
	shown := func(version int64) {
		t.Helper()
		if err := f.await(ctx, chatID, version); err != nil {
			t.Fatalf("bob was not shown version %d: %v", version, err)
		}
	}
	shown(send("before"))
	stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	id := stream.Msg().GetFrames()[0].GetHello().GetStreamId()

	in.servers[0].links.shut(true)
	var starting sync.WaitGroup
	starting.Go(func() { in.again(in.workers[0]) }) // meets a server that does not answer
	for i := range 20 {
		send(fmt.Sprint("meanwhile ", i))
	}
	last := send("meanwhile, the last")
	_, err = elsewhere.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: id, Position: 1})
	if code := connect.CodeOf(err); code != connect.CodeUnavailable {
		t.Errorf("an acknowledgement that cannot be handed over: %v", err)
	}
	shown(last)
	until(ctx, t, "the sender reports a server that does not answer", func() bool {
		v, err := in.servers[1].metric(ctx, "parley_link_peers_silent")
		return err == nil && v == 1
	})
	until(ctx, t, "the server tells that it does not hear others", func() bool {
		v, err := in.servers[0].metric(ctx, "parley_link_processes_unheard")
		return err == nil && v >= 1
	})
	starting.Wait()
	until(ctx, t, "a worker that starts meanwhile is ready",
		func() bool { return in.workers[0].get(ctx, "/readyz") == http.StatusOK })

	in.servers[0].links.shut(false)
	until(ctx, t, "all is heard again", func() bool {
		v, err := in.servers[0].metric(ctx, "parley_link_processes_unheard")
		return err == nil && v == 0
	})
	shown(send("after"))

	in.servers[0].kill()
	until(ctx, t, "the stream of a dead server is gone", func() bool {
		_, err := elsewhere.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: id, Position: 1})
		switch connect.CodeOf(err) {
		case connect.CodeNotFound:
			return true
		case connect.CodeUnavailable: // its lease is not over
			return false
		}
		t.Fatalf("an acknowledgement for a dead server: %v", err)
		return false
	})
	stopFollowing()
	following.Wait()
	stored := history(ctx, t, alice, chatID)
	f.check(t, chatID, stored)
	in.start(in.servers[0])
}

// TestWrongStarts: what was set wrong, or is not there yet, shows in one line; what can be
// waited for is.
func TestWrongStarts(t *testing.T) {
	in := newInstallation(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	with := func(pairs ...string) []string { // the flags that come last count
		return append(slices.Clone(in.flags), pairs...)
	}
	server := []string{"--listen", "127.0.0.1:0", "--link-listen", "127.0.0.1:0"}
	closed := newCutter(t, "127.0.0.1:1")
	closed.shut(true)
	otherKey := filepath.Join(t.TempDir(), "other.pem")
	writeKey(t, otherKey)
	another := with("--dynamodb-prefix", in.rows+"other_", "--redis-prefix", in.keys+"other:")
	apply := exec.CommandContext(ctx, workersBinary(t), append(slices.Clone(another), "tables", "apply")...)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	until(ctx, t, "Kafka has this installation's topics", func() bool {
		return strings.Contains(in.servers[0].log.String()+in.servers[1].log.String(), `"topics: slot taken" slot=0 `)
	})
	var wg sync.WaitGroup
	for name, c := range map[string]struct {
		binary string
		args   []string
		want   string
	}{
		"no tables": {binary(t), append(with("--dynamodb-prefix", "none_"), server...), "workers tables apply"},
		"workers without tables": {workersBinary(t), with("--dynamodb-prefix", "none_", "run", "relay"),
			"workers tables apply"},
		"another's link address": {binary(t), append(with("--link-address", in.servers[0].links.addr), server...),
			"another process answers there"},
		"another key": {binary(t), append(with("--key-file", otherKey), server...),
			"key-file must be the same for all"},
		"another installation's Kafka": {binary(t), append(slices.Clone(another), server...),
			"Kafka has the topics of another installation"},
		"nobody's link address": {binary(t), append(with("--link-address", closed.addr), server...),
			closed.addr + " does not lead to this process"},
		"a link address in use": {binary(t), append(with(server...), "--link-listen", in.servers[0].links.behind), "in use"},
	} {
		wg.Go(func() {
			run, stop := context.WithTimeout(ctx, 2*time.Minute)
			defer stop()
			cmd := exec.CommandContext(run, c.binary, c.args...)
			cmd.Dir, cmd.Env = in.dir, append(os.Environ(), "AWS_REGION=local")
			out, err := cmd.CombinedOutput()
			var lines []string
			for line := range strings.Lines(string(out)) {
				if !strings.HasPrefix(line, "time=") && !strings.HasPrefix(line, "Opening ") {
					lines = append(lines, line)
				}
			}
			if err == nil || len(lines) != 1 || !strings.Contains(lines[0], c.want) {
				t.Errorf("%s: %v, said\n%swant one line with %q", name, err, out, c.want)
			}
		})
	}
	// Redis comes last: what needs it waits, what does not works.
	way := newCutter(t, in.way.behind)
	way.shut(true)
	late := &member{binary: workersBinary(t),
		args: with("--redis", "redis://"+way.addr, "run", "relay", "fanout", "reconcile")}
	in.start(late)
	if got := late.get(ctx, "/healthz"); got != http.StatusOK {
		t.Errorf("/healthz of a worker without Redis: %d", got)
	}
	if got := late.get(ctx, "/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("/readyz of a worker whose fanout waits for Redis: %d", got)
	}
	second := &member{binary: binary(t), args: append(with("--redis", "redis://"+way.addr), server...)}
	up := make(chan struct{})
	go func() { defer close(up); in.start(second) }()
	way.shut(false)
	<-up
	until(ctx, t, "the worker is ready", func() bool { return late.get(ctx, "/readyz") == http.StatusOK })
	if got := second.get(ctx, "/readyz"); got != http.StatusOK {
		t.Errorf("/readyz of a server that has waited for Redis: %d", got)
	}
	wg.Wait()
	for _, m := range []*member{late, second} {
		if code := m.stop(); code != 0 {
			t.Errorf("ended with %d: %s", code, m.log.tail(2<<10))
		}
	}
}
