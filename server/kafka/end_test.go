package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// slow is a partitioner that lets a client wait with its metadata in hand.
type slow struct{ release chan struct{} }

func (s slow) ForTopic(string) kgo.TopicPartitioner { return s }

func (slow) RequiresConsistency(*kgo.Record) bool { return true }

func (s slow) Partition(r *kgo.Record, _ int) int {
	if string(r.Value) == "late" {
		<-s.release
		return -1 // refused
	}
	return 1
}

// What is acknowledged in a topic before the client has stored the topic's metadata is
// committed all the same.
func TestFirstRecordsOfATopicAreCommitted(t *testing.T) {
	t.Parallel()
	addr := strings.Join(cluster(t, nil).ListenAddrs(), ",")
	s := slow{release: make(chan struct{})}
	c, err := kgo.NewClient(seeds(addr), kgo.TransactionalID("first"), kgo.RecordPartitioner(s), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	testkit.Must(t, c.BeginTransaction())
	acknowledged, refused := make(chan error, 1), make(chan error, 1)
	r := &Record{Topic: ChatsCreated, Value: []byte("first")}
	c.Produce(t.Context(), r, func(_ *Record, err error) { acknowledged <- err })
	c.Produce(t.Context(), &Record{Topic: ChatsCreated, Value: []byte("late")},
		func(_ *Record, err error) { refused <- err })
	testkit.Must(t, <-acknowledged)
	time.AfterFunc(100*time.Millisecond, func() { close(s.release) })
	testkit.Must(t, EndTransaction(limited(t), c, []*Record{r}, true))
	if err := <-refused; err == nil {
		t.Error("the second record is there")
	}
	reader, err := kgo.NewClient(seeds(addr), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{ChatsCreated: {1: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ends, err := kadm.NewClient(reader).ListCommittedOffsets(t.Context(), ChatsCreated)
	testkit.Must(t, err)
	if at, _ := ends.Lookup(ChatsCreated, 1); at.Offset != 2 {
		t.Fatalf("what is committed ends at %d, want 2: the record and the end of its transaction", at.Offset)
	}
	if got := reader.PollFetches(limited(t)).Records(); len(got) != 1 || string(got[0].Value) != "first" {
		t.Errorf("readers of committed records get %v", got)
	}
}
