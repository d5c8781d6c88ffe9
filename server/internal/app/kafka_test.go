package app_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/port"
)

// checkLog reads a chat's messages from Kafka, committed records only, until all
// are there: in the chat's partition, framed, and each for the first time only
// after the one before it (ordering_preserved, K-072). The event log of the embedded
// mode, which needs options, is read to its end and has each message once.
func checkLog(
	ctx context.Context, t *testing.T, addr, chatID string, stored []*messagev1.Message, options ...kafka.Option,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := kafka.NewReaderWith(options, addr, kafka.MessagesPersisted)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	once := len(options) > 0
	var seen, next, end int64
	for seen < int64(len(stored)) || once && next < end {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d messages came on Kafka; offset %d of %d", seen, len(stored), next, end)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			own := int(p.Partition) == event.Bucket(chatID)%64
			if own {
				end = p.HighWatermark
			}
			for _, r := range p.Records {
				if own {
					next = r.Offset + 1
				}
				if string(r.Key) != chatID {
					continue
				}
				if n := sequenceOf(t, r, stored); !own || n > seen+1 || once && n <= seen {
					t.Fatalf("partition %d, offset %d: sequence %d follows %d", r.Partition, r.Offset, n, seen)
				} else if n > seen {
					seen = n
				}
			}
		})
	}
}

// sequenceOf returns the sequence of a message on Kafka, which is the one that the store has.
func sequenceOf(t *testing.T, r *kafka.Record, stored []*messagev1.Message) int64 {
	t.Helper()
	// The Confluent wire format: a zero byte, four of the schema's id, one of the
	// message's index.
	var m eventv1.MessagePersisted
	if len(r.Value) < 6 || r.Value[0] != 0 || r.Value[5] != 0 || proto.Unmarshal(r.Value[6:], &m) != nil {
		t.Fatalf("value % x", r.Value)
	}
	n := m.GetSequence()
	if n < 1 || n > int64(len(stored)) {
		t.Fatalf("sequence %d of %d", n, len(stored))
	}
	if s := stored[n-1]; s.GetMessageId() != m.GetMessageId() || s.GetContent() != m.GetContent() {
		t.Fatalf("Kafka has %v, the store %v", &m, s)
	}
	return n
}

// A plain reader attached to a running server sees a message.
func TestMessageReachesKafka(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	u := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	res, err := u.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := res.GetOverview().GetChat().GetChatId()
	for _, text := range []string{"Hello, Bob", "Tea?"} {
		if _, err := u.messages.SendMessage(t.Context(),
			&messagev1.SendMessageRequest{ChatId: id, Content: text}); err != nil {
			t.Fatal(err)
		}
	}
	checkLog(t.Context(), t, p.kafka, id, history(t.Context(), t, u, id), asReader(t, dir)...)
}

// asReader is what a data directory lets those have who may read it.
func asReader(t testing.TB, dir string) []kafka.Option {
	t.Helper()
	c, err := port.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return kafka.Cluster{Brokers: []string{c.Address}, Mechanism: port.Mechanism, User: port.User,
		Password: c.Password}.Options()
}

// The command says how to read the log, with what the server of the same directory takes;
// the file is its owner's alone.
func TestKafkaCommand(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := run(t.Context(), nil, "--data-dir", dir, "kafka"); code != 1 ||
		!strings.Contains(stderr, "not there yet") {
		t.Errorf("%d, %s", code, stderr)
	}
	p := launch(t, dir, "127.0.0.1:0")
	code, stdout, stderr := run(t.Context(), nil, "--data-dir", dir, "kafka")
	c, err := port.Load(dir)
	if code != 0 || err != nil || c.Address != p.kafka {
		t.Fatalf("%d, %s, %+v, %v", code, stderr, c, err)
	}
	path := filepath.Join(dir, "kafka.properties")
	for _, want := range []string{"kcat -F " + path + " -C", "ScramLoginModule required", c.Password,
		"bootstrap.servers=" + p.kafka} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%s does not say %q", stdout, want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	nobody, err := kafka.NewReader(p.kafka, kafka.MessagesPersisted)
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := nobody.Ping(ctx); err == nil {
		t.Error("the log is read without a password")
	}
}

// After a migration the command names the topic that messages are published to now.
func TestKafkaCommandAfterMigration(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	u := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	res, err := u.chats.CreateChat(t.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	id := res.GetOverview().GetChat().GetChatId()
	send := func() {
		t.Helper()
		if _, err := u.messages.SendMessage(t.Context(),
			&messagev1.SendMessageRequest{ChatId: id, Content: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	// names waits until the command names a topic.
	names := func(topic string) {
		t.Helper()
		testkit.Succeeds(t, "kafka names "+topic, func() error {
			if _, stdout, _ := run(t.Context(), nil, "--data-dir", dir, "kafka"); !strings.Contains(stdout, " -t "+topic+" ") {
				return errors.New(stdout)
			}
			return nil
		})
	}
	send()
	names("messages.persisted")
	if code, out := p.migrate(t.Context(), dir, "", nil); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	send()
	names("messages.persisted.v2")
}

// The README's line for kcat is the command's.
func TestReadmeKafka(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	launch(t, dir, "127.0.0.1:0")
	_, stdout, _ := run(t.Context(), nil, "--data-dir", dir, "kafka")
	line := regexp.MustCompile(`kcat .*`).FindString(stdout)
	line = strings.Replace(line, filepath.Join(dir, "kafka.properties"), ".parley/kafka.properties", 1)
	if line == "" || !strings.Contains(readme(t), line+"\n") {
		t.Errorf("the README does not have %q", line)
	}
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		t.Skip("not run: kcat is not installed")
	}
	cmd := exec.CommandContext(t.Context(), kcat, "-F", filepath.Join(dir, "kafka.properties"), "-C", "-e", "-q", "-t",
		kafka.MessagesPersisted, "-X", "isolation.level=read_committed")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("kcat: %v %s", err, out)
	}
}
