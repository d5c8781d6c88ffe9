// Package differential finds what rules cannot promise: it writes generated events with
// one schema, reads them with the other one, in both directions, in binary and in
// JSON with unknown fields ignored, validates them with the reader's rules, and
// reports each difference.
//
// It owns the reading and the comparison of values. Package schemacheck/compat defines what
// a difference means for a schema; package sample chooses the samples. Differences that the
// rules allow are no findings: fields that a reader does not have, enum values that are
// newer than the reader.
//
// Concurrency: functions share nothing and may run together.
package differential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/differential/sample"
	"github.com/parley-chat/parley/schemacheck/internal/crash"
)

// Rules of this package's findings.
const (
	ruleDiffers = rule.SampleReadDifferently // a value is read differently
	ruleDecode  = rule.SampleNotDecoded      // a sample cannot be decoded
	ruleRefused = rule.SampleRefused         // a sample is refused by the reader's rules
	ruleSkipped = rule.SamplesNotMade        // no sample could be made

	rulePresence = rule.SampleZeroReadAsUnset // unset and zero are mixed up
	rulePartial  = rule.SamplesIncomplete     // not all values were tried
	ruleAltered  = rule.WellKnownTypeAltered  // a well-known type is not what runtimes take it for
)

// maxDetail bounds values in findings, in characters.
const maxDetail = 200

// Execute compares the events that both schemas have by running them. Events whose
// types are the same on both sides are left out; an API scope has no events. The
// findings are ordered by location.
func Execute(
	ctx context.Context, base, head []protoreflect.FileDescriptor, o compat.Options,
) ([]compat.Finding, error) {
	if o.Scope == compat.API || o.Policy == compat.None {
		return nil, nil
	}
	b, err := rebuild(base, o.Events)
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	h, err := rebuild(head, o.Events)
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	r := run{found: map[string]*compat.Finding{}, head: schema.New(head, o.Events...), policy: o.Policy}
	for _, was := range b.Roots {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := r.event(ctx, b, h, was); err != nil {
			return nil, fmt.Errorf("%s: %w", was.FullName(), err)
		}
	}
	return r.result(), nil
}

func (r *run) result() []compat.Finding {
	var list []compat.Finding
	for _, f := range r.found {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b compat.Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), a.Rule.Compare(b.Rule),
			cmp.Compare(a.Subject, b.Subject), cmp.Compare(readers(a), readers(b)), cmp.Compare(a.Detail, b.Detail))
	})
	return list
}

// event runs one event in the directions that the policy asks for. An unexpected failure
// there is an error with the event's name.
func (r *run) event(ctx context.Context, b, h *runtimeSet, was protoreflect.MessageDescriptor) (err error) {
	defer crash.Recover(&err)
	is := h.Messages[was.FullName()]
	if is == nil || b.fingerprint(was) == h.fingerprint(is) {
		return nil
	}
	if name := cmp.Or(b.altered(was), h.altered(is)); name != "" {
		r.add(direction{newReads: true}, ruleAltered, is, "", string(name))
		return nil
	}
	for _, d := range []direction{{b, h, was, is, true}, {h, b, is, was, false}} {
		if d.newReads && !r.policy.NewReadsOld() || !d.newReads && !r.policy.OldReadsNew() {
			continue
		}
		if err := r.direction(ctx, d, is); err != nil {
			return err
		}
	}
	return nil
}

// readers orders findings: what breaks new readers first.
func readers(f compat.Finding) int {
	if f.NewReadsOld {
		return 0
	}
	return 1
}

// A direction is one event, its writer and its reader.
type direction struct {
	from, to       *runtimeSet
	writer, reader protoreflect.MessageDescriptor
	newReads       bool // the reader is head
}

type run struct {
	found  map[string]*compat.Finding
	head   *schema.FileSet // as given, with source positions
	policy compat.Policy
}

func (r *run) direction(ctx context.Context, d direction, at protoreflect.MessageDescriptor) error {
	g := sample.New(d.from.validator, newReaderView(d.from, d.to), 1)
	samples, err := g.Messages(ctx, d.writer)
	switch {
	case errors.Is(err, sample.ErrNone):
		detail := "no valid sample could be made"
		if g.Partial() {
			detail = "not executed: too large"
		}
		r.add(d, ruleSkipped, at, "", detail)
		return nil
	case err != nil:
		return fmt.Errorf("samples: %w", err)
	case g.Partial():
		r.add(d, rulePartial, at, "", fmt.Sprintf("%d samples, the rest not executed: too large", len(samples)))
	}
	for _, s := range samples {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.binary(d, at, s)
		r.json(d, at, s)
	}
	return nil
}

func (r *run) binary(d direction, at protoreflect.MessageDescriptor, s protoreflect.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Interface())
	if err != nil {
		return // a writer does not write it either
	}
	read := dynamicpb.NewMessage(d.reader)
	if err := (proto.UnmarshalOptions{Resolver: d.to}).Unmarshal(b, read); err != nil {
		r.add(d, ruleDecode, at, compat.Binary, plain(err))
		return
	}
	r.judge(d, at, s, read, compat.Binary)
}

func (r *run) json(d direction, at protoreflect.MessageDescriptor, s protoreflect.Message) {
	b, err := protojson.Marshal(s.Interface())
	if err != nil {
		return
	}
	read := dynamicpb.NewMessage(d.reader)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, read); err != nil {
		r.add(d, ruleDecode, at, compat.JSON, plain(err))
		return
	}
	r.judge(d, at, s, read, compat.JSON)
}

func (r *run) judge(d direction, at protoreflect.MessageDescriptor, wrote, read protoreflect.Message, form string) {
	c := comparison{direction: d, json: form == compat.JSON}
	c.messages(wrote, read)
	for _, x := range c.differences {
		id := ruleDiffers
		if x.presence {
			id = rulePresence
		}
		r.add(d, id, x.at, form, x.detail)
	}
	var invalid *protovalidate.ValidationError
	switch err := d.to.validator.Validate(read.Interface()); {
	case err == nil:
	case errors.As(err, &invalid):
		for _, violation := range invalid.Violations {
			path := protovalidate.FieldPathString(violation.Proto.GetField())
			r.add(d, ruleRefused, at, compat.Validate,
				strings.TrimSpace(subscript.ReplaceAllString(path, "[]")+" "+violation.Proto.GetRuleId()))
		}
	default:
		r.add(d, ruleSkipped, at, "", "the reader's rules cannot be evaluated")
	}
}

// add records a difference once per location, rule and direction; the detail of the
// first one stays. Elements that only base has are named in base.
func (r *run) add(d direction, id rule.ID, at protoreflect.Descriptor, form, detail string) {
	key := fmt.Sprint(id, at.FullName(), d.newReads)
	if id == ruleRefused {
		key += detail
	}
	f := r.found[key]
	if f == nil {
		location, base := inSchema(r.head, at)
		made := rule.FindingAt(id, location, base)
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
func inSchema(head *schema.FileSet, at protoreflect.Descriptor) (protoreflect.Descriptor, bool) {
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
	linePosition = regexp.MustCompile(`\(line \d+:\d+\): `) // depends on the white space that encoders vary
	subscript    = regexp.MustCompile(`\[[^\]]*\]`)
)

// plain removes what varies between runs from a decoding error.
func plain(err error) string {
	s := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return linePosition.ReplaceAllString(s, "")
}

func clip(s string) string { return schema.Clip(s, maxDetail) }
