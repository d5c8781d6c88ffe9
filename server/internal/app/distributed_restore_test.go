//go:build !windows

package app_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
	"github.com/parley-chat/parley/server/store/table"
	topics "github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
)

// copied is the rows of all tables, by name of the table.
type copied map[string][]map[string]types.AttributeValue

// recovery is an installation whose tables are put back to a copy under clients and readers that
// continue.
type recovery struct {
	*installation
	ctx   context.Context
	db    *dynamodb.Client
	store *dynamo.Store
	restorer
}

func newRecovery(ctx context.Context, t *testing.T) *recovery {
	t.Helper()
	t.Setenv("PARLEY_TOPIC_SLOTS", fmt.Sprint(recoverySlots)) // they are soon dealt
	r := &recovery{installation: newInstallation(t), ctx: ctx}
	r.restorer = restorer{t: t, rng: rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 5))}
	c := testkit.Value(wire.Dial(ctx, wire.Config{Endpoint: r.installation.store}))(t)
	t.Cleanup(c.Close)
	r.db = c.DB
	o := dynamo.Options{Wire: wire.Config{Endpoint: r.installation.store}, Prefix: r.rows}
	r.store = testkit.Value(dynamo.Open(ctx, o))(t)
	t.Cleanup(func() { testkit.Must(t, r.store.Close()) })
	return r
}

const recoverySlots = 2

// connect runs a device of a user at a server until the test ends.
func (r *recovery) connect(name string, server int) {
	r.restorer.t.Helper()
	r.devices = append(r.devices, newGoDevice(r.restorer.t, r.token(name), r.servers[server].addr, name, r.chats))
}

// members are all processes.
func (r *recovery) members() []*member { return append(slices.Clone(r.servers[:]), r.workers[:]...) }

// frozen calls f while no process writes. What a process had asked for just before may still be carried
// out.
func (r *recovery) frozen(f func()) {
	for _, m := range r.members() {
		m.freeze(true)
		defer m.freeze(false)
	}
	f()
}

// copy copies the tables at one moment.
func (r *recovery) copy() (now copied) {
	r.frozen(func() {
		for before := (copied)(nil); before == nil || !reflect.DeepEqual(before, now); {
			before, now = now, copied{}
			for _, d := range tables.Definitions(r.rows) {
				now[d.Name] = r.rowsOf(d.Name)
			}
		}
	})
	return now
}

func (r *recovery) rowsOf(name string) (list []map[string]types.AttributeValue) {
	pages := dynamodb.NewScanPaginator(r.db, &dynamodb.ScanInput{TableName: &name})
	for pages.HasMorePages() {
		list = append(list, testkit.Value(pages.NextPage(r.ctx))(r.restorer.t).Items...)
	}
	return list
}

// put leaves in the tables what the copy has, as a restore does.
func (r *recovery) put(rows copied) {
	for _, d := range tables.Definitions(r.rows) {
		key := func(m map[string]types.AttributeValue) map[string]types.AttributeValue {
			k := map[string]types.AttributeValue{d.PartitionKey: m[d.PartitionKey]}
			if d.SortKey != "" {
				k[d.SortKey] = m[d.SortKey]
			}
			return k
		}
		for _, m := range r.rowsOf(d.Name) {
			testkit.Value(r.db.DeleteItem(r.ctx, &dynamodb.DeleteItemInput{TableName: &d.Name, Key: key(m)}))(r.restorer.t)
		}
		for _, m := range rows[d.Name] {
			testkit.Value(r.db.PutItem(r.ctx, &dynamodb.PutItemInput{TableName: &d.Name, Item: m}))(r.restorer.t)
		}
	}
}

// minutes records heartbeats of the tables, as the processes do in some minutes, and has Redis keep them.
func (r *recovery) minutes(n int) {
	t := r.restorer.t
	testkit.Eventually(t, "the first heartbeat", func() bool {
		return testkit.Value(r.store.Line(r.ctx, store.Strong))(t).Heartbeats > 0
	})
	for range n {
		testkit.Succeeds(t, "a heartbeat", func() error {
			line := testkit.Value(r.store.Line(r.ctx, store.Strong))(t)
			next, err := r.store.RecordHeartbeat(r.ctx, line)
			if err == nil {
				err = r.redis.Set(r.ctx, r.keys+"seen", fmt.Sprint(next.Generation, " ", next.Heartbeats), 0).Err()
			}
			return err
		})
	}
	time.Sleep(5 * time.Second) // real: the processes check the tables every two seconds
}

