package event

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Position is an event's position in its chat's history.
type Position struct {
	Generation        string
	Version           int64 // of the chat, with the event
	MembershipVersion int64
}

// Numbers of the fields of events and their metadata that Position has.
const (
	fieldMetadata          = 1
	fieldGeneration        = 5
	fieldPartitionKey      = 6
	fieldVersion           = 12
	fieldMembershipVersion = 13
)

// MessagePosition reads the position of a message from the value of its record, and nothing
// else of it: for consumers that need a message only if they lack that position. The record
// is not validated. ok is false if it is no message of this chat, by its schema and key, or
// has no position; Decode says what is wrong with it.
func (s *Serde) MessagePosition(key, value []byte) (p Position, ok bool) {
	id, payload, err := Unframe(value)
	if err != nil {
		return p, false
	}
	s.mu.RLock()
	eventType := s.types[id]
	s.mu.RUnlock()
	if eventType != TypeMessagePersisted {
		return p, false
	}
	number, wire, n := protowire.ConsumeTag(payload)
	if n < 0 || number != fieldMetadata || wire != protowire.BytesType { // encoders write it first
		return p, false
	}
	metadata, n := protowire.ConsumeBytes(payload[n:])
	if n < 0 {
		return p, false
	}
	chat, ok := p.read(metadata)
	return p, ok && chat == string(key) && p.Generation != "" && p.Version > 0 && p.MembershipVersion > 0
}

// read takes the position from an event's metadata, and returns the chat that they name.
func (p *Position) read(metadata []byte) (chat string, ok bool) {
	for len(metadata) > 0 {
		number, wire, n := protowire.ConsumeTag(metadata)
		if n < 0 {
			return "", false
		}
		metadata = metadata[n:]
		if n = protowire.ConsumeFieldValue(number, wire, metadata); n < 0 {
			return "", false
		}
		value := metadata[:n]
		metadata = metadata[n:]
		switch {
		case number == fieldGeneration && wire == protowire.BytesType:
			p.Generation = text(value)
		case number == fieldPartitionKey && wire == protowire.BytesType:
			chat = text(value)
		case number == fieldVersion && wire == protowire.VarintType:
			p.Version = integer(value)
		case number == fieldMembershipVersion && wire == protowire.VarintType:
			p.MembershipVersion = integer(value)
		}
	}
	return chat, true
}

// text and integer are the values of fields that have been found whole.
func text(field []byte) string {
	b, _ := protowire.ConsumeBytes(field)
	return string(b)
}

func integer(field []byte) int64 {
	v, _ := protowire.ConsumeVarint(field)
	return int64(v)
}
