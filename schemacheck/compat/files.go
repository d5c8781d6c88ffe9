package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// Field numbers of FileDescriptorProto, for source positions.
const (
	packagePath    = 2
	dependencyPath = 3
	optionsPath    = 8
	syntaxPath     = 12
)

// File options that move generated code and nothing on the wire.
var generatorOptions = []protoreflect.Name{
	"go_package", "java_package", "java_outer_classname", "java_multiple_files", "csharp_namespace",
	"objc_class_prefix", "php_class_prefix", "php_namespace", "php_metadata_namespace", "ruby_package", "swift_prefix",
	"optimize_for", "cc_generic_services", "java_generic_services", "py_generic_services", "cc_enable_arenas",
}

// A level is a pair of files or messages whose declarations stand for each other.
type level struct {
	b, h    schema.Container
	missing []protoreflect.MessageDescriptor // in base and not at this level of head
}

// files matches the declarations of all files under judgement, then reports what
// has no match. Names are matched first because fields refer to them.
func (c *comparer) files() {
	for _, b := range c.base.Scope {
		c.api = c.judgedAsAPI(b)
		if !c.api && !c.base.IsEvent(b) && !c.head.IsEvent(b) {
			continue
		}
		h := c.counterpartOf(b)
		if h == nil {
			c.lostFile(b)
			continue
		}
		c.file(b, h)
		c.matchTypes(b, h)
	}
	for _, l := range c.levels {
		c.api = c.judgedAsAPI(l.b.ParentFile())
		c.unmatched(l)
	}
	for _, l := range c.levels {
		c.api = c.judgedAsAPI(l.b.ParentFile())
		c.missing(l)
		c.added(l)
		c.order(l)
		c.enumTypes(l)
	}
}

// counterpartOf returns the file of head that stands for one of base: that of its path,
// or a new one that declares all that it did. Nil stands for none.
func (c *comparer) counterpartOf(b protoreflect.FileDescriptor) protoreflect.FileDescriptor {
	if h := c.head.Files[b.Path()]; h != nil {
		return h
	}
	h, known := c.movedFiles[b.Path()]
	if known {
		return h
	}
	for _, f := range c.head.Scope {
		if c.base.Files[f.Path()] == nil && schema.SameTypes(b, f) && !c.replacements[f.Path()] {
			h = f
			c.replacements[f.Path()] = true
			c.inHead(rule.FileRenamed, f, detail(b.Path(), f.Path()))
			break
		}
	}
	c.movedFiles[b.Path()] = h
	return h
}

// lostFile reports a file that head does not have: its messages that are somewhere else, or the file
// with those that are nowhere.
func (c *comparer) lostFile(b protoreflect.FileDescriptor) {
	gone := b.Services().Len() > 0 || b.Messages().Len()+b.Enums().Len() == 0
	for m := range schema.All(b.Messages()) {
		gone = gone || c.head.Messages[m.FullName()] == nil
	}
	for e := range schema.All(b.Enums()) {
		gone = gone || c.head.Enums[e.FullName()] == nil
	}
	if gone {
		c.inBase(rule.FileRemoved, b)
	}
	for m := range schema.All(b.Messages()) {
		if h := c.head.Messages[m.FullName()]; h != nil && !gone {
			c.inHead(rule.MessageFileChanged, h, detail(b.Path(), h.ParentFile().Path()))
		}
	}
	schema.EachMessage(b.Messages(), func(m protoreflect.MessageDescriptor) bool {
		if h := c.head.Messages[m.FullName()]; h != nil {
			c.enqueue(m, h)
		}
		return true
	})
	for e := range schema.All(b.Enums()) {
		if h := c.head.Enums[e.FullName()]; h != nil {
			c.inHead(rule.EnumFileChanged, h, detail(b.Path(), h.ParentFile().Path()))
			c.enum(e, h)
		}
	}
}

func (c *comparer) file(b, h protoreflect.FileDescriptor) {
	if b.Package() != h.Package() {
		c.inHead(rule.PackageChanged, h, atPath(h, packagePath), detail(string(b.Package()), string(h.Package())))
	}
	if syntaxChanged(b, h) {
		// Closed enums come back with proto2, and so do values without UTF-8 checks.
		c.inHead(rule.SyntaxChanged, h, atPath(h, syntaxPath), detail(b.Syntax().String(), h.Syntax().String()),
			reads(true, b.Syntax() == protoreflect.Proto3))
	}
	bo, ho := b.Options().ProtoReflect(), h.Options().ProtoReflect()
	for _, name := range generatorOptions {
		fd := bo.Descriptor().Fields().ByName(name)
		if was, is := bo.Get(fd), ho.Get(fd); !was.Equal(is) {
			c.inHead(rule.FileOptionChanged, h, atPath(h, optionsPath, int32(fd.Number())), detail(string(name)))
		}
	}
	c.imports(b, h)
}

// imports reports dependencies whose types are used under another path.
func (c *comparer) imports(b, h protoreflect.FileDescriptor) {
	paths := map[string]bool{}
	for i := range h.Imports().Len() {
		paths[h.Imports().Get(i).Path()] = true
	}
	for i := range b.Imports().Len() {
		dep := b.Imports().Get(i)
		if paths[dep.Path()] {
			continue
		}
		for j := range h.Imports().Len() {
			if to := h.Imports().Get(j); c.base.Files[to.Path()] == nil && schema.SameTypes(dep, to) {
				c.inHead(rule.ImportPathChanged, h, atPath(h, dependencyPath, int32(j)), detail(dep.Path(), to.Path()))
			}
		}
	}
}

func syntaxChanged(b, h protoreflect.Descriptor) bool {
	was, is := b.ParentFile().Syntax(), h.ParentFile().Syntax()
	return was != is && was != protoreflect.Editions && is != protoreflect.Editions
}

// atPath points a finding at a path of a file's source info.
func atPath(f protoreflect.FileDescriptor, path ...int32) change {
	return func(finding *Finding) {
		loc := f.SourceLocations().ByPath(path)
		finding.Line, finding.Column = 0, 0
		if loc.EndLine > 0 || loc.EndColumn > 0 {
			finding.Line, finding.Column = loc.StartLine+1, loc.StartColumn+1
		}
	}
}
