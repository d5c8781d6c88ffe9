package registry

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
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// self is the path of the file at hand while it is compiled: a schema has no name
// of its own, and two versions compare only under the same one.
const self = "@schema.proto"

// parsed is a schema that was understood.
type parsed struct {
	Schema
	descriptor  []byte
	canonical   []byte // descriptor without its name
	fingerprint string
	print       func() (string, error) // makes the text, if what was given is not to be kept; nil otherwise
	file        protoreflect.FileDescriptor
}

// parse compiles a schema and gives it its canonical form.
func (r *Registry) parse(ctx context.Context, s Schema, normalize bool) (parsed, error) {
	if len(s.Text) > MaxSchema {
		return parsed{}, invalid(CodeTooLarge, textTooLarge, MaxSchema)
	}
	if len(s.References) > MaxReferences {
		return parsed{}, invalid(CodeSchema, textTooManyReferences, MaxReferences)
	}
	sources, err := r.sources(ctx, s.References)
	if err != nil {
		return parsed{}, err
	}
	name := ""
	if d := compile.Descriptor(s.Text); d != nil {
		name = d.GetName()
	} else if strings.TrimSpace(s.Text) == "" {
		return parsed{}, invalid(CodeSchema, textInvalidSchema, "it is empty")
	}
	file, err := build(ctx, s.Text, sources)
	if err != nil {
		return parsed{}, err
	}
	d, err := canonical(file)
	if err != nil {
		return parsed{}, err
	}
	if normalize {
		normalized(d)
	}
	p := parsed{Schema: s, file: file}
	if p.descriptor, err = marshal(d); err != nil {
		return parsed{}, err
	}
	p.fingerprint = fingerprint(p.descriptor, s.References)
	if normalize || compile.Descriptor(s.Text) != nil {
		p.print = func() (string, error) { return text(ctx, p.canonical, sources) }
	}
	p.canonical = p.descriptor
	if name != "" { // kept for readers, without a part in the identity
		d.Name = proto.String(name)
		if p.descriptor, err = marshal(d); err != nil {
			return parsed{}, err
		}
	}
	return p, nil
}

func marshal(d *descriptorpb.FileDescriptorProto) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("registry: encode a descriptor: %w", err)
	}
	return b, nil
}

// sources collects what references mean, all the way down, by import path.
func (r *Registry) sources(ctx context.Context, references []Reference) (map[string]string, error) {
	sources := map[string]string{}
	queue := slices.Clone(references)
	for len(queue) > 0 {
		ref := queue[0]
		queue = queue[1:]
		if _, ok := sources[ref.Name]; ok {
			continue // what the schema itself refers to wins over what its imports do
		}
		if len(sources) >= maxFiles {
			return nil, invalid(CodeSchema, "The schema refers to more than %d others", maxFiles)
		}
		if ref.Name == "" || len(ref.Name) > MaxSubject || !plain(ref.Name) || ref.Name == self {
			return nil, invalid(CodeSchema, "A reference has a name of 1 to %d bytes", MaxSubject)
		}
		if err := validSubject(ref.Subject); err != nil {
			return nil, err
		}
		if ref.Version < 1 {
			return nil, invalid(CodeSchema, textReferenceNotFound, ref.Name, ref.Version, ref.Subject)
		}
		it, err := r.store.Get(ctx, table.SchemaKey(ref.Subject, int64(ref.Version)), store.Strong)
		if err != nil {
			return nil, fmt.Errorf("registry: read a reference: %w", err)
		}
		if it == nil {
			return nil, invalid(CodeSchema, textReferenceNotFound, ref.Name, ref.Version, ref.Subject)
		}
		row, err := table.SchemaFrom(store.Row{Key: table.SchemaKey(ref.Subject, int64(ref.Version)), Item: it})
		if err != nil {
			return nil, fmt.Errorf("registry: read a reference: %w", err)
		}
		sources[ref.Name] = base64.StdEncoding.EncodeToString(row.Descriptor)
		for _, next := range row.References {
			queue = append(queue, Reference{Name: next.Name, Subject: next.Subject, Version: int(next.Version)})
		}
	}
	return sources, nil
}

// build compiles a schema with its imports.
func build(ctx context.Context, text string, sources map[string]string) (protoreflect.FileDescriptor, error) {
	all := map[string]string{self: text}
	for name, source := range sources {
		all[name] = source
	}
	files, mistakes := compile.Files(ctx, all, []string{self})
	if len(mistakes) == 0 {
		return files[0], nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := mistakes[0]
	where := ""
	if m.Line > 0 {
		where = fmt.Sprintf("line %d: ", m.Line)
	}
	if m.File != "" && m.File != self {
		where = m.File + ": " + where
	}
	return nil, invalid(CodeSchema, textInvalidSchema, where+clipped(m.Text))
}

// clipped bounds what a compiler says, which may repeat the schema.
func clipped(s string) string {
	const most = 512
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// canonical returns a file's descriptor so that equal schemas have equal bytes:
// without file name and comments, and with options in the order of their numbers.
func canonical(f protoreflect.FileDescriptor) (*descriptorpb.FileDescriptorProto, error) {
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
	if err := add(f); err != nil {
		return nil, invalid(CodeSchema, textInvalidSchema, "names are declared twice")
	}
	b, err := marshal(protodesc.ToFileDescriptorProto(f))
	if err != nil {
		return nil, err
	}
	d := &descriptorpb.FileDescriptorProto{}
	if err := (proto.UnmarshalOptions{Resolver: dynamicpb.NewTypes(files)}).Unmarshal(b, d); err != nil {
		return nil, invalid(CodeSchema, textInvalidSchema, "its options cannot be read")
	}
	d.Name, d.SourceCodeInfo = nil, nil
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

// normalized puts what has no order of its own into one: imports by path, fields by
// number, reservations by their beginning. Messages keep their order, for it is
// part of what a record says.
func normalized(d *descriptorpb.FileDescriptorProto) {
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

// text writes a descriptor as source. Where the source would not be the same
// schema, the descriptor itself is the text.
func text(ctx context.Context, descriptor []byte, sources map[string]string) (string, error) {
	encoded := base64.StdEncoding.EncodeToString(descriptor)
	file, err := build(ctx, encoded, sources)
	if err != nil {
		return "", err
	}
	printer := protoprint.Printer{OmitComments: protoprint.CommentsAll}
	source, err := printer.PrintProtoToString(file)
	if err != nil || len(source) > MaxSchema {
		return encoded, nil
	}
	back, err := build(ctx, source, sources)
	if err != nil {
		return encoded, nil
	}
	d, err := canonical(back)
	if err != nil {
		return encoded, nil
	}
	if b, err := marshal(d); err != nil || string(b) != string(descriptor) {
		return encoded, nil
	}
	return source, nil
}

// fingerprint is the identity of a schema.
func fingerprint(canonical []byte, references []Reference) string {
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

// identity is the fingerprint of a registered version.
func (v Version) identity() string {
	d := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(v.Descriptor, d) != nil {
		return ""
	}
	d.Name = nil
	b, err := marshal(d)
	if err != nil {
		return ""
	}
	return fingerprint(b, v.References)
}