// page runs the lines of the page on backups, in their order; where they restore tables, the copy is put
// into these. It returns what was said.
func (r *recovery) page(rows copied) (said string) {
	t := r.restorer.t
	restored := 0
	for _, code := range pageCode(t, "backup-dynamodb.md") {
		if strings.Contains(code, "aws dynamodb restore-table-to-point-in-time") {
			restored++
			r.put(rows)
			continue
		}
		for line := range strings.Lines(code) {
			if words := strings.Fields(line); words[0] == "workers" {
				said += r.command(words[1:]...)
			} else if words[0] != "export" {
				t.Errorf("the page has %q", line)
			}
		}
	}
	testkit.Equal(t, "restores", restored, 1)
	return said
}

// refused runs a program that must end with an error, and returns what it says.
func (r *recovery) refused(binary string, args ...string) string {
	out, err := exec.CommandContext(r.ctx, binary, args...).CombinedOutput()
	if !errors.As(err, new(*exec.ExitError)) {
		r.restorer.t.Fatalf("%v ended with %v: %s", args, err, out)
	}
	return string(out)
}

// consumer is a program that reads events from Kafka and keeps the messages of each chat. What it has
// applied with another generation was taken back, as the page on schemas says.
type consumer struct {
	mu    sync.Mutex
	chats map[string]map[int64]applied // by version
	took  int                          // versions that were taken back
}

// applied is an event that the program has applied.
type applied struct {
	generation string
	message    *eventv1.MessagePersisted // nil for other events
}

func newConsumer(r *recovery) *consumer {
	t := r.restorer.t
	c := &consumer{chats: map[string]map[int64]applied{}}
	reader := testkit.Value(kafka.NewReaderWith(nil, r.kafka, kafka.MessagesPersisted))(t)
	ctx, stop := context.WithCancel(r.ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			reader.PollFetches(ctx).EachRecord(func(rec *kafka.Record) {
				if !slices.Contains(r.chats, string(rec.Key)) {
					return
				}
				m := &eventv1.MessagePersisted{}
				if len(rec.Value) < 6 || proto.Unmarshal(rec.Value[6:], m) != nil {
					t.Errorf("value % x", rec.Value)
					return
				}
				c.apply(m)
			})
		}
	})
	t.Cleanup(func() { stop(); reading.Wait(); reader.Close() })
	return c
}

func (c *consumer) apply(m *eventv1.MessagePersisted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	md := m.GetMetadata()
	of := c.chats[m.GetChatId()]
	if of == nil {
		of = map[int64]applied{}
		c.chats[m.GetChatId()] = of
	}
	if was, ok := of[md.GetVersion()]; ok && was.generation == md.GetGeneration() {
		return // it came before
	} else if ok {
		for version, was := range of {
			if version >= md.GetVersion() && was.generation != md.GetGeneration() {
				delete(of, version)
				c.took++
			}
		}
	}
	of[md.GetVersion()] = applied{md.GetGeneration(), m}
}

// differs says how the messages of a chat differ from those of the store; "" if they do not.
func (c *consumer) differs(id string, stored []*messagev1.Message) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.chats[id]
	if len(of) != len(stored) {
		return fmt.Sprintf("%s: the consumer has %d messages, the store %d", id, len(of), len(stored))
	}
	for _, m := range stored {
		if got := of[m.GetVersion()].message; got.GetMessageId() != m.GetMessageId() || got.GetContent() != m.GetContent() {
			return fmt.Sprintf("%s: the consumer has %v, the store %v", id, got, m)
		}
	}
	return ""
}

