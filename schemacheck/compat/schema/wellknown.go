package schema

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	// The messages with a JSON form of their own, which Altered compares with.
	_ "google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/durationpb"
	_ "google.golang.org/protobuf/types/known/emptypb"
	_ "google.golang.org/protobuf/types/known/fieldmaskpb"
	_ "google.golang.org/protobuf/types/known/structpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
	_ "google.golang.org/protobuf/types/known/wrapperspb"
)

// Altered says whether a message has the name of a well-known type and not its fields.
// Runtimes know such a type by its name and read it as the real one.
func Altered(m protoreflect.MessageDescriptor) bool {
	if m.ParentFile().Package() != "google.protobuf" {
		return false
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(m.FullName())
	real, ok := d.(protoreflect.MessageDescriptor)
	return err == nil && ok && Shape(real) != Shape(m)
}
