package topic

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Bounds of a request of Publish.
const (
	maxRequestMessages = 1000
	maxRequestBytes    = 3_900_000 // of 4 MB, so that names and numbers have room
)

// Result is where a message stands.
type Result = topicv1.PublishResult

// entry is a message that waits until it is stored.
type entry struct {
	message *Message
	size    int
	done    func(*Result, error)
}

func newEntry(m *Message, done func(*Result, error)) *entry {
	return &entry{message: m, size: 1 + protowire.SizeBytes(proto.Size(m)), done: done}
}

func (e *entry) hasID() bool { return e.message.GetDeduplicationId() != "" }

// request is repeated until it is answered. It has a number, or its messages have ids.
type request struct {
	number  int64 // 0: none
	entries []*entry
}

// uncertain reports whether the server may have forgotten the ids of a request that was sent first so long ago: it
// knows them for five minutes.
func (r *request) uncertain(age time.Duration) bool { return r.number == 0 && age > 4*time.Minute }

// buffer has the messages that are not stored yet, in order, and cuts requests from them.
// It does no I/O and is guarded by its owner.
type buffer struct {
	maxMessages, maxBytes int
	waiting               []*entry
	messages, bytes       int   // of waiting, and of the request under way
	number                int64 // of the next request
}

// hasRoom reports whether a message of a size may be added. One always may when there is
// no other.
func (b *buffer) hasRoom(size int) bool {
	return b.messages == 0 || b.messages < b.maxMessages && b.bytes+size <= b.maxBytes
}

func (b *buffer) add(e *entry) {
	b.waiting = append(b.waiting, e)
	b.messages++
	b.bytes += e.size
}

// take cuts the next request; nil if nothing waits. Its messages hold their room until
// release.
func (b *buffer) take() *request {
	n, bytes := 0, 0
	for n < len(b.waiting) && n < maxRequestMessages && (n == 0 ||
		bytes+b.waiting[n].size <= maxRequestBytes && b.waiting[n].hasID() == b.waiting[0].hasID()) {
		bytes += b.waiting[n].size
		n++
	}
	if n == 0 {
		return nil
	}
	r := b.numbered(b.waiting[:n:n])
	if b.waiting = b.waiting[n:]; len(b.waiting) == 0 {
		b.waiting = nil // so that the array goes
	}
	return r
}

// numbered makes a request, with the next number unless its messages have ids.
func (b *buffer) numbered(entries []*entry) *request {
	r := &request{entries: entries}
	if !entries[0].hasID() {
		r.number = b.number
		b.number++
	}
	return r
}

// release gives the room of a request back.
func (b *buffer) release(r *request) {
	for _, e := range r.entries {
		b.messages--
		b.bytes -= e.size
	}
}

// message is the request's form on the wire.
func (r *request) message(topic, producer string) *topicv1.PublishRequest {
	m := &topicv1.PublishRequest{Topic: topic}
	if r.number != 0 {
		m.Producer = &topicv1.Producer{Id: producer, Number: r.number}
	}
	for _, e := range r.entries {
		m.Messages = append(m.Messages, e.message)
	}
	return m
}

// answer has everyone who waits for the request know how it went.
func (r *request) answer(results []*Result, err error) {
	for i, e := range r.entries {
		switch {
		case err != nil:
			e.done(nil, err)
		case i < len(results):
			e.done(results[i], nil)
		default:
			e.done(nil, errShortAnswer)
		}
	}
}
