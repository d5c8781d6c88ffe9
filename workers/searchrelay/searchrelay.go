// Package searchrelay makes the records of search events: what package relay needs to publish
// their streams.
//
// It reads what rows of the outbox announce, puts events into their envelopes and finds their
// topics and partitions (Load). Events that cannot be published go to the topic's dead
// letters: an event without an envelope at once, and one that a partition refuses for good
// after some attempts (Guard). A partition that only cannot be reached is waited for: the
// outbox keeps its events, and those of other partitions are published.
//
// The package owns records and dead letters. It does not own the forms of events (package
// search), nor when and in which order they are published (package relay).
//
// Concurrency: Load may be called by many goroutines, a Guard belongs to one relay.
package searchrelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
)

// Headers of records beside kafka.HeaderEventID and kafka.HeaderEventType: the one that is
// not the key.
const (
	HeaderDedupKey    = "dedup_key"
	HeaderAggregateID = "aggregate_id"
)

// Source makes records.
type Source struct {
	Store   store.Store
	Targets search.Targets
	// Partitions are the numbers of partitions of all topics, those of dead letters too.
	Partitions map[string]int
	Clock      func() time.Time
}

// Load implements relay.Config.Load.
func (s *Source) Load(ctx context.Context, rows []table.Outbox) ([][]*kafka.Record, error) {
	events, err := s.read(ctx, rows)
	if err != nil {
		return nil, err
	}
	lists := make([][]*kafka.Record, 0, len(rows))
	for _, row := range rows {
		records := make([]*kafka.Record, 0, row.Count)
		for n := row.FirstVersion; n < row.FirstVersion+row.Count; n++ {
			e, ok := events[n]
			if !ok {
				return lists, fmt.Errorf("%w: event %s does not exist, or cannot be read", relay.ErrPoison,
					search.ID(row.AggregateID, n))
			}
			rec, err := s.record(e)
			if err != nil {
				return lists, fmt.Errorf("%w: %w", relay.ErrPoison, err)
			}
			records = append(records, rec)
		}
		lists = append(lists, records)
	}
	return lists, nil
}

// read reads the events of consecutive rows, by number. Those that cannot be read are left
// out.
func (s *Source) read(ctx context.Context, rows []table.Outbox) (map[int64]search.Recorded, error) {
	first, end := rows[0].FirstVersion, rows[len(rows)-1]
	last := end.FirstVersion + end.Count - 1
	q := store.Query{
		// A replay may begin in the middle of a row.
		Table: store.SearchEvents, PK: end.AggregateID, Consistency: store.Strong,
		From: table.Number(max(1, first-table.MaxSearchEvents+1)), To: table.Number(last),
	}
	events := make(map[int64]search.Recorded, last-first+1)
	for row, err := range store.QueryAll(ctx, s.Store, q) {
		if err != nil {
			return nil, fmt.Errorf("read search events: %w", err)
		}
		stored, err := table.SearchEventsFrom(row)
		if err != nil || stored.First > last || stored.First+stored.Count <= first {
			continue
		}
		list, err := search.Decode(stored)
		if err != nil {
			continue
		}
		for i, e := range list {
			events[stored.First+int64(i)] = e
		}
	}
	return events, nil
}

// record makes the record of an event, or of its dead letter.
func (s *Source) record(e search.Recorded) (*kafka.Record, error) {
	to, ok := s.Targets[e.GetEventType()]
	if !ok { // of a newer version, or not ours: any of the topics of dead letters has it
		to = s.Targets[search.Types()[0]]
	}
	envelope, err := e.Envelope()
	if err != nil {
		return s.withoutEnvelope(to, e, err)
	}
	value, err := envelope.JSON()
	if err != nil {
		return s.withoutEnvelope(to, e, err)
	}
	key, other := envelope.Key(to.Key)
	header := HeaderAggregateID
	if to.Key == search.KeyAggregate {
		header = HeaderDedupKey
	}
	rec := &kafka.Record{
		Topic: to.Topic, Key: []byte(key), Value: value,
		Headers: []kafka.Header{
			{Key: kafka.HeaderEventID, Value: []byte(e.ID)},
			{Key: kafka.HeaderEventType, Value: []byte(e.GetEventType())},
			{Key: header, Value: []byte(other)},
		},
	}
	if err := s.assignPartition(rec); err != nil {
		return nil, err
	}
	if len(value) > kafka.MaxEvent {
		return s.refused(rec, fmt.Sprintf("the event has %d bytes as JSON, of at most %d", len(value), kafka.MaxEvent), 1)
	}
	return rec, nil
}

// assignPartition finds the partition of a record.
func (s *Source) assignPartition(rec *kafka.Record) error {
	n := s.Partitions[rec.Topic]
	if n < 1 {
		return fmt.Errorf("searchrelay: the partitions of %s are not known", rec.Topic)
	}
	rec.Partition = int32(event.Partition(string(rec.Key), n))
	return nil
}

// withoutEnvelope makes the dead letter of an event that has no envelope.
func (s *Source) withoutEnvelope(to search.Target, e search.Recorded, why error) (*kafka.Record, error) {
	recorded, err := proto.Marshal(e.RecordedEvent)
	if err != nil {
		return nil, fmt.Errorf("searchrelay: encode event %s: %w", e.ID, err)
	}
	return s.deadLetter(search.DeadLetter{OriginalTopic: to.Topic, OriginalPartition: -1, EventID: e.ID,
		EventType: e.GetEventType(), Error: why.Error(), Attempts: 1, Recorded: recorded}, e.ID)
}

