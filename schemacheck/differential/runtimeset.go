package differential

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/differential/sample"
)

// A runtimeSet is one schema as the protobuf runtime and protovalidate know it.
type runtimeSet struct {
	*schema.FileSet
	validator protovalidate.Validator
	texts     map[protoreflect.FullName]string // digests of types, made when they are asked for
	features  map[string]string                // what types inherit, by file
	rules     string                           // digest of the predefined rules that fields may use
}

// rebuild makes a schema of the descriptors that the protobuf runtime is made for.
// Those of compilers lack what it asks for beyond the public interface, as whether
// text is checked.
func rebuild(scope []protoreflect.FileDescriptor, events []string) (*runtimeSet, error) {
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] || f.IsPlaceholder() {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	for _, f := range scope {
		add(f)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	var list []protoreflect.FileDescriptor
	for _, f := range scope {
		linked, err := files.FindFileByPath(f.Path())
		if err != nil {
			return nil, fmt.Errorf("link: %w", err)
		}
		list = append(list, linked)
	}
	s := &runtimeSet{FileSet: schema.New(list, events...), texts: map[protoreflect.FullName]string{},
		features: map[string]string{}}
	s.rules = predefined(s.FileSet)
	if s.validator, err = sample.Validator(s.FileSet); err != nil {
		return nil, err
	}
	return s, nil
}

// predefined is a digest of the extensions that add rules to protovalidate: what they
// do is no part of the events that use them.
func predefined(s *schema.FileSet) string {
	var parts []string
	for of, extensions := range s.Extensions {
		if of.Parent() != "buf.validate" {
			continue
		}
		for _, x := range extensions {
			if x.ParentFile().Package() != "buf.validate" {
				parts = append(parts, fmt.Sprintf("%s %x", x.FullName(), deterministic(protodesc.ToFieldDescriptorProto(x))))
			}
		}
	}
	if len(parts) == 0 {
		return ""
	}
	slices.Sort(parts)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\n"))))
}

// A readerView is the reading side as the generator of samples asks for it.
type readerView struct {
	from, to *runtimeSet
	types    map[protoreflect.FullName]bool // whether a type and all that it uses are the same
	messages map[protoreflect.FullName]bool // whether what fields inherit is the same
}

func newReaderView(from, to *runtimeSet) *readerView {
	return &readerView{from: from, to: to, types: map[protoreflect.FullName]bool{},
		messages: map[protoreflect.FullName]bool{}}
}

// Message finds the reading side's message of a name.
func (o *readerView) Message(name protoreflect.FullName) protoreflect.MessageDescriptor {
	return o.to.Messages[name]
}

// Same says whether a field, what it inherits and all that it uses are the same.
func (o *readerView) Same(f protoreflect.FieldDescriptor) bool {
	in := o.to.Messages[f.ContainingMessage().FullName()]
	if in == nil || !o.sameContext(f.ContainingMessage(), in) {
		return false
	}
	there := in.Fields().ByNumber(f.Number())
	if there == nil || oneofName(f) != oneofName(there) {
		return false
	}
	was, is := protodesc.ToFieldDescriptorProto(f), protodesc.ToFieldDescriptorProto(there)
	was.OneofIndex, is.OneofIndex = nil, nil
	return string(deterministic(was)) == string(deterministic(is)) && o.sameType(f)
}

// sameContext says whether two messages have the same options, oneofs and file.
func (o *readerView) sameContext(a, b protoreflect.MessageDescriptor) bool {
	same, ok := o.messages[a.FullName()]
	if !ok {
		same = surroundings(o.from, a) == surroundings(o.to, b)
		o.messages[a.FullName()] = same
	}
	return same
}

// surroundings is what decides on a message's fields beside themselves.
func surroundings(s *runtimeSet, m protoreflect.MessageDescriptor) string {
	text := s.inherits(m.ParentFile())
	for in := protoreflect.Descriptor(m); in != nil && in.ParentFile() != in; in = in.Parent() {
		text += fmt.Sprintf("\n%x", deterministic(in.Options()))
	}
	for o := range schema.All(m.Oneofs()) {
		if !o.IsSynthetic() {
			text += fmt.Sprintf("\n%s %x", o.Name(), deterministic(o.Options()))
		}
	}
	return text
}

func (o *readerView) sameType(f protoreflect.FieldDescriptor) bool {
	var name protoreflect.FullName
	switch {
	case f.Message() != nil:
		name = f.Message().FullName()
	case f.Enum() != nil:
		name = f.Enum().FullName()
	default:
		return true
	}
	same, ok := o.types[name]
	if ok {
		return same
	}
	switch {
	case f.Enum() != nil:
		same = o.to.Enums[name] != nil && o.from.text(name) == o.to.text(name)
	case o.to.Messages[name] != nil:
		same = o.from.fingerprint(f.Message()) == o.to.fingerprint(o.to.Messages[name])
	}
	o.types[name] = same
	return same
}

func oneofName(f protoreflect.FieldDescriptor) protoreflect.Name {
	if o := schema.Oneof(f); o != nil {
		return o.Name()
	}
	return ""
}

// fingerprint is the text of an event and all that it uses.
func (s *runtimeSet) fingerprint(m protoreflect.MessageDescriptor) string {
	var parts []string
	for name := range s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(m) }) {
		parts = append(parts, s.text(name))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// text is a digest of a type with what it inherits from its file.
func (s *runtimeSet) text(name protoreflect.FullName) string {
	if made, ok := s.texts[name]; ok {
		return made
	}
	var p proto.Message
	var file protoreflect.FileDescriptor
	if e := s.Enums[name]; e != nil {
		p, file = protodesc.ToEnumDescriptorProto(e), e.ParentFile()
	} else {
		m := s.Messages[name]
		p, file = protodesc.ToDescriptorProto(m), m.ParentFile()
	}
	s.texts[name] = fmt.Sprintf("%s %x %s", name, sha256.Sum256(deterministic(p)), s.inherits(file))
	return s.texts[name]
}

// inherits is what the types of a file have from it.
func (s *runtimeSet) inherits(file protoreflect.FileDescriptor) string {
	text, ok := s.features[file.Path()]
	if !ok {
		header := protodesc.ToFileDescriptorProto(file)
		text = fmt.Sprintf("%s %s %x %s", header.GetSyntax(), header.GetEdition(),
			deterministic(header.GetOptions().GetFeatures()), s.rules)
		s.features[file.Path()] = text
	}
	return text
}

func deterministic(m proto.Message) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return b
}

// altered returns a type in an event that has the name of a well-known one and not its
// fields, "" if there is none.
func (s *runtimeSet) altered(m protoreflect.MessageDescriptor) protoreflect.FullName {
	var first protoreflect.FullName
	for name := range s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(m) }) {
		if used := s.Messages[name]; used != nil && schema.Altered(used) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}
