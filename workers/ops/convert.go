package ops

import (
	"crypto/sha256"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/deadletter"
)

// Limits of what is shown, in bytes.
const (
	maxKey    = 256
	maxReason = 1_000
	maxName   = 255
	maxID     = 600
)

// The words of package deadletter are the names of the API's enums in small letters,
// without the name of their type.
const (
	statusPrefix  = "DEAD_LETTER_STATUS_"
	outcomePrefix = "DEAD_LETTER_OUTCOME_"
	sourcePrefix  = "DEAD_LETTER_SOURCE_"
)

func statusOf(s opsv1.DeadLetterStatus) deadletter.Status {
	return deadletter.Status(strings.ToLower(strings.TrimPrefix(s.String(), statusPrefix)))
}

func statusTo(s deadletter.Status) opsv1.DeadLetterStatus {
	return opsv1.DeadLetterStatus(opsv1.DeadLetterStatus_value[statusPrefix+strings.ToUpper(string(s))])
}

func sourceOf(s opsv1.DeadLetterSource) deadletter.Source {
	if s == opsv1.DeadLetterSource_DEAD_LETTER_SOURCE_UNSPECIFIED {
		return ""
	}
	return deadletter.Source(strings.ToLower(strings.TrimPrefix(s.String(), sourcePrefix)))
}

func sourceTo(s deadletter.Source) opsv1.DeadLetterSource {
	return opsv1.DeadLetterSource(opsv1.DeadLetterSource_value[sourcePrefix+strings.ToUpper(string(s))])
}

func outcomeTo(o deadletter.Outcome) opsv1.DeadLetterOutcome {
	return opsv1.DeadLetterOutcome(opsv1.DeadLetterOutcome_value[outcomePrefix+strings.ToUpper(string(o))])
}

// truncate shortens a text to a number of bytes, and makes it valid UTF-8 for protobuf.
func truncate(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "?")
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func filterOf(f *opsv1.DeadLetterFilter, statuses []opsv1.DeadLetterStatus) deadletter.Filter {
	out := deadletter.Filter{
		Source: sourceOf(f.GetSource()), IDs: f.GetIds(), Group: f.GetGroup(), Topic: f.GetTopic(),
		Key: f.GetKey(), Reason: f.GetReason(),
		Class: eventv1.FailureClass(f.GetFailureClass()), // the enums are equal
		After: timeOf(f.GetFailedFrom()), Before: timeOf(f.GetFailedBefore()),
	}
	for _, s := range statuses {
		out.Statuses = append(out.Statuses, statusOf(s))
	}
	return out
}

func deadLetterTo(l *deadletter.DeadLetter) *opsv1.DeadLetter {
	out := &opsv1.DeadLetter{
		Id: truncate(l.ID(), maxID), Group: truncate(l.Group, maxName), Consumer: truncate(l.Consumer, maxName),
		Reason: truncate(l.Reason, maxReason), FailedAt: timestamp(l.FailedAt), Attempts: int32(l.Attempts),
		Topic: truncate(l.Record.Topic, maxName), Partition: l.Record.Partition, Offset: l.Record.Offset,
		RecordedAt: timestamp(l.Record.Timestamp),
		Key:        truncate(string(l.Record.Key), maxKey), ValueBytes: int64(len(l.Record.Value)) + l.Omitted,
		Status: statusTo(l.Status), HandledBy: l.Handling.By, Result: l.Handling.Result, Redrives: int32(l.Handling.Tries),
		Source: sourceTo(l.Source), Parked: l.Parked, FirstFailedAt: timestamp(l.First),
		MessageType: truncate(l.Type, maxName),
	}
	if l.Handling.At > 0 {
		out.HandledAt = timestamp(time.UnixMilli(l.Handling.At))
	}
	return out
}

// recordTo shows the record of a dead letter. Of a topic's message the headers are what a user
// wrote, but those of the server.
func recordTo(l *deadletter.DeadLetter, content bool) *opsv1.DeadLetterRecord {
	r := l.Record
	sum := sha256.Sum256(r.Value)
	out := &opsv1.DeadLetterRecord{Key: r.Key, ValueSha256: sum[:]}
	for _, h := range r.Headers {
		shown := &opsv1.DeadLetterHeader{Name: strings.ToValidUTF8(h.Key, "\ufffd")}
		if content || l.Source == deadletter.Events || topic.IsOwnHeader(h.Key) {
			shown.Value = h.Value
		}
		out.Headers = append(out.Headers, shown)
	}
	if content {
		out.Value = r.Value
	}
	return out
}

func summaryTo(r deadletter.Report) *opsv1.DeadLetterSummary {
	return &opsv1.DeadLetterSummary{
		Matched: int64(r.Matched), Done: int64(r.Done), Failed: int64(r.Failed), Behind: int64(r.Behind),
		NoHandler: int64(r.NoHandler), Taken: int64(r.Taken), More: r.More,
	}
}
