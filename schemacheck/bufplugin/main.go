// Bufplugin makes the rules of schemacheck a check plugin of buf: each rule is a
// breaking rule of buf of the same id, named in buf.yaml like buf's own. The short
// aliases of the rules are deprecated ids of the same rules.
//
//	breaking:
//	  use: [FILE, PARLEY]
//	plugins:
//	  - plugin: [go, run, ./schemacheck/bufplugin]
//	    options:
//	      scope: event
//
// The option scope is event, api or all (the default), policy a registry's name of a policy
// (FULL is the default), events a list of packages and import paths that are judged as events,
// regardless of their declarations. Buf knows no warnings: a finding that blocks is of the
// rule's id and in the category PARLEY, one that warns of the id with _WARN and in
// PARLEY_WARN, since one rule may do both, by scope and by what was there before. So the
// category PARLEY fails where schemacheck does. Some features stay with schemacheck because
// buf cannot offer them: several bases and registries.
package main

import (
	"context"
	"fmt"
	"strings"

	"buf.build/go/bufplugin/check"
	"buf.build/go/bufplugin/descriptor"
	"buf.build/go/bufplugin/option"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/gate"
)

func main() { check.Main(spec()) }

// Categories of the rules in buf.yaml.
const (
	blocking = "PARLEY"
	warning  = "PARLEY_WARN"

	warnSuffix = "_WARN" // of the id of a rule that warns
)

func spec() *check.Spec {
	s := &check.Spec{
		Categories: []*check.CategorySpec{
			{ID: blocking, Purpose: "Checks what must not be merged."},
			{ID: warning, Purpose: "Checks what a reviewer should look at."},
		},
		Before: compare,
	}
	for _, r := range compat.Rules() {
		if r.Severity == compat.Allow && !r.ID.Has(rule.BlocksAPI) {
			continue
		}
		id := string(r.ID)
		blocks := &check.RuleSpec{
			ID: id, CategoryIDs: []string{blocking}, Default: true, Type: check.RuleTypeBreaking,
			Purpose: "Checks for: " + r.Title + ".", Handler: handler(r.ID, compat.Block),
		}
		warns := &check.RuleSpec{
			ID: id + warnSuffix, CategoryIDs: []string{warning}, Type: check.RuleTypeBreaking,
			Purpose: "Warns of: " + r.Title + ".", Handler: handler(r.ID, compat.Warn),
		}
		s.Rules = append(s.Rules, blocks, warns, alias(r.Code, blocks), alias(r.Code+warnSuffix, warns))
	}
	return s
}

// alias is a rule under its short id, for configurations that name it so: buf replaces
// a deprecated rule by the one that it is deprecated for.
func alias(code string, of *check.RuleSpec) *check.RuleSpec {
	return &check.RuleSpec{
		ID: code, Type: of.Type, Purpose: of.Purpose, Handler: of.Handler,
		Deprecated: true, ReplacementIDs: []string{of.ID},
	}
}

// The key of the findings in a context.
type found struct{}

// compare runs once for each request, regardless of the rules that it asks for.
func compare(ctx context.Context, r check.Request) (context.Context, check.Request, error) {
	o, err := options(r.Options())
	if err != nil {
		return ctx, r, err
	}
	findings, err := gate.Compare(ctx, files(r.AgainstFileDescriptors()), files(r.FileDescriptors()), o)
	if err != nil {
		return ctx, r, fmt.Errorf("schemacheck: %w", err)
	}
	return context.WithValue(ctx, found{}, findings), r, nil
}

func options(given option.Options) (compat.Options, error) {
	o := compat.Options{Scope: compat.All}
	scope, err := option.GetStringValue(given, "scope")
	if err != nil {
		return o, fmt.Errorf("option scope: %w", err)
	}
	switch scope {
	case "", "all":
	case "event":
		o.Scope = compat.Event
	case "api":
		o.Scope = compat.API
	default:
		return o, fmt.Errorf("option scope: there are event, api and all")
	}
	if o.Events, err = option.GetStringSliceValue(given, "events"); err != nil {
		return o, fmt.Errorf("option events: %w", err)
	}
	policy, err := option.GetStringValue(given, "policy")
	if err != nil {
		return o, fmt.Errorf("option policy: %w", err)
	}
	if policy != "" {
		if o.Policy, err = compat.ParsePolicy(policy); err != nil {
			return o, fmt.Errorf("option policy: %w", err)
		}
	}
	return o, nil
}

