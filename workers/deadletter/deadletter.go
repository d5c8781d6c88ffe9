// Package deadletter is what an operator does with dead letters: list them, look at
// one, hand them to their handlers again, or discard them.
//
// A letter is a record of the topic of dead letters (package consume writes them);
// what became of it is a row in the store. The package owns neither the handlers nor
// who may call it. Nothing here writes to a topic: a letter that is driven again goes
// to its handler directly, so that other groups do not see its record twice (K-149).
// Letters are read from the topic, one partition after the other, and never kept: a
// call costs what the topic holds.
//
// Concurrency: all methods may be called by anybody. Two that work on the same letter
// do not both get it: the outcome's row says who has it.
package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/inspect"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// Status is what became of a letter.
type Status string

// The states of a letter.
const (
	Open      Status = "open"      // nothing was done, or it failed again
	Running   Status = "running"   // somebody drives it again just now
	Redriven  Status = "redriven"  // its handler took it
	Discarded Status = "discarded" // it is not wanted
	failed    Status = "failed"    // as stored; to users it is open, with a result
)

// Letter is a dead letter and what became of it.
type Letter struct {
	ID       string // group/topic/partition/offset of the record
	Group    string
	Consumer string
	Reason   string // class and message
	FailedAt time.Time
	Attempts int
	Record   *kafka.Record // as it was: topic, partition, offset, time, key, value, headers
	// Omitted is how many bytes of the record the letter had no room for; 0: none.
	// Where it stands, the record may still be whole.
	Omitted int64

	Status  Status
	Outcome table.DeadLetter // by whom, when, with what result; zero for an open one

	row   store.Item // of the outcome, as it was read
	place Place
}

// Filter chooses letters; an empty field chooses all.
type Filter struct {
	IDs           []string
	Group         string
	Topic         string // a declared topic, with all its versions, or one of its later versions alone
	Key           string
	Class         string // of the failure, as consume.Class says it
	Reason        string // a part of it
	After, Before time.Time
	Statuses      []Status // empty: Open

	lanes map[string]bool // nil: all
}

// Limits of a call.
const (
	MaxLetters = 10_000
	MaxIDs     = 1_000
	MaxWho     = 128                 // bytes
	MaxResult  = 1_024               // bytes
	keepFor    = 40 * 24 * time.Hour // longer than the topic keeps the letter
	maxSeen    = 100_000
)

// ErrNotFound says that there is no such letter.
var ErrNotFound = errors.New("deadletter: no such dead letter")

// ErrInvalid says what is wrong with a call.
var ErrInvalid = errors.New("deadletter: invalid request")

// Config sets an Office up.
type Config struct {
	Addr   string         // of Kafka
	Kafka  []kafka.Option // for its clients
	Store  store.Store
	Clock  func() time.Time
	Logger *slog.Logger
}

// Office handles dead letters.
type Office struct{ cfg Config }

// New makes an Office.
func New(cfg Config) (*Office, error) {
	if cfg.Addr == "" || cfg.Store == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("deadletter: incomplete configuration")
	}
	return &Office{cfg}, nil
}

func (f Filter) validate() error {
	switch {
	case len(f.IDs) > MaxIDs:
		return fmt.Errorf("%w: at most %d ids", ErrInvalid, MaxIDs)
	case !f.After.IsZero() && !f.Before.IsZero() && !f.After.Before(f.Before):
		return fmt.Errorf("%w: the first time is not before the second", ErrInvalid)
	}
	return nil
}

// matches looks at what is known without the outcome.
func (f Filter) matches(l *Letter) bool {
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, l.ID)) &&
		(f.Group == "" || f.Group == l.Group) && (f.Topic == "" || f.Topic == l.Record.Topic || f.Topic == declared(l.Record.Topic)) &&
		(f.Key == "" || f.Key == string(l.Record.Key)) && strings.Contains(l.Reason, f.Reason) &&
		(f.Class == "" || strings.HasPrefix(l.Reason, f.Class+":")) &&
		(f.After.IsZero() || !l.FailedAt.Before(f.After)) && (f.Before.IsZero() || l.FailedAt.Before(f.Before)) &&
		(f.lanes == nil || f.lanes[l.lane()])
}

// declared is the topic that a topic is a version of, or itself if it is none of Parley's.
func declared(topic string) string {
	if base, _, ok := versions.Base(topic); ok {
		return base
	}
	return topic
}

func (f Filter) wants(s Status) bool {
	if len(f.Statuses) == 0 {
		return s == Open
	}
	return slices.Contains(f.Statuses, s)
}

