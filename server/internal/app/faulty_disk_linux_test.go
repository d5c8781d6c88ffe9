package app_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/faultydisk"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/port"
)

// onFaultyDisk is a server on a disk with faults, with clients that go on through all of them.
type onFaultyDisk struct {
	t        *testing.T
	rng      *rand.Rand
	ctx      context.Context
	progress func()
	disk     *faultydisk.Disk
	mounted  string
	dir      string // the data directory, on the disk
	p        *process
	addr     string // the same in all lives of the server
	alice    *user
	bob      *user
	chats    []string
	acks     acked
	texts    sync.Map // of all messages that were sent, by client's id
	refused  atomic.Int64
	internal atomic.Int64 // answers that say that something is wrong with the server
	audit    *auditor
	password string // of readers on the Kafka port, as programs were given it
	// Of the topic: another one after a repair, which says what of topics is lost.
	topic   string
	topics  *topicClients
	ledger  *ledger
	members func() // ends them
	follow  *follower
	stop    func() // ends follow
}

// faultyDiskSize is large enough for the data of a run and its backups.
const faultyDiskSize = 1 << 30

func newOnFaultyDisk(t *testing.T) *onFaultyDisk {
	t.Helper()
	seed := testkit.Seed(t, rand.Uint64())
	r := &onFaultyDisk{t: t, rng: rand.New(rand.NewPCG(seed, 5)), mounted: t.TempDir(), addr: "127.0.0.1:0",
		stop: func() {}, members: func() {}}
	var err error
	r.disk, err = faultydisk.Mount(r.mounted, faultyDiskSize)
	if errors.Is(err, faultydisk.ErrUnusable) {
		t.Skip("not run: ", err)
	}
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, r.disk.Close()) })
	r.dir, r.acks.cond = filepath.Join(r.mounted, "data"), sync.NewCond(&r.acks.mu)
	r.ctx, r.progress = untilStuck(t, 2*time.Minute)
	r.start()
	r.addr = r.p.addr
	tr := newTransport(t, false)
	r.alice = newUser("alice", token(t, r.dir, "alice"), r.addr, tr)
	r.bob = newUser("bob", token(t, r.dir, "bob"), r.addr, tr)
	r.topics = newTopicClients(t, r.dir, r.addr)
	r.audit = &auditor{t: t, events: map[string]bool{}, last: map[string]int64{}, read: map[int32]int64{}}
	r.bob.list(t)
	for range 3 {
		res, err := r.alice.chats.CreateChat(r.ctx, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
		testkit.Must(t, err)
		r.chats = append(r.chats, res.GetOverview().GetChat().GetChatId())
	}
	r.password = r.credentials().Password
	r.startOver()
	t.Cleanup(func() { r.stop(); r.members() })
	return r
}

// startOver has a follower and a topic without a past: after a repair clients start over, and
// messages of topics may be lost.
func (r *onFaultyDisk) startOver() {
	r.stop()
	follow, end := context.WithCancel(r.ctx)
	r.follow = newFollower(r.bob, r.chats)
	for id, c := range r.follow.chats { // one that has nothing of a long chat is told to read it
		if c.messages = history(r.ctx, r.t, r.bob, id); len(c.messages) > 0 {
			c.version = c.messages[len(c.messages)-1].GetVersion()
		}
	}
	var following sync.WaitGroup
	following.Go(func() { r.follow.run(follow) })
	r.stop = func() { end(); following.Wait() }

	r.members()
	r.topic, r.ledger = "orders-"+strings.ToLower(uuid.NewString()[:8]), newLedger(r.t, true)
	_, err := persist(r, r.topics.topics.ConfigureTopic, &topicv1.ConfigureTopicRequest{Topic: r.topic,
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2,
			CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING}})
	testkit.Must(r.t, err)
	consume, stop := context.WithCancel(r.ctx)
	var consuming sync.WaitGroup
	for _, group := range topicGroups {
		_, err := persist(r, r.topics.subscriptions.CreateSubscription,
			&topicv1.CreateSubscriptionRequest{Topic: r.topic, Group: group})
		testkit.Must(r.t, err)
		consuming.Go(func() { r.topics.consume(consume, r.topic, group, r.ledger) })
	}
	r.members = func() { stop(); consuming.Wait() }
}

