// Package compile makes descriptors of protobuf schemas, from source text and from
// descriptors, without a network: files of google/protobuf, buf/validate,
// google/api and google/rpc are linked into the binary and need not be given.
//
// It owns compiling and linking. It reads no file and judges nothing.
//
// Concurrency: functions may run together.
package compile

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// maxErrors is how many mistakes of a schema are collected.
const maxErrors = 10

// A Mistake is what is wrong with a file.
type Mistake struct {
	File         string // import path
	Line, Column int
	Text         string
}

// Files makes descriptors of the named files of a set of sources, by import path.
// A source is text, or a FileDescriptorProto in base64 as registries hand it out.
// Well-known files need not be in the set.
func Files(ctx context.Context, text map[string]string, names []string) ([]protoreflect.FileDescriptor, []Mistake) {
	var mistakes []Mistake
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(func(name string) (protocompile.SearchResult, error) {
			if source, ok := text[name]; ok {
				if f := Descriptor(source); f != nil {
					f.Name = proto.String(name)
					return protocompile.SearchResult{Proto: f}, nil
				}
				return protocompile.SearchResult{Source: strings.NewReader(source)}, nil
			}
			if f := BuiltIn(name); f != nil {
				return protocompile.SearchResult{Proto: f}, nil
			}
			return protocompile.SearchResult{}, fmt.Errorf("%q is neither given nor built in", name)
		})),
		SourceInfoMode: protocompile.SourceInfoStandard,
		Reporter: reporter.NewReporter(func(err reporter.ErrorWithPos) error {
			p := err.GetPosition()
			mistakes = append(mistakes, Mistake{File: p.Filename, Line: p.Line, Column: p.Col, Text: err.Unwrap().Error()})
			if len(mistakes) >= maxErrors {
				return io.EOF
			}
			return nil
		}, nil),
	}
	compiled, err := c.Compile(ctx, names...)
	if err != nil && len(mistakes) == 0 {
		mistakes = append(mistakes, Mistake{Text: err.Error()})
	}
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	var list []protoreflect.FileDescriptor
	for _, f := range compiled {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	return list, nil
}

// Descriptor reads a FileDescriptorProto in base64, nil if the text is none.
func Descriptor(text string) *descriptorpb.FileDescriptorProto {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) == 0 {
		return nil
	}
	f := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(b, f) != nil {
		return nil
	}
	fill(f.GetExtension())
	fillMessages(f.GetMessageType())
	return f
}

func fillMessages(list []*descriptorpb.DescriptorProto) {
	for _, m := range list {
		fill(m.GetField())
		fill(m.GetExtension())
		fillMessages(m.GetNestedType())
	}
}

// fill gives fields the JSON names that follow from their names. Some generators
// leave them out, and they are part of the contract.
func fill(list []*descriptorpb.FieldDescriptorProto) {
	for _, f := range list {
		if f.JsonName == nil {
			f.JsonName = proto.String(jsonName(f.GetName()))
		}
	}
}

// jsonName is the lowerCamelCase of a field's name, as protoc makes it.
func jsonName(name string) string {
	var b strings.Builder
	up := false
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '_':
			up = true
			continue
		case up && 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		up = false
		b.WriteByte(c)
	}
	return b.String()
}

// Link makes descriptors of a set of files, with the well-known files that it lacks.
func Link(set *descriptorpb.FileDescriptorSet) (*protoregistry.Files, error) {
	have := map[string]bool{}
	for _, f := range set.GetFile() {
		have[f.GetName()] = true
	}
	for i := 0; i < len(set.GetFile()); i++ {
		for _, dep := range set.GetFile()[i].GetDependency() {
			if have[dep] {
				continue
			}
			f := BuiltIn(dep)
			if f == nil {
				return nil, fmt.Errorf("%s imports %q, which is neither given nor built in", set.GetFile()[i].GetName(), dep)
			}
			have[dep] = true
			set.File = append(set.File, f)
		}
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "proto:\u00a0"))
	}
	return files, nil
}