// Place is where in the topic of dead letters a letter stands.
type Place struct {
	Partition int32
	Offset    int64
}

// Page is a part of a list.
type Page struct {
	Letters []Letter
	Next    *Place // where the next page begins; nil: there is none
}

// errEnough ends a walk early.
var errEnough = errors.New("enough")

// List returns up to limit letters (at most MaxLetters) from a place on, in the order of
// their topic: those of one key as they died. A letter that a crash wrote twice may
// stand on two pages.
func (o *Office) List(ctx context.Context, f Filter, limit int, from Place) (Page, error) {
	if limit < 1 || limit > MaxLetters {
		return Page{}, fmt.Errorf("%w: 1 to %d letters", ErrInvalid, MaxLetters)
	}
	var p Page
	err := o.walk(ctx, f, from, func(l *Letter) error {
		if len(p.Letters) == limit {
			p.Next = &l.place
			return errEnough
		}
		p.Letters = append(p.Letters, *l)
		return nil
	})
	if err != nil {
		return Page{}, err
	}
	return p, nil
}

// walk calls each with the letters that a filter chooses, from a place on. errEnough
// ends it without an error.
func (o *Office) walk(ctx context.Context, f Filter, from Place, each func(*Letter) error) error {
	if err := f.validate(); err != nil {
		return err
	}
	spans, err := inspect.Spans(ctx, o.cfg.Addr, kafka.DeadLetters, o.cfg.Kafka...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for i := range spans {
		switch s := &spans[i]; {
		case s.Partition.ID < from.Partition:
			s.From = s.To
		case s.Partition.ID == from.Partition:
			s.From = max(s.From, from.Offset)
		}
	}
	var (
		seen  = map[string]bool{}
		chunk []Letter
		own   error // what each or the store said, as opposed to Kafka
	)
	flush := func() error {
		if own = o.outcomes(ctx, chunk); own != nil {
			return own
		}
		for i := range chunk {
			if l := &chunk[i]; f.wants(l.Status) {
				if own = each(l); own != nil {
					return own
				}
			}
		}
		chunk = chunk[:0]
		if len(f.IDs) > 0 && len(seen) == len(f.IDs) {
			own = errEnough // each of them was found
		}
		return own
	}
	err = inspect.Read(ctx, o.cfg.Addr, spans, func(r *kafka.Record) error {
		l, err := letterFrom(r)
		if err != nil { // somebody else wrote to the topic
			o.cfg.Logger.Warn("deadletter: a record is no dead letter", "partition", r.Partition, "offset", r.Offset)
			return nil
		}
		if seen[l.ID] || !f.matches(&l) { // written twice: a crash came before the commit (K-146)
			return nil
		}
		if len(seen) == maxSeen { // what comes twice then is told by its outcome
			clear(seen)
		}
		seen[l.ID] = true
		chunk = append(chunk, l)
		if len(chunk) == store.MaxBatchGet || len(f.IDs) > 0 && len(seen) == len(f.IDs) {
			return flush()
		}
		return nil
	}, o.cfg.Kafka...)
	if err == nil {
		err = flush()
	}
	switch {
	case errors.Is(own, errEnough):
		return nil
	case err != nil && own == nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// ErrUnavailable says that the dead letters cannot be read just now.
var ErrUnavailable = errors.New("deadletter: the event log cannot be read")

// Get returns one letter, whatever became of it.
func (o *Office) Get(ctx context.Context, id string) (Letter, error) {
	p, err := o.List(ctx, Filter{IDs: []string{id}, Statuses: []Status{Open, Running, Redriven, Discarded}}, 1, Place{})
	if err != nil {
		return Letter{}, err
	}
	if len(p.Letters) == 0 {
		return Letter{}, ErrNotFound
	}
	return p.Letters[0], nil
}

// Count is how many letters one group has of one topic for one reason.
type Count struct {
	Group, Topic, Reason string
	Letters              int
	First, Last          time.Time // of their failures
}

// maxCounts bounds a histogram; reasons are few words, not data.
const maxCounts = 10_000

// Count counts letters by group, topic and reason, the most frequent first. All tells
// how many there are, also those for which the histogram had no room.
func (o *Office) Count(ctx context.Context, f Filter) (counts []Count, all int, err error) {
	type bin struct{ group, topic, reason string }
	bins := map[bin]*Count{}
	err = o.walk(ctx, f, Place{}, func(l *Letter) error {
		all++
		b := bin{l.Group, l.Record.Topic, l.Reason}
		c := bins[b]
		if c == nil {
			if len(bins) == maxCounts {
				return nil
			}
			c = &Count{Group: b.group, Topic: b.topic, Reason: b.reason, First: l.FailedAt, Last: l.FailedAt}
			bins[b] = c
		}
		c.Letters++
		if l.FailedAt.Before(c.First) {
			c.First = l.FailedAt
		}
		if l.FailedAt.After(c.Last) {
			c.Last = l.FailedAt
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	for _, c := range bins {
		counts = append(counts, *c)
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Letters, a.Letters), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Reason, b.Reason))
	})
	return counts, all, nil
}

// header is what stands before the letter in a record: a zero byte, the schema's id,
// and the index of the message.
const header = 6

func letterFrom(r *kafka.Record) (Letter, error) {
	var m eventv1.DeadLetter
	if len(r.Value) < header || r.Value[0] != 0 {
		return Letter{}, errors.New("not framed")
	}
	if err := proto.Unmarshal(r.Value[header:], &m); err != nil {
		return Letter{}, err
	}
	md, old := m.GetDlqMetadata(), m.GetOriginalRecord()
	if md == nil || old == nil || md.GetConsumerGroup() == "" || md.GetOriginalTopic() == "" || md.GetOriginalOffset() < 0 {
		return Letter{}, errors.New("incomplete")
	}
	rec := &kafka.Record{
		Topic: md.GetOriginalTopic(), Partition: md.GetOriginalPartition(), Offset: md.GetOriginalOffset(),
		Timestamp: md.GetOriginalTimestamp().AsTime(), Key: old.Key, Value: old.Value,
	}
	for _, h := range old.GetHeaders() {
		rec.Headers = append(rec.Headers, kafka.Header{Key: h.GetKey(), Value: h.Value})
	}
	return Letter{
		ID:    fmt.Sprintf("%s/%s/%d/%d", md.GetConsumerGroup(), rec.Topic, rec.Partition, rec.Offset),
		Group: md.GetConsumerGroup(), Consumer: md.GetConsumerId(), Reason: md.GetFailureReason(),
		FailedAt: md.GetFailureTimestamp().AsTime(), Attempts: int(md.GetProcessingAttempts()), Record: rec, Omitted: old.GetOmittedBytes(), Status: Open,
		place: Place{r.Partition, r.Offset},
	}, nil
}

func (l *Letter) key() store.Key {
	return table.DeadLetterKey(l.Group, l.Record.Topic, l.Record.Partition, l.Record.Offset)
}

// outcomes reads what became of letters, at most store.MaxBatchGet.
func (o *Office) outcomes(ctx context.Context, list []Letter) error {
	if len(list) == 0 {
		return nil
	}
	keys := make([]store.Key, len(list))
	for i := range list {
		keys[i] = list[i].key()
	}
	items, err := o.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return fmt.Errorf("read outcomes: %w", err)
	}
	for i, it := range items {
		o.outcome(&list[i], it)
	}
	return nil
}

func (o *Office) outcome(l *Letter, it store.Item) {
	l.row = it
	if it == nil {
		return
	}
	l.Outcome = table.DeadLetterFrom(it)
	switch l.Status = Status(l.Outcome.Status); {
	case l.Status == failed:
		l.Status = Open
	case l.Status == Running && o.cfg.Clock().Sub(time.UnixMilli(l.Outcome.At)) > claimFor:
		l.Status = Open // who had it is gone
	}
}

// note writes what became of a letter, unless somebody else did so meanwhile.
func (o *Office) note(ctx context.Context, l *Letter, s Status, by, result string) error {
	if len(result) > MaxResult {
		result = strings.ToValidUTF8(result[:MaxResult], "")
	}
	now := o.cfg.Clock()
	next := table.DeadLetter{Status: string(s), By: by, At: now.UnixMilli(), Result: result, Tries: l.Outcome.Tries, ExpiresAt: now.Add(keepFor).Unix()}
	if s == Running {
		next.Tries++
	}
	cond := store.Absent()
	if l.row != nil {
		cond = store.Exists().Eq(table.AttrStatus, store.String(l.Outcome.Status)).Eq(table.AttrAt, store.Int(l.Outcome.At))
	}
	it := next.Item()
	if err := o.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: l.key(), Item: it, Cond: cond, Name: "letter"}}}); err != nil {
		return err
	}
	l.row, l.Outcome, l.Status = it, next, s
	return nil
}