var topicGroups = []string{"a", "b"}

// persist repeats a call until it succeeds, also on a full disk. It counts what is refused.
func persist[Q, S any](r *onFaultyDisk, f func(context.Context, *Q) (*S, error), req *Q) (*S, error) {
	for {
		res, err := f(r.ctx, req)
		switch code := connect.CodeOf(err); {
		case err == nil || r.ctx.Err() != nil:
			return res, err
		case isFull(err):
			r.refused.Add(1)
			time.Sleep(20 * time.Millisecond) // a client's pause
		case code == connect.CodeInternal:
			r.internal.Add(1)
		case code != connect.CodeUnavailable && code != connect.CodeUnknown && code != connect.CodeCanceled &&
			code != connect.CodeDeadlineExceeded:
			return nil, err
		}
		time.Sleep(5 * time.Millisecond) // not as fast as it goes: the server comes back
	}
}

// load has clients send and read until the function that it returns is called, which returns
// when all that they sent is acknowledged.
func (r *onFaultyDisk) load() (stop func()) {
	const writers, publishers = 4, 2
	ctx, cancel := context.WithCancel(r.ctx)
	var sending, reading sync.WaitGroup
	for w := range writers {
		sending.Go(func() {
			for ctx.Err() == nil {
				req := r.message(r.chats[rand.N(len(r.chats))], fmt.Sprint("from ", w, ": ", rand.Int(), noise(rand.N(1_000))))
				res, err := persist(r, []*user{r.alice, r.bob}[w%2].messages.SendMessage, req)
				if r.ctx.Err() != nil { // the test has ended
					return
				} else if err != nil {
					r.t.Error("a send:", err)
					return
				}
				r.acks.add(req, res)
				time.Sleep(5 * time.Millisecond) // some hundred messages a second: all are read again and again
			}
		})
	}
	topic, ledger := r.topic, r.ledger
	for range publishers {
		producer := uuid.NewString()
		sending.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				req := &topicv1.PublishRequest{Topic: topic, Producer: &topicv1.Producer{Id: producer, Number: n},
					Messages: []*topicv1.TopicMessage{{Key: fmt.Sprint(rand.N(9)), Payload: fmt.Append(nil, producer, n)}}}
				res, err := persist(r, r.topics.topics.Publish, req)
				if r.ctx.Err() != nil {
					return
				} else if err != nil {
					r.t.Error("a publish:", err)
					return
				}
				ledger.publish(req, res)
				time.Sleep(10 * time.Millisecond) // as above
			}
		})
	}
	reading.Go(func() { r.read(ctx) })
	stop = func() { cancel(); sending.Wait(); reading.Wait() }
	r.t.Cleanup(stop)
	return stop
}

// acknowledged waits until n more messages are acknowledged. A server that acknowledges none ends
// the test.
func (r *onFaultyDisk) acknowledged(n int) {
	r.t.Helper()
	count := func() int {
		r.acks.mu.Lock()
		defer r.acks.mu.Unlock()
		return len(r.acks.list)
	}
	want := count() + n
	until(r.ctx, r.t, fmt.Sprint(n, " more messages are acknowledged"), func() bool { return count() >= want })
}

// message makes a message, so that readers know it.
func (r *onFaultyDisk) message(chat, text string) *messagev1.SendMessageRequest {
	req := &messagev1.SendMessageRequest{ChatId: chat, ClientMessageId: uuid.NewString(), Content: text}
	r.texts.Store(req.GetClientMessageId(), text)
	return req
}

// read reads pages all the time. A read may fail, and what it shows is right.
func (r *onFaultyDisk) read(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		after := rand.Int64N(200)
		page, err := r.alice.messages.ListMessages(ctx,
			&messagev1.ListMessagesRequest{ChatId: r.chats[rand.N(len(r.chats))], AfterSequence: &after, PageSize: 50})
		if err != nil {
			continue
		}
		for i, m := range page.GetMessages() {
			if want, ok := r.texts.Load(m.GetClientMessageId()); !ok || want != m.GetContent() ||
				m.GetSequence() != after+1+int64(i) {
				r.t.Errorf("after %d there is %v, which was sent as %v", after, m, want)
			}
		}
	}
}

