package search

import (
	"encoding/json"
	"fmt"
	"time"
)

// DeadLetter is an event that its topic cannot have, as it is in the topic of dead letters, in
// JSON.
type DeadLetter struct {
	OriginalTopic     string `json:"original_topic"`
	OriginalPartition int32  `json:"original_partition"`
	OriginalKey       string `json:"original_key"`
	EventID           string `json:"event_id"`
	EventType         string `json:"event_type"`
	Error             string `json:"error"`
	Attempts          int    `json:"attempts"`
	FailedAt          string `json:"failed_at"` // RFC 3339, UTC
	// Event is the envelope, null if none can be made: then Recorded is what was recorded, a
	// parley.searchlog.v1.RecordedEvent in base64.
	Event    json.RawMessage `json:"event"`
	Recorded []byte          `json:"recorded,omitempty"`
}

// maxReason bounds the text of an error, in bytes.
const maxReason = 500

// JSON is the dead letter in JSON.
func (d DeadLetter) JSON(at time.Time) ([]byte, error) {
	d.FailedAt = at.UTC().Format(times)
	if len(d.Error) > maxReason {
		d.Error = d.Error[:maxReason]
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("search: dead letter of %s in JSON: %w", d.EventID, err)
	}
	return b, nil
}
