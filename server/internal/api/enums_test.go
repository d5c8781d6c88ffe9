package api_test

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// The API and the events have enums of their own, because each contract is versioned by
// itself. Their numbers are stored in one place and read in the other, so that an enum
// which stands in both must have the same values there.
func TestEnumsOfAPIAndEventsAgree(t *testing.T) {
	type enumValues = map[protoreflect.EnumNumber]protoreflect.Name
	enumsOf := func(files ...protoreflect.FileDescriptor) map[protoreflect.Name]enumValues {
		enums := map[protoreflect.Name]enumValues{}
		for _, f := range files {
			for i := range f.Enums().Len() {
				e := f.Enums().Get(i)
				values := enumValues{}
				for j := range e.Values().Len() {
					values[e.Values().Get(j).Number()] = e.Values().Get(j).Name()
				}
				enums[e.Name()] = values
			}
		}
		return enums
	}
	events := enumsOf(eventv1.File_parley_event_v1_enums_proto)
	rpcs := enumsOf(files...)
	var both []protoreflect.Name
	for _, name := range slices.Sorted(maps.Keys(events)) {
		values, ok := rpcs[name]
		if !ok {
			continue
		}
		both = append(both, name)
		if !maps.Equal(values, events[name]) {
			t.Errorf("enum %s: the API has %v, the events have %v", name, values, events[name])
		}
	}
	if want := []protoreflect.Name{"ChatStatus", "ChatType", "ContentType", "HistoryMode",
		"MemberRole"}; !slices.Equal(both, want) {
		t.Errorf("enums of both are %v, want %v", both, want)
	}
}
