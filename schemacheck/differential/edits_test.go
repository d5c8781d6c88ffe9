package differential_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/differential"
)

var (
	edits = flag.Int("edits", int(number("PARLEY_SCHEMA_EDITS", 100)), "how many random pairs of schemas to compare")
	seed  = flag.Uint64("seed", number("PARLEY_SCHEMA_SEED", 1), "seed of the first pair; the others follow")
)

// number reads an environment variable, so that nightly runs use more pairs and other seeds.
func number(name string, usual uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 63); err == nil {
		return n
	}
	return usual
}

func build(files ...*descriptorpb.FileDescriptorProto) ([]protoreflect.FileDescriptor, error) {
	r := &protoregistry.Files{}
	var list []protoreflect.FileDescriptor
	for _, p := range files {
		f, err := protodesc.NewFile(p, resolver{r})
		if err != nil {
			return nil, err
		}
		if err := r.RegisterFile(f); err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

type resolver struct{ own *protoregistry.Files }

func (r resolver) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if f, err := r.own.FindFileByPath(path); err == nil {
		return f, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

func (r resolver) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d, err := r.own.FindDescriptorByName(name); err == nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// A change that the rules allow never breaks in execution (K-151, K-152, K-158). Random schemas,
// some of them recursive, get one to six random edits and both verdicts. A failure names its
// seed.
func TestRandomEditsAgree(t *testing.T) {
	t.Parallel()
	n := *edits
	if testing.Short() {
		n /= 4
	}
	clean, blocked, confirmed, skipped := 0, 0, 0, 0
	for i := range n {
		s := *seed + uint64(i)
		e := &editor{Rand: rand.New(rand.NewPCG(s, s))}
		base := e.schema()
		baseFiles, err := build(base...)
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		head := e.edited(base)
		headFiles, err := build(head...)
		if err != nil { // an edit that no compiler would take
			skipped++
			continue
		}
		rules := byRules(t, baseFiles, headFiles, compat.Options{})
		for _, scope := range []compat.Scope{compat.Event, compat.API, compat.All} {
			for _, f := range byRules(t, baseFiles, baseFiles, compat.Options{Scope: scope}) {
				if f.Severity == compat.Block {
					t.Errorf("seed %d: a schema cannot replace itself: %s, expected no finding", s, fixture.Line(f))
				}
			}
		}
		ran, err := differential.Execute(t.Context(), baseFiles, headFiles, compat.Options{})
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		blocks := func(f compat.Finding) bool { return f.Severity == compat.Block }
		failed := slices.ContainsFunc(ran, blocks)
		switch {
		case !slices.ContainsFunc(rules, blocks):
			clean++
			if failed {
				t.Errorf("seed %d: execution breaks a change that the rules allow:\n%s\nedits: %v\n%s", s, lines(ran), e.done,
					difference(base, head))
			}
		case failed:
			confirmed++
			blocked++
		default:
			blocked++
		}
	}
	t.Logf("%d pairs: %d clean, %d blocked (%d of them fail in execution), %d edits no schema", n, clean, blocked,
		confirmed, skipped)
	if clean < n/10 || confirmed < n/10 {
		t.Error("the random edits have one verdict only, expected both")
	}
}

func difference(base, head []*descriptorpb.FileDescriptorProto) string {
	s := ""
	for i := range base {
		if !proto.Equal(base[i], head[i]) {
			s += "base " + prototext.Format(base[i]) + "head " + prototext.Format(head[i])
		}
	}
	return s
}

// An editor makes random schemas and changes them.
type editor struct {
	*rand.Rand
	done []string
}

func pick[T any](e *editor, list ...T) T { return list[e.IntN(len(list))] }

func (e *editor) chance(percent int) bool { return e.IntN(100) < percent }

type (
	fieldProto   = descriptorpb.FieldDescriptorProto
	messageProto = descriptorpb.DescriptorProto
	enumProto    = descriptorpb.EnumDescriptorProto
	fileProto    = descriptorpb.FileDescriptorProto
)

const (
	optional = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
	repeated = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	required = descriptorpb.FieldDescriptorProto_LABEL_REQUIRED
	tMessage = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	tEnum    = descriptorpb.FieldDescriptorProto_TYPE_ENUM
)

var scalars = []descriptorpb.FieldDescriptorProto_Type{
	descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_STRING,
	descriptorpb.FieldDescriptorProto_TYPE_INT32,
	descriptorpb.FieldDescriptorProto_TYPE_INT64, descriptorpb.FieldDescriptorProto_TYPE_UINT32,
	descriptorpb.FieldDescriptorProto_TYPE_UINT64,
	descriptorpb.FieldDescriptorProto_TYPE_SINT32, descriptorpb.FieldDescriptorProto_TYPE_SINT64,
	descriptorpb.FieldDescriptorProto_TYPE_FIXED32,
	descriptorpb.FieldDescriptorProto_TYPE_SFIXED64, descriptorpb.FieldDescriptorProto_TYPE_BOOL,
	descriptorpb.FieldDescriptorProto_TYPE_BYTES,
	descriptorpb.FieldDescriptorProto_TYPE_FLOAT, descriptorpb.FieldDescriptorProto_TYPE_DOUBLE, tEnum, tMessage,
}

// schema makes three files: an enum, a message, and the event that uses them.
func (e *editor) schema() []*fileProto {
	file := func(name string, deps ...string) *fileProto {
		return &fileProto{Name: proto.String(name), Package: proto.String("t.v1"),
			Dependency: append(deps, "buf/validate/validate.proto", "google/protobuf/timestamp.proto")}
	}
	kinds, parts, events := file("kind.proto"), file("part.proto", "kind.proto"),
		file("e.proto", "kind.proto", "part.proto")
	syntax := pick(e, "proto3", "proto3", "proto3", "editions", "editions", "proto2")
	files := []*fileProto{kinds, parts, events}
	for _, f := range files {
		f.Syntax = proto.String(syntax)
		if syntax == "editions" {
			f.Edition = descriptorpb.Edition_EDITION_2023.Enum()
		}
	}
	kind := &enumProto{Name: proto.String("Kind")}
	for i, name := range []string{"KIND_UNSPECIFIED", "KIND_A", "KIND_B", "KIND_C"}[:2+e.IntN(3)] {
		kind.Value = append(kind.Value,
			&descriptorpb.EnumValueDescriptorProto{Name: proto.String(name), Number: proto.Int32(int32(i))})
	}
	kinds.EnumType = append(kinds.EnumType, kind)
	part, event := &messageProto{Name: proto.String("Part")}, &messageProto{Name: proto.String("E")}
	for i := range 1 + e.IntN(2) {
		part.Field = append(part.Field, e.field(syntax, int32(i+1), false))
	}
	for i := range 2 + e.IntN(4) {
		event.Field = append(event.Field, e.field(syntax, int32(i+1), true))
	}
	if e.chance(30) {
		event.OneofDecl = append(event.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: proto.String("choice")})
		for range 2 {
			f := e.field(syntax, int32(len(event.Field)+1), true)
			if f.GetLabel() != optional {
				clearRules(f)
			}
			f.Label, f.Proto3Optional, f.OneofIndex = optional.Enum(), nil, proto.Int32(0)
			event.Field = append(event.Field, f)
		}
	}
	if e.chance(40) {
		e.addMap(event, int32(len(event.Field)+1))
	}
	if e.chance(30) {
		e.recursive(event)
	}
	parts.MessageType = append(parts.MessageType, part)
	events.MessageType = append(events.MessageType, event)
	for _, m := range []*messageProto{part, event} {
		syntheticLast(m)
	}
	return files
}

// recursive makes the event contain itself: as a field, in a list, or in the values of a map.
func (e *editor) recursive(event *messageProto) {
	self := proto.String(".t.v1.E")
	if len(event.NestedType) > 0 && e.chance(50) {
		value := event.NestedType[0].Field[1]
		value.Type, value.TypeName = tMessage.Enum(), self
		return
	}
	event.Field = append(event.Field, &fieldProto{
		Name: proto.String("self_f"), Number: proto.Int32(int32(len(event.Field) + 1)),
		Label: pick(e, optional, repeated).Enum(), Type: tMessage.Enum(), TypeName: self,
	})
}

// field makes a field; explicit presence in proto3 gets its oneof in syntheticLast.
func (e *editor) field(syntax string, n int32, messages bool) *fieldProto {
	f := &fieldProto{Name: proto.String(string('a'+n) + "_f"), Number: proto.Int32(n), Label: optional.Enum()}
	e.setType(f, messages)
	switch {
	case e.chance(25):
		f.Label = repeated.Enum()
	case syntax == "proto3" && e.chance(40):
		f.Proto3Optional = proto.Bool(true)
	case syntax == "proto2" && e.chance(15):
		f.Label = required.Enum()
	}
	if f.GetLabel() == optional && syntax == "editions" && f.GetType() != tMessage && e.chance(30) {
		features(f).FieldPresence = descriptorpb.FeatureSet_IMPLICIT.Enum()
	}
	if e.chance(55) {
		e.rule(f)
	}
	return f
}

func (e *editor) setType(f *fieldProto, messages bool) {
	f.TypeName = nil
	f.Type = pick(e, scalars...).Enum()
	switch f.GetType() {
	case tEnum:
		f.TypeName = proto.String(".t.v1.Kind")
	case tMessage:
		f.TypeName = proto.String(".t.v1.Part")
		if !messages || e.chance(40) {
			f.TypeName = proto.String(".google.protobuf.Timestamp")
		}
	}
}

func options(f *fieldProto) *descriptorpb.FieldOptions {
	if f.Options == nil {
		f.Options = &descriptorpb.FieldOptions{}
	}
	return f.Options
}

func features(f *fieldProto) *descriptorpb.FeatureSet {
	if options(f).Features == nil {
		f.Options.Features = &descriptorpb.FeatureSet{}
	}
	return f.Options.Features
}

// syntheticLast gives optional fields of proto3 the oneofs that descriptors require, after the
// real ones.
func syntheticLast(m *messageProto) {
	m.OneofDecl = slices.DeleteFunc(m.OneofDecl,
		func(o *descriptorpb.OneofDescriptorProto) bool { return o.GetName()[0] == '_' })
	for _, f := range m.Field {
		if f.GetProto3Optional() {
			f.OneofIndex = proto.Int32(int32(len(m.OneofDecl)))
			m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: proto.String("_" + f.GetName())})
		}
	}
}

// edited returns a changed copy.
func (e *editor) edited(base []*fileProto) []*fileProto {
	var files []*fileProto
	for _, f := range base {
		files = append(files, proto.CloneOf(f))
	}
	for range 1 + e.IntN(6) {
		m := files[2].MessageType[0]
		if e.chance(15) {
			m = files[1].MessageType[0]
		}
		if e.chance(20) {
			e.editEnum(files[0].EnumType[0])
		} else {
			e.editMessage(files[2].GetSyntax(), m)
		}
	}
	for _, m := range []*messageProto{files[1].MessageType[0], files[2].MessageType[0]} {
		syntheticLast(m)
	}
	return files
}
