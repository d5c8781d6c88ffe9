package events_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/workers/ops/events"
)

// Statuses have one spelling, in package outbox and in the API.
func TestOneSpelling(t *testing.T) {
	for s, want := range map[opsv1.EventStatus]outbox.Status{
		opsv1.EventStatus_EVENT_STATUS_NEW:       outbox.New,
		opsv1.EventStatus_EVENT_STATUS_FAILED:    outbox.Failed,
		opsv1.EventStatus_EVENT_STATUS_PUBLISHED: outbox.Published,
	} {
		if got := events.Status(s); got != want {
			t.Errorf("%v is %q, not %q", s, got, want)
		}
	}
	if len(opsv1.EventStatus_name) != 4 {
		t.Errorf("the API has other statuses: %v", opsv1.EventStatus_name)
	}
}

// Every call only reads, as its contract says, and shows what users wrote only where that is
// asked for: that is what makes the audit record it.
func TestContract(t *testing.T) {
	methods := opsv1.File_parley_ops_v1_event_service_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		o, _ := m.Options().(*descriptorpb.MethodOptions)
		if o.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
			t.Errorf("%s changes something", m.Name())
		}
		if f := m.Input().Fields().ByName("content"); f == nil || f.Kind() != protoreflect.BoolKind {
			t.Errorf("%s has no field content", m.Name())
		}
	}
}
