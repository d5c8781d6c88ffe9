package registry

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// RegisterOptions of Register.
type RegisterOptions struct {
	Normalize bool
	ID        int // in mode IMPORT only: the id it had elsewhere; 0 for the next
	Version   int // in mode IMPORT only; 0 for the next
	// own says that Parley registers its own schema, which it must at every start: modes
	// are for others, and what it registered before is taken again, whatever became of
	// its subject.
	own bool
}

// Register makes a schema the next version of a subject, unless it is one already.
// Errors are *Error for what callers did, the store's otherwise.
func (r *Registry) Register(ctx context.Context, subject string, s Schema, o RegisterOptions) (Version, error) {
	if err := validSubject(subject); err != nil {
		return Version{}, err
	}
	p, err := r.parse(ctx, s, o.Normalize)
	if err != nil {
		return Version{}, err
	}
	for range attempts {
		now, err := r.snapshot(ctx, subject)
		if err != nil {
			return Version{}, err
		}
		versions := now.versions
		if i := slices.IndexFunc(versions, func(v Version) bool { return !v.Deleted && !v.legacy && v.identity() == p.fingerprint }); i >= 0 && o.ID == 0 {
			return versions[i], nil
		}
		if i := slices.IndexFunc(versions, func(v Version) bool { return v.Deleted && !v.legacy && v.identity() == p.fingerprint }); i >= 0 && o.own {
			v, err := r.revive(ctx, versions[i], now)
			if err == nil || !again(err) {
				return v, err
			}
			continue
		}
		// Only a schema that is new here is worth the printing.
		if p.print != nil {
			if p.Text, err = p.print(); err != nil {
				return Version{}, err
			}
			p.print = nil
		}
		v, err := r.add(ctx, subject, p, o, now)
		if err == nil || !again(err) {
			return v, err
		}
	}
	return Version{}, fmt.Errorf("registry: register: %w", store.ErrConflict)
}

// add writes a version, if nobody else changed the subject meanwhile.
func (r *Registry) add(ctx context.Context, subject string, p parsed, o RegisterOptions, now snapshot) (Version, error) {
	mode, err := ReadWrite, error(nil)
	if !o.own {
		mode, err = r.writable(ctx, subject)
	}
	if err != nil {
		return Version{}, err
	}
	if mode != Import && (o.ID != 0 || o.Version != 0) {
		return Version{}, invalid(codeNotPermitted, textNotImport, shortened(subject))
	}
	whole, versions := now.whole, now.versions
	v := Version{Subject: subject, Version: int(whole.Last) + 1, Schema: p.Schema, Descriptor: p.descriptor}
	upgraded := slices.IndexFunc(versions, func(old Version) bool {
		return old.legacy && writtenAs(old.Descriptor) == writtenAs(p.canonical)
	})
	var writes []store.Write
	switch {
	case upgraded >= 0: // the same version, with what rows lacked before
		v.Version, v.ID = versions[upgraded].Version, versions[upgraded].ID
	default:
		if len(versions) >= maxVersions {
			return Version{}, invalid(CodeTooLarge, "A subject has at most %d versions", maxVersions)
		}
		if o.Version != 0 {
			v.Version = o.Version
			if slices.ContainsFunc(versions, func(old Version) bool { return old.Version == o.Version }) {
				return Version{}, invalid(codeNotPermitted, "Version %d of subject '%s' is there already", o.Version, shortened(subject))
			}
		}
		if v.ID, writes, err = r.identify(ctx, p, o); err != nil {
			return Version{}, err
		}
		known := len(writes) == 0
		if mode != Import && !(o.own && known) {
			messages, err := r.conflicts(ctx, subject, p, live(versions))
			if err != nil {
				return Version{}, err
			}
			if len(messages) > 0 {
				return Version{}, invalid(codeIncompatible, textIncompatible, subject, messages)
			}
		}
		whole.Live++
		whole.Total++
	}
	item := rowOf(v).Item()
	if item.Size() > store.MaxItemBytes-2*store.MaxKeyBytes {
		return Version{}, invalid(CodeTooLarge, textTooLarge, MaxSchema)
	}
	whole.Last = max(whole.Last, int64(v.Version))
	whole.Revision++
	version := store.Write{Op: store.OpPut, Key: table.SchemaKey(subject, int64(v.Version)), Item: item, Name: "version"}
	if upgraded < 0 {
		version.Cond = store.Absent()
	}
	writes = append(writes, version,
		store.Write{Op: store.OpPut, Key: table.SchemaSubjectKey(subject), Item: whole.Item(), Cond: now.unchanged, Name: "subject"},
		store.Write{Op: store.OpPut, Key: table.SchemaUseKey(int64(v.ID), subject, int64(v.Version)), Item: store.NewItem(store.Attr{Name: "id", Value: store.Int(int64(v.ID))})},
	)
	seen := map[store.Key]bool{}
	for _, ref := range v.References {
		row := referenceRow(ref)
		key := table.SchemaKey(ref.Subject, row.Version)
		if seen[key] {
			continue
		}
		seen[key] = true
		if key == version.Key {
			return Version{}, invalid(CodeSchema, textInvalidSchema, "it refers to itself")
		}
		writes = append(writes,
			// Who deletes the version meanwhile finds that this has changed.
			store.Write{
				Op: store.OpUpdate, Key: key, Cond: store.Exists().Ne(table.AttrDeleted, store.Bool(true)), Name: "reference",
				Update: store.Update{Add: []store.Increment{{Name: table.AttrReferred, N: 1}}},
			},
			store.Write{Op: store.OpPut, Key: table.SchemaReferrerKey(row, int64(v.ID)), Item: store.NewItem(store.Attr{Name: "id", Value: store.Int(int64(v.ID))})},
		)
	}
	if len(writes) > store.MaxPlanWrites {
		return Version{}, invalid(CodeSchema, textTooManyReferences, (store.MaxPlanWrites-5)/2)
	}
	if err := r.store.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		if gone, err := r.lost(ctx, v.References); err != nil || gone != nil {
			return Version{}, or(gone, err)
		}
		return Version{}, fmt.Errorf("registry: write: %w", err)
	}
	return v, nil
}

