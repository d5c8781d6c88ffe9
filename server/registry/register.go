package registry

import (
	"context"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/registry/source"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// RegisterOptions of Register.
type RegisterOptions struct {
	Normalize bool
	ID        int // the id it had elsewhere: needed in mode IMPORT, refused elsewhere
	Version   int // 0 for the next; another than the next in mode IMPORT only
	// own says that Parley registers its own schema, which it must be able to regardless of
	// others' changes: modes are for others, and a version that it registered before is
	// restored, even if its subject was deleted.
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
	return r.register(ctx, subject, p, o)
}

// register is Register for a schema that was understood.
func (r *Registry) register(ctx context.Context, subject string, p parsed, o RegisterOptions) (Version, error) {
	for range attempts {
		now, err := r.snapshot(ctx, subject)
		if err != nil {
			return Version{}, err
		}
		same := func(v Version) bool { return !v.legacy && v.identity() == p.fingerprint }
		if i := slices.IndexFunc(now.versions, func(v Version) bool { return !v.Deleted && o.wants(v) && same(v) }); i >= 0 {
			return now.versions[i], nil
		}
		if i := slices.IndexFunc(now.versions, func(v Version) bool { return v.Deleted && same(v) }); i >= 0 && o.own {
			v, err := r.restore(ctx, now.versions[i], now)
			if err == nil || !retryable(err) {
				return v, err
			}
			continue
		}
		// Only a schema that is new here is printed.
		if p.print != nil {
			if p.Text, err = p.print(); err != nil {
				return Version{}, err
			}
			p.print = nil
		}
		v, err := r.add(ctx, subject, p, o, now)
		if err == nil || !retryable(err) {
			return v, err
		}
	}
	return Version{}, fmt.Errorf("registry: register: %w", store.ErrConflict)
}

// wants says whether a version of the same schema is what is asked for.
func (o RegisterOptions) wants(v Version) bool {
	return (o.ID == 0 || o.ID == v.ID) && (o.Version == 0 || o.Version == v.Version)
}

// checkMode returns whether a subject is in mode IMPORT, or why its mode does not let
// the schema in. Imported schemas bring their ids, all others get one here.
func (r *Registry) checkMode(ctx context.Context, subject string, o RegisterOptions) (importing bool, err error) {
	if o.own {
		return false, nil
	}
	mode, err := r.writable(ctx, subject)
	switch {
	case err != nil:
		return false, err
	case o.ID != 0 && mode != Import:
		return false, invalid(codeNotPermitted, textNotImport, shortened(subject))
	case o.ID == 0 && mode == Import:
		return false, invalid(codeNotPermitted, textNotReadWrite, shortened(subject))
	}
	return mode == Import, nil
}

// add writes a version, if no other caller changed the subject meanwhile.
func (r *Registry) add(
	ctx context.Context, subject string, p parsed, o RegisterOptions, now snapshot,
) (Version, error) {
	importing, err := r.checkMode(ctx, subject, o)
	if err != nil {
		return Version{}, err
	}
	counts := now.counts
	v := Version{Subject: subject, Version: int(counts.Last) + 1, Schema: p.Schema, Descriptor: p.descriptor}
	upgraded := slices.IndexFunc(now.versions, func(old Version) bool {
		return old.legacy && source.AsWritten(old.Descriptor) == source.AsWritten(p.canonical)
	})
	var writes []store.Write
	if upgraded >= 0 { // the same version, with what rows lacked before
		v.Version, v.ID = now.versions[upgraded].Version, now.versions[upgraded].ID
	} else {
		if v.Version, err = next(now, o, importing); err != nil {
			return Version{}, err
		}
		if v.ID, writes, err = r.identify(ctx, p, o); err != nil {
			return Version{}, err
		}
		known := len(writes) == 0
		if !importing && !(o.own && known) {
			if err := r.checkCompatible(ctx, subject, p, now); err != nil {
				return Version{}, err
			}
		}
		counts.Live++
		counts.Total++
	}
	item := rowOf(v).Item()
	if item.Size() > store.MaxItemBytes-2*store.MaxKeyBytes {
		return Version{}, invalid(CodeTooLarge, textTooLarge, MaxSchema)
	}
	counts.Last = max(counts.Last, int64(v.Version))
	counts.Revision++
	version := store.Write{Op: store.OpPut, Key: table.SchemaKey(subject, int64(v.Version)), Item: item, Name: "version"}
	if upgraded < 0 {
		version.Cond = store.Absent()
	}
	writes = append(writes, version,
		store.Write{Op: store.OpPut, Key: table.SchemaSubjectKey(subject), Item: counts.Item(), Cond: now.unchanged,
			Name: "subject"},
		store.Write{Op: store.OpPut, Key: table.SchemaUseKey(int64(v.ID), subject, int64(v.Version)),
			Item: idItem(int64(v.ID))},
	)
	references, err := referring(v, version.Key)
	if err != nil {
		return Version{}, err
	}
	if writes = append(writes, references...); len(writes) > store.MaxPlanWrites {
		return Version{}, invalid(CodeSchema, textTooManyReferences, (store.MaxPlanWrites-5)/2)
	}
	if err := r.store.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		if gone, err := r.missingReference(ctx, v.References); err != nil || gone != nil {
			return Version{}, or(gone, err)
		}
		return Version{}, fmt.Errorf("registry: write: %w", err)
	}
	return v, nil
}

// checkCompatible refuses a schema that may not follow what the subject has.
func (r *Registry) checkCompatible(ctx context.Context, subject string, p parsed, now snapshot) error {
	before := live(now.versions)
	if p.file == nil && len(before) > 0 {
		compiled, err := r.parse(ctx, p.Schema, false)
		if err != nil {
			return err
		}
		p.file = compiled.file
	}
	messages, err := r.incompatibilities(ctx, subject, p, before)
	if err == nil && len(messages) > 0 {
		err = invalid(codeIncompatible, textIncompatible, subject, messages)
	}
	return err
}

