// Package execute finds what rules cannot promise: it writes generated events with
// one schema, reads them with the other one, in both directions, in binary and in
// JSON with unknown fields ignored, validates them with the reader's rules, and
// reports each difference.
//
// It owns the reading and the comparison of values. What a difference means for a
// schema is said in schemacheck/compat; how samples are chosen in sample. What the
// rules allow is no finding: fields that a reader does not have, enum values that are
// newer than the reader.
//
// Concurrency: functions share nothing and may run together.
package execute

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/execute/sample"
)

// Rules of this package's findings, in compat.Rules.
const (
	ruleDiffers = "W01" // a value is read differently
	ruleDecode  = "W02" // a sample cannot be decoded
	ruleRefused = "W03" // a sample is refused by the reader's rules
	ruleSkipped = "W04" // no sample could be made

	rulePresence = "W05" // unset and zero are mixed up
)

// maxDetail bounds values in findings, in characters.
const maxDetail = 200

// Execute compares the events that both schemas have by running them. Events whose
// types are the same on both sides are left out; an API scope has no events. The
// findings are ordered by place.
func Execute(base, head []protoreflect.FileDescriptor, o compat.Options) ([]compat.Finding, error) {
	if o.Scope == compat.API {
		return nil, nil
	}
	r := run{found: map[string]*compat.Finding{}, head: schema.New(head, o.Events...)}
	b, err := rebuild(base, o.Events)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	h, err := rebuild(head, o.Events)
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	for _, was := range b.Roots {
		is := h.Messages[was.FullName()]
		if is == nil || fingerprint(b, was) == fingerprint(h, is) {
			continue
		}
		for _, d := range []direction{{b, h, was, is, true}, {h, b, is, was, false}} {
			if o.Policy == compat.Backward && !d.newReads || o.Policy == compat.Forward && d.newReads {
				continue
			}
			if err := r.direction(d, is); err != nil {
				return nil, err
			}
		}
	}
	var list []compat.Finding
	for _, f := range r.found {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b compat.Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Rule, b.Rule),
			cmp.Compare(a.Subject, b.Subject), cmp.Compare(readers(a), readers(b)), cmp.Compare(a.Detail, b.Detail))
	})
	return list, nil
}

// readers orders findings: what breaks new readers first.
func readers(f compat.Finding) int {
	if f.NewReadsOld {
		return 0
	}
	return 1
}

// rebuild makes a schema of the descriptors that the protobuf runtime is made for.
// Those of compilers lack what it asks for beyond the public interface, as whether
// text is checked.
func rebuild(scope []protoreflect.FileDescriptor, events []string) (*schema.Side, error) {
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
	return schema.New(list, events...), nil
}

// fingerprint is the text of an event and all that it uses.
func fingerprint(s *schema.Side, m protoreflect.MessageDescriptor) string {
	var parts []string
	for name := range s.Reach(func(yield func(protoreflect.MessageDescriptor) bool) { yield(m) }) {
		var p proto.Message
		if e := s.Enums[name]; e != nil {
			p = protodesc.ToEnumDescriptorProto(e)
		} else {
			p = protodesc.ToDescriptorProto(s.Messages[name])
		}
		text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		file := protodesc.ToFileDescriptorProto(s.Files[fileOf(s, name)])
		parts = append(parts, fmt.Sprintf("%s %x %s %s %x", name, text, file.GetSyntax(), file.GetEdition(), options(file.GetOptions().GetFeatures())))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

func fileOf(s *schema.Side, name protoreflect.FullName) string {
	if e := s.Enums[name]; e != nil {
		return e.ParentFile().Path()
	}
	return s.Messages[name].ParentFile().Path()
}

func options(m proto.Message) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return b
}

// A direction is one event, its writer and its reader.
type direction struct {
	from, to       *schema.Side
	writer, reader protoreflect.MessageDescriptor
	newReads       bool // the reader is head
}

type run struct {
	found map[string]*compat.Finding
	head  *schema.Side // as given, with source positions
}

func (r *run) direction(d direction, at protoreflect.MessageDescriptor) error {
	writes, err := sample.Validator(d.from)
	if err != nil {
		return err
	}
	validator, err := sample.Validator(d.to)
	if err != nil {
		return err
	}
	g := sample.New(writes, func(name protoreflect.FullName) protoreflect.MessageDescriptor { return d.to.Messages[name] }, 1)
	samples, err := g.Messages(d.writer)
	if errors.Is(err, sample.ErrNone) {
		r.add(d, ruleSkipped, at, "", "no valid sample could be made")
		return nil
	}
	for _, s := range samples {
		r.binary(d, at, validator, s)
		r.json(d, at, validator, s)
	}
	return nil
}

func (r *run) binary(d direction, at protoreflect.MessageDescriptor, v protovalidate.Validator, s protoreflect.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Interface())
	if err != nil {
		return // a writer does not write it either
	}
	read := dynamicpb.NewMessage(d.reader)
	if err := (proto.UnmarshalOptions{Resolver: d.to}).Unmarshal(b, read); err != nil {
		r.add(d, ruleDecode, at, compat.Binary, plain(err))
		return
	}
	r.judge(d, at, v, s, read, compat.Binary)
}

