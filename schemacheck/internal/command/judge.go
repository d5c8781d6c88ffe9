package command

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/compile"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/schemacheck/internal/causes"
	"github.com/parley-chat/parley/schemacheck/internal/load"
	"github.com/parley-chat/parley/schemacheck/internal/report"
	"github.com/parley-chat/parley/schemacheck/internal/schemafile"
)

// A verdict is made of one head and the bases that it is compared with, oldest first.
type verdict struct {
	*settings
	o     compat.Options
	bases []*load.Schema
	head  *load.Schema
}

// judge compares head with the bases that the policy names, of which the last one is the
// newest, and checks the names of new events. Waived findings are still among the findings.
func (v *verdict) judge(ctx context.Context, r *report.Report) error {
	r.Policy = v.o.Policy.String()
	is, other := v.scoped(v.head.Files)
	head := schema.New(is, v.o.Events...)
	newest := schema.New(nil)
	versions := make([][]protoreflect.FileDescriptor, len(v.bases))
	for i, base := range v.bases {
		versions[i], _ = v.scoped(base.Files)
		r.Notes = append(r.Notes, base.Notes...)
	}
	if n := len(versions); n > 0 {
		newest = schema.New(versions[n-1], v.o.Events...)
	}
	r.Notes = append(r.Notes, v.head.Notes...)
	if !v.something(head) && !slices.ContainsFunc(versions, func(files []protoreflect.FileDescriptor) bool {
		return v.something(schema.New(files, v.o.Events...))
	}) {
		return v.nothing()
	}
	n, version := gate.InMemory(versions)
	for c, err := range gate.CompareAll(ctx, n, version, is, v.widest()) {
		if err != nil {
			return err
		}
		base := v.bases[c.Version]
		r.Base = slices.Insert(r.Base, 0, base.Name)
		was := newest
		if c.Version < len(versions)-1 {
			was = schema.New(versions[c.Version], v.o.Events...)
		}
		findings := v.atLevel(c.Findings, was, head, c.Version == len(versions)-1)
		r.Add(v.side(base, was, head), causes.Group(findings, was, head))
	}
	if len(r.Base) == 0 && len(versions) > 0 {
		r.Notes = append(r.Notes, "policy NONE: nothing was compared")
	}
	v.lint(r, newest, head)
	r.Judged = v.judged(head, other)
	if !head.Declared && v.o.Scope != compat.API && len(v.o.Events) == 0 {
		r.Notes = append(r.Notes, "no message declares an event: files without services that nothing imports are taken for events; --events or schemacheck.yaml say otherwise")
	}
	return nil
}

// scoped divides files into those that the scope judges and the others.
func (v *verdict) scoped(files []protoreflect.FileDescriptor) (in, out []protoreflect.FileDescriptor) {
	if v.o.Scope != compat.API {
		return files, nil
	}
	side := schema.New(files, v.o.Events...)
	for _, f := range side.Scope {
		if side.Named[f.Path()] || side.Declared && side.Registered[f.Path()] {
			out = append(out, f)
		} else {
			in = append(in, f)
		}
	}
	return in, out
}

// something says whether the scope finds anything in a schema.
func (v *verdict) something(s *schema.FileSet) bool {
	if v.o.Scope == compat.Event {
		return slices.ContainsFunc(s.Scope, s.IsEvent)
	}
	return len(s.Scope) > 0
}

func (v *verdict) nothing() error {
	what := map[compat.Scope]string{compat.Event: "no event", compat.API: "no file of an API",
		compat.All: "no file"}[v.o.Scope]
	return fmt.Errorf("nothing to judge: --scope %s finds %s in %s; --events PATTERN names files of events, --exclude leaves files out (schemacheck help policy)", v.scope, what, v.head.Name)
}

// side says where findings of a comparison stand and what they are about.
func (v *verdict) side(base *load.Schema, was, is *schema.FileSet) report.Origin {
	return report.Origin{
		Name: base.Name,
		RepoPath: func(f compat.Finding) string {
			if f.Base {
				return base.RepoPath(f.File)
			}
			return v.head.RepoPath(f.File)
		},
		API: func(f compat.Finding) bool { return asAPI(v.o.Scope, f, was, is) },
	}
}

// asAPI says whether an element is judged as API. Elements that both sides have are judged
// as base has them.
func asAPI(scope compat.Scope, f compat.Finding, was, is *schema.FileSet) bool {
	if scope != compat.All {
		return scope == compat.API
	}
	for _, s := range []*schema.FileSet{was, is} {
		name := causes.TypeOf(s, f.Subject)
		var d protoreflect.Descriptor
		if m := s.Messages[name]; m != nil {
			d = m
		} else if e := s.Enums[name]; e != nil {
			d = e
		}
		if d != nil {
			return !s.IsEvent(d.ParentFile()) && !s.Used[name]
		}
	}
	for _, s := range []*schema.FileSet{was, is} {
		if file := s.Files[f.File]; file != nil {
			return !s.IsEvent(file)
		}
	}
	return false
}

