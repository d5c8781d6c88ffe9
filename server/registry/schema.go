package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/registry/source"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// parsed is a schema that was understood.
type parsed struct {
	Schema
	descriptor  []byte
	canonical   []byte // descriptor without its name
	fingerprint string
	print       func() (string, error)      // makes the text, if the given text is not to be kept; nil otherwise
	file        protoreflect.FileDescriptor // nil for Parley's own, which is compiled when there is one to compare it with
}

// asRefusal makes an answer of what is wrong with a schema; failures stay what they are.
func asRefusal(err error) error {
	var wrong *source.Error
	if errors.As(err, &wrong) {
		return invalid(CodeSchema, textInvalidSchema, wrong.Text)
	}
	return err
}

// parse compiles a schema and gives it its canonical form.
func (r *Registry) parse(ctx context.Context, s Schema, normalize bool) (parsed, error) {
	if len(s.Text) > MaxSchema {
		return parsed{}, invalid(CodeTooLarge, textTooLarge, MaxSchema)
	}
	if len(s.References) > MaxReferences {
		return parsed{}, invalid(CodeSchema, textTooManyReferences, MaxReferences)
	}
	if strings.TrimSpace(s.Text) == "" {
		return parsed{}, invalid(CodeSchema, textInvalidSchema, "it is empty")
	}
	imports, err := r.referenceCache().imports(ctx, s.References)
	if err != nil {
		return parsed{}, err
	}
	file, err := source.Build(ctx, s.Text, imports)
	if err != nil {
		return parsed{}, asRefusal(err)
	}
	d, err := file.Canonical()
	if err != nil {
		return parsed{}, asRefusal(err)
	}
	if normalize {
		source.Normalize(d)
	}
	p := parsed{Schema: s, file: file.Descriptor}
	if p.descriptor, err = source.Marshal(d); err != nil {
		return parsed{}, fmt.Errorf("registry: %w", err)
	}
	p.fingerprint = source.Fingerprint(p.descriptor, s.References)
	given := source.IsDescriptor(s.Text)
	if normalize || given {
		p.print = func() (string, error) {
			text, err := source.Text(ctx, p.canonical, imports, MaxSchema)
			return text, asRefusal(err)
		}
	}
	p.canonical = p.descriptor
	if name := source.Name(s.Text); given && name != "" { // kept for readers, without a part in the identity
		d.Name = proto.String(name)
		if p.descriptor, err = source.Marshal(d); err != nil {
			return parsed{}, fmt.Errorf("registry: %w", err)
		}
	}
	return p, nil
}

// referenceCache reads each version that references mean once, for the time of one call: many
// files, and many versions of a subject, import the same ones.
type referenceCache struct {
	registry *Registry
	rows     map[store.Key]table.Schema
}

func (r *Registry) referenceCache() *referenceCache {
	return &referenceCache{r, map[store.Key]table.Schema{}}
}

// imports collects what references mean, all the way down, as descriptors by path.
func (l *referenceCache) imports(ctx context.Context, references []Reference) (map[string]string, error) {
	imports := map[string]string{}
	queue := slices.Clone(references)
	for len(queue) > 0 {
		ref := queue[0]
		queue = queue[1:]
		if _, ok := imports[ref.Name]; ok {
			continue // references of the schema itself take precedence over those of its imports
		}
		if len(imports) >= maxFiles {
			return nil, invalid(CodeSchema, "The schema refers to more than %d others", maxFiles)
		}
		if ref.Name == "" || len(ref.Name) > MaxSubject || !plain(ref.Name) || ref.Name == source.Self {
			return nil, invalid(CodeSchema, "A reference has a name of 1 to %d bytes", MaxSubject)
		}
		row, err := l.row(ctx, ref)
		if err != nil {
			return nil, err
		}
		imports[ref.Name] = base64.StdEncoding.EncodeToString(row.Descriptor)
		for _, next := range row.References {
			queue = append(queue, Reference{Name: next.Name, Subject: next.Subject, Version: int(next.Version)})
		}
	}
	return imports, nil
}

func (l *referenceCache) row(ctx context.Context, ref Reference) (table.Schema, error) {
	if err := validSubject(ref.Subject); err != nil {
		return table.Schema{}, err
	}
	if ref.Version < 1 {
		return table.Schema{}, invalid(CodeSchema, textReferenceNotFound, ref.Name, ref.Version, ref.Subject)
	}
	key := table.SchemaKey(ref.Subject, int64(ref.Version))
	if row, ok := l.rows[key]; ok {
		return row, nil
	}
	it, err := l.registry.store.Get(ctx, key, store.Strong)
	if err != nil {
		return table.Schema{}, fmt.Errorf("registry: read a reference: %w", err)
	}
	if it == nil {
		return table.Schema{}, invalid(CodeSchema, textReferenceNotFound, ref.Name, ref.Version, ref.Subject)
	}
	row, err := table.SchemaFrom(store.Row{Key: key, Item: it})
	if err != nil {
		return table.Schema{}, fmt.Errorf("registry: read a reference: %w", err)
	}
	l.rows[key] = row
	return row, nil
}

// identity is the fingerprint of a registered version.
func (v Version) identity() string { return source.Identity(v.Descriptor, v.References) }
