package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// isRefusal says whether an error is an answer, not a failure.
func isRefusal(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// DeleteVersion deletes a version softly, so that it is found by its id only, or one
// that is softly deleted for good. A version that others refer to stays, and one whose schema is
// kept (Keep) is not deleted for good. The settings of a subject go with its last version.
func (r *Registry) DeleteVersion(ctx context.Context, subject string, version int, permanent bool) (int, error) {
	if err := validSubject(subject); err != nil {
		return 0, err
	}
	for range attempts {
		v, err := r.deletable(ctx, subject, version, permanent)
		if err != nil {
			return 0, err
		}
		rest, err := r.remove(ctx, v, permanent)
		if err == nil && rest == 0 {
			return v.Version, r.resetSettings(ctx, subject)
		}
		if err == nil || !retryable(err) {
			return v.Version, err
		}
	}
	return 0, fmt.Errorf("registry: delete: %w", store.ErrConflict)
}

// deletable finds the version to delete.
func (r *Registry) deletable(ctx context.Context, subject string, version int, permanent bool) (Version, error) {
	v, err := r.Version(ctx, subject, version, true)
	if err != nil {
		return Version{}, err
	}
	name := strconv.Itoa(version)
	if version == Latest {
		name = "latest"
		if alive, ok, err := r.find(ctx, subject, Latest, false); err != nil {
			return Version{}, err
		} else if ok && !permanent {
			v = alive
		}
	}
	switch {
	case permanent && !v.Deleted:
		return Version{}, invalid(codeVersionNotDeleted, textVersionNotDeleted, shortened(subject), v.Version)
	case !permanent && v.Deleted:
		return Version{}, invalid(codeVersionSoftDeleted, textVersionSoftDeleted, shortened(subject), name)
	}
	return v, nil
}

// resetSettings removes a subject's own settings.
func (r *Registry) resetSettings(ctx context.Context, subject string) error {
	for _, setting := range []string{levels, modes} {
		if err := r.set(ctx, setting, subject, ""); err != nil {
			return err
		}
	}
	return nil
}

// DeleteSubject deletes all versions of a subject, as DeleteVersion does, and returns them.
// It does so one after the other: the rows that remain after a failure can be deleted
// again.
func (r *Registry) DeleteSubject(ctx context.Context, subject string, permanent bool) ([]int, error) {
	if err := validSubject(subject); err != nil {
		return nil, err
	}
	versions, err := r.versions(ctx, subject)
	if err != nil {
		return nil, err
	}
	alive := live(versions)
	switch {
	case len(versions) == 0:
		return nil, invalid(codeSubjectNotFound, textSubjectNotFound, shortened(subject))
	case permanent && len(alive) > 0:
		return nil, invalid(codeSubjectNotDeleted, textSubjectNotDeleted, shortened(subject))
	case !permanent && len(alive) == 0:
		return nil, invalid(codeSubjectSoftDeleted, textSubjectSoftDeleted, shortened(subject))
	case !permanent:
		versions = alive
	}
	for _, v := range versions {
		if err := r.unreferenced(ctx, v, permanent); err != nil {
			return nil, err
		}
	}
	deleted := []int{}
	for _, v := range versions {
		if _, err := r.DeleteVersion(ctx, subject, v.Version, permanent); err != nil {
			return nil, err
		}
		deleted = append(deleted, v.Version)
	}
	return deleted, nil
}

// unreferenced refuses a version that others refer to; softly deleted ones count
// only where it would be lost for good.
func (r *Registry) unreferenced(ctx context.Context, v Version, permanent bool) error {
	ids, err := r.referrers(ctx, v.Subject, v.Version, !permanent)
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		return invalid(codeReferenceExists, textReferenceExists, shortened(v.Subject), v.Version)
	}
	if !permanent {
		return nil
	}
	keeper, err := r.keeper(ctx, v.ID)
	if err == nil && keeper != "" {
		err = invalid(codeReferenceExists, textKept, shortened(v.Subject), v.Version, v.ID, shortened(keeper))
	}
	return err
}

// remove deletes a version and returns how many remain that are not deleted.
func (r *Registry) remove(ctx context.Context, v Version, permanent bool) (rest int64, err error) {
	if _, err := r.writable(ctx, v.Subject); err != nil {
		return 0, err
	}
	// Read first, so that a reference that is made after the check of references fails
	// the condition on the row.
	now, err := r.snapshot(ctx, v.Subject)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(now.versions, func(other Version) bool { return other.Version == v.Version })
	if i < 0 {
		return 0, store.ErrConflict
	}
	v = now.versions[i]
	if err := r.unreferenced(ctx, v, permanent); err != nil {
		return 0, err
	}
	same := store.Exists()
	if v.referred > 0 {
		same = same.Eq(table.AttrReferred, store.Int(v.referred))
	} else {
		same = same.Without(table.AttrReferred)
	}
	counts := now.counts
	counts.Revision++
	row := store.Write{Op: store.OpDelete, Key: table.SchemaKey(v.Subject, int64(v.Version)), Cond: same, Name: "version"}
	var writes []store.Write
	if permanent {
		counts.Total--
		writes = append(writes, store.Write{Op: store.OpDelete,
			Key: table.SchemaUseKey(int64(v.ID), v.Subject, int64(v.Version))})
	} else {
		counts.Live--
		v.Deleted = true
		row.Op, row.Item = store.OpPut, rowOf(v).Item()
		row.Cond = same.Ne(table.AttrDeleted, store.Bool(true))
	}
	writes = append(writes, row,
		store.Write{Op: store.OpPut, Key: table.SchemaSubjectKey(v.Subject), Item: counts.Item(), Cond: now.unchanged,
			Name: "subject"})
	if err := r.store.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		return 0, fmt.Errorf("registry: delete: %w", err)
	}
	return counts.Live, nil
}
