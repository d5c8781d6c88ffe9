package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/store/table"
)

// The topics of random logs.
const (
	chatsTopic = kafka.MessagesPersisted
	otherTopic = "search_click_v1"
)

var randomTopics = []kafka.Topic{
	{Name: chatsTopic, Partitions: 3, Kind: kafka.Chats}, {Name: otherTopic, Partitions: 2, Kind: kafka.Searches},
}

// broker is the one of the last release on a directory.
type broker struct {
	cluster *kfake.Cluster
	dir     string
	ends    map[kafka.Partition]int64 // when it had opened the files
}

// openBroker does what a start of the last release did: it checks and repairs the files, opens them, and
// ends the transactions that were left without an end.
func openBroker(dir string, marks map[kafka.Partition]logdir.Mark) (*broker, error) {
	var topics []logdir.Topic
	for _, t := range randomTopics {
		topics = append(topics, logdir.Topic{Name: t.Name, Partitions: t.Partitions})
	}
	report, err := logdir.Check(dir, topics, marks)
	if err == nil {
		err = report.Repair()
	}
	if err != nil {
		return nil, err
	}
	open, err := logdir.OpenTxns(dir)
	if err != nil {
		return nil, err
	}
	b := &broker{dir: dir, ends: map[kafka.Partition]int64{}}
	if b.cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("parley"), kfake.DataDir(dir),
		kfake.BrokerConfigs(map[string]string{"log.retention.ms": "-1", "log.retention.bytes": "-1",
			"log.segment.bytes": "3000", "group.initial.rebalance.delay.ms": "0"})); err != nil {
		return nil, err
	}
	for _, t := range randomTopics {
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			b.ends[kafka.Partition{Topic: t.Name, ID: p.Partition}] = p.HighWatermark
		}
		if len(b.cluster.PartitionInfos(t.Name)) == 0 {
			if err := b.cluster.CreateTopic(t.Name, t.Partitions, nil); err != nil {
				return nil, err
			}
		}
	}
	return b, b.abort(open)
}

func (b *broker) abort(list []logdir.Txn) error {
	if len(list) == 0 {
		return nil
	}
	c, err := b.client()
	if err != nil {
		return err
	}
	defer c.Close()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	for _, t := range list {
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch = t.Producer, t.Epoch
		m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: t.Topic, Partitions: []int32{t.ID}}}
		req.Markers = append(req.Markers, m)
	}
	_, err = c.SeedBrokers()[0].Request(context.Background(), req)
	return err
}

func (b *broker) client(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(more, kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))...)
}

// show reads what readers of committed records see, and what groups have committed.
func (b *broker) show(ctx context.Context) (released, error) {
	r := released{content: content{Partitions: map[string]*readPart{}}}
	for p, end := range b.ends {
		info := b.cluster.PartitionInfo(p.Topic, p.ID)
		if end == 0 {
			continue
		}
		part := &readPart{Start: info.LogStartOffset, End: end}
		r.Partitions[p.String()] = part
		if err := b.read(ctx, p, info, part); err != nil {
			return r, err
		}
	}
	for _, g := range groupNames {
		info := b.cluster.GroupInfo(g)
		if info == nil {
			continue
		}
		for topic, partitions := range info.Commits {
			for id, c := range partitions {
				// A commit beyond the end is set back to it; a partition without one would begin again.
				if end := b.ends[kafka.Partition{Topic: topic, ID: id}]; end > 0 {
					r.Offsets = append(r.Offsets, committed{g, topic, id, min(c.Offset, end), -1, c.Metadata})
				}
			}
		}
	}
	return r, nil
}

func (b *broker) read(ctx context.Context, p kafka.Partition, info *kfake.PartitionInfo, part *readPart) error {
	if info.LogStartOffset >= info.HighWatermark {
		return nil
	}
	c, err := b.client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.Topic: {p.ID: kgo.NewOffset().At(info.LogStartOffset)}}))
	if err != nil {
		return err
	}
	defer c.Close()
	for end := false; !end; {
		fetches := c.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end = end || r.Offset >= info.HighWatermark-1
			if r.Attrs.IsControl() {
				return
			}
			s := seen{Offset: r.Offset, Time: r.Timestamp.UnixMilli(), Key: short(r.Key), Value: short(r.Value)}
			for _, h := range r.Headers {
				s.Headers = append(s.Headers, [2]*[]byte{short([]byte(h.Key)), short(h.Value)})
			}
			part.Records = append(part.Records, s)
		})
	}
	return nil
}

var groupNames = []string{"reader", "sink"}

// sample is an event of a chat; the same for the same chat and version.
func sample(chat string, version int64) table.Event {
	e := &eventv1.MessagePersisted{ChatId: chat, Content: strings.Repeat("text ", int(version%30)),
		Metadata: &eventv1.EventMetadata{EventId: fmt.Sprintf("evt_%s_%d", chat, version), Version: version,
			EventType: event.TypeMessagePersisted, Generation: generationOf(version),
			EventTime: timestamppb.New(time.UnixMilli(version))}}
	payload, err := event.Marshal(e)
	if err != nil {
		panic(err)
	}
	return table.Event{ChatID: chat, Version: version, EventID: e.GetMetadata().GetEventId(),
		Type: event.TypeMessagePersisted, Payload: payload}
}

// generationOf is the generation of a version; some have none.
func generationOf(version int64) string {
	if version%5 == 0 {
		return ""
	}
	return "generation"
}

