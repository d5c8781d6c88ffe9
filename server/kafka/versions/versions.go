// Package versions records which topic a declared topic is now, and which it was before.
//
// The number of partitions of a topic never changes: a chat would get another partition, and
// its later events could be read before earlier ones. More partitions are a new topic,
// NAME.v2 and so on, to which package workers/migrate moves the events. Events, subjects and
// settings stay declared under the base name of the topic.
//
// The package owns the row that all processes read, the names, and the rules that follow
// from them: where an event goes, whether it must wait, which topics are read, and which must
// exist. It does not own the steps from one version to the next (package workers/migrate) or
// the topics themselves (package kafka).
//
// Concurrency: a State is a value that does not change; a Watch is safe for concurrent use.
package versions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Status is the use of a version.
type Status string

// The statuses. A version goes from Next to Current, Past and Retired. After an aborted
// migration it is Abandoned: it has no records and may become Next again.
const (
	Next      Status = "next"      // being prepared; nothing is published to it
	Current   Status = "current"   // events are published to it and to no other
	Past      Status = "past"      // consumers may still read its records
	Retired   Status = "retired"   // no consumer reads it; operators may delete it
	Abandoned Status = "abandoned" // has never had a record
)

// Version is a topic that a declared topic is, was or will be.
type Version struct {
	Number     int    `json:"number"` // 1 is the declared name itself
	Partitions int32  `json:"partitions"`
	Status     Status `json:"status"`
	// From and Until bound the time in which it was published to, in unix ms; 0: open.
	From  int64 `json:"from,omitempty"`
	Until int64 `json:"until,omitempty"`
}

// Phase is how far a migration is.
type Phase string

// The phases, in their order.
const (
	Planned  Phase = "planned"  // the new topic is decided on
	Created  Phase = "created"  // the new topic exists, consumers subscribe to it
	Frozen   Phase = "frozen"   // relays must not publish events of the topic
	Quiet    Phase = "quiet"    // all relays have reported that they do not
	Drained  Phase = "drained"  // all groups have read the old version to its end
	Switched Phase = "switched" // the new version is the current one
)

// Move is a migration under way.
type Move struct {
	Topic     string `json:"topic"` // base name
	Phase     Phase  `json:"phase"`
	By        string `json:"by"`      // operator who started it
	Started   int64  `json:"started"` // unix ms
	FrozenAt  int64  `json:"frozen_at,omitempty"`
	ThawAfter int64  `json:"thaw_after,omitempty"` // unix ms: end of the freeze
	// Revision is that of the state that relays must report for the phase to end.
	Revision int64 `json:"revision,omitempty"`
}

// State is the versions of all topics. The zero State is that of an installation without a
// migration: each declared topic is its own version 1.
type State struct {
	Revision int64                `json:"-"` // number of changes
	Topics   map[string][]Version `json:"topics,omitempty"`
	Move     *Move                `json:"move,omitempty"`
}

// MaxVersions bounds the versions of a topic.
const MaxVersions = 100

// Name returns the name of a version of a topic.
func Name(base string, number int) string {
	if number <= 1 {
		return base
	}
	return base + ".v" + strconv.Itoa(number)
}

// Base splits the name of a version of a declared topic.
func Base(name string) (base string, number int, ok bool) {
	if kafka.Partitions(name) > 0 {
		return name, 1, true
	}
	i := strings.LastIndex(name, ".v")
	if i < 0 || kafka.Partitions(name[:i]) == 0 {
		return "", 0, false
	}
	n, err := strconv.Atoi(name[i+2:])
	if err != nil || n < 2 || Name(name[:i], n) != name {
		return "", 0, false
	}
	return name[:i], n, true
}

// Of lists the versions of a declared topic, oldest first.
func (s State) Of(base string) []Version {
	if list := s.Topics[base]; len(list) > 0 {
		return list
	}
	return []Version{{Number: 1, Partitions: kafka.Partitions(base), Status: Current}}
}

// Current returns the version of a declared topic that events are published to.
func (s State) Current(base string) Version {
	for _, v := range s.Topics[base] {
		if v.Status == Current {
			return v
		}
	}
	return Version{Number: 1, Partitions: kafka.Partitions(base), Status: Current}
}

// PartitionOf returns the partition that an event of a declared topic goes to.
func (s State) PartitionOf(base, key string) kafka.Partition {
	v := s.Current(base)
	return kafka.Partition{Topic: Name(base, v.Number), ID: int32(event.Partition(key, int(v.Partitions)))}
}

// Frozen reports whether events of a declared topic have to wait.
func (s State) Frozen(base string) bool {
	if s.Move == nil || s.Move.Topic != base {
		return false
	}
	return s.Move.Phase == Frozen || s.Move.Phase == Quiet || s.Move.Phase == Drained
}