// revive takes the soft deletion of a version back.
func (r *Registry) revive(ctx context.Context, v Version, now snapshot) (Version, error) {
	v.Deleted = false
	whole := now.whole
	whole.Live++
	whole.Revision++
	if err := r.store.Transact(ctx, store.Plan{Writes: []store.Write{
		{Op: store.OpUpdate, Key: table.SchemaKey(v.Subject, int64(v.Version)), Cond: store.Exists(), Name: "version", Update: store.Update{Remove: []string{table.AttrDeleted}}},
		{Op: store.OpPut, Key: table.SchemaSubjectKey(v.Subject), Item: whole.Item(), Cond: now.unchanged, Name: "subject"},
	}}); err != nil {
		return Version{}, fmt.Errorf("registry: write: %w", err)
	}
	return v, nil
}

// writtenAs is what a descriptor of ours was before generators added to it.
func writtenAs(b []byte) string {
	d := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(b, d) != nil {
		return ""
	}
	d.Name = nil
	asWritten(d)
	out, err := marshal(d)
	if err != nil {
		return ""
	}
	return string(out)
}

func or(refusal *Error, err error) error {
	if refusal != nil {
		return refusal
	}
	return err
}

// lost names a reference that is not there, or only as a deleted version.
func (r *Registry) lost(ctx context.Context, references []Reference) (*Error, error) {
	for _, ref := range references {
		it, err := r.store.Get(ctx, table.SchemaKey(ref.Subject, int64(ref.Version)), store.Strong)
		if err != nil {
			return nil, fmt.Errorf("registry: read a reference: %w", err)
		}
		if it == nil || it.Get(table.AttrDeleted).True() {
			return invalid(CodeSchema, textReferenceNotFound, ref.Name, ref.Version, ref.Subject), nil
		}
	}
	return nil, nil
}

// identify returns the id of a schema, with the writes that give it out if it is
// new. An id belongs to one schema for ever, deleted or not.
func (r *Registry) identify(ctx context.Context, p parsed, o RegisterOptions) (int, []store.Write, error) {
	key := table.SchemaFingerprintKey(p.fingerprint)
	it, err := r.store.Get(ctx, key, store.Strong)
	if err != nil {
		return 0, nil, fmt.Errorf("registry: read ids: %w", err)
	}
	if it != nil {
		id := int(it.Get("id").Int64())
		if o.ID != 0 && o.ID != id {
			return 0, nil, invalid(codeNotPermitted, textOverwrite, o.ID)
		}
		return id, nil, nil
	}
	counter, err := r.store.Get(ctx, table.SchemaCounterKey(), store.Strong)
	if err != nil {
		return 0, nil, fmt.Errorf("registry: read ids: %w", err)
	}
	last := counter.Get(table.AttrLastID)
	cond := store.Absent()
	if counter != nil {
		cond = store.Condition{}.Eq(table.AttrLastID, last)
	}
	id := last.Int64() + 1
	if o.ID != 0 {
		id = int64(o.ID)
		used := false
		if err := r.each(ctx, table.SchemaUsePartition(id), "", "", func(store.Row) error { used = true; return nil }); err != nil {
			return 0, nil, fmt.Errorf("registry: read ids: %w", err)
		}
		// An id that was passed over may be given out by an import; one that a deleted
		// schema had leaves its mark in the fingerprints only, so it counts as used.
		if used || id <= last.Int64() {
			return 0, nil, invalid(codeNotPermitted, textOverwrite, o.ID)
		}
	}
	return int(id), []store.Write{
		{Op: store.OpPut, Key: key, Cond: store.Absent(), Name: "fingerprint", Item: store.NewItem(store.Attr{Name: "id", Value: store.Int(id)})},
		{Op: store.OpPut, Key: table.SchemaCounterKey(), Cond: cond, Name: "id", Item: store.NewItem(store.Attr{Name: table.AttrLastID, Value: store.Int(id)})},
	}, nil
}

