package commitlog

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store"
)

// EventTopic is a topic of the event log.
type EventTopic struct {
	Name       string // as Kafka allows them
	Number     uint64 // from FirstEventTopic on, never used again
	Partitions int32
	ID         TopicID
}

// TopicID is Kafka's id of a topic.
type TopicID [16]byte

// Limits of the event log's topics.
const (
	MaxEventTopics = 1000
	MaxTopicName   = 249 // bytes
)

// OthersKey is the first byte from which on keys are not this package's: consumer groups are there
// (package port).
const OthersKey = 0xe2

// The catalogue lies behind the records of all topics, whose keys begin with less than 0x80.
const (
	catalogueKey = 0xe0 // the number of the next topic
	entryKey     = 0xe1 // name → topic
	entriesEnd   = OthersKey
)

const (
	catalogueVersion = 1
	counterSize      = 1 + 8 + 4
	entrySize        = 1 + 8 + 2 + len(TopicID{}) + 4
)

// CreateEventTopic makes a topic of the event log and returns it with its number, durably. One
// that is there already is returned if it has the same partitions, and the same id if one is
// given; without an id a new topic gets a random one. It works on a full disk. Errors:
// ErrInvalid, and those of the store.
func (l *Local) CreateEventTopic(ctx context.Context, t EventTopic) (EventTopic, error) {
	if err := t.check(); err != nil {
		return EventTopic{}, err
	}
	made, wait, err := l.create(ctx, t)
	if err != nil {
		return EventTopic{}, err
	}
	if wait == nil { // another call may have made it just now
		return made, l.records.Durable(ctx)
	}
	return made, wait()
}

func (t *EventTopic) check() error {
	illegal := strings.ContainsFunc(t.Name, func(c rune) bool {
		return c != '.' && c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
	if illegal || t.Name == "" || t.Name == "." || t.Name == ".." || len(t.Name) > MaxTopicName ||
		t.Partitions < 1 || t.Partitions > MaxPartitions || t.Number != 0 {
		return fmt.Errorf("%w: topic %.300q, number %d, with %d partitions", ErrInvalid, t.Name, t.Number, t.Partitions)
	}
	return nil
}

// create commits a topic; wait is nil if it is there.
func (l *Local) create(ctx context.Context, t EventTopic) (made EventTopic, wait func() error, err error) {
	l.deleting.Lock()
	defer l.deleting.Unlock()
	next, all, err := l.catalogue(ctx)
	if err != nil {
		return made, nil, err
	}
	if i := slices.IndexFunc(all, func(o EventTopic) bool { return o.Name == t.Name }); i >= 0 {
		if made = all[i]; made.Partitions != t.Partitions || t.ID != (TopicID{}) && t.ID != made.ID {
			return made, nil, fmt.Errorf("%w: topic %s has %d partitions and id %x, not %d and %x", ErrInvalid, t.Name,
				made.Partitions, made.ID, t.Partitions, t.ID)
		}
		return made, nil, nil
	}
	if len(all) >= MaxEventTopics || next > maxTopic {
		return made, nil, fmt.Errorf("%w: there are %d topics, the next is %d", ErrInvalid, len(all), next)
	}
	if t.Number = next; t.ID == (TopicID{}) {
		_, _ = rand.Read(t.ID[:]) // it never fails
	}
	counter := binary.BigEndian.AppendUint64([]byte{catalogueVersion}, next+1)
	wait, err = l.records.Commit(ctx, []store.Record{
		{Key: []byte{catalogueKey}, Value: appendSum(counter), Frees: true},
		{Key: append([]byte{entryKey}, t.Name...), Value: appendSum(appendEntry(nil, t)), Frees: true},
	})
	return t, wait, err
}

// EventTopics returns the topics of the event log in order of their numbers. They are durable.
// Error: store.ErrCorrupt, and those of the store.
func (l *Local) EventTopics(ctx context.Context) ([]EventTopic, error) {
	_, all, err := l.catalogue(ctx)
	if err == nil {
		err = l.records.Durable(ctx)
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b EventTopic) int { return cmp.Compare(a.Number, b.Number) })
	return all, nil
}

// RemoveEventTopic removes a topic with all its records, durably. Its number is never used
// again. Errors: ErrNoTopic, and those of the store.
func (l *Local) RemoveEventTopic(ctx context.Context, name string) error {
	topic, wait, err := l.removeEventTopic(ctx, name)
	if err != nil {
		return err
	}
	return l.noteRemoval(topic, wait)
}

func (l *Local) removeEventTopic(ctx context.Context, name string) (topic uint64, wait func() error, err error) {
	l.deleting.Lock()
	defer l.deleting.Unlock()
	_, all, err := l.catalogue(ctx)
	if err != nil {
		return 0, nil, err
	}
	i := slices.IndexFunc(all, func(o EventTopic) bool { return o.Name == name })
	if i < 0 {
		return 0, nil, fmt.Errorf("%w: %.300q", ErrNoTopic, name)
	}
	key := append([]byte{entryKey}, name...)
	entry := store.Record{Key: key, Until: append(slices.Clone(key), 0)}
	wait, err = l.records.Commit(ctx, []store.Record{allOf(all[i].Number), entry})
	if err != nil {
		return 0, nil, err
	}
	l.forget(all[i].Number)
	return all[i].Number, wait, nil
}

// checkEventTopic refuses a partition that no topic of the catalogue has.
func (l *Local) checkEventTopic(ctx context.Context, id Partition) error {
	_, all, err := l.catalogue(ctx)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Number == id.Topic && id.Number < t.Partitions {
			return nil
		}
	}
	return fmt.Errorf("%w: partition %s", ErrNoTopic, id)
}

