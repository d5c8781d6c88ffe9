package event

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"buf.build/go/protovalidate"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
)

// ErrSchema says that a record is not what its schema promises: bytes that are no
// event, an unknown schema, an invalid or foreign payload. It is permanent: the
// same bytes will never be right.
var ErrSchema = errors.New("event: schema violation")

// ErrForeign says that a record is of a type that is registered for a topic of events and
// that this version does not know: one that is newer. It wraps ErrSchema.
var ErrForeign = fmt.Errorf("%w: a type of a newer version", ErrSchema)

// Serde encodes events for Kafka in the Confluent wire format, a zero byte, the
// schema's id, the index of the message in its file, and the protobuf, and decodes
// them strictly.
//
// Concurrency: all methods may be called by anybody.
type Serde struct {
	ids       map[string]int    // by event type
	subjects  map[string]string // to event type
	resolve   Resolver
	validator protovalidate.Validator

	mu     sync.RWMutex
	types  map[int]string // event type by schema id; guarded by mu
	newer  map[newer]bool // reported; guarded by mu
	report func(eventType string, version int32)
}

// newer is a version of an event that this version of Parley does not know.
type newer struct {
	eventType string
	version   int32
}

// maxNewer bounds the versions that a Serde records as reported.
const maxNewer = 64

// Resolver returns the subjects under which a schema is registered, none for an
// unknown one.
type Resolver func(ctx context.Context, id int) ([]string, error)

// index is that of the message in its file: an event's file has one.
var index = []int{0}

// NewSerde makes a Serde from the ids of all events' schemas, by event type. Those
// are the versions that this process writes; records with the ids of others, older
// or from a newer process, are read by asking resolve, once for an id (each
// version reads all others). Without a resolver they are unknown.
func NewSerde(ids map[string]int, resolve Resolver) (*Serde, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("event: validator: %w", err)
	}
	s := &Serde{ids: ids, subjects: map[string]string{}, resolve: resolve, types: map[int]string{},
		newer: map[newer]bool{}, validator: v}
	for _, spec := range Specs() {
		id, ok := ids[spec.Type]
		if !ok {
			return nil, fmt.Errorf("event: no schema id for %s", spec.Type)
		}
		s.types[id] = spec.Type
		s.subjects[spec.Subject()] = spec.Type
	}
	return s, nil
}

// OnNewer has f called once for each version of an event that is decoded though it is newer
// than the one that this process writes: its new fields are not seen. It must be
// called before the first Decode.
func (s *Serde) OnNewer(f func(eventType string, version int32)) { s.report = f }

func (s *Serde) version(eventType string, v int32) {
	if s.report == nil || v <= catalogue[eventType].spec.Version {
		return
	}
	n := newer{eventType, v}
	s.mu.RLock()
	known := s.newer[n]
	s.mu.RUnlock()
	if known {
		return
	}
	s.mu.Lock()
	known = s.newer[n] || len(s.newer) >= maxNewer
	if !known {
		s.newer[n] = true
	}
	s.mu.Unlock()
	if !known {
		s.report(eventType, v)
	}
}

// Encode returns the value of an event's record.
func (s *Serde) Encode(e Event) ([]byte, error) {
	payload, err := Marshal(e)
	if err != nil {
		return nil, err
	}
	return s.Frame(TypeOf(e), payload)
}

// Frame returns the value of the record of an event that is encoded already.
func (s *Serde) Frame(eventType string, payload []byte) ([]byte, error) {
	id, ok := s.ids[eventType]
	if !ok {
		return nil, fmt.Errorf("event: no schema id for %q", eventType)
	}
	return Frame(id, payload)
}

// Frame puts a schema's id, and the index of its file's first message, before an
// encoded message.
func Frame(id int, payload []byte) ([]byte, error) {
	b, err := new(sr.ConfluentHeader).AppendEncode(make([]byte, 0, 6+len(payload)), id, index)
	return append(b, payload...), err
}

// Unframe is the inverse of Frame: it returns the schema's id and the encoded message. An
// error wraps ErrSchema.
func Unframe(value []byte) (id int, payload []byte, err error) {
	header := new(sr.ConfluentHeader)
	id, rest, err := header.DecodeID(value)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: no schema id", ErrSchema)
	}
	idx, payload, err := header.DecodeIndex(rest, 1)
	if err != nil || len(idx) != 1 || idx[0] != 0 {
		return 0, nil, fmt.Errorf("%w: no message index", ErrSchema)
	}
	return id, payload, nil
}

// typeOf returns the event type of a schema, "" for one that is no event's. Errors:
// ErrForeign, and those of the resolver.
func (s *Serde) typeOf(ctx context.Context, id int) (string, error) {
	s.mu.RLock()
	eventType := s.types[id]
	s.mu.RUnlock()
	if eventType != "" || s.resolve == nil {
		return eventType, nil
	}
	subjects, err := s.resolve(ctx, id)
	if err != nil {
		return "", fmt.Errorf("event: ask for schema %d: %w", id, err)
	}
	for _, subject := range subjects {
		if eventType = s.subjects[subject]; eventType != "" {
			// Ids never change, so this holds for ever. An unknown schema is requested
			// again: it may be registered by then.
			s.mu.Lock()
			s.types[id] = eventType
			s.mu.Unlock()
			return eventType, nil
		}
	}
	for _, subject := range subjects {
		for _, spec := range Specs() {
			if carries(subject, spec.Topic) {
				return "", ErrForeign
			}
		}
	}
	return "", nil
}

// carries reports whether a subject is of a declared topic, or of a version of it: NAME.v2
// and so on.
func carries(subject, topic string) bool {
	rest, ok := strings.CutPrefix(subject, topic)
	if number, found := strings.CutPrefix(rest, ".v"); ok && found {
		rest = strings.TrimLeft(number, "0123456789")
		ok = rest != number
	}
	return ok && strings.HasPrefix(rest, "-")
}

// Decode reads the value of a record with a key. An error that wraps ErrSchema is
// about the record, any other about the registry, which could not be asked.
func (s *Serde) Decode(ctx context.Context, key, value []byte) (Event, error) {
	id, payload, err := Unframe(value)
	if err != nil {
		return nil, err
	}
	eventType, err := s.typeOf(ctx, id)
	if err != nil {
		return nil, err
	}
	if eventType == "" {
		return nil, fmt.Errorf("%w: schema %d is not one of an event", ErrSchema, id)
	}
	e, err := Unmarshal(eventType, payload)
	if err != nil {
		return nil, fmt.Errorf("%w: not a %s", ErrSchema, eventType)
	}
	if err := s.validator.Validate(e); err != nil {
		return nil, fmt.Errorf("%w: invalid %s", ErrSchema, eventType)
	}
	if md := e.GetMetadata(); md.GetEventType() != eventType || md.GetPartitionKey() != e.GetChatId() ||
		e.GetChatId() != string(key) {
		return nil, fmt.Errorf("%w: %s with another type or key than its record", ErrSchema, eventType)
	}
	s.version(eventType, e.GetMetadata().GetEventVersion())
	return e, nil
}

// Subject is the name under which an event's schema is registered.
func (s Spec) Subject() string {
	return s.Topic + "-" + string(catalogue[s.Type].make().ProtoReflect().Descriptor().FullName())
}

// Prototype returns an empty event of a type, nil for none of the catalogue.
func Prototype(eventType string) proto.Message {
	k, ok := catalogue[eventType]
	if !ok {
		return nil
	}
	return k.make()
}
