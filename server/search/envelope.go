package search

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	searchlogv1 "github.com/parley-chat/parley/gen/parley/searchlog/v1"
	"github.com/parley-chat/parley/server/kafka"
)

// SchemaVersion is that of all types. A change that readers of it would not understand is a
// new type with a new topic.
const SchemaVersion = "v1"

// Producer is the name of the publisher in envelopes.
const Producer = "outbox-relay"

// Envelope is an event as it is on Kafka, in JSON.
type Envelope struct {
	SchemaVersion string          `json:"schema_version"`
	EventID       string          `json:"event_id"`
	EventType     string          `json:"event_type"`
	DedupKey      string          `json:"dedup_key"`   // the same whenever the event is sent again
	OccurredAt    string          `json:"occurred_at"` // RFC 3339, UTC
	Producer      string          `json:"producer"`
	AggregateType string          `json:"aggregate_type"`
	AggregateID   string          `json:"aggregate_id"`
	Payload       json.RawMessage `json:"payload"` // the content, with the names of its fields
}

// payloads are written with the names that the schema gives fields, and with all of them:
// readers need not know what is left out.
var payloads = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}

// times have milliseconds, always.
const times = "2006-01-02T15:04:05.000Z07:00"

// Envelope makes the envelope of an event. An error says that the event cannot be published,
// now or later.
func (r Recorded) Envelope() (Envelope, error) {
	k, ok := kindOf(r.GetEventType())
	if !ok {
		return Envelope{}, fmt.Errorf("search: event %s is of the unknown type %.40q", r.ID, r.GetEventType())
	}
	content, ok := k.prototype.New().Interface().(Content)
	if !ok {
		return Envelope{}, fmt.Errorf("search: %s is no content", k.name)
	}
	if err := proto.Unmarshal(r.GetPayload(), content); err != nil {
		return Envelope{}, fmt.Errorf("search: decode event %s: %w", r.ID, err)
	}
	payload, err := payloads.Marshal(content)
	if err != nil {
		return Envelope{}, fmt.Errorf("search: event %s in JSON: %w", r.ID, err)
	}
	return Envelope{
		SchemaVersion: SchemaVersion, EventID: r.ID, EventType: k.name, DedupKey: r.dedupKey(content.GetUserId()),
		OccurredAt: time.UnixMilli(r.GetOccurredAtMs()).UTC().Format(times), Producer: Producer,
		AggregateType: k.aggregate, AggregateID: content.GetSearchId(), Payload: payload,
	}, nil
}

// How much larger an event can get as JSON: a control character of the search's id, which is
// there twice, becomes six bytes. The rest of the envelope has less than envelopeBytes.
const (
	maxGrowth     = 12
	envelopeBytes = 2048
)

// Fits reports whether an event, as Encode returned it, is small enough for Kafka as JSON.
func Fits(encoded []byte) (bool, error) {
	if len(encoded)*maxGrowth+envelopeBytes <= kafka.MaxEvent {
		return true, nil
	}
	all := &searchlogv1.RecordedEvents{}
	if err := proto.Unmarshal(encoded, all); err != nil {
		return false, fmt.Errorf("search: decode: %w", err)
	}
	for _, e := range all.GetEvents() {
		envelope, err := Recorded{RecordedEvent: e}.Envelope()
		if err != nil {
			return false, err
		}
		text, err := envelope.JSON()
		if err != nil || len(text)+envelopeBytes > kafka.MaxEvent { // it has no id yet
			return false, err
		}
	}
	return true, nil
}

// dedupKey is the same for the same event: for one with an id of the client by that id and
// its user, for others by time and content.
func (r Recorded) dedupKey(user string) string {
	h := sha256.New()
	write := func(parts ...string) {
		for _, p := range parts { // with their lengths, so that no two lists are alike
			h.Write(strconv.AppendInt(nil, int64(len(p)), 10))
			h.Write([]byte{':'})
			h.Write([]byte(p))
		}
	}
	if r.GetClientEventId() != "" {
		write(r.GetEventType(), user, r.GetClientEventId())
	} else {
		write(r.GetEventType(), user, "", strconv.FormatInt(r.GetOccurredAtMs(), 10), string(r.GetPayload()))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Key is the key of the event's record under a policy. other is the value that is not the
// key.
func (e Envelope) Key(p Policy) (key, other string) {
	if p == KeyAggregate {
		return e.AggregateID, e.DedupKey
	}
	return e.DedupKey, e.AggregateID
}

// JSON is the envelope in JSON: nine keys, always the same, without the spaces that the
// payload may have.
func (e Envelope) JSON() ([]byte, error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	w.SetEscapeHTML(false)
	if err := w.Encode(e); err != nil {
		return nil, fmt.Errorf("search: event %s in JSON: %w", e.EventID, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