// catalogue reads the number of the next topic, and the topics in order of their names.
func (l *Local) catalogue(ctx context.Context) (next uint64, all []EventTopic, err error) {
	next = FirstEventTopic
	var bad error
	err = l.records.Seek(ctx, []byte{catalogueKey}, []byte{entriesEnd}, false,
		func(key []byte, value func() ([]byte, error)) bool {
			var v []byte
			if v, bad = value(); bad != nil {
				return false
			}
			if len(key) == 1 {
				next, bad = parseCounter(v) // it comes first
				return bad == nil
			}
			var t EventTopic
			t, bad = parseEntry(key, v)
			all = append(all, t)
			next = max(next, t.Number+1) // the record of it may be lost
			return bad == nil
		})
	if err == nil {
		err = bad
	}
	if err != nil {
		return 0, nil, fmt.Errorf("topics of the event log: %w", err)
	}
	return next, all, nil
}

// ofOthers reports whether a key is not this package's.
func ofOthers(key []byte) bool { return len(key) > 0 && key[0] >= OthersKey }

// inCatalogue reports whether a key is one of the catalogue.
func inCatalogue(key []byte) bool {
	return bytes.Compare(key, []byte{catalogueKey}) >= 0 && bytes.Compare(key, []byte{entriesEnd}) < 0
}

func appendEntry(b []byte, t EventTopic) []byte {
	b = binary.BigEndian.AppendUint64(append(b, catalogueVersion), t.Number)
	return append(binary.BigEndian.AppendUint16(b, uint16(t.Partitions)), t.ID[:]...)
}

func appendSum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// sumMatches reports whether a value of the catalogue has a size and the checksum of its content.
func sumMatches(v []byte, size int) bool {
	return len(v) == size && v[0] == catalogueVersion &&
		crc32.Checksum(v[:size-4], castagnoli) == binary.BigEndian.Uint32(v[size-4:])
}

func parseCounter(v []byte) (next uint64, err error) {
	if !sumMatches(v, counterSize) {
		return 0, corrupt("number of the next topic of the event log cannot be read")
	}
	return binary.BigEndian.Uint64(v[1:]), nil
}

func parseEntry(key, v []byte) (t EventTopic, err error) {
	t.Name = string(key[1:])
	if !sumMatches(v, entrySize) {
		return t, corrupt(fmt.Sprintf("topic %q of the event log cannot be read", t.Name))
	}
	t.Number, t.Partitions = binary.BigEndian.Uint64(v[1:]), int32(binary.BigEndian.Uint16(v[9:]))
	copy(t.ID[:], v[11:])
	return t, nil
}
