package commitlog

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/parley-chat/parley/server/commitlog/producers"
)

// Hashes prove that a number of a producer comes with the request that it came with first.

// HashOf is the hash of a request: of its messages in their order, as a batch holds them, with ttl and
// delay instead of the server's times. Headers are hashed by name, so it depends on no order of a map.
func HashOf(messages []*Message) (h producers.Hash) {
	sum := sha256.New()
	var head, asked []byte
	for _, m := range messages {
		asked = appendAsked(asked[:0], m)
		head = protowire.AppendVarint(head[:0], uint64(sizeOf(m)+len(asked)))
		head = appendHead(head, m)
		sum.Write(head) // cannot fail
		sum.Write(m.GetPayload())
		sum.Write(asked)
	}
	copy(h[:], sum.Sum(head[:0]))
	return h
}

// ContentOf is the hash of what a message is, without its id and its times.
func ContentOf(m *Message) (h producers.Hash) {
	sum := sha256.New()
	head := appendHead(nil, m)
	sum.Write(head) // cannot fail
	sum.Write(m.GetPayload())
	copy(h[:], sum.Sum(head[:0]))
	return h
}

// Hashed reports whether a repetition of the append must have the same messages. Those of the server itself have
// no hash: their producers name what they repeat, and the message may say when, and why, that was done first.
func (a *Append) Hashed() bool { return a.Request != producers.Hash{} }

// OnlyNumber reports whether the append stores nothing but its producer's number.
func (a *Append) OnlyNumber() bool { return a.Hashed() && len(a.Messages) == 0 }

// published is what is remembered of the append.
func (a *Append) published(base, time int64, count int) producers.Published {
	return producers.Published{
		Number: a.Producer.Number, Base: base, Time: time, Count: int32(count), Hash: a.Request,
	}
}

// Repeat returns what becomes of the append, whose number was stored before. Without a hash of
// both, as of what earlier releases stored, it compares the counts of messages.
func (a *Append) Repeat(old producers.Published) (Appended, error) {
	same := a.Hashed() && old.Hash != producers.Hash{}
	if same && old.Hash != a.Request {
		return Appended{}, fmt.Errorf("%w: number %d had another request", ErrProducerReuse, old.Number)
	}
	if int(old.Count) != len(a.Messages) {
		return Appended{}, fmt.Errorf("%w: number %d had %d messages, not %d", ErrProducerReuse, old.Number,
			old.Count, len(a.Messages))
	}
	return Appended{Base: old.Base, Count: int(old.Count), Replayed: true, Same: same}, nil
}

// ofOne reports whether the ith append belongs to the same request as the one before it.
func ofOne(appends []Append, i int) bool {
	return i > 0 && appends[i].Hashed() && appends[i].Request == appends[i-1].Request &&
		appends[i].Producer == appends[i-1].Producer
}

// RepeatsBefore reports whether the append before the ith belongs to the same request and was
// stored before. If the ith has a number only, and its partition does not remember that, nothing
// needs to be stored: the partition has forgotten it, or an earlier release, which remembered
// numbers beside messages only, has stored the request.
func RepeatsBefore(appends []Append, appended []Appended, i int) bool {
	return ofOne(appends, i) && appended[i-1].Replayed
}

// CheckWhole refuses a request of which only a part was stored before. A log stores requests as a
// whole, so some of its partitions have forgotten the number, or it is another request.
func CheckWhole(appends []Append, appended []Appended) error {
	for i := range appends {
		if !ofOne(appends, i) || appended[i].Replayed == appended[i-1].Replayed {
			continue
		}
		cause := ErrProducerReuse
		if appended[i].Same || appended[i-1].Same {
			cause = ErrProducerNumber
		}
		return fmt.Errorf("%w: only a part of the request with number %d is remembered", cause, appends[i].Producer.Number)
	}
	return nil
}