func (r *run) json(d direction, at protoreflect.MessageDescriptor, v protovalidate.Validator, s protoreflect.Message) {
	b, err := protojson.Marshal(s.Interface())
	if err != nil {
		return
	}
	read := dynamicpb.NewMessage(d.reader)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, read); err != nil {
		r.add(d, ruleDecode, at, compat.JSON, plain(err))
		return
	}
	r.judge(d, at, v, s, read, compat.JSON)
}

func (r *run) judge(d direction, at protoreflect.MessageDescriptor, v protovalidate.Validator, wrote, read protoreflect.Message, form string) {
	c := comparison{direction: d, json: form == compat.JSON}
	c.messages(wrote, read)
	for _, x := range c.differences {
		rule := ruleDiffers
		if x.presence {
			rule = rulePresence
		}
		r.add(d, rule, x.at, form, x.detail)
	}
	var invalid *protovalidate.ValidationError
	switch err := v.Validate(read.Interface()); {
	case err == nil:
	case errors.As(err, &invalid):
		for _, violation := range invalid.Violations {
			path := protovalidate.FieldPathString(violation.Proto.GetField())
			r.add(d, ruleRefused, at, compat.Validate, strings.TrimSpace(subscript.ReplaceAllString(path, "[]")+" "+violation.Proto.GetRuleId()))
		}
	default:
		r.add(d, ruleSkipped, at, "", "the reader's rules cannot be evaluated")
	}
}

// add records a difference once per place, rule and direction; the detail of the
// first one stays. Elements that only base has are named in base.
func (r *run) add(d direction, rule string, at protoreflect.Descriptor, form, detail string) {
	key := fmt.Sprint(rule, at.FullName(), d.newReads)
	if rule == ruleRefused {
		key += detail
	}
	f := r.found[key]
	if f == nil {
		place, base := inSchema(r.head, at)
		made := compat.FindingAt(rule, place, base)
		made.NewReadsOld, made.OldReadsNew, made.Form, made.Detail = d.newReads, !d.newReads, form, clip(detail)
		f = &made
		r.found[key] = f
		return
	}
	if form != "" && !slices.Contains(strings.Split(f.Form, ","), form) {
		forms := append(strings.Split(f.Form, ","), form)
		slices.Sort(forms)
		f.Form = strings.Join(forms, ",")
	}
}

// inSchema finds an element in head; true if only base has it.
func inSchema(head *schema.Side, at protoreflect.Descriptor) (protoreflect.Descriptor, bool) {
	if m := head.Messages[at.FullName()]; m != nil {
		return m, false
	}
	if m := head.Messages[at.FullName().Parent()]; m != nil {
		if f := m.Fields().ByName(at.Name()); f != nil {
			return f, false
		}
	}
	return at, true
}

var (
	place     = regexp.MustCompile(`\(line \d+:\d+\): `) // depends on the white space that encoders vary
	subscript = regexp.MustCompile(`\[[^\]]*\]`)
)

// plain removes what varies between runs from a decoding error.
func plain(err error) string {
	s := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return place.ReplaceAllString(s, "")
}

func clip(s string) string { return schema.Clip(s, maxDetail) }
