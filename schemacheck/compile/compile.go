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
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// maxErrors is how many mistakes of a schema are collected.
const maxErrors = 10

// A Mistake is what is wrong with a file.
type Mistake struct {
	File         string // import path; "" is not known
	Line, Column int    // from 1; 0 is not known
	Text         string
	Import       string // the import that is missing, if that is the mistake
	Edition      bool   // the file is of an edition that cannot be compiled
}

// absent is the error for an import that no source provides.
type absent string

func (a absent) Error() string { return fmt.Sprintf("%q is neither given nor built in", string(a)) }

// Files makes descriptors of the named files of a set of sources, by import path.
// A source is text, or a FileDescriptorProto in base64 as registries hand it out.
// Well-known files need not be in the set.
func Files(ctx context.Context, text map[string]string, names []string) ([]protoreflect.FileDescriptor, []Mistake) {
	if mistakes := unreadable(text, names); len(mistakes) > 0 {
		return nil, mistakes
	}
	var mistakes []Mistake
	// Built-in files are linked already, unless the sources have some of them: what those
	// import, and what imports them, must be linked with them.
	linked := true
	for name := range text {
		linked = linked && !WellKnown(name)
	}
	c := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(
			protocompile.ResolverFunc(func(name string) (protocompile.SearchResult, error) {
				if source, ok := text[name]; ok {
					if f := Descriptor(source); f != nil {
						f.Name = proto.String(name)
						return protocompile.SearchResult{Proto: f}, nil
					}
					return protocompile.SearchResult{Source: strings.NewReader(source)}, nil
				}
				if f := builtIn(name); f != nil && linked {
					return protocompile.SearchResult{Desc: f}, nil
				}
				if f := BuiltIn(name); f != nil {
					return protocompile.SearchResult{Proto: f}, nil
				}
				return protocompile.SearchResult{}, absent(name)
			})),
		SourceInfoMode: protocompile.SourceInfoStandard,
		Reporter: reporter.NewReporter(func(err reporter.ErrorWithPos) error {
			mistakes = append(mistakes, mistake(err))
			if len(mistakes) >= maxErrors {
				return io.EOF
			}
			return nil
		}, nil),
	}
	compiled, err := c.Compile(ctx, names...)
	if err != nil && len(mistakes) == 0 {
		mistakes = append(mistakes, mistake(err))
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

// mistake takes an error of the compiler apart.
func mistake(err error) Mistake {
	var m Mistake
	var missing absent
	if errors.As(err, &missing) {
		m.Import = string(missing)
	}
	m.Text = err.Error()
	if at, ok := errors.AsType[reporter.ErrorWithPos](err); ok {
		p := at.GetPosition()
		m.File, m.Line, m.Column = p.Filename, p.Line, p.Col
		m.Text = at.Unwrap().Error()
	}
	if m.Import != "" {
		m.Text = missing.Error()
	}
	return m
}

// unreadable finds mistakes that the compiler would accept, or refuse with an unhelpful
// message: text that is not UTF-8, and editions that it does not know. Only files that are
// used are checked.
func unreadable(text map[string]string, names []string) []Mistake {
	var list []Mistake
	seen := map[string]bool{}
	queue := slices.Clone(names)
	for len(queue) > 0 && len(list) < maxErrors {
		name := queue[0]
		queue = queue[1:]
		source, ok := text[name]
		if seen[name] || !ok || Descriptor(source) != nil {
			continue
		}
		seen[name] = true
		if !utf8.ValidString(source) {
			list = append(list, notUTF8(name, source))
			continue
		}
		if m := editionLine.FindStringSubmatchIndex(source); m != nil && !slices.Contains(editions, source[m[2]:m[3]]) {
			list = append(list, Mistake{
				File: name, Line: 1 + strings.Count(source[:m[2]], "\n"), Column: m[2] - strings.LastIndex(source[:m[2]], "\n") - 1,
				Text: fmt.Sprintf("edition %s is not compiled from source here; known is %s", source[m[2]:m[3]],
					strings.Join(editions, ", ")),
				Edition: true,
			})
			continue
		}
		for _, m := range importLine.FindAllStringSubmatch(source, -1) {
			queue = append(queue, m[1])
		}
	}
	return list
}

func notUTF8(name, source string) Mistake {
	at := len(strings.ToValidUTF8(source, "")) // beyond the end, unless something is found
	for i, r := range source {
		if _, n := utf8.DecodeRuneInString(source[i:]); r == utf8.RuneError && n == 1 {
			at = i
			break
		}
	}
	return Mistake{
		File: name, Line: 1 + strings.Count(source[:at], "\n"), Column: at - strings.LastIndex(source[:at], "\n"),
		Text: "the file is not UTF-8: save it as such",
	}
}

// editions are those that sources may be of.
var editions = []string{"2023"}

var (
	editionLine = regexp.MustCompile(`(?m)^\s*edition\s*=\s*["\']([^"\'\n]*)["\']`)
	importLine  = regexp.MustCompile(`(?m)^\s*import\s+(?:public\s+|weak\s+|option\s+)?["\']([^"\'\n]+)["\']`)
)

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
			f.JsonName = proto.String(schema.JSONName(protoreflect.Name(f.GetName())))
		}
	}
}

// Link makes descriptors of a set of files, with the well-known files that it lacks.
func Link(set *descriptorpb.FileDescriptorSet) (*protoregistry.Files, error) {
	have := map[string]bool{}
	for _, f := range set.GetFile() {
		have[f.GetName()] = true
	}
	for i := 0; i < len(set.GetFile()); i++ { //nolint:intrange // the set grows meanwhile
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
