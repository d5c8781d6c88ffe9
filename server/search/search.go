// Package search says what events of searches are: their types, how they are stored, and
// what integrators read on Kafka.
//
// The types and the default topics are declared by the messages of parley.search.v1. The
// stored form is the message as it was recorded (Encode, Decode). The published form is made
// from it alone (Envelope), so an event that is published again is the same, byte for byte.
//
// The package owns these forms and the table from types to topics. It neither stores
// (package search/record) nor publishes (package workers/searchrelay). Everything in it is
// pure and safe for concurrent use.
package search

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	searchlogv1 "github.com/parley-chat/parley/gen/parley/searchlog/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/table"
)

// Content is the content of an event: a message of parley.search.v1.
type Content interface {
	proto.Message
	GetSearchId() string
	GetUserId() string
}

// kind is a type of events.
type kind struct {
	name      string // event_type
	topic     string // by default
	aggregate string // type of what the search id is of
	user      protoreflect.FieldDescriptor
	prototype protoreflect.MessageType
}

// kinds are all types, in the order of their declaration.
var kinds = func() (list []kind) {
	for _, of := range []struct {
		content   Content
		aggregate string
	}{
		{&searchv1.SearchImpression{}, "search"},
		{&searchv1.SearchResultSummary{}, "search"},
		{&searchv1.SearchClick{}, "search"},
		{&searchv1.SearchDwell{}, "search"},
		{&searchv1.AcImpression{}, "autocomplete"},
		{&searchv1.AcSelect{}, "autocomplete"},
	} {
		m := of.content.ProtoReflect()
		o, _ := proto.GetExtension(m.Descriptor().Options(), eventv1.E_Event).(*eventv1.EventOptions)
		list = append(list, kind{name: o.GetEventType(), topic: o.GetTopic(), aggregate: of.aggregate,
			user: m.Descriptor().Fields().ByName("user_id"), prototype: m.Type()})
	}
	return list
}()

// kindOf finds a type by its name.
func kindOf(name string) (kind, bool) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// Types lists the types of events.
func Types() []string {
	list := make([]string, len(kinds))
	for i, k := range kinds {
		list[i] = k.name
	}
	return list
}

// Event is an event as it is recorded.
type Event struct {
	ClientID   string // the client's own id of it; may be empty
	OccurredAt time.Time
	Content    Content
}

// Encode returns an event of a user as it is stored: the encodings of several, one behind
// the other, are what a row holds. The content gets the user.
func Encode(user string, e Event) ([]byte, error) {
	m := e.Content.ProtoReflect()
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.prototype == m.Type() })
	if i < 0 {
		return nil, fmt.Errorf("search: %s is no event", m.Descriptor().FullName())
	}
	m.Set(kinds[i].user, protoreflect.ValueOfString(user))
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.Content)
	if err != nil {
		return nil, fmt.Errorf("search: encode: %w", err)
	}
	return proto.Marshal(&searchlogv1.RecordedEvents{Events: []*searchlogv1.RecordedEvent{{
		EventType: kinds[i].name, OccurredAtMs: e.OccurredAt.UnixMilli(), ClientEventId: e.ClientID, Payload: payload,
	}}})
}

// Recorded is an event as it was recorded, with its id.
type Recorded struct {
	ID string
	*searchlogv1.RecordedEvent
}

// Decode reads the events of a row.
func Decode(row table.SearchEvents) ([]Recorded, error) {
	all := &searchlogv1.RecordedEvents{}
	if err := proto.Unmarshal(row.Events, all); err != nil {
		return nil, fmt.Errorf("search: decode the events of %s: %w", ID(row.Stream, row.First), err)
	}
	if n := len(all.GetEvents()); int64(n) != row.Count {
		return nil, fmt.Errorf("search: the row of %s has %d of %d events", ID(row.Stream, row.First), n, row.Count)
	}
	list := make([]Recorded, row.Count)
	for i, e := range all.GetEvents() {
		list[i] = Recorded{ID(row.Stream, row.First+int64(i)), e}
	}
	return list, nil
}

// ID is the id of the event with a number in a stream: where it is stored.
func ID(stream string, number int64) string { return stream + "-" + strconv.FormatInt(number, 10) }

// Policy says what the key of a topic's records is.
type Policy string

// The policies. The other value is a header of each record.
const (
	KeyDedup     Policy = "dedup"     // the event's dedup_key: spread evenly, no order
	KeyAggregate Policy = "aggregate" // the search: its events are in one partition, in order
)

// Target is where events of a type go.
type Target struct {
	Topic string
	Key   Policy
}

// DeadLetters is the topic of what a topic cannot have.
func (t Target) DeadLetters() string { return t.Topic + kafka.SearchDeadLetters }

// Targets say where events go, by type.
type Targets map[string]Target

