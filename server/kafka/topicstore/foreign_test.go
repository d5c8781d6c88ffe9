package topicstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

// Messages of a topic that another installation has in the same Kafka under a number are not
// taken for those of a topic that got the number later.
func TestNumberOfAnotherInstallation(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	one := open(t, b, 0, time.Now)
	if err := one.Create(t.Context(), commitlog.Topic{Number: 7, Name: "theirs", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	one.Close()
	two := open(t, b, 0, time.Now)
	err := two.Create(t.Context(), commitlog.Topic{Number: 7, Name: "ours", Partitions: 1})
	if !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("a number that is another topic's: %v", err)
	}
	if err := two.Create(t.Context(), commitlog.Topic{Number: 7, Name: "theirs", Partitions: 1}); err != nil {
		t.Errorf("the topic itself: %v", err)
	}
}

// What belongs to an installation is refused to another one, which fences nobody, at its start
// and when it opens a slot.
func TestAnotherInstallation(t *testing.T) { each(t, testAnotherInstallation) }

func testAnotherInstallation(t *testing.T, b *kafkatest.Broker) {
	ours, theirs := open(t, b, 5, time.Now), config(b, 5, time.Now)
	theirs.Installation = "theirs"
	if err := topicstore.Check(t.Context(), config(b, 5, time.Now)); err != nil {
		t.Errorf("our own: %v", err)
	}
	if err := topicstore.Check(t.Context(), theirs); !errors.Is(err, topicstore.ErrForeign) {
		t.Errorf("another one's start: %v", err)
	}
	l, err := topicstore.Open(t.Context(), theirs)
	if !errors.Is(err, topicstore.ErrForeign) {
		t.Errorf("another one opens the slot: %v", err)
	}
	if err == nil {
		l.Close()
	}
	select {
	case <-ours.Fenced():
		t.Error("we are fenced")
	default:
	}
	again := open(t, b, 5, time.Now) // for us it is as it was
	again.Close()
}

// The id of the installation counts also where it stands behind other records.
func TestLateClaim(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	open(t, b, 0, time.Now) // makes the topic
	c := b.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	r := &kgo.Record{Topic: state.Name, Partition: 5, Key: state.TopicKey(7), Value: []byte(`{"topic":"parley.t.x"}`)}
	if err := c.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	open(t, b, 5, time.Now)
	theirs := config(b, 5, time.Now)
	theirs.Installation = "theirs"
	if _, err := topicstore.Open(t.Context(), theirs); !errors.Is(err, topicstore.ErrForeign) {
		t.Errorf("another one opens the slot: %v", err)
	}
}

// A Kafka that has no topics yet is anybody's.
func TestNobodysKafka(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	if err := topicstore.Check(t.Context(), config(b, 0, time.Now)); err != nil {
		t.Error(err)
	}
}
