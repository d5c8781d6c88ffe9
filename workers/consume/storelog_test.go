package consume

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/eventlog/session"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// storeLog is the event log in a store, with committed offsets in rows of it.
type storeLog struct {
	*eventlog.Log
	store store.Store
}

func openStoreLog(ctx context.Context, s store.Store, logs store.Records) (*storeLog, error) {
	l, err := eventlog.Open(ctx, eventlog.Config{Store: s, Log: commitlog.NewLocal(logs, time.Now), Generation: "g",
		MaxBytes: 1 << 30})
	if err != nil {
		return nil, err
	}
	return &storeLog{l, s}, nil
}

// newStoreLog is a log of the test's own, on a disk in memory.
func newStoreLog(t testing.TB) *storeLog {
	t.Helper()
	s := embeddedtest.NewDisk(nil).Open(t, nil)
	return testkit.Value(openStoreLog(t.Context(), s, records.Of(s)))(t)
}

// join implements Config.Join.
func (l *storeLog) join(cfg kafka.SessionConfig) (Session, error) {
	return session.Join(l, l, cfg), nil
}

// publish appends records and sets their offsets.
func (l *storeLog) publish(ctx context.Context, list ...*kafka.Record) error {
	return l.Publish(ctx, []eventlog.Publication{{Records: list}})
}

func offsetKey(group string, p kafka.Partition) store.Key {
	return store.Key{Table: store.Projections, PK: "offsets of " + group, SK: fmt.Sprint(p.Topic, "/", p.ID)}
}

func (l *storeLog) Committed(ctx context.Context, group string) (map[kafka.Partition]int64, error) {
	offsets := map[kafka.Partition]int64{}
	q := store.Query{Table: store.Projections, PK: offsetKey(group, kafka.Partition{}).PK, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, l.store, q) {
		if err != nil {
			return nil, err
		}
		topic, number, _ := strings.Cut(row.Key.SK, "/")
		id, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return nil, err
		}
		offsets[kafka.Partition{Topic: topic, ID: int32(id)}] = row.Item.Get("next").Int64()
	}
	return offsets, nil
}

func (l *storeLog) Commit(ctx context.Context, group string, next map[kafka.Partition]int64) error {
	var writes []store.Write
	for p, offset := range next {
		writes = append(writes, store.Write{Op: store.OpPut, Key: offsetKey(group, p),
			Item: store.NewItem(store.Attr{Name: "next", Value: store.Int(offset)})})
	}
	return l.store.BatchWrite(ctx, writes)
}

// read reads a topic from its start, until each says that it has enough.
func (l *storeLog) read(t testing.TB, topic string, each func(*kafka.Record) (enough bool)) {
	t.Helper()
	next := make([]int64, kafka.Partitions(topic))
	testkit.Eventually(t, "enough records of "+topic, func() bool {
		for id := range next {
			p := kafka.Partition{Topic: topic, ID: int32(id)}
			for {
				list := testkit.Value(l.Read(t.Context(), p, next[id], 1<<20))(t)
				if len(list) == 0 {
					break
				}
				for _, r := range list {
					if next[id] = r.Offset + 1; each(r) {
						return true
					}
				}
			}
		}
		return false
	})
}

// deadLetters writes dead letters to their topic.
func (r *fixture) deadLetters() func(context.Context, DeadLetter) error {
	frame := func(b []byte) ([]byte, error) { return event.Frame(1, b) }
	if r.log != nil {
		return Writer(func(ctx context.Context, rec *kafka.Record) error { return r.log.publish(ctx, rec) }, frame)
	}
	c := testkit.Value(kafka.NewProducer(r.addr))(r.t)
	r.t.Cleanup(c.Close)
	return Publisher(c, frame)
}

// readDeadLetters reads the topic of dead letters until each says that it has enough.
func (r *fixture) readDeadLetters(from kafkatest.Mark, each func(*kafka.Record) (enough bool)) {
	r.t.Helper()
	if r.log != nil {
		r.log.read(r.t, kafka.DeadLetters, each)
		return
	}
	r.broker.Read(r.t, from, each)
}
