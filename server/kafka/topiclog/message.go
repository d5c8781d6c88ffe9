package topiclog

import (
	"fmt"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// batches makes batches of what was read from a position on: of records whose offsets follow
// each other and that have the same time and producer.
func (l *Log) batches(p commitlog.Partition, from int64, records []*kgo.Record) ([]*commitlog.Batch, error) {
	var list []*commitlog.Batch
	for len(records) > 0 {
		first, n, size := records[0], 0, 0
		producer := l.cfg.Producer(first)
		var messages []*commitlog.Message
		for ; n < len(records) && n < commitlog.MaxMessages; n++ {
			r := records[n]
			if r.Offset != first.Offset+int64(n) || !r.Timestamp.Equal(first.Timestamp) ||
				(n > 0 && l.cfg.Producer(r) != producer) {
				break
			}
			m := l.cfg.Message(r)
			if size += proto.Size(m); n > 0 && size > commitlog.MaxBatchBytes/2 {
				break
			}
			messages = append(messages, m)
		}
		b, err := commitlog.NewBatch(first.Offset, first.Timestamp, messages)
		switch {
		case err != nil && len(list) > 0:
			return list, nil // the next call's
		case err != nil:
			return nil, &commitlog.CorruptError{Partition: p, From: from, To: first.Offset + int64(n),
				Cause: fmt.Errorf("%w: %w", store.ErrCorrupt, err)}
		}
		b.Gap, b.Producer, from = b.Base-from, producer, b.End()
		list, records = append(list, b), records[n:]
	}
	return list, nil
}

// message is a record as a message: the type of an event is its type, other headers are
// headers, if they are text.
func message(r *kgo.Record) *commitlog.Message {
	m := &commitlog.Message{Key: text(r.Key), Payload: r.Value}
	for _, h := range r.Headers {
		if h.Key == kafka.HeaderEventType {
			m.Type = text(h.Value)
			continue
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string, len(r.Headers))
		}
		m.Headers[text([]byte(h.Key))] = text(h.Value)
	}
	return m
}

// text is what was written if it is text, and its hex digits otherwise.
func text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return fmt.Sprintf("%x", b)
}
