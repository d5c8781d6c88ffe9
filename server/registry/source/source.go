// Package source gives protobuf schemas a form in which equal ones have equal bytes:
// it compiles text or descriptors with their imports, normalises, prints and
// fingerprints them.
//
// It owns what a schema's identity is, and the bounds of what is compiled at all. It
// reads no store: imports are given to it. Compiling itself is schemacheck/compile's.
//
// Concurrency: functions share nothing and may run together.
package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/jhump/protoreflect/v2/protoprint"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compile"
)

// Self is the path of the file at hand while it is compiled: a schema has no name of
// its own, and two versions compare only under the same one.
const Self = "@schema.proto"

// Error says why a schema is none. Its text is meant for the caller that sent it.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

func wrong(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// A File is a compiled schema.
type File struct {
	Descriptor protoreflect.FileDescriptor
	added      int // imports that the schema does not have itself, its last ones
}

// Build compiles a schema with what it imports: descriptors in base64, by path.
// Errors: *Error, and those of the context.
func Build(ctx context.Context, text string, imports map[string]string) (File, error) {
	if err := checkNesting(text); err != nil {
		return File{}, err
	}
	text, imports, added := flatten(text, imports)
	all := map[string]string{Self: text}
	for name, source := range imports {
		all[name] = source
	}
	files, mistakes := compile.Files(ctx, all, []string{Self})
	if len(mistakes) == 0 {
		return File{files[0], added}, nil
	}
	if err := ctx.Err(); err != nil {
		return File{}, err
	}
	m := mistakes[0]
	where := ""
	if m.Line > 0 {
		where = fmt.Sprintf("line %d: ", m.Line)
	}
	if m.File != "" && m.File != Self {
		where = m.File + ": " + where
	}
	return File{}, wrong("%s", where+Clipped(m.Text))
}

// Name is the file name in a schema that is a descriptor, "" for text.
func Name(text string) string { return compile.Descriptor(text).GetName() }

// IsDescriptor says whether a schema is a descriptor in base64, not text.
func IsDescriptor(text string) bool { return compile.Descriptor(text) != nil }

// Clipped bounds what a compiler says, which may repeat the schema.
func Clipped(s string) string {
	const most = 512
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// Marshal encodes a descriptor, equal ones to equal bytes.
func Marshal(d *descriptorpb.FileDescriptorProto) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode a descriptor: %w", err)
	}
	return b, nil
}

// Of is a file of this program's as a File.
func Of(f protoreflect.FileDescriptor) File { return File{Descriptor: f} }

// Canonical returns a file's descriptor so that equal schemas have equal bytes:
// without file name and comments, and with options in the order of their numbers.
func (f File) Canonical() (*descriptorpb.FileDescriptorProto, error) {
	files := &protoregistry.Files{}
	var add func(f protoreflect.FileDescriptor) error
	add = func(f protoreflect.FileDescriptor) error {
		if _, err := files.FindFileByPath(f.Path()); err == nil {
			return nil
		}
		for i := range f.Imports().Len() {
			if err := add(f.Imports().Get(i).FileDescriptor); err != nil {
				return err
			}
		}
		return files.RegisterFile(f)
	}
	if err := add(f.Descriptor); err != nil {
		return nil, wrong("names are declared twice")
	}
	b, err := Marshal(protodesc.ToFileDescriptorProto(f.Descriptor))
	if err != nil {
		return nil, err
	}
	d := &descriptorpb.FileDescriptorProto{}
	if err := (proto.UnmarshalOptions{Resolver: dynamicpb.NewTypes(files)}).Unmarshal(b, d); err != nil {
		return nil, wrong("its options cannot be read")
	}
	d.Name, d.SourceCodeInfo = nil, nil
	d.Dependency = d.GetDependency()[:len(d.GetDependency())-f.added]
	if d.GetSyntax() == "proto2" {
		d.Syntax = nil
	}
	return d, nil
}

func messages(list []*descriptorpb.DescriptorProto, visit func(*descriptorpb.DescriptorProto)) {
	for _, m := range list {
		visit(m)
		messages(m.GetNestedType(), visit)
	}
}

