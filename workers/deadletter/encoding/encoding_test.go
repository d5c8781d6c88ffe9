package encoding

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
)

// An encoded dead letter has its id and class as fields, and decodes to the same dead letter.
func TestFields(t *testing.T) {
	l := DeadLetter{
		Record: &kafka.Record{Topic: "chats.created", Partition: 3, Offset: 7, Timestamp: time.UnixMilli(5).UTC(),
			Key: []byte("k"), Value: []byte{}},
		Group: "g", Consumer: "c", Class: Class("permanent"), Reason: "permanent: bad", FailedAt: time.UnixMilli(9).UTC(),
		Attempts: 2,
	}
	b, err := l.Encode()
	testkit.Must(t, err)
	var m eventv1.DeadLetter
	testkit.Must(t, proto.Unmarshal(b, &m))
	if md := m.GetDlqMetadata(); md.GetDeadLetterId() != "g/chats.created/3/7" ||
		md.GetFailureClass() != eventv1.FailureClass_FAILURE_CLASS_PERMANENT {
		t.Errorf("%v", md)
	}
	got, err := Decode(b)
	testkit.Must(t, err)
	if got.ID() != "g/chats.created/3/7" || got.Class != l.Class || got.Reason != l.Reason ||
		!got.FailedAt.Equal(l.FailedAt) || got.Attempts != 2 || got.Consumer != "c" ||
		string(got.Record.Key) != "k" || got.Record.Value == nil {
		t.Errorf("%+v became %+v", l, got)
	}
}

// Dead letters that are older than these fields are still read: the class is the first word of
// the reason, and the id follows from the position.
func TestDeadLettersWithoutFields(t *testing.T) {
	for reason, want := range map[string]eventv1.FailureClass{
		"permanent: bad":                eventv1.FailureClass_FAILURE_CLASS_PERMANENT,
		"unknown: *errors.errorString":  eventv1.FailureClass_FAILURE_CLASS_UNKNOWN,
		"unknown: the handler panicked": eventv1.FailureClass_FAILURE_CLASS_UNKNOWN,
		"fatal: start again":            eventv1.FailureClass_FAILURE_CLASS_FATAL,
		"a word of another consumer":    eventv1.FailureClass_FAILURE_CLASS_UNSPECIFIED,
	} {
		b, err := proto.Marshal(&eventv1.DeadLetter{
			DlqMetadata: &eventv1.DeadLetterMetadata{
				OriginalTopic: "messages.persisted", OriginalPartition: 5, OriginalOffset: 4, ConsumerGroup: "fanout",
				FailureReason:    reason,
				FailureTimestamp: timestamppb.New(time.UnixMilli(9)), ProcessingAttempts: 3,
			},
			OriginalRecord: &eventv1.OriginalRecord{Value: []byte{0, 255}},
		})
		testkit.Must(t, err)
		l, err := Decode(b)
		if err != nil || l.Class != want || l.ID() != "fanout/messages.persisted/5/4" || l.Attempts != 3 ||
			!bytes.Equal(l.Record.Value, []byte{0, 255}) {
			t.Errorf("%q: %+v, %v", reason, l, err)
		}
	}
}

func TestNoDeadLetters(t *testing.T) {
	if _, err := Decode([]byte{0xff}); err == nil {
		t.Error("noise is a letter")
	}
	if _, err := Decode(nil); err == nil {
		t.Error("a letter without a record")
	}
}
