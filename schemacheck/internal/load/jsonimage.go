package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// binaryImage returns an image in binary form, which it may have already. The JSON of
// custom options can only be read with the extensions that the image itself declares,
// so that JSON is read twice.
func binaryImage(b []byte) ([]byte, error) {
	if trimmed := bytes.TrimSpace(b); len(trimmed) == 0 || trimmed[0] != '{' {
		return b, nil
	}
	bare := &descriptorpb.FileDescriptorSet{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, AllowPartial: true}).Unmarshal(b, bare); err != nil {
		return nil, errors.New("neither a buf image nor a FileDescriptorSet in JSON")
	}
	files, err := compile.Link(proto.CloneOf(bare))
	if err != nil {
		return nil, err
	}
	known := &extensions{types: dynamicpb.NewTypes(files)}
	set := &descriptorpb.FileDescriptorSet{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, AllowPartial: true, Resolver: known}).Unmarshal(b,
		set); err != nil {
		return nil, fmt.Errorf("options in JSON: %w", err)
	}
	if len(known.unknown) > 0 {
		slices.Sort(known.unknown)
		return nil, fmt.Errorf("it lacks the files that declare its options %s: make it with all imports",
			strings.Join(slices.Compact(known.unknown), ", "))
	}
	var marks struct {
		File []struct {
			BufExtension struct {
				IsImport bool `json:"isImport"`
			} `json:"bufExtension"`
		} `json:"file"`
	}
	if err := json.Unmarshal(b, &marks); err != nil {
		return nil, fmt.Errorf("marks of imports: %w", err)
	}
	for i, f := range marks.File {
		if f.BufExtension.IsImport && i < len(set.GetFile()) {
			MarkImport(set.GetFile()[i])
		}
	}
	return proto.MarshalOptions{AllowPartial: true}.Marshal(set)
}

// extensions finds the custom options of an image, and keeps the names of those that
// it does not have.
type extensions struct {
	types   *dynamicpb.Types
	unknown []string
}

func (e *extensions) FindExtensionByName(name protoreflect.FullName) (protoreflect.ExtensionType, error) {
	x, err := e.types.FindExtensionByName(name)
	if err != nil {
		e.unknown = append(e.unknown, string(name))
	}
	return x, err
}

func (e *extensions) FindExtensionByNumber(
	message protoreflect.FullName, n protoreflect.FieldNumber,
) (protoreflect.ExtensionType, error) {
	return e.types.FindExtensionByNumber(message, n)
}

func (e *extensions) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	return e.types.FindMessageByName(name)
}

func (e *extensions) FindMessageByURL(string) (protoreflect.MessageType, error) {
	return nil, protoregistry.NotFound
}
