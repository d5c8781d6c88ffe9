// Package record says how a message looks as a record of Kafka, and which topic of Kafka
// holds those of a topic.
//
// It owns the names of headers and of topics; it reads and writes nothing. Concurrency: its
// functions have no state.
package record

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
)

// A message is a record with its payload as value, its key as key, and its headers. Fields
// that a record has no place for stand in headers of ours, before the others.
const (
	HeaderType          = "parley-type"
	HeaderCorrelationID = "parley-correlation-id"
	// HeaderProducer is ID/NUMBER. The stored numbers are in the slot's state; the header is
	// for people, and says for which group alone a message is.
	HeaderProducer = "parley-producer"
	// HeaderExpires is when the message ends, in milliseconds since 1970. A release that does not know it, or the
	// two others, shows it as a header of the message.
	HeaderExpires = "parley-expires-at"
	// HeaderDelivers is before when the message is not delivered, in milliseconds since 1970.
	HeaderDelivers = "parley-deliver-at"
	HeaderID       = "parley-deduplication-id"
)

// own are the names of the headers that are not the message's, where they come first.
var own = [...]string{HeaderType, HeaderCorrelationID, HeaderProducer, HeaderExpires, HeaderDelivers, HeaderID}

// Of makes the record of a message.
func Of(topic string, partition int32, at int64, m *commitlog.Message, p commitlog.Producer) *kafka.Record {
	r := &kafka.Record{Topic: topic, Partition: partition, Value: m.GetPayload(), Timestamp: time.UnixMilli(at)}
	if m.GetKey() != "" {
		r.Key = []byte(m.GetKey())
	}
	producer := ""
	if p.ID != "" {
		producer = fmt.Sprintf("%s/%d", p.ID, p.Number)
	}
	expires, delivers := stamp(commitlog.Expiry(m, at)*1000), stamp(commitlog.Delivery(m, at))
	for i, value := range [...]string{m.GetType(), m.GetCorrelationId(), producer, expires, delivers,
		m.GetDeduplicationId()} {
		// Also without a value if the message has a header of that name, which is the second.
		if _, same := m.GetHeaders()[own[i]]; same || value != "" {
			r.Headers = append(r.Headers, kafka.Header{Key: own[i], Value: []byte(value)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
		r.Headers = append(r.Headers, kafka.Header{Key: name, Value: []byte(m.GetHeaders()[name])})
	}
	return r
}

// Message makes the message of a record, ours or another producer's.
func Message(r *kafka.Record) *commitlog.Message {
	m := &commitlog.Message{Key: text(r.Key), Payload: r.Value}
	var seen [len(own)]bool
	for _, h := range r.Headers {
		if i := slices.Index(own[:], h.Key); i >= 0 && !seen[i] {
			seen[i] = true
			switch h.Key {
			case HeaderType:
				m.Type = text(h.Value)
			case HeaderCorrelationID:
				m.CorrelationId = text(h.Value)
			case HeaderExpires:
				m.ExpireTime = timeOf(h.Value)
			case HeaderDelivers:
				m.DeliverTime = timeOf(h.Value)
			case HeaderID:
				m.DeduplicationId = text(h.Value)
			}
			continue
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string, len(r.Headers))
		}
		m.Headers[text([]byte(h.Key))] = text(h.Value)
	}
	return m
}

// Producer returns the producer of a message that one group alone receives. For all others it
// is the zero one: those need no batch of their own.
func Producer(r *kafka.Record) commitlog.Producer {
	for _, h := range r.Headers {
		if h.Key != HeaderProducer { // the first is ours
			continue
		}
		at := bytes.LastIndexByte(h.Value, '/')
		if at < 0 {
			break
		}
		p := commitlog.Producer{ID: string(h.Value[:at])}
		n, err := strconv.ParseInt(string(h.Value[at+1:]), 10, 64)
		if p.Number = n; err != nil || p.Address() == "" {
			break
		}
		return p
	}
	return commitlog.Producer{}
}

// stamp is a time in ms as a header has it; empty for 0.
func stamp(ms int64) string {
	if ms == 0 {
		return ""
	}
	return strconv.FormatInt(ms, 10)
}

// timeOf reads a header that is a time. A text that is no time counts as none: other producers may have written it.
func timeOf(value []byte) *timestamppb.Timestamp {
	ms, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || ms <= 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(ms))
}

// text is what was written if it is text, and its hex digits otherwise.
func text(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return fmt.Sprintf("%x", b)
}

// Prefix begins the names of Kafka's topics that hold the messages of topics.
const Prefix = "parley.t."

// maxName is how long a name may be in Kafka.
const maxName = 249

// Name is the name of the topic of Kafka that holds a topic's messages. Kafka takes no two
// names that differ in dots and underscores only, and no long ones: names with an
// underscore, and long ones, get the hash of the name behind them.
func Name(topic string) string {
	if len(Prefix+topic) <= maxName && !strings.Contains(topic, "_") {
		return Prefix + topic
	}
	h := fnv.New64a()
	h.Write([]byte(topic)) // cannot fail
	hash := fmt.Sprintf(".%016x", h.Sum64())
	return Prefix + topic[:min(len(topic), maxName-len(Prefix)-len(hash))] + hash
}
