package commitlog

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/parley-chat/parley/server/store"
)

// Found takes what is wrong, and where: in which partition, which is no valid one if a key tells
// none. An error ends the inspection.
type Found func(p Partition, where, what string) error

// Inspect reads all records of logs, compares their checksums and looks for holes. onRecord is
// called for each record. It returns how much can be read.
func Inspect(
	ctx context.Context, records store.Records, onRecord func(), found Found,
) (seen Inspected, err error) {
	in := inspection{found: found, seen: &seen, unlisted: map[uint64]bool{}}
	var failed error
	err = records.Seek(ctx, nil, nil, false, func(key []byte, value func() ([]byte, error)) bool {
		onRecord()
		v, err := value()
		if err != nil {
			failed = err
		} else {
			failed = in.record(key, v)
		}
		return failed == nil
	})
	if failed == nil {
		failed = err
	}
	if failed == nil {
		failed = in.end()
	}
	if failed == nil {
		failed = in.strays()
	}
	return seen, failed
}

// Inspected is what an inspection has read.
type Inspected struct {
	Topics   int64 // durable ones with messages, or that had some
	Messages int64
	Events   int64 // records of the event log
}

// inspection follows the batches of one partition after another.
type inspection struct {
	found Found
	seen  *Inspected
	at    Partition
	head  head
	next  int64 // position that must come next
	bytes int64 // that the next batch must have before it; -1: not known
	// unlisted are topics of the event log with records, until the catalogue names them: it
	// comes behind all records.
	unlisted map[uint64]bool
}

// strays finds topics of the event log that the catalogue does not name.
func (in *inspection) strays() error {
	for _, topic := range slices.Sorted(maps.Keys(in.unlisted)) {
		where := fmt.Sprintf("topic %d of the event log", topic)
		if err := in.found(Partition{Topic: topic}, where, "it has records, but no name"); err != nil {
			return err
		}
	}
	return nil
}

// catalogue inspects a record of the catalogue.
func (in *inspection) catalogue(key, value []byte) (err error) {
	if len(key) == 1 {
		_, err = parseCounter(value)
	} else {
		var t EventTopic
		t, err = parseEntry(key, value)
		delete(in.unlisted, t.Number)
	}
	if err != nil {
		return in.found(Partition{Topic: FirstEventTopic}, "topics of the event log", err.Error())
	}
	return nil
}

func (in *inspection) record(key, value []byte) error {
	switch {
	case inCatalogue(key):
		return in.catalogue(key, value)
	case ofOthers(key):
		return nil
	}
	p, kind, rest, err := parseKey(key)
	if err != nil {
		return in.found(Partition{}, fmt.Sprintf("%x", key), err.Error())
	}
	if p != in.at {
		if err := in.end(); err != nil {
			return err
		}
		switch {
		case p.OfEventLog():
			in.unlisted[p.Topic] = true
		case p.Topic != in.at.Topic:
			in.seen.Topics++
		}
		*in = inspection{found: in.found, seen: in.seen, at: p, bytes: -1, unlisted: in.unlisted}
	}
	switch kind {
	case kindHead:
		if in.head, err = parseHead(value); err == nil {
			in.next = in.head.start
		}
	case kindBatch:
		var b *Batch
		last := lastOf(key)
		if b, err = parseAt(key, value); err == nil && b.Base-b.Gap != in.next {
			err = corrupt(fmt.Sprintf("it begins with %d, position %d is expected", b.Base, in.next))
		}
		in.next = last + 1
		counted := err == nil && counts(value[0])
		if counted && in.bytes >= 0 && b.before != in.bytes {
			err = corrupt(fmt.Sprintf("it counts %d bytes before it, %d are expected", b.before, in.bytes))
		}
		if in.bytes = -1; counted {
			in.bytes = b.before + storedSize(value)
		}
		switch {
		case b == nil:
		case p.OfEventLog():
			in.seen.Events += int64(b.Count())
		default:
			in.seen.Messages += int64(b.Count())
		}
		if err != nil {
			return in.found(p, fmt.Sprintf("partition %s, batch that ends with position %d", p, last), err.Error())
		}
	case kindProducer:
		_, err = parsePublished(value)
		if err != nil {
			return in.found(p, fmt.Sprintf("partition %s, producer %q", p, rest[1:len(rest)-1]), err.Error())
		}
	}
	if err != nil {
		return in.found(p, fmt.Sprintf("partition %s", p), err.Error())
	}
	return nil
}

// end is called after the last record of a partition.
func (in *inspection) end() error {
	if last := in.head.end - in.head.trailing(); in.next < last {
		return in.found(in.at, fmt.Sprintf("partition %s", in.at),
			fmt.Sprintf("it ends with position %d, there were positions up to %d", in.next, last))
	}
	return nil
}