// next is the number of the version that is added to a subject.
func next(now snapshot, o RegisterOptions, importing bool) (int, error) {
	number := int(now.counts.Last) + 1
	switch {
	case len(now.versions) >= maxVersions:
		return 0, invalid(CodeTooLarge, "A subject has at most %d versions", maxVersions)
	case o.Version == 0 || o.Version == number:
		return number, nil
	case !importing:
		return 0, invalid(CodeSchema, textNotNext)
	case slices.ContainsFunc(now.versions, func(old Version) bool { return old.Version == o.Version }):
		return 0, invalid(codeNotPermitted, "Version %d of subject '%s' is there already", o.Version, shortened(now.subject))
	}
	return o.Version, nil
}

func idItem(id int64) store.Item {
	return store.NewItem(store.Attr{Name: "id", Value: store.Int(id)})
}

// referring are the writes that record the versions a schema refers to.
func referring(v Version, itself store.Key) (writes []store.Write, err error) {
	seen := map[store.Key]bool{}
	for _, ref := range v.References {
		row := table.SchemaReference{Name: ref.Name, Subject: ref.Subject, Version: int64(ref.Version)}
		key := table.SchemaKey(ref.Subject, row.Version)
		if seen[key] {
			continue
		}
		seen[key] = true
		if key == itself {
			return nil, invalid(CodeSchema, textInvalidSchema, "it refers to itself")
		}
		writes = append(writes,
			counted(key, "reference"),
			store.Write{Op: store.OpPut, Key: table.SchemaReferrerKey(row, int64(v.ID)), Item: idItem(int64(v.ID))},
		)
	}
	return writes, nil
}

// restore undoes the soft deletion of a version.
func (r *Registry) restore(ctx context.Context, v Version, now snapshot) (Version, error) {
	v.Deleted = false
	counts := now.counts
	counts.Live++
	counts.Revision++
	if err := r.store.Transact(ctx, store.Plan{Writes: []store.Write{
		{Op: store.OpUpdate, Key: table.SchemaKey(v.Subject, int64(v.Version)), Cond: store.Exists(), Name: "version",
			Update: store.Update{Remove: []string{table.AttrDeleted}}},
		{Op: store.OpPut, Key: table.SchemaSubjectKey(v.Subject), Item: counts.Item(), Cond: now.unchanged, Name: "subject"},
	}}); err != nil {
		return Version{}, fmt.Errorf("registry: write: %w", err)
	}
	return v, nil
}

func or(refusal *Error, err error) error {
	if refusal != nil {
		return refusal
	}
	return err
}

// missingReference names a reference that is not there, or only as a deleted version.
func (r *Registry) missingReference(ctx context.Context, references []Reference) (*Error, error) {
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

// identify returns the id of a schema, with the writes that assign it if it is new. An id belongs to one schema for
// ever, deleted or not; a schema that is imported
// under another id than it has here has both.
func (r *Registry) identify(ctx context.Context, p parsed, o RegisterOptions) (int, []store.Write, error) {
	key := table.SchemaFingerprintKey(p.fingerprint)
	it, err := r.store.Get(ctx, key, store.Strong)
	if err != nil {
		return 0, nil, fmt.Errorf("registry: read ids: %w", err)
	}
	if it != nil && (o.ID == 0 || it.Get("id").Int64() == int64(o.ID)) {
		return int(it.Get("id").Int64()), nil, nil
	}
	counter, err := r.store.Get(ctx, table.SchemaCounterKey(), store.Strong)
	if err != nil {
		return 0, nil, fmt.Errorf("registry: read ids: %w", err)
	}
	last := counter.Get(table.AttrLastID)
	id := last.Int64() + 1
	if o.ID != 0 {
		id = int64(o.ID)
		if used, err := r.usable(ctx, p, id, last.Int64()); err != nil || used {
			return o.ID, nil, err
		}
	}
	cond := store.Absent()
	if counter != nil {
		cond = store.Condition{}.Eq(table.AttrLastID, last)
	}
	writes := []store.Write{{Op: store.OpPut, Key: table.SchemaCounterKey(), Cond: cond, Name: "id",
		Item: store.NewItem(store.Attr{Name: table.AttrLastID, Value: store.Int(id)})}}
	if it == nil {
		writes = append(writes, store.Write{Op: store.OpPut, Key: key, Cond: store.Absent(), Name: "fingerprint",
			Item: idItem(id)})
	}
	return int(id), writes, nil
}

// usable refuses an id that another schema has or has had, and says whether this very
// schema has it.
func (r *Registry) usable(ctx context.Context, p parsed, id, last int64) (used bool, err error) {
	uses, err := r.Uses(ctx, int(id))
	if err != nil && !isRefusal(err) {
		return false, err
	}
	for _, v := range uses {
		if v.identity() != p.fingerprint {
			return false, invalid(codeNotPermitted, textOverwrite, id)
		}
	}
	if len(uses) > 0 {
		return true, nil
	}
	// Rows of uses without versions, and ids that were assigned before: a deleted schema
	// had them, and only its fingerprint remains.
	used = false
	err = r.eachRow(ctx, table.SchemaUsePartition(id), "", "", func(store.Row) error { used = true; return nil })
	if err != nil {
		return false, fmt.Errorf("registry: read ids: %w", err)
	}
	if used || id <= last {
		return false, invalid(codeNotPermitted, textOverwrite, id)
	}
	return false, nil
}

func live(versions []Version) []Version {
	return slices.DeleteFunc(slices.Clone(versions), func(v Version) bool { return v.Deleted })
}
