package registry

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/server/registry/source"
)

// incompatibilities says why a schema may not follow versions at the subject's level.
func (r *Registry) incompatibilities(
	ctx context.Context, subject string, p parsed, versions []Version,
) ([]string, error) {
	level, err := r.effective(ctx, levels, subject, defaultLevel)
	if err != nil {
		return nil, err
	}
	policy, err := compat.ParsePolicy(level)
	if err != nil {
		return nil, fmt.Errorf("registry: level: %w", err)
	}
	cache := r.referenceCache()
	return judge(ctx, judged{
		head: p.file, policy: policy, n: len(versions),
		files: func(i int) ([]protoreflect.FileDescriptor, error) { return r.files(ctx, cache, p, versions[i]) },
		name:  func(i int) string { return fmt.Sprintf("version %d", versions[i].Version) },
	})
}

// judged is a schema with those before it, the oldest first.
type judged struct {
	head   protoreflect.FileDescriptor
	policy compat.Policy
	n      int
	files  func(int) ([]protoreflect.FileDescriptor, error)
	name   func(int) string // of an earlier schema, in a finding
}

// judge says why a schema may not follow others, in at most maxMessages sentences.
func judge(ctx context.Context, j judged) (messages []string, err error) {
	o := compat.Options{Policy: j.policy, Scope: compat.Event}
	for c, err := range gate.CompareAll(ctx, j.n, j.files, []protoreflect.FileDescriptor{j.head}, o) {
		if err != nil {
			return nil, fmt.Errorf("registry: compare: %w", err)
		}
		for _, f := range c.Findings {
			if f.Severity == compat.Block && len(messages) < maxMessages {
				messages = append(messages, describe(j.name(c.Version), f))
			}
		}
	}
	return messages, nil
}

// files compiles a version of a subject, to compare a schema with it.
func (r *Registry) files(
	ctx context.Context, cache *referenceCache, p parsed, v Version,
) ([]protoreflect.FileDescriptor, error) {
	references := v.References
	if v.legacy { // its row has none; the file's imports are those of its successor
		references = p.References
	}
	imports, err := cache.imports(ctx, references)
	if err != nil {
		return nil, err
	}
	base, err := source.Build(ctx, base64.StdEncoding.EncodeToString(v.Descriptor), imports)
	if err != nil {
		return nil, asRefusal(err)
	}
	return []protoreflect.FileDescriptor{base.Descriptor}, nil
}

// describe writes a finding in a sentence or two.
func describe(earlier string, f compat.Finding) string {
	r, _ := rule.ByID(f.Rule)
	s := fmt.Sprintf("%s %s: %s", f.Rule.Label(), f.Subject, r.Title)
	if f.Detail != "" {
		s += " (" + f.Detail + ")"
	}
	return strings.TrimSpace(source.Clipped(fmt.Sprintf("%s: %s. %s %s", earlier, s, f.Why, f.Suggestion)))
}

// Compatible says whether a schema could be registered as far as compatibility
// goes, and why not: with one version of a subject, or with version 0 with those
// that the subject's level names.
func (r *Registry) Compatible(
	ctx context.Context, subject string, version int, s Schema, normalize bool,
) (bool, []string, error) {
	if err := validSubject(subject); err != nil {
		return false, nil, err
	}
	p, err := r.parse(ctx, s, normalize)
	if err != nil {
		return false, nil, err
	}
	var versions []Version
	if version != 0 {
		v, ok, err := r.find(ctx, subject, version, false)
		switch {
		case err != nil:
			return false, nil, err
		case ok:
			versions = []Version{v}
		case version != Latest: // any schema is compatible with no version
			return false, nil, invalid(codeVersionNotFound, textVersionNotFound, version)
		}
	} else {
		all, err := r.versions(ctx, subject)
		if err != nil {
			return false, nil, err
		}
		versions = live(all)
	}
	messages, err := r.incompatibilities(ctx, subject, p, versions)
	return len(messages) == 0, messages, err
}

// Lookup finds the version of a subject that is exactly this schema.
func (r *Registry) Lookup(ctx context.Context, subject string, s Schema, normalize, deleted bool) (Version, error) {
	if err := validSubject(subject); err != nil {
		return Version{}, err
	}
	versions, err := r.versions(ctx, subject)
	if err != nil {
		return Version{}, err
	}
	if !deleted {
		versions = live(versions)
	}
	if len(versions) == 0 {
		return Version{}, invalid(codeSubjectNotFound, textSubjectNotFound, shortened(subject))
	}
	p, err := r.parse(ctx, s, normalize)
	if err != nil {
		return Version{}, err
	}
	for _, v := range slices.Backward(versions) {
		if v.identity() == p.fingerprint {
			return v, nil
		}
	}
	return Version{}, invalid(CodeSchemaNotFound, textSchemaNotFound)
}