// chats are those of random logs; versions count up to [versionsOfChat].
const (
	chats          = 4
	versionsOfChat = 100
)

func chatOf(n int) string { return fmt.Sprint("chat_", n) }

// writer fills a log at random.
type writer struct {
	*broker
	rng   *rand.Rand
	plain *kgo.Client
	clock int64
}

// writeUntilKilled writes to the log of a directory, a line for each step, until it is killed or has done
// so many steps; then it closes the log.
func writeUntilKilled(dir string, seed uint64, steps int) error {
	b, err := openBroker(dir, nil)
	if err != nil {
		return err
	}
	w := &writer{broker: b, rng: rand.New(rand.NewPCG(seed, 1)), clock: 1_700_000_000_000}
	if w.plain, err = b.client(); err != nil {
		return err
	}
	for n := range steps {
		if err := w.step(context.Background()); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		fmt.Println(n)
	}
	w.plain.Close()
	b.cluster.Close()
	return nil
}

func (w *writer) step(ctx context.Context) error {
	switch w.rng.IntN(12) {
	case 0:
		return w.trim()
	case 1:
		var os kadm.Offsets
		p := w.partition()
		os.Add(kadm.Offset{Topic: p.Topic, Partition: p.ID, At: w.rng.Int64N(50), LeaderEpoch: -1,
			Metadata: strings.Repeat("m", w.rng.IntN(3))})
		return kadm.NewClient(w.plain).CommitAllOffsets(ctx, groupNames[w.rng.IntN(len(groupNames))], os)
	case 2, 3, 4, 5, 6:
		return w.transaction(ctx)
	}
	return w.plain.ProduceSync(ctx, w.records(w.partition())...).FirstErr()
}

func (w *writer) partition() kafka.Partition {
	t := randomTopics[w.rng.IntN(len(randomTopics))]
	return kafka.Partition{Topic: t.Name, ID: w.rng.Int32N(t.Partitions)}
}

// transaction commits, aborts, or leaves a transaction without an end, which the next one of its id aborts.
func (w *writer) transaction(ctx context.Context) error {
	c, err := w.client(kgo.TransactionalID(fmt.Sprint("t", w.rng.IntN(3))))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.BeginTransaction(); err != nil {
		return err
	}
	for range 1 + w.rng.IntN(3) {
		if err := c.ProduceSync(ctx, w.records(w.partition())...).FirstErr(); err != nil {
			return err
		}
	}
	switch w.rng.IntN(4) {
	case 0:
		return c.EndTransaction(ctx, kgo.TryAbort)
	case 1:
		return nil
	}
	return c.EndTransaction(ctx, kgo.TryCommit)
}

// trim removes the first records of a partition.
func (w *writer) trim() error {
	p := w.partition()
	info := w.cluster.PartitionInfo(p.Topic, p.ID)
	if n := info.HighWatermark - info.LogStartOffset; n > 0 {
		return w.cluster.DeleteRecords(p.Topic, p.ID, info.LogStartOffset+w.rng.Int64N(n))
	}
	return nil
}

func (w *writer) records(p kafka.Partition) (list []*kgo.Record) {
	for range 1 + w.rng.IntN(4) {
		w.clock += w.rng.Int64N(5) - 1
		r := &kgo.Record{Topic: p.Topic, Partition: p.ID, Timestamp: time.UnixMilli(w.clock)}
		if w.rng.IntN(4) > 0 {
			w.event(r)
		} else {
			r.Value = []byte(strings.Repeat("other ", w.rng.IntN(200)))
			r.Headers = []kgo.RecordHeader{{Key: "h"}, {Key: "h", Value: []byte{}}, {Key: "g", Value: []byte{0xff}}}
		}
		list = append(list, r)
	}
	return list
}

func (w *writer) event(r *kgo.Record) {
	e := sample(chatOf(w.rng.IntN(chats)), 1+w.rng.Int64N(versionsOfChat))
	value, err := event.Frame(4, e.Payload)
	if err != nil {
		panic(err)
	}
	r.Key, r.Value = []byte(e.ChatID), value
	r.Headers = []kgo.RecordHeader{
		{Key: kafka.HeaderEventID, Value: []byte(e.EventID)}, {Key: kafka.HeaderEventType, Value: []byte(e.Type)},
		{Key: kafka.HeaderGeneration, Value: []byte(generationOf(e.Version))},
		{Key: kafka.HeaderPublished, Value: fmt.Append(nil, "generation ", w.rng.IntN(2))},
	}
	if h := &r.Headers[2]; len(h.Value) == 0 && w.rng.IntN(2) == 0 {
		h.Value = nil // null is not empty
	}
	if w.rng.IntN(10) == 0 { // as an earlier release published it
		r.Headers = r.Headers[:2]
	}
}

// childDir tells this binary to be the process that is killed, and where its log is; childSeed and
// childSteps are numbers.
const (
	childDir   = "PARLEY_UPGRADE_CHILD"
	childSeed  = "PARLEY_UPGRADE_SEED"
	childSteps = "PARLEY_UPGRADE_STEPS"
)

func runChild() {
	var seed uint64
	var steps int
	if _, err := fmt.Sscan(os.Getenv(childSeed)+" "+os.Getenv(childSteps), &seed, &steps); err != nil {
		panic(err)
	}
	if err := writeUntilKilled(os.Getenv(childDir), seed, steps); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
