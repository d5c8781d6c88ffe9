// Package state holds what a log of topics on Kafka has to know beside the messages: which
// topics it has, where their partitions begin, and which numbers of producers were stored.
//
// It owns keys and values of the compacted topic of Kafka in which that stands, and how much
// is remembered. It writes nothing. Concurrency: the caller of a State must hold the log's
// lock.
package state

import (
	"cmp"
	"container/list"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topiclog"
)

// Name is the name of the compacted topic of Kafka that holds what a log has to know beside its
// messages: which topics it has, where their partitions begin, and which numbers of producers
// were stored. Each slot has a partition. It is written in the transaction of what it is about.
const Name = "parley.topics.state"

// MaxProducers is how many producers a slot remembers, over all partitions; beyond it, it
// forgets the one that has published nothing for longest.
const MaxProducers = 16_384

// Kinds of keys in Name.
const (
	kindOwner    = 'i' // nothing → id of the installation that the slot belongs to
	kindTopic    = 't' // number → Topic, in JSON
	kindProducer = 'p' // number, partition, length of the id, id, slot → producers.Published
	kindStart    = 's' // number, partition → first position that is kept
)

var errFormat = errors.New("topicstore: " + Name + " holds what is none of ours")

// Topic is a topic as it is stored.
type Topic struct {
	Name       string `json:"topic"` // in Kafka
	ID         []byte `json:"id"`    // Kafka's: one that was recreated has another
	Partitions int32  `json:"partitions"`
}

// OwnerKey is the key of the id of the installation that the slot belongs to.
func OwnerKey() []byte { return []byte{kindOwner} }

func isOwner(key []byte) bool { return len(key) == 1 && key[0] == kindOwner }

// TopicKey is the key of a topic.
func TopicKey(number uint64) []byte { return binary.BigEndian.AppendUint64([]byte{kindTopic}, number) }

// StartKey is the key of where a partition begins.
func StartKey(p commitlog.Partition) []byte {
	b := binary.BigEndian.AppendUint64([]byte{kindStart}, p.Topic)
	return binary.BigEndian.AppendUint16(b, uint16(p.Number))
}

// Start is the value under a StartKey.
func Start(position int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(position)) }

// loadStart takes a record with a StartKey in.
func (m *State) loadStart(key, value []byte) error {
	p := commitlog.Partition{Topic: binary.BigEndian.Uint64(key[1:]), Number: int32(binary.BigEndian.Uint16(key[9:]))}
	switch len(value) {
	case 0:
		delete(m.Starts, p)
	case 8:
		m.Starts[p] = int64(binary.BigEndian.Uint64(value))
	default:
		return errFormat
	}
	return nil
}

// Key says whose numbers are remembered where.
type Key struct {
	Partition commitlog.Partition
	ID        string
}

// Slot is the key of a slot of the producer.
func (k Key) Slot(slot byte) []byte {
	b := binary.BigEndian.AppendUint64([]byte{kindProducer}, k.Partition.Topic)
	b = binary.BigEndian.AppendUint16(b, uint16(k.Partition.Number))
	b = append(b, byte(len(k.ID)))
	return append(append(b, k.ID...), slot)
}

// headerHash is the header of a Slot's record that has the hash of the request. It is no part of the
// value: a process of an earlier release, which may get the slot during an upgrade, would refuse
// a longer value and with it the slot. It ignores headers.
const headerHash = "request"

// Published is the record of a number under a Slot.
func Published(p producers.Published) (value []byte, headers []kafka.Header) {
	if p.Hash != (producers.Hash{}) {
		headers = []kafka.Header{{Key: headerHash, Value: p.Hash[:]}}
	}
	return p.AppendPlain(nil), headers
}

// parsePublished reads what Published returned. Earlier releases wrote no header.
func parsePublished(r *kafka.Record) (producers.Published, error) {
	p, err := producers.Parse(r.Value)
	if err != nil {
		return p, fmt.Errorf("%w: %w", errFormat, err)
	}
	for _, h := range r.Headers {
		if h.Key != headerHash {
			continue
		}
		if len(h.Value) != len(p.Hash) {
			return p, fmt.Errorf("%w: a hash of %d bytes", errFormat, len(h.Value))
		}
		copy(p.Hash[:], h.Value)
	}
	return p, nil
}

const producerPrefix = 1 + 8 + 2 + 1

func parseWindowKey(b []byte) (k Key, slot byte, err error) {
	if len(b) < producerPrefix+1 || len(b) != producerPrefix+int(b[producerPrefix-1])+1 ||
		b[len(b)-1] >= producers.Remembered {
		return k, 0, errFormat
	}
	k.Partition.Topic = binary.BigEndian.Uint64(b[1:])
	k.Partition.Number = int32(binary.BigEndian.Uint16(b[9:]))
	k.ID = string(b[producerPrefix : len(b)-1])
	return k, b[len(b)-1], nil
}

// State is what of a slot's partition is in memory.
type State struct {
	Owner   string // id of the installation; "" if none has had the slot
	Topics  map[uint64]Topic
	Starts  map[commitlog.Partition]int64 // of partitions that were trimmed
	windows map[Key]*list.Element         // of *kept
	recent  list.List                     // whose producer published last first
}

