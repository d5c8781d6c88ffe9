package schema

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/server/topic/refusal"
)

const (
	maxDescriptors = 2 << 20 // bytes of a schema with all that it imports, but what this program has
	maxDepth       = 100     // of messages in messages: other parsers read no more
	maxMismatch    = 300     // bytes of what is said of a payload
)

// The measured cost of a checker: for itself, and for each byte of its descriptors.
const (
	plainSize, perByte      = 32 << 10, 25
	ruledSize, perRuledByte = 640 << 10, 100
)

// mismatch says what is wrong with a payload.
type mismatch struct{ text string }

func (m *mismatch) Error() string { return m.text }

func wrong(format string, args ...any) error { return &mismatch{fmt.Sprintf(format, args...)} }

// checker knows whether a payload is a message. It does not change.
type checker struct {
	message protoreflect.MessageDescriptor
	types   types
	rules   protovalidate.Validator
	parses  bool // what read cannot know: rules, or required fields
	closed  bool // there are enums that have no other values than their own
	size    int  // bytes that it takes, by estimate
}

// newChecker makes the checker of a message of a file, "" for the first. Refusals say what cannot be
// used of it.
func newChecker(file protoreflect.FileDescriptor, name string) (*checker, error) {
	files, shared, size, err := link(file)
	if err != nil {
		return nil, err
	}
	c := &checker{types: types{dynamicpb.NewTypes(files), shared}, size: plainSize + size*perByte}
	if c.message, err = find(files, file.Path(), name); err != nil {
		return nil, err
	}
	u := uses{seen: map[protoreflect.FullName]bool{}, files: files}
	u.message(c.message)
	c.closed, c.parses = u.closed, u.required || u.rules
	if !u.rules {
		return c, nil
	}
	c.size = ruledSize + size*perRuledByte
	c.rules, err = protovalidate.New(protovalidate.WithExtensionTypeResolver(c.types), protovalidate.WithFailFast(),
		protovalidate.WithMessageDescriptors(c.message))
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	var broken *protovalidate.CompilationError
	if errors.As(c.rules.Validate(dynamicpb.NewMessage(c.message)), &broken) {
		return nil, refusal.New(refusal.InvalidArgument, "the rules of the schema cannot be used: %s",
			clipped(broken.Error(), maxMismatch))
	}
	return c, nil
}

// find returns a message of a file, "" for the first.
func find(files *protoregistry.Files, path, name string) (protoreflect.MessageDescriptor, error) {
	file, err := files.FindFileByPath(path)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	if name == "" {
		if file.Messages().Len() == 0 {
			return nil, refusal.New(refusal.SchemaNotFound, "the schema has no message")
		}
		return file.Messages().Get(0), nil
	}
	d, err := files.FindDescriptorByName(protoreflect.FullName(name))
	m, ok := d.(protoreflect.MessageDescriptor)
	if err != nil || !ok || m.ParentFile().Path() != path || m.IsMapEntry() {
		return nil, refusal.New(refusal.SchemaNotFound, "the schema has no message %.512q: it has %s", name,
			clipped(names(file.Messages()), maxMismatch))
	}
	return m, nil
}

func names(list protoreflect.MessageDescriptors) string {
	var all []string
	for i := range list.Len() {
		all = append(all, string(list.Get(i).FullName()))
	}
	return strings.Join(all, ", ")
}

// uses is what a message has, with all messages in it.
type uses struct {
	files                   *protoregistry.Files
	seen                    map[protoreflect.FullName]bool
	rules, required, closed bool
}

func (u *uses) message(m protoreflect.MessageDescriptor) {
	if u.seen[m.FullName()] {
		return
	}
	u.seen[m.FullName()] = true
	u.rules = u.rules || proto.HasExtension(m.Options(), validate.E_Message)
	for i := range m.Oneofs().Len() {
		u.rules = u.rules || proto.HasExtension(m.Oneofs().Get(i).Options(), validate.E_Oneof)
	}
	for i := range m.Fields().Len() {
		u.field(m.Fields().Get(i))
	}
	if m.ExtensionRanges().Len() == 0 {
		return
	}
	u.files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		u.extensions(f)
		for i := range f.Messages().Len() {
			u.nested(f.Messages().Get(i))
		}
		return true
	})
}

// extensions adds those of messages that are seen, and of others: more is parsed than must be.
func (u *uses) extensions(in interface {
	Extensions() protoreflect.ExtensionDescriptors
},
) {
	for i := range in.Extensions().Len() {
		x := in.Extensions().Get(i)
		if x.ContainingMessage().ParentFile().Package() != "google.protobuf" { // options
			u.field(x)
		}
	}
}

func (u *uses) nested(m protoreflect.MessageDescriptor) {
	u.extensions(m)
	for i := range m.Messages().Len() {
		u.nested(m.Messages().Get(i))
	}
}

func (u *uses) field(f protoreflect.FieldDescriptor) {
	u.rules = u.rules || proto.HasExtension(f.Options(), validate.E_Field)
	u.required = u.required || f.Cardinality() == protoreflect.Required
	u.closed = u.closed || f.Enum() != nil && f.Enum().IsClosed()
	if f.Message() != nil {
		u.message(f.Message())
	}
}

// parse refuses a payload that is not the message, or breaks its rules. One in Protobuf's encoding
// was read before: read refuses what makes the runtime panic (a second key of a wrong type in an entry of a map).
func (c *checker) parse(payload []byte, json bool) error {
	m := dynamicpb.NewMessage(c.message)
	var err error
	if json {
		err = protojson.UnmarshalOptions{Resolver: c.types, RecursionLimit: maxDepth}.Unmarshal(payload, m)
	} else {
		err = proto.UnmarshalOptions{Resolver: c.types, RecursionLimit: maxDepth}.Unmarshal(payload, m)
	}
	if err != nil {
		return wrong("%s", strings.TrimSpace(strings.TrimPrefix(spaced(err.Error()), "proto:")))
	}
	if json && c.closed { // the parser takes any number for a value of an enum
		b, err := proto.Marshal(m)
		if err != nil {
			return wrong("%s", spaced(err.Error()))
		}
		if err := c.read(b); err != nil {
			return err
		}
	}
	if c.rules == nil {
		return nil
	}
	if err := c.rules.Validate(m); err != nil {
		return wrong("%s", spaced(err.Error()))
	}
	return nil
}

// spaced is a text of the runtime in one line. The runtime sometimes writes a space of another
// kind, so that programs do not compare its texts.
func spaced(s string) string { return strings.Join(strings.Fields(s), " ") }

// clipped bounds a text, which may repeat what the caller has sent.
func clipped(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