// refused makes the dead letter of a record.
func (s *Source) refused(rec *kafka.Record, why string, attempts int) (*kafka.Record, error) {
	d := search.DeadLetter{OriginalTopic: rec.Topic, OriginalPartition: rec.Partition, OriginalKey: string(rec.Key),
		Error: why, Attempts: attempts, Event: rec.Value}
	for _, h := range rec.Headers {
		switch h.Key {
		case kafka.HeaderEventID:
			d.EventID = string(h.Value)
		case kafka.HeaderEventType:
			d.EventType = string(h.Value)
		}
	}
	return s.deadLetter(d, string(rec.Key))
}

// deadLetter makes the record of a dead letter.
func (s *Source) deadLetter(d search.DeadLetter, key string) (*kafka.Record, error) {
	value, err := d.JSON(s.Clock())
	if err != nil {
		return nil, err
	}
	rec := &kafka.Record{
		Topic: search.Target{Topic: d.OriginalTopic}.DeadLetters(), Key: []byte(key), Value: value,
		Headers: []kafka.Header{
			{Key: kafka.HeaderEventID, Value: []byte(d.EventID)},
			{Key: kafka.HeaderEventType, Value: []byte(d.EventType)},
		},
	}
	return rec, s.assignPartition(rec)
}

// DefaultAttempts is after how many attempts a record that its partition refuses for good
// becomes a dead letter.
const DefaultAttempts = 5

// Guard counts what partitions refuse.
type Guard struct {
	Source   *Source
	Attempts int // 1 or more
	Publish  func(ctx context.Context, list []eventlog.Publication) error
	// DeadLettered is called for each event whose dead letter was published; after a crash perhaps twice.
	DeadLettered func(eventID, topic string, why error)

	refused map[kafka.Partition]refusal
}

// refusal is what a partition has refused in a row.
type refusal struct {
	times int
	why   error
}

// Do publishes publications in one transaction, the records of partitions that have refused
// theirs often enough as dead letters. It implements relay.Config.Publish.
func (g *Guard) Do(ctx context.Context, list []eventlog.Publication) error {
	replaced, err := g.replace(list)
	if err != nil {
		return err
	}
	records, sent := relay.Records(list), relay.Records(replaced)
	err = original(g.Publish(ctx, replaced), records, sent)
	var partial *kafka.PartitionError
	switch {
	case errors.As(err, &partial) && partial.Permanent():
		if g.refused == nil {
			g.refused = map[kafka.Partition]refusal{}
		}
		for _, p := range partial.Partitions {
			g.refused[p] = refusal{g.refused[p].times + 1, partial.Err}
		}
		return err
	case err != nil:
		return err
	}
	for _, rec := range records { // dead letters included: the next records are tried again
		delete(g.refused, kafka.Partition{Topic: rec.Topic, ID: rec.Partition})
	}
	g.report(sent)
	return nil
}

// isDeadLetter reports whether a record is a dead letter: no other topic has a name of theirs.
func isDeadLetter(rec *kafka.Record) bool {
	return strings.HasSuffix(rec.Topic, kafka.SearchDeadLetters)
}

// report reports the dead letters among records that were published, those of Load and those of replace.
func (g *Guard) report(sent []*kafka.Record) {
	if g.DeadLettered == nil {
		return
	}
	for _, rec := range sent {
		if !isDeadLetter(rec) {
			continue
		}
		var d search.DeadLetter
		why := json.Unmarshal(rec.Value, &d)
		if why == nil {
			why = errors.New(d.Error)
		}
		g.DeadLettered(string(rec.Headers[0].Value), strings.TrimSuffix(rec.Topic, kafka.SearchDeadLetters), why)
	}
}

// original returns an error that names, for a partition that refused a dead letter, the partition of
// the record in whose place it was sent: those records wait, as the relay knows no dead letters.
func original(err error, records, sent []*kafka.Record) error {
	var partial *kafka.PartitionError
	if !errors.As(err, &partial) {
		return err
	}
	translated := &kafka.PartitionError{Err: partial.Err, All: partial.All}
	for i, rec := range records {
		p := kafka.Partition{Topic: rec.Topic, ID: rec.Partition}
		if slices.Contains(partial.Partitions, kafka.Partition{Topic: sent[i].Topic, ID: sent[i].Partition}) &&
			!slices.Contains(translated.Partitions, p) {
			translated.Partitions = append(translated.Partitions, p)
		}
	}
	return translated
}

// replace returns publications with dead letters in place of the records that were refused too often.
// There are no dead letters of dead letters, which Load makes: they wait as long as their topic
// refuses them.
func (g *Guard) replace(list []eventlog.Publication) ([]eventlog.Publication, error) {
	if len(g.refused) == 0 {
		return list, nil
	}
	out := slices.Clone(list)
	for n := range out {
		out[n].Records = slices.Clone(out[n].Records)
		for i, rec := range out[n].Records {
			was := g.refused[kafka.Partition{Topic: rec.Topic, ID: rec.Partition}]
			if was.times < g.Attempts || isDeadLetter(rec) {
				continue
			}
			var err error
			if out[n].Records[i], err = g.Source.refused(rec, was.why.Error(), was.times); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