// activity is how many messages the projection counts in a chat.
func (r *recovery) activity(id string) (n int64, err error) {
	build, err := projection.Live(r.ctx, r.store, chatactivity.Name)
	if err != nil {
		return 0, err
	}
	q := store.Query{Table: store.Projections, PK: table.ProjectionPartition(chatactivity.Name, build, id), From: "day/",
		To: "day/~", Consistency: store.Strong}
	for row, err := range store.QueryAll(r.ctx, r.store, q) {
		if err != nil {
			return 0, err
		}
		n += table.ChatActivityFrom(row.Item).Messages
	}
	return n, nil
}

// subscribed is a group of a durable topic, its publisher and its consumer.
type subscribed struct {
	r         *recovery
	publisher *topic.Publisher
	stop      func() // the consumer
	sent      int
	mu        sync.Mutex
	handled   map[string]int
}

// newGroup begins a topic, its group at another server than its publisher.
func (r *recovery) newGroup(name string) *subscribed {
	t, clients := r.restorer.t, r.ofTopics("alice")
	testkit.Succeeds(t, "the topic "+name, func() error {
		_, err := clients[0].Topics().ConfigureTopic(r.ctx, &topicv1.ConfigureTopicRequest{Topic: name,
			Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2}})
		return err
	})
	g := &subscribed{r: r, handled: map[string]int{}}
	consumer := testkit.Value(clients[1].Consumer(name, "g", topic.ConsumerConfig{
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler: func(_ context.Context, m *topic.Received) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.handled[string(m.GetPayload())]++
			return nil
		}}))(t)
	g.publisher = testkit.Value(clients[0].Publisher(name, topic.PublisherConfig{}))(t)
	ctx, stop := context.WithCancel(r.ctx)
	var consuming sync.WaitGroup
	consuming.Go(func() {
		if err := consumer.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("the consumer of %s ended: %v", name, err)
		}
	})
	g.stop = func() { stop(); consuming.Wait() }
	t.Cleanup(g.stop)
	return g
}

// publish publishes some messages and waits until all that were ever published are handled.
func (g *subscribed) publish(n int) {
	t := g.r.restorer.t
	t.Helper()
	for range n {
		_, err := g.publisher.Publish(g.r.ctx, &topic.Message{Payload: fmt.Append(nil, g.sent), Key: fmt.Sprint(g.sent % 3)})
		testkit.Must(t, err)
		g.sent++
	}
	testkit.Eventually(t, "all messages of the topic are handled", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.handled) == g.sent
	})
}

// write sends a message by a call, as often as it takes.
func (r *recovery) write(u *user, id, key, text string) ack {
	r.restorer.t.Helper()
	req := &messagev1.SendMessageRequest{ChatId: id, ClientMessageId: key, Content: text}
	return ack{req, testkit.Value(call(r.ctx, u.messages.SendMessage, req))(r.restorer.t)}
}

// inSlot is a name of a topic in the first slot.
func inSlot(name string) string {
	for n := 0; ; n++ {
		if other := fmt.Sprint(name, "-", n); topics.SlotOf(other, recoverySlots) == 0 {
			return other
		}
	}
}

