package release

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat/fixture"
)

// An event that the caller names brings its package into the image, whatever packages
// the declared events have. Other packages stay out, unless they are imported.
func TestImageHoldsNamedEvents(t *testing.T) {
	files, err := fixture.Compile(map[string]string{
		"orders/v1/option.proto": `syntax = "proto3"; package orders.v1; import "google/protobuf/descriptor.proto";
message Option { string topic = 1; }
extend google.protobuf.MessageOptions { Option event = 50800; }`,
		"orders/v1/placed.proto":  `syntax = "proto3"; package orders.v1; import "orders/v1/option.proto"; message Placed { option (event) = {topic: "orders"}; string id = 1; }`,
		"letters/v1/letter.proto": `syntax = "proto3"; package letters.v1; import "reasons/v1/reason.proto"; message Letter { reasons.v1.Reason reason = 1; }`,
		"letters/v1/note.proto":   `syntax = "proto3"; package letters.v1; message Note { string text = 1; }`,
		"reasons/v1/reason.proto": `syntax = "proto3"; package reasons.v1; message Reason { string text = 1; }`,
		"other/v1/other.proto":    `syntax = "proto3"; package other.v1; message Other { string text = 1; }`,
	})
	if err != nil {
		t.Fatal(err)
	}
	declared := []string{"google/protobuf/descriptor.proto", "orders/v1/option.proto", "orders/v1/placed.proto"}
	for name, tt := range map[string]struct{ events, want []string }{
		"declared alone": {nil, declared},
		"named too": {[]string{"letters/v1/letter.proto"}, []string{
			"google/protobuf/descriptor.proto", "letters/v1/letter.proto", "letters/v1/note.proto",
			"orders/v1/option.proto", "orders/v1/placed.proto", "reasons/v1/reason.proto",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Image(files, tt.events)
			if err != nil {
				t.Fatal(err)
			}
			set := &descriptorpb.FileDescriptorSet{}
			if err := proto.Unmarshal(b, set); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range set.GetFile() {
				got = append(got, f.GetName())
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("the image holds %v, want %v", got, tt.want)
			}
		})
	}
}
