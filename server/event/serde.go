package event

import (
	"errors"
	"fmt"

	"buf.build/go/protovalidate"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
)

// ErrSchema says that a record is not what its schema promises: bytes that are no
// event, an unknown schema, an invalid or foreign payload. It is permanent: the
// same bytes will never be right.
var ErrSchema = errors.New("event: schema violation")

// Serde encodes events for Kafka in the Confluent wire format, a zero byte, the
// schema's id, the index of the message in its file, and the protobuf, and decodes
// them strictly.
type Serde struct {
	ids       map[string]int // by event type
	types     map[int]string
	validator protovalidate.Validator
}

// index is that of the message in its file: an event's file has one.
var index = []int{0}

// NewSerde makes a Serde from the ids of all events' schemas, by event type.
func NewSerde(ids map[string]int) (*Serde, error) {
	v, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("event: validator: %w", err)
	}
	s := &Serde{ids: ids, types: map[int]string{}, validator: v}
	for _, spec := range Specs() {
		id, ok := ids[spec.Type]
		if !ok {
			return nil, fmt.Errorf("event: no schema id for %s", spec.Type)
		}
		s.types[id] = spec.Type
	}
	return s, nil
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

// Decode reads the value of a record with a key. Errors wrap ErrSchema.
func (s *Serde) Decode(key, value []byte) (Event, error) {
	header := new(sr.ConfluentHeader)
	id, rest, err := header.DecodeID(value)
	if err != nil {
		return nil, fmt.Errorf("%w: no schema id", ErrSchema)
	}
	idx, payload, err := header.DecodeIndex(rest, 1)
	if err != nil || len(idx) != 1 || idx[0] != 0 {
		return nil, fmt.Errorf("%w: no message index", ErrSchema)
	}
	eventType, ok := s.types[id]
	if !ok {
		return nil, fmt.Errorf("%w: schema %d is not one of an event", ErrSchema, id)
	}
	e, err := Unmarshal(eventType, payload)
	if err != nil {
		return nil, fmt.Errorf("%w: not a %s", ErrSchema, eventType)
	}
	if err := s.validator.Validate(e); err != nil {
		return nil, fmt.Errorf("%w: invalid %s", ErrSchema, eventType)
	}
	if md := e.GetMetadata(); md.GetEventType() != eventType || md.GetPartitionKey() != e.GetChatId() || e.GetChatId() != string(key) {
		return nil, fmt.Errorf("%w: %s with another type or key than its record", ErrSchema, eventType)
	}
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
