// Package part cuts wide messages into small ones that hold the same fields, so that the
// rules of one field can be run without a visit to all the others: a check of each of n
// fields then costs n and not n times n.
//
// It owns the small messages. They have a field's type, presence and options, and none
// of the rules that stand on messages and oneofs. An extension becomes a field of such a
// message, because protovalidate runs no rule of an extension.
//
// Concurrency: a Cutter is used by one goroutine.
package part

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// Fields of a message that is left whole, and of each part of one that is cut.
const (
	whole = 16
	width = 8
)

// Cutter keeps the parts that it made. The zero value is ready.
type Cutter struct {
	headers map[string]*descriptorpb.FileDescriptorProto
	parts   map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.FieldDescriptor
	alone   map[protoreflect.FieldDescriptor]protoreflect.FieldDescriptor // of extensions
}

// Field returns a field that is like f and stands in a message of few fields. It is f
// itself in a small message, and where no part can be made: a group belongs to the
// message that declares it.
func (c *Cutter) Field(f protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if f.IsExtension() {
		return c.extension(f)
	}
	m := f.ContainingMessage()
	if m.Fields().Len() <= whole {
		return f
	}
	parts, made := c.parts[m.FullName()]
	if !made {
		parts = c.cut(m)
		if c.parts == nil {
			c.parts = map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{}
		}
		c.parts[m.FullName()] = parts
	}
	if like := parts[f.Number()]; like != nil {
		return like
	}
	return f
}

func (c *Cutter) cut(m protoreflect.MessageDescriptor) map[protoreflect.FieldNumber]protoreflect.FieldDescriptor {
	var fields []protoreflect.FieldDescriptor
	for f := range schema.All(m.Fields()) {
		if f.Kind() != protoreflect.GroupKind {
			fields = append(fields, f)
		}
	}
	return c.build(m, fields)
}

// extension returns a field like an extension in a message of its own. Where none can be
// made it is the extension as dynamic messages take it.
func (c *Cutter) extension(f protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if c.alone == nil {
		c.alone = map[protoreflect.FieldDescriptor]protoreflect.FieldDescriptor{}
	}
	if c.alone[f] == nil {
		c.alone[f] = dynamicpb.NewExtensionType(f).TypeDescriptor()
		if f.Kind() != protoreflect.GroupKind {
			if like := c.build(f.Parent(), []protoreflect.FieldDescriptor{f})[f.Number()]; like != nil {
				c.alone[f] = like
			}
		}
	}
	return c.alone[f]
}

// build makes parts for fields that a message or file declares; none if they cannot be linked.
func (c *Cutter) build(
	in protoreflect.Descriptor, fields []protoreflect.FieldDescriptor,
) map[protoreflect.FieldNumber]protoreflect.FieldDescriptor {
	file := proto.CloneOf(c.header(in.ParentFile()))
	options := &descriptorpb.MessageOptions{Features: inherited(in)}
	for some := range slices.Chunk(fields, width) {
		part := &descriptorpb.DescriptorProto{Name: proto.String(fmt.Sprintf("Part%d", len(file.GetMessageType()))),
			Options: options}
		for _, f := range some {
			add(part, file.GetPackage(), f)
		}
		file.MessageType = append(file.MessageType, part)
	}
	made, err := protodesc.NewFile(file, imports{in.ParentFile()})
	if err != nil {
		return nil // the fields stay where they are
	}
	like := map[protoreflect.FieldNumber]protoreflect.FieldDescriptor{}
	for part := range schema.All(made.Messages()) {
		for f := range schema.All(part.Fields()) {
			like[f.Number()] = f
		}
	}
	return like
}

// inherited returns the features that fields have from the message that declares them and
// from those around it; the inner ones hold.
func inherited(in protoreflect.Descriptor) *descriptorpb.FeatureSet {
	own, ok := in.Options().(*descriptorpb.MessageOptions)
	if !ok || in.ParentFile().Syntax() != protoreflect.Editions {
		return nil
	}
	features := &descriptorpb.FeatureSet{}
	proto.Merge(features, inherited(in.Parent()))
	proto.Merge(features, own.GetFeatures())
	return features
}

