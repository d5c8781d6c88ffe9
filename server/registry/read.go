package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Latest stands for a subject's newest version that is not deleted.
const Latest = -1

// ListOptions of lists.
type ListOptions struct {
	Prefix        string // of subjects
	Deleted       bool   // softly deleted ones too
	DeletedOnly   bool
	LatestOnly    bool // of each subject
	Offset, Limit int  // Limit 0 is as many as an answer holds
}

func page[T any](list []T, o ListOptions) []T {
	limit := o.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	from := min(max(o.Offset, 0), len(list))
	return list[from:min(from+limit, len(list))]
}

// Subjects lists subjects in order of their names.
func (r *Registry) Subjects(ctx context.Context, o ListOptions) ([]string, error) {
	list, err := r.subjects(ctx, o)
	return page(list, o), err
}

func (r *Registry) subjects(ctx context.Context, o ListOptions) ([]string, error) {
	list := []string{}
	err := r.each(ctx, table.SchemaSubjectsPartition, "", "", func(row store.Row) error {
		s := table.SchemaSubjectFrom(row.Item)
		shown := s.Live > 0 && !o.DeletedOnly || s.Live == 0 && s.Total > 0 && (o.Deleted || o.DeletedOnly)
		if shown && strings.HasPrefix(row.Key.SK, o.Prefix) {
			list = append(list, row.Key.SK)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("registry: list subjects: %w", err)
	}
	return list, nil
}

// Versions lists the versions of a subject, oldest first.
func (r *Registry) Versions(ctx context.Context, subject string, o ListOptions) ([]Version, error) {
	if err := validSubject(subject); err != nil {
		return nil, err
	}
	list, err := r.versions(ctx, subject)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(v Version) bool { return v.Deleted && !o.Deleted && !o.DeletedOnly || !v.Deleted && o.DeletedOnly })
	if len(list) == 0 {
		return nil, invalid(codeSubjectNotFound, textSubjectNotFound, shortened(subject))
	}
	return page(list, o), nil
}

// Version returns a version of a subject, Latest for the newest.
func (r *Registry) Version(ctx context.Context, subject string, version int, deleted bool) (Version, error) {
	if err := validSubject(subject); err != nil {
		return Version{}, err
	}
	list, err := r.versions(ctx, subject)
	if err != nil {
		return Version{}, err
	}
	if !deleted {
		list = live(list)
	}
	if len(list) == 0 {
		return Version{}, invalid(codeSubjectNotFound, textSubjectNotFound, shortened(subject))
	}
	if version == Latest {
		return list[len(list)-1], nil
	}
	i := slices.IndexFunc(list, func(v Version) bool { return v.Version == version })
	if i < 0 {
		return Version{}, invalid(codeVersionNotFound, textVersionNotFound, version)
	}
	return list[i], nil
}

// Uses returns the versions that have an id, those that are softly deleted too.
func (r *Registry) Uses(ctx context.Context, id int) ([]Version, error) {
	var list []Version
	if id > 0 {
		err := r.each(ctx, table.SchemaUsePartition(int64(id)), "", "", func(row store.Row) error {
			subject, version, err := table.SchemaUseFrom(row)
			if err != nil {
				return err
			}
			key := table.SchemaKey(subject, version)
			it, err := r.store.Get(ctx, key, store.Strong)
			if err != nil || it == nil {
				return err
			}
			s, err := table.SchemaFrom(store.Row{Key: key, Item: it})
			if err != nil {
				return err
			}
			v, err := versionOf(s)
			if err == nil && v.ID == id {
				list = append(list, v)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("registry: read id %d: %w", id, err)
		}
	}
	if len(list) == 0 {
		return nil, invalid(codeSchemaNotFound, textSchemaNumber, id)
	}
	return list, nil
}

// List returns versions of many subjects, by subject and version.
func (r *Registry) List(ctx context.Context, o ListOptions) ([]Version, error) {
	all := o
	all.Offset, all.Limit = 0, 0
	subjects, err := r.subjects(ctx, all)
	if err != nil {
		return nil, err
	}
	list := []Version{}
	for _, s := range subjects {
		versions, err := r.versions(ctx, s)
		if err != nil {
			return nil, err
		}
		versions = slices.DeleteFunc(versions, func(v Version) bool { return v.Deleted && !o.Deleted && !o.DeletedOnly || !v.Deleted && o.DeletedOnly })
		if o.LatestOnly && len(versions) > 1 {
			versions = versions[len(versions)-1:]
		}
		list = append(list, versions...)
		if len(list) >= max(o.Offset, 0)+maxPage {
			break
		}
	}
	return page(list, o), nil
}

// Referrers returns the ids of the schemas that refer to a version and are not
// deleted.
func (r *Registry) Referrers(ctx context.Context, subject string, version int) ([]int, error) {
	v, err := r.Version(ctx, subject, version, false)
	if err != nil {
		return nil, err
	}
	return r.referrers(ctx, subject, v.Version, true)
}

// referrers returns the ids that refer to a version; alive leaves out those of which
// all versions are softly deleted.
func (r *Registry) referrers(ctx context.Context, subject string, version int, alive bool) ([]int, error) {
	var ids []int
	err := r.each(ctx, table.SchemaReferrersPartition(subject, int64(version)), "", "", func(row store.Row) error {
		id, err := table.SchemaReferrerFrom(row)
		ids = append(ids, int(id))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("registry: read references: %w", err)
	}
	found := []int{}
	for _, id := range ids {
		uses, err := r.Uses(ctx, id)
		if refused(err) {
			continue // the schema is gone for good
		}
		if err != nil {
			return nil, err
		}
		if !alive || len(live(uses)) > 0 {
			found = append(found, id)
		}
	}
	return found, nil
}

// SubjectsOf returns the subjects of an id, none for an unknown one.
func (r *Registry) SubjectsOf(ctx context.Context, id int) ([]string, error) {
	list, err := r.Uses(ctx, id)
	var known *Error
	if errors.As(err, &known) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	subjects := make([]string, len(list))
	for i, v := range list {
		subjects[i] = v.Subject
	}
	return subjects, nil
}
