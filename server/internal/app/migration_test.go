package app_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
)

// wordTrigger calls then once a command has printed a word.
type wordTrigger struct {
	mu   sync.Mutex
	b    bytes.Buffer
	word string
	then func()
}

func (u *wordTrigger) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.b.Write(p)
	if u.then != nil && strings.Contains(u.b.String(), u.word) {
		go u.then()
		u.then = nil
	}
	return n, err
}

// migrate runs the command against a server, and calls then when it has come to a phase.
func (p *process) migrate(ctx context.Context, dir, phase string, then func()) (code int, out string) {
	stdout, stderr := &wordTrigger{word: phase, then: then}, &wordTrigger{}
	address := opsText.FindStringSubmatch(p.log.tail(64 << 10))
	if address == nil {
		return -1, "the server does not say where operators are served"
	}
	args := []string{"--data-dir", dir, "--ops-address", address[1], "migration", "run", "--partitions", "128",
		"--execute", "messages.persisted"}
	code = app.Run(ctx, args, nil, stdout, stderr)
	return code, stdout.b.String() + stderr.b.String()
}

// TestKillInMigration moves the messages of a loaded server to 128 partitions, and kills
// the server with no warning at every phase. The same command resumes each time. Nobody who
// sends is refused, every message is on the log in order, those on the new topic after
// those on the old one, and streams show each once.
func TestKillInMigration(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	addr := p.addr
	tr := newTransport(t, false)
	alice, bob := newUser("alice", token(t, dir, "alice"), addr, tr), newUser("bob", token(t, dir, "bob"), addr, tr)
	var chats []string
	for i := range 4 {
		res, err := alice.chats.CreateChat(ctx, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", i), MemberIds: []string{"bob"},
		})
		if err != nil {
			t.Fatal(err)
		}
		chats = append(chats, res.GetOverview().GetChat().GetChatId())
	}
	follow, stopFollowing := context.WithCancel(ctx)
	f := newFollower(bob, chats)
	var following sync.WaitGroup
	following.Go(func() { f.run(follow) })
	acks := acked{}
	acks.cond = sync.NewCond(&acks.mu)
	write, stopWriting := context.WithCancel(ctx)
	var writing sync.WaitGroup
	for w := range 6 {
		writing.Go(func() {
			sender := []*user{alice, bob}[w%2]
			for write.Err() == nil {
				req := &messagev1.SendMessageRequest{ChatId: chats[rand.N(len(chats))], ClientMessageId: uuid.NewString(),
					Content: fmt.Sprint("from ", w, ": ", rand.Int())}
				res, err := call(ctx, sender.messages.SendMessage, req)
				if err != nil {
					t.Error(err)
					return
				}
				acks.add(req, res)
			}
		})
	}
	for _, phase := range []string{"1 planned", "2 created", "3 frozen", "4 quiet", "5 drained", "6 switched"} {
		acks.wait(50 + rand.N(100))
		if code, out := p.migrate(ctx, dir, phase, p.kill); code == 0 && !strings.Contains(out, "done ") || code > 1 ||
			code < 0 {
			t.Fatalf("killed at %s: exit code %d: %s", phase, code, out)
		}
		p.kill() // if it was faster than the killer
		p = launch(t, dir, addr)
	}
	acks.wait(100)
	if code, out := p.migrate(ctx, dir, "", nil); code != 0 ||
		!strings.Contains(out, "done       messages.persisted.v2 has 128 partitions") {
		t.Fatalf("exit code %d: %s", code, out)
	}
	acks.wait(200)
	stopWriting()
	writing.Wait()

	options := asReader(t, dir)
	for _, id := range chats {
		stored := history(ctx, t, bob, id)
		head := checkHistory(ctx, t, bob, id, stored)
		checkAcks(t, acks.byChat(id), stored)
		if err := f.await(ctx, id, head); err != nil {
			t.Fatalf("bob's stream did not reach version %d of %s: %v", head, id, err)
		}
		f.check(t, id, stored)
		checkVersions(ctx, t, p.kafka, id, stored, options...)
	}
	stopFollowing()
	following.Wait()
	t.Logf("%d acknowledged messages, %d streams", len(acks.list), f.streams)
}

// checkVersions demands that a chat's messages are all on the log, first occurrences in
// order: those on the old topic first, then those on the new one, which has some.
func checkVersions(
	ctx context.Context, t *testing.T, addr, chatID string, stored []*messagev1.Message, options ...kafka.Option,
) {
	t.Helper()
	var seen int64
	on := map[string]int{}
	read := func(topic string, partitions int32) {
		t.Helper()
		spans, err := lag.Spans(ctx, addr, topic, options...)
		if err != nil || len(spans) != int(partitions) {
			t.Fatalf("%s has %d partitions, %v", topic, len(spans), err)
		}
		at := event.Bucket(chatID) % int(partitions)
		err = lag.Read(ctx, addr, spans[at:at+1], func(r *kafka.Record) error {
			if string(r.Key) != chatID {
				return nil
			}
			var m eventv1.MessagePersisted
			if err := proto.Unmarshal(r.Value[6:], &m); err != nil {
				return err
			}
			if m.GetSequence() > seen+1 {
				t.Fatalf("%s: sequence %d follows %d on %s", chatID, m.GetSequence(), seen, topic)
			}
			seen = max(seen, m.GetSequence())
			on[topic]++
			return nil
		}, options...)
		if err != nil {
			t.Fatal(err)
		}
	}
	read(kafka.MessagesPersisted, 64)
	testkit.Succeeds(t, "read all messages of "+chatID, func() error {
		read(kafka.MessagesPersisted+".v2", 128)
		if seen < int64(len(stored)) {
			return fmt.Errorf("%d of %d messages are on Kafka", seen, len(stored))
		}
		return nil
	})
	if on[kafka.MessagesPersisted] == 0 || on[kafka.MessagesPersisted+".v2"] == 0 {
		t.Errorf("%s: %v messages by topic", chatID, on)
	}
}