// Normalize puts what has no order of its own into one: imports by path, fields by
// number, reservations by their beginning. Messages keep their order, for it is
// part of what a record says.
func Normalize(d *descriptorpb.FileDescriptorProto) {
	marked := func(indexes []int32) map[string]bool {
		m := map[string]bool{}
		for _, i := range indexes {
			m[d.GetDependency()[i]] = true
		}
		return m
	}
	public, weak := marked(d.GetPublicDependency()), marked(d.GetWeakDependency())
	slices.Sort(d.Dependency)
	d.PublicDependency, d.WeakDependency = nil, nil
	for i, dep := range d.GetDependency() {
		if public[dep] {
			d.PublicDependency = append(d.PublicDependency, int32(i))
		}
		if weak[dep] {
			d.WeakDependency = append(d.WeakDependency, int32(i))
		}
	}
	byNumber := func(a, b *descriptorpb.FieldDescriptorProto) int { return cmp.Compare(a.GetNumber(), b.GetNumber()) }
	messages(d.GetMessageType(), func(m *descriptorpb.DescriptorProto) {
		slices.SortStableFunc(m.Field, byNumber)
		slices.SortFunc(m.ReservedRange, func(a, b *descriptorpb.DescriptorProto_ReservedRange) int {
			return cmp.Compare(a.GetStart(), b.GetStart())
		})
		slices.Sort(m.ReservedName)
	})
}

// Text writes a descriptor as source of at most so many bytes. Where the source would
// not be the same schema, the descriptor itself is the text.
func Text(ctx context.Context, descriptor []byte, imports map[string]string, limit int) (string, error) {
	encoded := base64.StdEncoding.EncodeToString(descriptor)
	file, err := Build(ctx, encoded, imports)
	if err != nil {
		return "", err
	}
	source, err := Print(file.Descriptor)
	if err != nil || len(source) > limit {
		return encoded, nil //nolint:nilerr // the encoded form is what is left
	}
	back, err := Build(ctx, source, imports)
	if err != nil {
		return encoded, nil //nolint:nilerr // the encoded form is what is left
	}
	d, err := back.Canonical()
	if err != nil {
		return encoded, nil //nolint:nilerr // the encoded form is what is left
	}
	if b, err := Marshal(d); err != nil || string(b) != string(descriptor) {
		return encoded, nil //nolint:nilerr // the encoded form is what is left
	}
	return source, nil
}

// Print writes a file as source, without comments.
func Print(f protoreflect.FileDescriptor) (string, error) {
	printer := protoprint.Printer{OmitComments: protoprint.CommentsAll}
	return printer.PrintProtoToString(f)
}

// A Reference is an import: the path it is imported by, and the version of a subject
// that it means.
type Reference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// Fingerprint is the identity of a schema: of its canonical descriptor and of the
// versions that it refers to, in any order.
func Fingerprint(canonical []byte, references []Reference) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", len(canonical))
	h.Write(canonical)
	sorted := slices.Clone(references)
	slices.SortFunc(sorted, func(a, b Reference) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Version, b.Version))
	})
	for _, r := range sorted {
		fmt.Fprintf(h, "%q %q %d\n", r.Name, r.Subject, r.Version)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Identity is the fingerprint of a schema that is stored as a descriptor.
func Identity(descriptor []byte, references []Reference) string {
	d := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(descriptor, d) != nil {
		return ""
	}
	d.Name = nil
	b, err := Marshal(d)
	if err != nil {
		return ""
	}
	return Fingerprint(b, references)
}

// AsWritten is a descriptor without its name and without the options for generators,
// which rows of the first format have as buf's managed mode had set them, and not as
// the source has them now.
func AsWritten(b []byte) string {
	d := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(b, d) != nil {
		return ""
	}
	d.Name = nil
	if o := d.GetOptions(); o != nil {
		o.GoPackage, o.JavaPackage, o.JavaOuterClassname, o.JavaMultipleFiles = nil, nil, nil, nil
		o.CsharpNamespace, o.ObjcClassPrefix, o.RubyPackage = nil, nil, nil
		o.PhpNamespace, o.PhpMetadataNamespace, o.PhpClassPrefix = nil, nil, nil
		if proto.Size(o) == 0 {
			d.Options = nil
		}
	}
	out, err := Marshal(d)
	if err != nil {
		return ""
	}
	return string(out)
}