type kept struct {
	key Key
	*producers.Window
}

// New makes an empty State.
func New() *State {
	return &State{Topics: map[uint64]Topic{}, Starts: map[commitlog.Partition]int64{}, windows: map[Key]*list.Element{}}
}

// Window is nil if nothing is remembered.
func (m *State) Window(k Key) *producers.Window {
	if e := m.windows[k]; e != nil {
		return e.Value.(*kept).Window
	}
	return nil
}

// Put remembers a producer, as the one that has published last.
func (m *State) Put(k Key, w *producers.Window) {
	if e := m.windows[k]; e != nil {
		e.Value.(*kept).Window = w
		m.recent.MoveToFront(e)
		return
	}
	m.windows[k] = m.recent.PushFront(&kept{k, w})
}

// drop forgets a producer and returns the keys that are to be removed.
func (m *State) drop(e *list.Element) (keys [][]byte) {
	x := m.recent.Remove(e).(*kept)
	delete(m.windows, x.key)
	for slot := range x.Slots() {
		keys = append(keys, x.key.Slot(slot))
	}
	return keys
}

// DropIf forgets the producers of which a function says so.
func (m *State) DropIf(gone func(k Key, w *producers.Window) bool) (keys [][]byte) {
	var next *list.Element
	for e := m.recent.Front(); e != nil; e = next {
		next = e.Next()
		if x := e.Value.(*kept); gone(x.key, x.Window) {
			keys = append(keys, m.drop(e)...)
		}
	}
	return keys
}

// AnyOf reports whether DropIf would forget any.
func (m *State) AnyOf(gone func(k Key, w *producers.Window) bool) bool {
	for e := m.recent.Front(); e != nil; e = e.Next() {
		if x := e.Value.(*kept); gone(x.key, x.Window) {
			return true
		}
	}
	return false
}

// Excess forgets producers beyond MaxProducers.
func (m *State) Excess() (keys [][]byte) {
	for m.recent.Len() > MaxProducers {
		keys = append(keys, m.drop(m.recent.Back())...)
	}
	return keys
}

// Load reads a slot's partition. It bounds what is in memory by the slots of producers; a
// producer of which some slots are missing is remembered by the others.
func Load(ctx context.Context, r *topiclog.Log, slot int32) (*State, error) {
	type producerSlot struct {
		key  Key
		slot byte
	}
	published := map[producerSlot]producers.Published{}
	m := New()
	err := Scan(ctx, r, Name, slot, 0, func(record *kafka.Record) error {
		switch key := record.Key; {
		case isOwner(key):
			m.Owner = string(record.Value)
		case len(key) == 9 && key[0] == kindTopic:
			number := binary.BigEndian.Uint64(key[1:])
			delete(m.Topics, number)
			if len(record.Value) == 0 {
				return nil
			}
			var t Topic
			if err := json.Unmarshal(record.Value, &t); err != nil {
				return fmt.Errorf("%w: %w", errFormat, err)
			}
			m.Topics[number] = t
		case len(key) == 11 && key[0] == kindStart:
			return m.loadStart(key, record.Value)
		case len(key) > 0 && key[0] == kindProducer:
			k, slot, err := parseWindowKey(key)
			if err != nil {
				return err
			}
			delete(published, producerSlot{k, slot})
			if len(record.Value) == 0 {
				return nil
			}
			p, err := parsePublished(record)
			if err != nil {
				return err
			}
			published[producerSlot{k, slot}] = p
		default:
			return errFormat
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	windows := map[Key]*producers.Window{}
	for at, p := range published {
		w := windows[at.key]
		if w == nil {
			w = &producers.Window{}
			windows[at.key] = w
		}
		w.Load(at.slot, p)
	}
	m.fill(windows)
	return m, nil
}

// Owner returns the id of the installation that a slot belongs to, as its first record has it:
// "" if there is none.
func Owner(ctx context.Context, r *topiclog.Log, slot int32) (string, error) {
	records, _, err := r.Records(ctx, Name, slot, 0, ownerBytes)
	if err != nil || len(records) == 0 || !isOwner(records[0].Key) {
		return "", err
	}
	return string(records[0].Value), nil
}

const ownerBytes = 1 << 10 // a fetch brings the first batch in any case

// fill remembers windows, those used last first.
func (m *State) fill(windows map[Key]*producers.Window) {
	keys := make([]Key, 0, len(windows))
	for k := range windows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Compare(windows[a].Last().Time, windows[b].Last().Time) })
	for _, k := range keys {
		m.Put(k, windows[k])
	}
}

// Scan calls f with all committed records of a partition from an offset on, to its end.
// Records that are trimmed meanwhile are skipped.
func Scan(
	ctx context.Context, r *topiclog.Log, topic string, partition int32, from int64, f func(*kafka.Record) error,
) error {
	for {
		records, next, err := r.Records(ctx, topic, partition, from, scanBytes)
		if err != nil {
			return err
		}
		for _, record := range records {
			if err := f(record); err != nil {
				return fmt.Errorf("%s/%d, offset %d: %w", topic, partition, record.Offset, err)
			}
		}
		if next == from {
			return nil
		}
		from = next
	}
}

const scanBytes = 4 << 20