// TestRestoredTables: the tables of a running installation are put back to a copy of one moment, which
// its processes notice and which no process starts on. After `workers restore` each client, a consumer
// of the log, the projections and the groups of topics end in the state of the store; nothing that is
// acknowledged from then on is missing, and repeated sends are stored once.
func TestRestoredTables(t *testing.T) {
	ctx, progress := untilStuck(t, 3*time.Minute)
	r := newRecovery(ctx, t)
	alice, bob := r.user("alice", 0), r.user("bob", 1)
	h := &benchFixture{b: t, ctx: ctx, dir: r.installation.dir}
	r.chats = []string{h.group(alice, "bob"), h.group(alice, "bob"), h.group(alice, "bob")}
	r.reader = bob
	for i, name := range []string{"alice", "alice", "bob", "bob"} {
		r.connect(name, i%2)
	}
	events := newConsumer(r)
	first := strings.TrimSuffix(r.keys, ":")
	orders := r.newGroup(first)
	for _, id := range r.chats {
		r.write(bob, id, uuid.NewString(), "hello")
	}
	r.burst()
	orders.publish(10)
	kept := r.write(alice, r.chats[0], uuid.NewString(), "before the copy")
	r.compare(ctx, 0)
	progress()
	rows := r.copy()

	lost := r.write(alice, r.chats[0], uuid.NewString(), "after the copy")
	r.write(alice, r.chats[2], uuid.NewString(), "after the copy")
	for range 3 {
		r.burst()
	}
	orders.publish(10)
	lostTopic := r.newGroup(inSlot(first + "-lost"))
	lostTopic.publish(3)
	lostTopic.stop() // it would end without its topic
	r.compare(ctx, 1)
	r.minutes(3)
	progress()

	// Nothing says so to the processes.
	r.frozen(func() { r.put(rows) })
	for _, m := range r.members() {
		<-m.gone
		if log := m.log.String(); !strings.Contains(log, "the tables are an older copy") ||
			!strings.Contains(log, "workers restore --execute") {
			t.Errorf("a process ended on older tables: %s", m.log.tail(2<<10))
		}
	}
	for _, m := range []*member{r.servers[0], r.workers[0]} {
		if out := r.refused(m.binary, m.args...); !strings.Contains(out, "workers restore --execute") ||
			strings.Count(out, "\n") > 6 {
			t.Errorf("a start on older tables: %s", out)
		}
	}
	progress()
	said := r.page(rows)
	for _, says := range []string{"tables are as declared", "0 of them torn", "nothing was changed",
		"of a topic that was made after the copy", "3 chats with records on Kafka", "has begun; start workers and servers"} {
		if !strings.Contains(said, says) {
			t.Errorf("%q was not said: %s", says, said)
		}
	}
	for _, m := range r.members() {
		r.start(m)
	}
	if out := r.refused(workersBinary(t), append(slices.Clone(r.flags), "restore", "--execute")...); !strings.Contains(out,
		"processes of the installation run") {
		t.Errorf("a restore while processes run: %s", out)
	}
	progress()

	acks := []ack{kept, r.write(alice, r.chats[0], lost.req.GetClientMessageId(), "after the copy")}
	if again := r.write(alice, r.chats[0], kept.req.GetClientMessageId(), "before the copy"); again.res.GetMessageId() !=
		kept.res.GetMessageId() {
		t.Errorf("a repetition was stored as %v, the message is %v", again.res, kept.res)
	}
	if again := r.write(alice, r.chats[0], lost.req.GetClientMessageId(), "after the copy"); again.res.GetMessageId() !=
		acks[1].res.GetMessageId() {
		t.Errorf("a repetition was stored as %v, the message is %v", again.res, acks[1].res)
	}
	all := r.chats
	r.chats = all[:2] // in the last one nobody writes any more
	for range 3 {
		r.burst()
		acks = append(acks, r.write(bob, r.chats[0], uuid.NewString(), "after the restore"))
	}
	orders.publish(10)
	r.newGroup(inSlot(first + "-new")).publish(3)
	again := r.newGroup(inSlot(first + "-lost")) // which continues its log
	again.sent = lostTopic.sent
	again.publish(3)
	progress()
	r.chats = all
	r.compare(ctx, 2)
	for _, id := range r.chats {
		stored := history(ctx, t, bob, id)
		checkHistory(ctx, t, bob, id, stored)
		if id == r.chats[0] {
			checkAcks(t, acks, stored)
		}
		testkit.Succeeds(t, "the consumer", func() error {
			if wrong := events.differs(id, stored); wrong != "" {
				return errors.New(wrong)
			}
			return nil
		})
		testkit.Succeeds(t, "the projection", func() error {
			n, err := r.activity(id)
			if err == nil && n != int64(len(stored)) {
				err = fmt.Errorf("%s: it counts %d messages, the store has %d", id, n, len(stored))
			}
			return err
		})
	}
	if events.took == 0 {
		t.Error("nothing that the consumer had read was taken back")
	}
	restarts := 0
	for _, m := range r.servers {
		restarts += strings.Count(m.log.String(), "a client was shown what the store does not have")
	}
	if restarts == 0 {
		t.Error("no server has told a client to start over")
	}
}
