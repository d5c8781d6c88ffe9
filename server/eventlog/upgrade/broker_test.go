package upgrade_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/logdir/oldbroker"
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

// openOld opens a log of random topics as the last release did, with small segments.
func openOld(dir string, marks map[kafka.Partition]logdir.Mark) (*oldbroker.Broker, error) {
	return oldbroker.Open(oldbroker.Config{Dir: dir, Topics: oldTopics(), SegmentBytes: 3_000, Marks: marks})
}

func oldTopics() (list []logdir.Topic) {
	for _, t := range randomTopics {
		list = append(list, logdir.Topic{Name: t.Name, Partitions: t.Partitions})
	}
	return list
}

// show reads what readers of committed records see, and what groups have committed.
func show(ctx context.Context, b *oldbroker.Broker) (released, error) {
	r := released{content: content{Partitions: map[string]*readPart{}}}
	for p, end := range b.Ends {
		info := b.Cluster.PartitionInfo(p.Topic, p.ID)
		if end == 0 {
			continue
		}
		part := &readPart{Start: info.LogStartOffset, End: end}
		r.Partitions[p.String()] = part
		if err := b.Read(ctx, p, func(r *kgo.Record) {
			s := seen{Offset: r.Offset, Time: r.Timestamp.UnixMilli(), Key: short(r.Key), Value: short(r.Value)}
			for _, h := range r.Headers {
				s.Headers = append(s.Headers, [2]*[]byte{short([]byte(h.Key)), short(h.Value)})
			}
			part.Records = append(part.Records, s)
		}); err != nil {
			return r, err
		}
	}
	for _, g := range groupNames {
		info := b.Cluster.GroupInfo(g)
		if info == nil {
			continue
		}
		for topic, partitions := range info.Commits {
			for id, c := range partitions {
				// A commit beyond the end is set back to it; a partition without one would begin again.
				if end := b.Ends[kafka.Partition{Topic: topic, ID: id}]; end > 0 {
					r.Offsets = append(r.Offsets, committed{g, topic, id, min(c.Offset, end), -1, c.Metadata})
				}
			}
		}
	}
	return r, nil
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
	*oldbroker.Broker
	rng   *rand.Rand
	plain *kgo.Client
	clock int64
}

// writeUntilKilled writes to the log of a directory, a line for each step, until it is killed or has done
// so many steps; then it closes the log.
func writeUntilKilled(dir string, seed uint64, steps int) error {
	b, err := openOld(dir, nil)
	if err != nil {
		return err
	}
	w := &writer{Broker: b, rng: rand.New(rand.NewPCG(seed, 1)), clock: 1_700_000_000_000}
	if w.plain, err = b.Client(); err != nil {
		return err
	}
	for n := range steps {
		if err := w.step(context.Background()); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		fmt.Println(n)
	}
	w.plain.Close()
	b.Close()
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
	c, err := w.Client(kgo.TransactionalID(fmt.Sprint("t", w.rng.IntN(3))))
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
	info := w.Cluster.PartitionInfo(p.Topic, p.ID)
	if n := info.HighWatermark - info.LogStartOffset; n > 0 {
		return w.Cluster.DeleteRecords(p.Topic, p.ID, info.LogStartOffset+w.rng.Int64N(n))
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