// header is what fields inherit from their file, and what they may refer to.
func (c *Cutter) header(f protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if h := c.headers[f.Path()]; h != nil {
		return h
	}
	full := protodesc.ToFileDescriptorProto(f)
	h := &descriptorpb.FileDescriptorProto{
		Name:    proto.String("parts of " + f.Path()),
		Package: proto.String(strings.TrimPrefix(full.GetPackage()+".parts", ".")),
		Syntax:  full.Syntax, Edition: full.Edition, Dependency: append([]string{f.Path()}, full.GetDependency()...),
	}
	if features := full.GetOptions().GetFeatures(); features != nil {
		h.Options = &descriptorpb.FileOptions{Features: features}
	}
	if c.headers == nil {
		c.headers = map[string]*descriptorpb.FileDescriptorProto{}
	}
	c.headers[f.Path()] = h
	return h
}

// add puts a copy of a field into a part, each case of a oneof into one of its own:
// it keeps the presence that it has there.
func add(to *descriptorpb.DescriptorProto, pkg string, f protoreflect.FieldDescriptor) {
	p := protodesc.ToFieldDescriptorProto(f)
	p.OneofIndex, p.Extendee = nil, nil
	if f.IsMap() {
		entry := protodesc.ToDescriptorProto(f.Message())
		to.NestedType = append(to.NestedType, entry)
		p.TypeName = proto.String("." + pkg + "." + to.GetName() + "." + entry.GetName())
	}
	if f.ContainingOneof() != nil || f.IsExtension() && !f.IsList() {
		// A case of a real oneof becomes the only one of its own; a synthetic oneof must
		// follow the real ones, and as a real one it gives the same presence. So does one
		// around an extension, which always has presence.
		p.Proto3Optional = nil
		p.OneofIndex = proto.Int32(int32(len(to.GetOneofDecl())))
		to.OneofDecl = append(to.OneofDecl,
			&descriptorpb.OneofDescriptorProto{Name: proto.String("only_" + string(f.Name()))})
	}
	to.Field = append(to.Field, p)
}

// imports resolves what a file and its imports declare.
type imports struct{ of protoreflect.FileDescriptor }

// FindFileByPath finds the file itself and those that it imports.
func (i imports) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if i.of.Path() == path {
		return i.of, nil
	}
	for imported := range schema.All(i.of.Imports()) {
		if imported.Path() == path {
			return imported.FileDescriptor, nil
		}
	}
	return nil, protoregistry.NotFound
}

// FindDescriptorByName finds a message or enum of these files.
func (i imports) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d := declared(i.of, name, map[string]bool{}); d != nil {
		return d, nil
	}
	return nil, protoregistry.NotFound
}

func declared(f protoreflect.FileDescriptor, name protoreflect.FullName, seen map[string]bool) protoreflect.Descriptor {
	if seen[f.Path()] {
		return nil
	}
	seen[f.Path()] = true
	if rest, ok := strings.CutPrefix(string(name), prefix(f.Package())); ok {
		if d := within(f, rest); d != nil {
			return d
		}
	}
	for imported := range schema.All(f.Imports()) {
		if d := declared(imported.FileDescriptor, name, seen); d != nil {
			return d
		}
	}
	return nil
}

func prefix(pkg protoreflect.FullName) string {
	if pkg == "" {
		return ""
	}
	return string(pkg) + "."
}

// within finds a type by its name below a file or message.
func within(in schema.Container, name string) protoreflect.Descriptor {
	first, rest, nested := strings.Cut(name, ".")
	if m := in.Messages().ByName(protoreflect.Name(first)); m != nil {
		if nested {
			return within(m, rest)
		}
		return m
	}
	if e := in.Enums().ByName(protoreflect.Name(first)); e != nil && !nested {
		return e
	}
	return nil
}
