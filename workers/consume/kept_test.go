package consume

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Partitions that wait for their retry keep at most 8 MiB of records together. One that exceeds
// this keeps none: they are fetched again from the record that waits. The others keep theirs.
func TestWaitingBytesAreBounded(t *testing.T) {
	e, err := New(Config{
		Addr: "-", Group: "g", Topics: []string{topic}, Store: storetest.NewMemory(time.Now), Clock: time.Now,
		Logger:          slog.New(slog.DiscardHandler),
		Handle:          func(context.Context, *kafka.Record) error { return nil },
		WriteDeadLetter: func(context.Context, DeadLetter) error { return nil },
	})
	testkit.Must(t, err)
	s, err := kafka.NewSession(kafka.SessionConfig{Addr: "127.0.0.1:1", Group: "g", Topics: []string{topic},
		Assigned: func([]kafka.Partition) {}, Gone: func([]kafka.Partition, bool) {}})
	testkit.Must(t, err)
	defer s.Close()
	const parts, records = 12, 10
	value := make([]byte, 100_000) // 12 partitions would keep 12 MB
	for p := range int32(parts) {
		b := kafka.Batch{End: records}
		for i := range int64(records) {
			b.Records = append(b.Records, &kafka.Record{Topic: topic, Partition: p, Offset: i, Value: value})
		}
		e.add(map[kafka.Partition]kafka.Batch{{Topic: topic, ID: p}: b})
	}
	for _, po := range e.takeRound() {
		e.pause(s, po, 0)
	}
	kept, whole := 0, 0
	for _, p := range e.current() {
		size := 0
		for _, r := range p.buffer.records {
			size += len(r.Value)
		}
		if !p.buffer.backingOff || !p.buffer.paused {
			t.Errorf("partition %d does not wait", p.id.ID)
		}
		if size != 0 && size != records*len(value) {
			t.Errorf("partition %d keeps %d bytes, want all of its records or none", p.id.ID, size)
		}
		if kept += size; size > 0 {
			whole++
		}
	}
	if kept > 8<<20 || whole != 8 {
		t.Errorf("%d bytes of %d partitions are kept, want 8 partitions within 8 MiB", kept, whole)
	}
}
