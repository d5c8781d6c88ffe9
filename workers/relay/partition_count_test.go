package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/workers/relay/partitioncount"
)

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// K-045: somebody adds partitions to a topic while the relay runs. Nothing more is published
// there, and an error is logged once; topics with their declared numbers continue. When the
// topic has its declared number again, that is logged, and publishing resumes.
func TestPartitionsAreAddedMeanwhile(t *testing.T) {
	b := kafkatest.InProcess(t)
	r := newFixture(t)
	var log lockedBuffer
	w := partitioncount.New(b.Addr, slog.New(slog.NewTextHandler(&log, nil)),
		func() versions.State { return versions.State{} })
	re := r.onKafka(b, "counted", func(c *Config, _ *kafka.Client) { c.Publish = w.Guard(c.Publish) })
	cycle := func() {
		t.Helper()
		for range 5 {
			r.now = r.now.Add(2 * time.Minute) // what was skipped is due again
			r.must(re.Cycle(r.ctx))
		}
	}
	old := r.group()
	r.send(old)
	r.must(w.Check(r.ctx))
	cycle()
	if re.Stats().Published != 3 || w.Repartitioned() != 0 { // chats.created, memberships.changed, messages.persisted
		t.Fatalf("%+v and %d repartitioned topics, expected 3 published and none", re.Stats(), w.Repartitioned())
	}
	c, err := kafka.NewProducer(b.Addr)
	r.must(err)
	defer c.Close()
	admin := kadm.NewClient(c)
	res, err := admin.CreatePartitions(r.ctx, 1, kafka.MessagesPersisted)
	if err == nil {
		err = res.Error()
	}
	r.must(err)
	for range 3 {
		r.must(w.Check(r.ctx))
	}
	ends := func() (n int64) {
		t.Helper()
		list, err := admin.ListEndOffsets(r.ctx, kafka.MessagesPersisted)
		r.must(err)
		list.Each(func(o kadm.ListedOffset) { n += o.Offset })
		return n
	}
	before := ends()
	r.send(old)
	r.group()
	cycle()
	if got := re.Stats(); got.Published != 5 || got.Unavailable != 1 || ends() != before {
		t.Errorf("%+v, expected 5 published and 1 unavailable; the topic grew by %d, expected 0", got, ends()-before)
	}
	if w.Repartitioned() != 1 || strings.Count(log.String(), "level=ERROR") != 1 ||
		!strings.Contains(log.String(), "another number of partitions") ||
		!strings.Contains(log.String(), "topic=messages.persisted partitions=65 declared=64") {
		t.Errorf("%d repartitioned topics, expected 1, logged once as an error: %s", w.Repartitioned(), log.String())
	}
	// It is deleted and created again as declared.
	if _, err := admin.DeleteTopics(r.ctx, kafka.MessagesPersisted); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTopics(r.ctx, 64, 1, nil, kafka.MessagesPersisted); err != nil {
		t.Fatal(err)
	}
	r.must(w.Check(r.ctx))
	if w.Repartitioned() != 0 || strings.Count(log.String(), "its declared number of partitions again") != 1 {
		t.Errorf("%d repartitioned topics, expected 0, logged once: %s", w.Repartitioned(), log.String())
	}
}
