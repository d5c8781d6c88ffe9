package ops

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter"
)

// Limits of what is shown, in bytes.
const (
	maxKey    = 256
	maxReason = 1_000
	maxName   = 249
	maxID     = 600
)

var statuses = map[opsv1.DeadLetterStatus]deadletter.Status{
	opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_OPEN:      deadletter.Open,
	opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_RUNNING:   deadletter.Running,
	opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_REDRIVEN:  deadletter.Redriven,
	opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_DISCARDED: deadletter.Discarded,
}

var classes = map[opsv1.FailureClass]consume.Class{
	opsv1.FailureClass_FAILURE_CLASS_UNKNOWN:       consume.Unknown,
	opsv1.FailureClass_FAILURE_CLASS_PERMANENT:     consume.Permanent,
	opsv1.FailureClass_FAILURE_CLASS_DOWNSTREAM:    consume.Downstream,
	opsv1.FailureClass_FAILURE_CLASS_AUTHORITATIVE: consume.Authoritative,
}

var outcomes = map[deadletter.Result]opsv1.DeadLetterOutcome{
	deadletter.Done:      opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_DONE,
	deadletter.Failed:    opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_FAILED,
	deadletter.Behind:    opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_BEHIND,
	deadletter.NoHandler: opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_NO_HANDLER,
	deadletter.Taken:     opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_TAKEN,
}

// cut shortens a text to a number of bytes, and makes it one that protobuf takes.
func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}

func stamp(t time.Time) *timestamppb.Timestamp {
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

func filterOf(f *opsv1.DeadLetterFilter, wanted []opsv1.DeadLetterStatus) deadletter.Filter {
	out := deadletter.Filter{
		IDs: f.GetIds(), Group: f.GetGroup(), Topic: f.GetTopic(), Key: f.GetKey(), Reason: f.GetReason(),
		After: timeOf(f.GetFailedFrom()), Before: timeOf(f.GetFailedBefore()),
	}
	if class, ok := classes[f.GetFailureClass()]; ok {
		out.Class = class.String()
	}
	for _, s := range wanted {
		out.Statuses = append(out.Statuses, statuses[s])
	}
	return out
}

func letterTo(l *deadletter.Letter) *opsv1.DeadLetter {
	out := &opsv1.DeadLetter{
		Id: cut(l.ID, maxID), Group: cut(l.Group, maxName), Consumer: cut(l.Consumer, maxName), Reason: cut(l.Reason, maxReason), FailedAt: stamp(l.FailedAt), Attempts: int32(l.Attempts),
		Topic: cut(l.Record.Topic, maxName), Partition: l.Record.Partition, Offset: l.Record.Offset, RecordedAt: stamp(l.Record.Timestamp),
		Key: cut(string(l.Record.Key), maxKey), ValueBytes: int64(len(l.Record.Value)) + l.Omitted,
		HandledBy: l.Outcome.By, Result: l.Outcome.Result, Redrives: int32(l.Outcome.Tries),
	}
	for k, v := range statuses {
		if v == l.Status {
			out.Status = k
		}
	}
	if l.Outcome.At > 0 {
		out.HandledAt = stamp(time.UnixMilli(l.Outcome.At))
	}
	return out
}

func recordTo(r *kafka.Record, content bool) *opsv1.DeadLetterRecord {
	sum := sha256.Sum256(r.Value)
	out := &opsv1.DeadLetterRecord{Key: r.Key, ValueSha256: sum[:]}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, &opsv1.DeadLetterHeader{Name: strings.ToValidUTF8(h.Key, "\ufffd"), Value: h.Value})
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

// metadata is the part of an event that Parley wrote.
var metadata = (&eventv1.EventMetadata{}).ProtoReflect().Descriptor().FullName()

// blank replaces what users may have written in an event by its size: all texts but
// ids, types and keys. So a field that is added later is hidden until somebody says
// that it may be seen.
func blank(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			m.Clear(f) // no event has one whose keys and values are all ids
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				blank(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			if name := f.Message().FullName(); name != metadata && name.Parent() != "google.protobuf" {
				blank(v.Message())
			}
		case f.Kind() == protoreflect.BytesKind:
			m.Clear(f)
		case f.Kind() != protoreflect.StringKind || named(f.Name()):
		case f.IsList():
			m.Clear(f)
		default:
			m.Set(f, protoreflect.ValueOfString(fmt.Sprintf("[%d bytes]", len(v.String()))))
		}
		return true
	})
}

func named(field protoreflect.Name) bool {
	_, last, ok := strings.Cut(string(field), "_")
	for ok {
		var rest string
		if _, rest, ok = strings.Cut(last, "_"); ok {
			last = rest
		}
	}
	switch last {
	case "id", "ids", "by", "type", "key":
		return true
	}
	return false
}