// widest returns the options under which nothing is missed that some level asks for.
func (v *verdict) widest() compat.Options {
	o := v.o
	if len(v.file.Levels) == 0 {
		return o
	}
	o.Policy = compat.Full
	if v.o.Policy.Transitive() || slices.ContainsFunc(v.file.Levels,
		func(l schemafile.Level) bool { return l.Parsed.Transitive() }) {
		o.Policy = compat.FullTransitive
	}
	return o
}

// atLevel keeps the findings that a level of one of the events that they concern
// asks for.
func (v *verdict) atLevel(findings []compat.Finding, was, is *schema.FileSet, newest bool) []compat.Finding {
	if len(v.file.Levels) == 0 {
		return findings
	}
	return slices.DeleteFunc(findings, func(f compat.Finding) bool {
		return !slices.ContainsFunc(v.levels(f, was, is), func(p compat.Policy) bool {
			if p == compat.None || !newest && !p.Transitive() {
				return false
			}
			return f.OldReadsNew == f.NewReadsOld || f.OldReadsNew && p.OldReadsNew() || f.NewReadsOld && p.NewReadsOld()
		})
	})
}

// levels returns the policies of the events that a finding concerns, and that of the
// command if it concerns none.
func (v *verdict) levels(f compat.Finding, was, is *schema.FileSet) (list []compat.Policy) {
	for _, s := range []*schema.FileSet{was, is} {
		name := causes.TypeOf(s, f.Subject)
		for _, m := range s.Roots {
			uses := name == "" && m.ParentFile().Path() == f.File
			if name != "" {
				uses = s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(m) })[name]
			}
			if uses {
				list = append(list, v.level(s, m))
			}
		}
	}
	if len(list) == 0 {
		list = append(list, v.o.Policy)
	}
	return list
}

// level returns the policy of an event.
func (v *verdict) level(s *schema.FileSet, m protoreflect.MessageDescriptor) compat.Policy {
	for _, l := range v.file.Levels {
		if l.Topic != "" {
			if event, ok := s.Events[m.FullName()]; ok && event.Text("topic") == l.Topic {
				return l.Parsed
			}
			continue
		}
		named, _ := path.Match(l.Events, string(m.FullName()))
		if named || schema.Matches([]string{l.Events}, m.ParentFile()) ||
			load.Matches([]string{l.Events}, v.head.RepoPath(m.ParentFile().Path())) {
			return l.Parsed
		}
	}
	return v.o.Policy
}

// lint checks new events.
func (v *verdict) lint(r *report.Report, was, is *schema.FileSet) {
	if v.o.Scope == compat.API {
		return
	}
	var list []causes.Finding
	for _, f := range lintFiles(was, is, v.file) {
		list = append(list, causes.Finding{Finding: f})
	}
	r.Add(report.Origin{
		Name:     v.head.Name,
		RepoPath: func(f compat.Finding) string { return v.head.RepoPath(f.File) },
		API:      func(compat.Finding) bool { return false },
	}, list)
}

// judged says what was judged as what.
func (v *verdict) judged(s *schema.FileSet, out []protoreflect.FileDescriptor) (j report.Judged) {
	for _, f := range out {
		j.Other = append(j.Other, v.head.RepoPath(f.Path()))
	}
	if v.o.Scope != compat.API {
		used := maps.Clone(s.Used)
		for _, m := range s.Roots {
			_, declared := s.Events[m.FullName()]
			if !declared && !s.Registered[m.ParentFile().Path()] {
				continue // a type that others use, of a file that is named
			}
			delete(used, m.FullName())
			one := report.Event{Name: string(m.FullName()), File: v.head.RepoPath(m.ParentFile().Path())}
			if event, ok := s.Events[m.FullName()]; ok {
				one.Declared, one.Topic, one.Version = true, event.Text("topic"), event.Version
			}
			j.Events = append(j.Events, one)
		}
		maps.DeleteFunc(used, func(name protoreflect.FullName, _ bool) bool {
			m := s.Messages[name]
			return m != nil && (m.IsMapEntry() || compile.WellKnown(m.ParentFile().Path())) ||
				strings.HasPrefix(string(name), "google.protobuf.")
		})
		for _, name := range slices.Sorted(maps.Keys(used)) {
			j.Types = append(j.Types, string(name))
		}
	}
	for _, f := range s.Scope {
		switch {
		case v.o.Scope != compat.API && (s.IsEvent(f) || v.holdsUsed(s, f)):
		case v.o.Scope == compat.Event:
			j.Other = append(j.Other, v.head.RepoPath(f.Path()))
		default:
			j.API = append(j.API, v.head.RepoPath(f.Path()))
		}
	}
	return j
}

// holdsUsed says whether all types of a file are ones that events use.
func (v *verdict) holdsUsed(s *schema.FileSet, f protoreflect.FileDescriptor) bool {
	if f.Services().Len() > 0 || f.Messages().Len()+f.Enums().Len() == 0 {
		return false
	}
	for m := range schema.All(f.Messages()) {
		if !s.Used[m.FullName()] {
			return false
		}
	}
	for e := range schema.All(f.Enums()) {
		if !s.Used[e.FullName()] {
			return false
		}
	}
	return true
}
