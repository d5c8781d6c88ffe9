package topicstore_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

func config(b *kafkatest.Broker, slot int, now func() time.Time) topicstore.Config {
	return topicstore.Config{Addr: b.Addr, Slot: slot, Slots: 16, Installation: "test",
		Replication: int16(min(b.Brokers(), 3)), Clock: now, Logger: slog.New(slog.DiscardHandler)}
}

func open(t testing.TB, b *kafkatest.Broker, slot int, now func() time.Time) *topicstore.Log {
	t.Helper()
	l, err := topicstore.Open(t.Context(), config(b, slot, now))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// each runs a test on brokers in memory and on Apache Kafka.
func each(t *testing.T, test func(t *testing.T, b *kafkatest.Broker)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		b, _ := kafkatest.Fake(t)
		test(t, b)
	})
	t.Run("apache", func(t *testing.T) { test(t, apache(t)) })
}

// apache is Apache Kafka, with the topics of earlier tests of this process and of nobody else.
func apache(t testing.TB) *kafkatest.Broker {
	t.Helper()
	b := kafkatest.Apache(t)
	forget.Do(func() { kafkatest.Forget(t, b.Addr, []string{state.Name, record.Prefix}) })
	return b
}

var forget sync.Once

func TestContract(t *testing.T) { // HQ-B01, HQ-B13, HQ-B15, HQ-R7
	each(t, func(t *testing.T, b *kafkatest.Broker) {
		commitlogtest.Sparse(t, func(t *testing.T, now func() time.Time) commitlog.Log {
			l := open(t, b, 3, now)
			for number := uint64(6); number <= 8; number++ { // what another test has left
				if err := l.Delete(t.Context(), number); err != nil {
					t.Fatal(err)
				}
			}
			return l
		})
	})
}

// The rights of servers are about what they use.
func TestRightsAreAboutTheseNames(t *testing.T) {
	if !strings.HasPrefix(record.Name("orders"), acl.TopicMessages) || state.Name != acl.TopicState ||
		topicstore.Transactions != acl.TopicTransactions || !strings.HasPrefix(topicstore.Group("t", "g"), acl.TopicGroups) {
		t.Error("the table of rights has other names")
	}
}

// Names that Kafka does not take, or not beside each other, are told apart by a hash.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 255)
	seen := map[string]string{}
	for _, topic := range []string{"orders", "orders.dlq", "a.b", "a_b", "a-b", "a_b.c", "a.b_c",
		long, long[:254] + "y", long[:241]} {
		name := record.Name(topic)
		folded := strings.ReplaceAll(name, ".", "_") // as Kafka compares
		if other, same := seen[folded]; same || len(name) > 249 {
			t.Errorf("%s is %s, with %d bytes, like %s", topic, name, len(name), other)
		}
		seen[folded] = topic
	}
	if name := record.Name("orders"); name != "parley.t.orders" {
		t.Errorf("orders is %s", name)
	}
}