// kill ends the server at once, also one whose calls to the disk hang, and lets the disk lose
// what was not synced, or a part of it.
func (r *onFaultyDisk) kill() {
	r.t.Helper()
	_ = r.p.cmd.Process.Kill()
	r.disk.Abort()
	<-r.p.gone
	var part *rand.Rand
	if r.rng.IntN(2) == 0 {
		part = r.rng
	}
	testkit.Must(r.t, r.disk.PowerLoss(part))
}

func (r *onFaultyDisk) start() {
	r.t.Helper()
	r.p = launch(r.t, r.dir, r.addr, "--topic-creators", "alice")
	r.t.Cleanup(r.disk.Abort) // before the one that waits for the end of the server
}

// try starts a server and reports whether it listens. If not, said is what it ended with.
func (r *onFaultyDisk) try() (started bool, said string) {
	p := &process{addr: r.addr, gone: make(chan struct{}), cmd: exec.Command(binary(r.t), "--listen", r.addr,
		"--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--data-dir", r.dir,
		"--topic-creators", "alice")}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.log
	testkit.Must(r.t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.gone) }()
	r.t.Cleanup(p.kill)
	r.t.Cleanup(r.disk.Abort)
	testkit.Eventually(r.t, "the server starts or says why it does not", func() bool {
		select {
		case <-p.gone:
			return true
		default:
			return onKafka.MatchString(p.said.String())
		}
	})
	if m := onKafka.FindStringSubmatch(p.said.String()); m != nil {
		p.kafka, r.p = m[1], p
		return true, ""
	}
	log := strings.TrimSpace(p.log.String())
	r.t.Logf("no start: %s", log[max(0, len(log)-1_000):])
	return false, log[strings.LastIndex(log, "\n")+1:]
}

// verify checks all promises. Nothing is sent meanwhile.
func (r *onFaultyDisk) verify() {
	r.t.Helper()
	r.progress()
	for _, id := range r.chats {
		stored := history(r.ctx, r.t, r.bob, id)
		head := checkHistory(r.ctx, r.t, r.bob, id, stored)
		checkAcks(r.t, r.acks.byChat(id), stored)
		if err := r.follow.await(r.ctx, id, head); err != nil {
			r.t.Fatalf("bob's stream did not reach version %d of %s: %v", head, id, err)
		}
		r.follow.check(r.t, id, stored)
		r.audit.await(r.ctx, r, id, stored)
	}
	r.audit.checkPositions(r.ctx, r)
	testkit.Equal(r.t, "readers' password", r.credentials().Password, r.password)
	groups, ledgers := map[string][]string{r.topic: topicGroups}, map[string]*ledger{r.topic: r.ledger}
	until(r.ctx, r.t, "all of the topic is acknowledged", func() bool {
		return r.topics.floors(r.ctx, r.t, groups, ledgers) == 0
	})
	r.ledger.quiet(topicGroups)
	r.ledger.check(topicGroups)
	r.ledger.everyGroup(topicGroups)
}

func (r *onFaultyDisk) credentials() port.Credentials {
	r.t.Helper()
	return testkit.Value(port.Load(r.dir))(r.t)
}

// everyGroup checks that each group was given each message that was published.
func (l *ledger) everyGroup(groups []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		given := map[position]bool{}
		for life, positions := range l.owned {
			if strings.HasPrefix(life, g+" ") {
				maps.Copy(given, positions)
			}
		}
		for payload, at := range l.published {
			if !given[at] {
				l.Errorf("%s was never given %s at %v", g, payload, at)
			}
		}
	}
}

// auditor is a consumer group on the Kafka port that commits what it has read.
type auditor struct {
	t       *testing.T
	events  map[string]bool  // ids of messages that came
	last    map[string]int64 // sequence that came last of a chat, for the first time
	read    map[int32]int64  // next offset by partition: nothing beyond was ever committed
	damaged bool             // a repair found events that were lost, and they came again behind others
}