// DefaultTargets are the declared topics.
func DefaultTargets() Targets {
	t := Targets{}
	for _, k := range kinds {
		t[k.name] = Target{k.topic, KeyDedup}
	}
	return t
}

// maxTopic is the length of a topic's name that leaves room for the end of its dead letters': Kafka's
// bound is 249.
const maxTopic = 240

// ParseTargets reads TYPE=TOPIC or TYPE=TOPIC:POLICY with commas between them; types that are
// not named keep their declared topics. Errors fit into one line.
func ParseTargets(text string) (Targets, error) {
	t := DefaultTargets()
	if text == "" {
		return t, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, to, ok := strings.Cut(strings.TrimSpace(part), "=")
		if _, known := kindOf(name); !ok || !known {
			return nil, fmt.Errorf("must be TYPE=TOPIC with commas between them, TYPE one of %s, not %.80q",
				strings.Join(Types(), ", "), part)
		}
		topic, policy, named := strings.Cut(to, ":")
		target := Target{topic, KeyDedup}
		if named {
			target.Key = Policy(policy)
		}
		if err := target.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t[name] = target
	}
	return t, t.check()
}

func (t Target) check() error {
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	switch {
	case t.Topic == "" || len(t.Topic) > maxTopic || strings.Trim(t.Topic, ".") == "" ||
		strings.ContainsFunc(t.Topic, func(r rune) bool { return !legal(r) }):
		return fmt.Errorf("a topic has 1 to %d letters, digits, dots, underscores and hyphens, not %.80q", maxTopic, t.Topic)
	case strings.HasSuffix(t.Topic, kafka.SearchDeadLetters):
		return fmt.Errorf("the name of a topic does not end with %s: %.80q", kafka.SearchDeadLetters, t.Topic)
	case t.Key != KeyDedup && t.Key != KeyAggregate:
		return fmt.Errorf("the key of a topic is %s or %s, not %.40q", KeyDedup, KeyAggregate, t.Key)
	}
	return checkFree(t.Topic)
}

// same returns a form that names have in common between which Kafka or a file system may not
// tell: Kafka does not tell dots from underscores, and some file systems do not tell capital
// letters from small ones.
func same(name string) string { return strings.ReplaceAll(strings.ToLower(name), ".", "_") }

// checkFree returns an error, in one line, for a topic that search events must not be sent to:
// a declared topic of another kind, a later version of one, and topics that Parley or Kafka
// keep for themselves.
func checkFree(name string) error {
	at := same(name)
	for _, t := range kafka.Topics() {
		switch {
		case name == t.Name && t.Kind == kafka.Searches:
			return nil
		case t.Kind == kafka.Chats && strings.HasPrefix(at, same(t.Name+".v")):
			return fmt.Errorf("the topic %.80q is reserved for later versions of %s", name, t.Name)
		case at == same(t.Name):
			return fmt.Errorf("the topic %.80q is taken by the declared topic %s", name, t.Name)
		}
	}
	if strings.HasPrefix(at, same(kafka.OwnPrefix)) || strings.HasPrefix(at, "__") {
		return fmt.Errorf("the topic %.80q is reserved: names that start with %s or __ are internal", name, kafka.OwnPrefix)
	}
	return nil
}

// check refuses types that share a topic and not its key, and topics, with those of their dead
// letters, that are not the same but may not be told apart.
func (t Targets) check() error {
	policies := map[string]Policy{}
	for _, name := range Types() {
		to := t[name]
		if was, ok := policies[to.Topic]; ok && was != to.Key {
			return errors.New("types that share a topic have the same key: " + to.Topic)
		}
		policies[to.Topic] = to.Key
	}
	names := map[string]string{}
	for _, topic := range t.Topics() {
		for _, name := range []string{topic, topic + kafka.SearchDeadLetters} {
			if other, ok := names[same(name)]; ok {
				pair := []string{other, name}
				slices.Sort(pair)
				return fmt.Errorf("not every system tells %.80s from %.80s", pair[0], pair[1])
			}
			names[same(name)] = name
		}
	}
	return nil
}

// Undeclared lists the topics that are not among the declared ones, with those of their dead
// letters: with the settings that declared ones have.
func (t Targets) Undeclared() (list []kafka.Topic) {
	declared := map[string]kafka.Topic{}
	for _, d := range kafka.Topics() {
		declared[d.Name] = d
	}
	for _, name := range t.Topics() {
		if _, ok := declared[name]; ok {
			continue
		}
		for _, suffix := range []string{"", kafka.SearchDeadLetters} {
			like := declared[kafka.SearchTopics[0]+suffix]
			like.Name = name + suffix
			list = append(list, like)
		}
	}
	return list
}

// Topics lists the topics of all types, each once, without those of dead letters.
func (t Targets) Topics() []string {
	var list []string
	for _, name := range Types() {
		if topic := t[name].Topic; !slices.Contains(list, topic) {
			list = append(list, topic)
		}
	}
	return list
}
