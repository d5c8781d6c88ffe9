package inspect_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/kafka/topicstore/inspect"
)

// What a log has made is shown, with what somebody has set since.
func TestTopics(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	client := b.Client(t)
	if slots, err := inspect.Slots(t.Context(), b.Addr); err != nil || slots != nil {
		t.Fatal(slots, err)
	}
	if list, err := inspect.Topics(t.Context(), client); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
	l, err := topicstore.Open(t.Context(), topicstore.Config{Addr: b.Addr, Slots: 16, Replication: 3, Installation: "one",
		Clock: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	orders := commitlog.Topic{Number: 1, Name: "orders", Partitions: 2, Retention: time.Hour}
	if err := l.Create(t.Context(), orders); err != nil {
		t.Fatal(err)
	}
	_, err = l.Append(t.Context(), []commitlog.Append{{Partition: commitlog.Partition{Topic: 1, Number: 1},
		Messages: []*commitlog.Message{{}, {}, {}}}})
	if err != nil {
		t.Fatal(err)
	}
	slots := testkit.Value(inspect.Slots(t.Context(), b.Addr))(t)
	testkit.Equal(t, "slots", len(slots), 16)
	testkit.Equal(t, "the first slot", slots[0],
		inspect.Slot{Installation: "one", Logs: map[uint64]string{1: "parley.t.orders"}})
	testkit.Equal(t, "a slot that no server has had", slots[1], inspect.Slot{Logs: map[uint64]string{}})
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "other"); err != nil {
		t.Fatal(err)
	}
	show := func() string {
		list, err := inspect.Topics(t.Context(), b.Client(t)) // clients remember which topics there are
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, x := range list {
			lines = append(lines, fmt.Sprintf("%s %d %d %d %s %v", x.Name, x.Partitions, x.Replicas, x.Records, x.Retention,
				x.Problems))
		}
		return strings.Join(lines, "\n")
	}
	got := show()
	if !strings.HasPrefix(got, "parley.t.orders 2 3 4 3600000 []\nparley.topics.state 16 3 ") ||
		!strings.HasSuffix(got, "[]") || strings.Contains(got, "other") {
		t.Error(got)
	}
	weak := "compact"
	if _, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "cleanup.policy", Value: &weak}},
		"parley.t.orders"); err != nil {
		t.Fatal(err)
	}
	if got := show(); !strings.Contains(got, "[cleanup.policy is compact, not delete: messages may be lost]") {
		t.Error(got)
	}
}
