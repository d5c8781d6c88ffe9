// Package event is the catalogue of Parley's events: what there is, what it is
// called, how it is encoded, and where it belongs on Kafka.
//
// The generated messages of proto/event are the events themselves; their
// contracts stand in their options. The package owns names, encoding and
// partitioning; it does not own when events happen (package chat), where they
// are kept (package store) or how they are published. Everything here is pure
// and safe for concurrent use.
package event

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// Event is one fact of a chat.
type Event interface {
	proto.Message
	GetMetadata() *eventv1.EventMetadata
	GetChatId() string
}

// Spec is the declared contract of a kind of event.
type Spec struct {
	Topic   string // Kafka topic it is published to
	Type    string // its EventMetadata.event_type
	Version int32  // its EventMetadata.event_version
	Key     string // field whose value is the record key
}

// Names of the events, as in EventMetadata.event_type.
const (
	TypeChatCreated       = "ChatCreated"
	TypeChatUpdated       = "ChatUpdated"
	TypeMembershipChanged = "MembershipChanged"
	TypeMessagePersisted  = "MessagePersisted"
)

type kind struct {
	spec Spec
	make func() Event
}

// catalogue is complete: a type outside of it is not an event. The options of the
// descriptors are read once, here.
var catalogue = func() map[string]kind {
	m := map[string]kind{}
	for _, empty := range []func() Event{
		func() Event { return &eventv1.ChatCreated{} },
		func() Event { return &eventv1.ChatUpdated{} },
		func() Event { return &eventv1.MembershipChanged{} },
		func() Event { return &eventv1.MessagePersisted{} },
	} {
		opts, _ := proto.GetExtension(empty().ProtoReflect().Descriptor().Options(), eventv1.E_Event).(*eventv1.EventOptions)
		spec := Spec{Topic: opts.GetTopic(), Type: opts.GetEventType(), Version: opts.GetVersion(), Key: opts.GetKey()}
		m[spec.Type] = kind{spec: spec, make: empty}
	}
	return m
}()

// Specs returns the contracts of all events, in order of their names.
func Specs() []Spec {
	out := make([]Spec, 0, len(catalogue))
	for _, k := range catalogue {
		out = append(out, k.spec)
	}
	slices.SortFunc(out, func(a, b Spec) int {
		if a.Type < b.Type {
			return -1
		}
		return 1
	})
	return out
}

// Known reports whether the catalogue has an event of a name.
func Known(eventType string) bool {
	_, ok := catalogue[eventType]
	return ok
}

// TypeOf returns the name of an event, "" for none of the catalogue.
func TypeOf(e Event) string {
	switch e.(type) {
	case *eventv1.ChatCreated:
		return TypeChatCreated
	case *eventv1.ChatUpdated:
		return TypeChatUpdated
	case *eventv1.MembershipChanged:
		return TypeMembershipChanged
	case *eventv1.MessagePersisted:
		return TypeMessagePersisted
	}
	return ""
}

// SpecOf returns the contract of an event; the zero Spec if the catalogue does
// not have it.
func SpecOf(e Event) Spec { return catalogue[TypeOf(e)].spec }

// Marshal encodes an event, deterministically: equal events have equal bytes.
func Marshal(e Event) ([]byte, error) {
	if TypeOf(e) == "" {
		return nil, fmt.Errorf("event: %T is not in the catalogue", e)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(e)
}

// Unmarshal decodes an event of a type of the catalogue.
func Unmarshal(eventType string, b []byte) (Event, error) {
	k, ok := catalogue[eventType]
	if !ok {
		return nil, fmt.Errorf("event: unknown type %q", eventType)
	}
	e := k.make()
	if err := proto.Unmarshal(b, e); err != nil {
		return nil, fmt.Errorf("event: decode %s: %w", eventType, err)
	}
	return e, nil
}

// Cause is the actor and the cause of the events of a command. All events of the command
// have the same cause, however many plans and chats it takes.
type Cause struct {
	Actor       string // user, or "system"
	Trace       string // W3C trace-id: 32 lower-case hex digits
	Correlation string // shared by everything that one user action set off
	Causation   string // request that directly caused it
	Service     string // service account that acted in the actor's name, if one did
}

// Complete returns the cause with defaults for what the command leaves open. A command
// without a correlation has the id given, of its first event. The other defaults follow from
// the correlation, so that every process that continues the command finds the same ones.
func (c Cause) Complete(first string) Cause {
	c.Actor = cmp.Or(c.Actor, "system")
	c.Correlation = cmp.Or(c.Correlation, first)
	c.Causation = cmp.Or(c.Causation, c.Correlation)
	if c.Trace == "" {
		c.Trace = traceOf(c.Correlation)
	}
	return c
}

// traceOf makes the trace-id of a command that came without one, from its correlation. The
// hash is as random as the correlation is unique: that is an id with 80 random bits.
func traceOf(correlation string) string {
	sum := sha256.Sum256([]byte(correlation))
	var id [32]byte
	hex.Encode(id[:], sum[:len(id)/2])
	return string(id[:])
}

// Origin says where events are made.
type Origin struct {
	Generation string // of the store
	Producer   string // process
}

// Metadata is what the envelope of an event of a chat is made from.
type Metadata struct {
	Type   string
	ID     string
	ChatID string
	At     time.Time
	Origin Origin
	Cause  Cause
	// Version and MembershipVersion are the event's position in its chat.
	Version           int64
	MembershipVersion int64
}

// Proto returns the envelope. The cause must be complete.
func (m Metadata) Proto() *eventv1.EventMetadata {
	return &eventv1.EventMetadata{
		EventId:           m.ID,
		EventType:         m.Type,
		EventVersion:      catalogue[m.Type].spec.Version,
		EventTime:         timestamppb.New(m.At),
		Generation:        m.Origin.Generation,
		PartitionKey:      m.ChatID,
		ProducerId:        m.Origin.Producer,
		TraceId:           m.Cause.Trace,
		ActorId:           m.Cause.Actor,
		CorrelationId:     m.Cause.Correlation,
		CausationId:       m.Cause.Causation,
		Version:           m.Version,
		MembershipVersion: m.MembershipVersion,
		ServiceId:         m.Cause.Service,
	}
}
