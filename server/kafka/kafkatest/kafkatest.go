// Package kafkatest runs tests of clients on each kind of broker that there is: one in the process of the test
// always, and Apache Kafka if PARLEY_TEST_KAFKA names its brokers.
//
// Topics have fixed names and Apache's keep what earlier tests wrote. So a test names
// its groups, transactional ids and keys by [Broker.Name], and reads from where the
// topics ended when it began ([Broker.Mark]). The package owns neither the topics nor
// the clients (package kafka).
//
// Concurrency: everything but [Broker.Trouble] may be called by many goroutines.
package kafkatest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
)

// Variable is what names the brokers of Apache Kafka, host:port with commas between
// them.
const Variable = "PARLEY_TEST_KAFKA"

// limit bounds each wait for a broker: a longer one would not end.
const limit = 90 * time.Second

// Broker is where a test runs.
type Broker struct {
	Addr string // as the constructors of clients take it
	// Cluster is that of this process, which keeps nothing; nil on Apache Kafka.
	Cluster *kfake.Cluster

	run  string
	ours bool // it is of .tools/engines; one test's own
}

// Each runs a test on a broker of this process and on Apache Kafka. The latter says that it
// was not run if there is none.
func Each(t *testing.T, test func(t *testing.T, b *Broker)) {
	t.Helper()
	t.Run("process", func(t *testing.T) { test(t, InProcess(t)) })
	t.Run("apache", func(t *testing.T) { test(t, Apache(t)) })
}

// InProcess starts a broker of the test's own in memory, with the declared topics.
func InProcess(t testing.TB) *Broker {
	t.Helper()
	// Members of a group that start together would otherwise wait for more of them.
	b := start(t, kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
	for _, topic := range kafka.Topics() {
		if err := b.Add(topic); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// Add makes a topic of brokers in the process, which may be there.
func (b *Broker) Add(t kafka.Topic) error {
	if len(b.Cluster.PartitionInfos(t.Name)) == int(t.Partitions) {
		return nil
	}
	return b.Cluster.CreateTopic(t.Name, t.Partitions, nil)
}

// Fake starts brokers in memory without topics, which do what a test tells them.
func Fake(t testing.TB) (*Broker, *kfake.Cluster) {
	t.Helper()
	b := start(t, kfake.NumBrokers(3))
	return b, b.Cluster
}

func start(t testing.TB, options ...kfake.Opt) *Broker {
	t.Helper()
	c, err := kfake.NewCluster(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &Broker{Addr: strings.Join(c.ListenAddrs(), ","), Cluster: c, run: newRun()}
}

// Apache is Apache Kafka with the declared topics; it skips the test if there is none.
func Apache(t testing.TB) *Broker {
	t.Helper()
	addr := os.Getenv(Variable)
	if addr == "" {
		t.Skip("not run: PARLEY_TEST_KAFKA is not set")
	}
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	return &Broker{Addr: addr, run: newRun()}
}

// apply makes the topics, once in a process.
var apply = sync.OnceValue(func() error {
	brokers := strings.Split(os.Getenv(Variable), ",")
	a, err := kafka.NewAdmin(kafka.Cluster{Brokers: brokers})
	if err != nil {
		return err
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err = a.Apply(ctx, int16(min(len(brokers), kafka.Replication)))
	return err
})

func newRun() string { return strings.ToLower(rand.Text()[:10]) }

// Name makes a name that no other test and no other run has.
func (b *Broker) Name(name string) string { return name + "-" + b.run }

// Forget removes the topics of Kafka whose names begin so: what an installation that is gone
// has left.
func Forget(t testing.TB, addr string, prefixes []string, options ...kgo.Opt) {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(addr, ",")...)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	admin := kadm.NewClient(c)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range topics.Names() {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	res, err := admin.DeleteTopics(ctx, names...)
	if err == nil {
		err = res.Error()
	}
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Fatalf("forget %v: %v", names, err)
	}
}

// Brokers is how many there are.
func (b *Broker) Brokers() int { return strings.Count(b.Addr, ",") + 1 }

// Client makes a client for what a test alone asks of a broker.
func (b *Broker) Client(t testing.TB, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(b.Addr, ",")...),
		kgo.MetadataMinAge(250 * time.Millisecond)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Mark is a position in each partition of some topics.
type Mark map[string]map[int32]kgo.Offset

// Mark returns where the topics end now, all declared ones if none is named.
func (b *Broker) Mark(t testing.TB, topics ...string) Mark {
	t.Helper()
	if len(topics) == 0 {
		for _, topic := range kafka.Topics() {
			topics = append(topics, topic.Name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	admin := kadm.NewClient(b.Client(t))
	ends, err := admin.ListCommittedOffsets(ctx, topics...)
	for ; ; ends, err = admin.ListCommittedOffsets(ctx, topics...) {
		if err == nil {
			err = ends.Error()
		}
		if err == nil {
			break
		}
		// Brokers do not know yet of a topic just made, or of its leader.
		if ctx.Err() != nil || !kerr.IsRetriable(err) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	m := Mark{}
	for topic, partitions := range ends.KOffsets() {
		m[topic] = partitions
	}
	return m
}

// Beginning is where all declared topics begin.
func Beginning() Mark {
	m := Mark{}
	for _, topic := range kafka.Topics() {
		m[topic.Name] = map[int32]kgo.Offset{}
		for p := range topic.Partitions {
			m[topic.Name][p] = kgo.NewOffset().AtStart()
		}
	}
	return m
}

// Read reads committed records from a position on, in the order of each partition,
// until each says that it has enough. It fails the test if they do not come.
func (b *Broker) Read(t testing.TB, from Mark, each func(r *kafka.Record) (enough bool)) {
	t.Helper()
	c := b.Client(t, kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100*time.Millisecond))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	n := 0
	for {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("no more came after %d records", n)
		}
		for it := fetches.RecordIter(); !it.Done(); n++ {
			if each(it.Next()) {
				return
			}
		}
	}
}

// Process is the name of a broker's process, for [Broker.Trouble].
func Process(id int32) string { return "kafka-" + strconv.Itoa(int(id)) }

// Trouble does something to one of Apache Kafka's processes: kill, freeze, thaw or start
// (.tools/engines). Processes that were killed or frozen run again when the test ends. It
// skips the test where the brokers are not of .tools/engines: others' are not ours to kill.
func (b *Broker) Trouble(t testing.TB, verb, process string) {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatalf("find the module: %v", err)
	}
	script := filepath.Join(strings.TrimSpace(string(module)), ".tools/engines")
	if !b.ours { // asked before the first trouble only: with a broker dead the script does not tell
		out, err := exec.Command(script, "env").Output()
		if err != nil || !strings.Contains(string(out), Variable+"="+b.Addr+"\n") {
			t.Skipf("the brokers at %s are not those of .tools/engines", b.Addr)
		}
		b.ours = true
	}
	if undo := map[string]string{"kill": "start", "freeze": "thaw"}[verb]; undo != "" {
		t.Cleanup(func() {
			if out, err := exec.Command(script, undo, process).CombinedOutput(); err != nil {
				t.Errorf("engines %s %s: %v %s", undo, process, err, out)
			}
		})
	}
	if out, err := exec.Command(script, verb, process).CombinedOutput(); err != nil {
		t.Fatalf("engines %s %s: %v %s", verb, process, err, out)
	}
}