func live(versions []Version) []Version {
	return slices.DeleteFunc(slices.Clone(versions), func(v Version) bool { return v.Deleted })
}

// conflicts says why a schema may not follow versions at the subject's level.
func (r *Registry) conflicts(ctx context.Context, subject string, p parsed, versions []Version) ([]string, error) {
	level, err := r.effective(ctx, levels, subject, defaultLevel)
	if err != nil || level == None || len(versions) == 0 {
		return nil, err
	}
	if !strings.HasSuffix(level, "_TRANSITIVE") {
		versions = versions[len(versions)-1:]
	}
	return r.compare(ctx, strings.TrimSuffix(level, "_TRANSITIVE"), p, versions)
}

// compare judges by the rules of schemacheck, newest version first. Conditions of
// the new schema alone, and the step of version numbers, count against the newest.
func (r *Registry) compare(ctx context.Context, level string, p parsed, versions []Version) ([]string, error) {
	policy, err := compat.ParsePolicy(level)
	if err != nil {
		return nil, fmt.Errorf("registry: level: %w", err)
	}
	var messages []string
	for i, v := range slices.Backward(versions) {
		references := v.References
		if v.legacy { // its row has none; the file's imports are those of its successor
			references = p.References
		}
		sources, err := r.sources(ctx, references)
		if err != nil {
			return nil, err
		}
		base, err := build(ctx, base64.StdEncoding.EncodeToString(v.Descriptor), sources)
		if err != nil {
			return nil, err
		}
		findings, err := gate.Compare(ctx, []protoreflect.FileDescriptor{base}, []protoreflect.FileDescriptor{p.file}, compat.Options{Policy: policy, Scope: compat.Event})
		if err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
		for _, f := range findings {
			if f.Severity != compat.Block || i < len(versions)-1 && rule.NewestOnly(f.Rule) {
				continue
			}
			rule, _ := compat.RuleByID(f.Rule)
			s := fmt.Sprintf("%s %s: %s", f.Rule, f.Subject, rule.Title)
			if f.Detail != "" {
				s += " (" + f.Detail + ")"
			}
			if s = clipped(fmt.Sprintf("version %d: %s. %s %s", v.Version, s, f.Why, f.Instead)); len(messages) < maxMessages {
				messages = append(messages, strings.TrimSpace(s))
			}
		}
	}
	return messages, nil
}

// Compatible says whether a schema could be registered as far as compatibility
// goes, and why not: with one version of a subject, or with version 0 with those
// that the subject's level names.
func (r *Registry) Compatible(ctx context.Context, subject string, version int, s Schema, normalize bool) (bool, []string, error) {
	if err := validSubject(subject); err != nil {
		return false, nil, err
	}
	p, err := r.parse(ctx, s, normalize)
	if err != nil {
		return false, nil, err
	}
	var versions []Version
	if version != 0 {
		v, err := r.Version(ctx, subject, version, false)
		if err != nil {
			return false, nil, err
		}
		versions = []Version{v}
	} else {
		all, err := r.versions(ctx, subject)
		if err != nil {
			return false, nil, err
		}
		versions = live(all)
	}
	messages, err := r.conflicts(ctx, subject, p, versions)
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
	return Version{}, invalid(codeSchemaNotFound, textSchemaNotFound)
}

// asWritten takes away the options for generators, which rows of the first version
// have as buf's managed mode had set them, and not as the source has them now.
func asWritten(d *descriptorpb.FileDescriptorProto) {
	o := d.GetOptions()
	if o == nil {
		return
	}
	o.GoPackage, o.JavaPackage, o.JavaOuterClassname, o.JavaMultipleFiles = nil, nil, nil, nil
	o.CsharpNamespace, o.ObjcClassPrefix, o.RubyPackage = nil, nil, nil
	o.PhpNamespace, o.PhpMetadataNamespace, o.PhpClassPrefix = nil, nil, nil
	if proto.Size(o) == 0 {
		d.Options = nil
	}
}