// exists reports whether a version's topic is on the brokers and has a use.
func (s State) exists(base string, v Version) bool {
	switch v.Status {
	case Current, Past:
		return true
	case Next:
		return s.Move != nil && s.Move.Topic == base && s.Move.Phase != Planned
	default:
		return false
	}
}

// topics lists the versions of all declared topics that match.
func (s State) topics(match func(base string, v Version) bool) []kafka.Topic {
	var list []kafka.Topic
	for _, t := range kafka.Topics() {
		base := t.Name
		for _, v := range s.Of(base) {
			if match(base, v) {
				of := t
				of.Name, of.Partitions = Name(base, v.Number), v.Partitions
				if v.Status == Retired {
					of.Readers = nil // all had read it; a broker forgets the offsets of topics without readers
				}
				list = append(list, of)
			}
		}
	}
	return list
}

// Required lists the topics that must exist.
func (s State) Required() []kafka.Topic { return s.topics(s.exists) }

// All lists every topic that was or may have been created.
func (s State) All() []kafka.Topic {
	return s.topics(func(string, Version) bool { return true })
}

// Readable lists the topics that a group which reads declared topics subscribes to: all
// versions that may have records. A new version is listed before anything is published to
// it, an old one until it is retired.
func (s State) Readable(bases ...string) []string {
	var names []string
	for _, base := range bases {
		for _, v := range s.Of(base) {
			if s.exists(base, v) {
				names = append(names, Name(base, v.Number))
			}
		}
	}
	return names
}

// Find returns the version with the name of a topic.
func (s State) Find(name string) (Version, bool) {
	base, number, ok := Base(name)
	if !ok {
		return Version{}, false
	}
	list := s.Of(base)
	i := slices.IndexFunc(list, func(v Version) bool { return v.Number == number })
	if i < 0 {
		return Version{}, false
	}
	return list[i], true
}

// Clone returns a deep copy.
func (s State) Clone() State {
	out := State{Revision: s.Revision, Topics: map[string][]Version{}}
	for base, list := range s.Topics {
		out.Topics[base] = slices.Clone(list)
	}
	if s.Move != nil {
		move := *s.Move
		out.Move = &move
	}
	return out
}

// Load reads the present state.
func Load(ctx context.Context, st store.Store) (State, error) {
	var s State
	it, err := st.Get(ctx, table.TopicsKey(), store.Strong)
	if err != nil {
		return s, fmt.Errorf("read the versions of topics: %w", err)
	}
	if it == nil {
		return s, nil
	}
	if err := json.Unmarshal([]byte(it.Get(table.AttrTopics).Str()), &s); err != nil {
		return s, fmt.Errorf("decode the versions of topics: %w", err)
	}
	s.Revision = it.Get(table.AttrRevision).Int64()
	return s, s.check()
}

// ErrChanged is the error of a Save after another one.
var ErrChanged = errors.New("versions: the state was changed meanwhile")

// Save replaces the state that a new one was made from, and returns it with its new revision.
// It is durable when Save returns.
func Save(ctx context.Context, st store.Store, s State) (State, error) {
	if err := s.check(); err != nil {
		return s, err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return s, fmt.Errorf("encode the versions of topics: %w", err)
	}
	cond := store.Absent()
	if s.Revision > 0 {
		cond = store.Exists().Eq(table.AttrRevision, store.Int(s.Revision))
	}
	s.Revision++
	err = st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.TopicsKey(), Cond: cond, Name: "topics",
		Item: store.NewItem(store.Attr{Name: table.AttrTopics, Value: store.String(string(b))},
			store.Attr{Name: table.AttrRevision, Value: store.Int(s.Revision)}),
	}}})
	var failed *store.ConditionError
	switch {
	case errors.As(err, &failed):
		return s, ErrChanged
	case err != nil:
		return s, fmt.Errorf("write the versions of topics: %w", err)
	}
	return s, st.Durable(ctx)
}

// check returns an error for a state that Parley does not write.
func (s State) check() error {
	for base, list := range s.Topics {
		current := 0
		for i, v := range list {
			if kafka.Partitions(base) == 0 || v.Number != i+1 || v.Partitions < 1 || v.Partitions > event.Buckets ||
				len(list) > MaxVersions {
				return fmt.Errorf("versions: topic %.80q has no version %d with %d partitions", base, v.Number, v.Partitions)
			}
			if v.Status == Current {
				current++
			}
		}
		if current != 1 {
			return fmt.Errorf("versions: topic %.80q has %d current versions", base, current)
		}
	}
	return nil
}

// KeptUntil returns when the last record of a past version leaves the declared retention.
func (v Version) KeptUntil(base string) time.Time {
	for _, t := range kafka.Topics() {
		if t.Name == base {
			ms, err := strconv.ParseInt(t.Configs["retention.ms"], 10, 64)
			if err == nil {
				return time.UnixMilli(v.Until + ms)
			}
		}
	}
	return time.UnixMilli(v.Until)
}
