package topicstore

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

// producersStay is how long producers are remembered after all that they published was
// trimmed.
const producersStay = 24 * time.Hour

// removeTimeout bounds a removal from Kafka. Callers of Trim hold the topic's lock meanwhile, and give groups in order
// of key nothing of the partition; a leader that hangs must not stop them.
const removeTimeout = 5 * time.Second

// Trim implements commitlog.Log. The new start is stored before anything is removed: see the
// package. Messages that cannot be removed now are removed with a later trim.
func (l *Log) Trim(ctx context.Context, p commitlog.Partition, before int64) (int64, error) {
	start, end, err := l.Bounds(ctx, p)
	if before = min(before, end); err != nil || before <= start {
		return start, err
	}
	if err := l.await(ctx, p); err != nil {
		return start, err
	}
	s := newSubmission(nil)
	s.state = []*kafka.Record{l.stateRecord(state.StartKey(p), state.Start(before))}
	s.part, s.start = p, before
	oldest := l.cfg.Clock().Add(-producersStay).UnixMilli()
	s.gone = func(k state.Key, w *producers.Window) bool {
		last := w.Last()
		return k.Partition == p && last.Base+int64(last.Count) <= before && last.Time < oldest
	}
	// The caller must learn the outcome, or it would continue with positions that are gone.
	if err := l.submit(context.WithoutCancel(ctx), s); err != nil {
		return start, err
	}
	if err := l.step("start"); err != nil {
		return start, l.fatal(err)
	}
	l.remove(ctx)
	return before, nil
}

// started is where a partition begins, as far as it was trimmed by this log or an earlier
// owner's.
func (l *Log) started(p commitlog.Partition) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.Starts[p]
}

// remove removes from Kafka the records that were trimmed and are still there. A removal that
// fails waits for the next trim, because no reader needs these records.
func (l *Log) remove(ctx context.Context) {
	l.mu.Lock()
	list := l.trimmed
	l.trimmed = map[commitlog.Partition]int64{}
	offsets := kadm.Offsets{}
	for p, before := range list {
		if t, ok := l.memory.Topics[p.Topic]; ok {
			offsets.AddOffset(t.Name, p.Number, before, -1)
		} else {
			delete(list, p)
		}
	}
	names := make(map[commitlog.Partition]string, len(list))
	for p := range list {
		names[p] = l.memory.Topics[p.Topic].Name
	}
	l.mu.Unlock()
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	res, err := l.admin.DeleteRecords(ctx, offsets)
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, before := range list {
		r, ok := res.Lookup(names[p], p.Number)
		if err == nil && ok && r.Err == nil {
			continue
		}
		if _, there := l.memory.Topics[p.Topic]; there {
			l.trimmed[p] = max(l.trimmed[p], before)
		}
		l.cfg.Counters.RemovalsFailed.Add(1)
		failed := err
		if failed == nil {
			failed = r.Err
		}
		l.cfg.Logger.Warn("what was trimmed cannot be removed from Kafka, trying again with the next trim",
			"topic", names[p], "partition", p.Number, "before", before, "error", failed)
	}
}