const auditors = "auditors"

// await reads until all messages of a chat have come. Each comes for the first time only after
// the one before it, as long as the store was not damaged.
func (a *auditor) await(ctx context.Context, r *onFaultyDisk, id string, stored []*messagev1.Message) {
	a.t.Helper()
	missing := func() bool {
		return slices.ContainsFunc(stored, func(m *messagev1.Message) bool { return !a.events[m.GetMessageId()] })
	}
	if !missing() {
		return
	}
	c, err := kgo.NewClient(append(asReader(a.t, r.dir), kgo.SeedBrokers(r.p.kafka),
		kgo.ConsumeTopics(kafka.MessagesPersisted), kgo.ConsumerGroup(auditors),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(time.Second/2))...)
	testkit.Must(a.t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for missing() {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			a.t.Fatalf("of %d messages of %s some never came on Kafka", len(stored), id)
		}
		fetches.EachRecord(a.take)
		_ = c.CommitRecords(ctx, fetches.Records()...) // otherwise they come again
	}
}

func (a *auditor) take(rec *kgo.Record) {
	a.read[rec.Partition] = max(a.read[rec.Partition], rec.Offset+1)
	var m eventv1.MessagePersisted
	if len(rec.Value) < 6 || proto.Unmarshal(rec.Value[6:], &m) != nil {
		a.t.Fatalf("value % x", rec.Value)
	}
	a.events[m.GetMessageId()] = true
	chat := string(rec.Key)
	if n := m.GetSequence(); n == a.last[chat]+1 || a.damaged && n > a.last[chat] {
		a.last[chat] = n
	} else if n > a.last[chat] {
		a.t.Errorf("%s: sequence %d follows %d on Kafka", chat, n, a.last[chat])
	}
}

// checkPositions checks that the group's positions are not ahead of what it has read, and no
// group's are ahead of the log.
func (a *auditor) checkPositions(ctx context.Context, r *onFaultyDisk) {
	a.t.Helper()
	c, err := kgo.NewClient(append(asReader(a.t, r.dir), kgo.SeedBrokers(r.p.kafka))...)
	testkit.Must(a.t, err)
	defer c.Close()
	admin := kadm.NewClient(c)
	ends, err := admin.ListEndOffsets(ctx, kafka.MessagesPersisted)
	testkit.Must(a.t, err)
	committed, err := admin.FetchOffsets(ctx, auditors)
	testkit.Must(a.t, err)
	committed.Each(func(o kadm.OffsetResponse) {
		end, ok := ends.Lookup(o.Topic, o.Partition)
		if !ok || o.At > end.Offset || o.At > a.read[o.Partition] {
			a.t.Errorf("partition %d ends at %d, %d was read, and %d is committed", o.Partition, end.Offset,
				a.read[o.Partition], o.At)
		}
	})
}

// kinds lists the files of the data directory by kind: by their paths without digits and without
// what is random. Files without content are left out.
func (r *onFaultyDisk) kinds() map[string][]string {
	r.t.Helper()
	kinds := map[string][]string{}
	testkit.Must(r.t, filepath.WalkDir(r.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if err == nil && strings.Contains(e.Name(), ".damaged-") { // what a repair keeps
				return filepath.SkipDir
			}
			return err
		}
		rel, err := filepath.Rel(r.mounted, path)
		if info, err := e.Info(); err == nil && info.Size() > 0 {
			kind := kindOf(rel)
			kinds[kind] = append(kinds[kind], rel)
		}
		return err
	}))
	return kinds
}

// kindOf is the path of a file with stars for what differs from file to file.
func kindOf(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.Contains(path, "partitions/") && i == len(parts)-2 {
			p = "*"
		}
		if at := strings.IndexAny(p, "0123456789"); at >= 0 {
			end := strings.LastIndexAny(p, "0123456789") + 1
			p = p[:at] + "*" + p[end:]
		}
		parts[i] = p
	}
	return strings.Join(parts, "/")
}