// files returns those in scope: imports are reached through them.
func files(list []descriptor.FileDescriptor) []protoreflect.FileDescriptor {
	var scope []protoreflect.FileDescriptor
	for _, f := range list {
		if !f.IsImport() {
			scope = append(scope, f.ProtoreflectFileDescriptor())
		}
	}
	return scope
}

func handler(id rule.ID, severity compat.Severity) check.RuleHandler {
	return check.RuleHandlerFunc(func(ctx context.Context, w check.ResponseWriter, r check.Request) error {
		findings, _ := ctx.Value(found{}).([]compat.Finding)
		for _, f := range findings {
			if f.Rule != id || f.Severity != severity {
				continue
			}
			annotation := []check.AddAnnotationOption{check.WithMessage(message(f))}
			base := element(r.AgainstFileDescriptors(), f.File, protoreflect.FullName(f.Subject))
			head := element(r.FileDescriptors(), f.File, protoreflect.FullName(f.Subject))
			// An element that head has lost is shown at its parent.
			for in := base; head == nil && in != nil; in = in.Parent() {
				head = element(r.FileDescriptors(), f.File, in.FullName())
			}
			if head != nil {
				annotation = append(annotation, check.WithDescriptor(head))
			} else if !f.Base {
				annotation = append(annotation, check.WithFileName(f.File))
			}
			if base != nil {
				annotation = append(annotation, check.WithAgainstDescriptor(base))
			} else if f.Base {
				annotation = append(annotation, check.WithAgainstFileName(f.File))
			}
			w.AddAnnotation(annotation...)
		}
		return nil
	})
}

// message writes a finding in one line: buf shows no more.
func message(f compat.Finding) string {
	r, _ := rule.ByID(f.Rule)
	s := f.Rule.Label() + " " + f.Subject + ": " + r.Title
	if f.Detail != "" {
		s += " (" + f.Detail + ")"
	}
	return strings.Join(strings.Fields(s+". "+f.Why+" "+f.Suggestion), " ")
}

// element finds a name in a file; nil if it is not there.
func element(list []descriptor.FileDescriptor, path string, name protoreflect.FullName) protoreflect.Descriptor {
	for _, file := range list {
		if d := file.ProtoreflectFileDescriptor(); d.Path() == path {
			return within(d, name)
		}
	}
	return nil
}

// within finds a name in a file, or in what stands in it.
func within(d protoreflect.Descriptor, name protoreflect.FullName) protoreflect.Descriptor {
	if _, file := d.(protoreflect.FileDescriptor); !file && d.FullName() == name {
		return d
	}
	for _, child := range children(d) {
		if found := within(child, name); found != nil {
			return found
		}
	}
	return nil
}

func children(d protoreflect.Descriptor) []protoreflect.Descriptor {
	var list []protoreflect.Descriptor
	if d, ok := d.(interface {
		Messages() protoreflect.MessageDescriptors
		Enums() protoreflect.EnumDescriptors
		Extensions() protoreflect.ExtensionDescriptors
	}); ok {
		list = collect(list, d.Messages())
		list = collect(list, d.Enums())
		list = collect(list, d.Extensions())
	}
	switch d := d.(type) {
	case protoreflect.FileDescriptor:
		list = collect(list, d.Services())
	case protoreflect.MessageDescriptor:
		list = collect(list, d.Oneofs())
		list = collect(list, d.Fields())
	case protoreflect.EnumDescriptor:
		list = collect(list, d.Values())
	case protoreflect.ServiceDescriptor:
		list = collect(list, d.Methods())
	}
	return list
}

func collect[D protoreflect.Descriptor](list []protoreflect.Descriptor, of interface {
	Len() int
	Get(int) D
}) []protoreflect.Descriptor {
	for i := range of.Len() {
		list = append(list, of.Get(i))
	}
	return list
}
