package registry

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
	Offset, Limit int  // Limit 0 is all
}

func (o ListOptions) shows(deleted bool) bool {
	return !deleted && !o.DeletedOnly || deleted && (o.Deleted || o.DeletedOnly)
}

var errEnough = errors.New("enough")

// paged yields what a list yields between Offset and Offset+Limit.
func paged[T any](o ListOptions, list func(yield func(T) error) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		skip, remaining := o.Offset, o.Limit
		err := list(func(v T) error {
			if skip > 0 {
				skip--
				return nil
			}
			if !yield(v, nil) {
				return errEnough
			}
			if remaining--; remaining == 0 {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			var none T
			yield(none, err)
		}
	}
}

// Subjects lists subjects in order of their names, however many there are: a page of the
// store is held at a time. It ends with the first error.
func (r *Registry) Subjects(ctx context.Context, o ListOptions) iter.Seq2[string, error] {
	return paged(o, func(yield func(string) error) error { return r.subjects(ctx, o, yield) })
}

func (r *Registry) subjects(ctx context.Context, o ListOptions, yield func(string) error) error {
	err := r.eachRow(ctx, table.SchemaSubjectsPartition, o.Prefix, "", func(row store.Row) error {
		if !strings.HasPrefix(row.Key.SK, o.Prefix) {
			return errEnough // those with the prefix stand together
		}
		s := table.SchemaSubjectFrom(row.Item)
		if s.Total == 0 || !o.shows(s.Live == 0) {
			return nil
		}
		return yield(row.Key.SK)
	})
	if err != nil && !errors.Is(err, errEnough) {
		err = fmt.Errorf("registry: list subjects: %w", err)
	}
	return err
}

// List lists the versions of all subjects, by subject and version, as Subjects does.
func (r *Registry) List(ctx context.Context, o ListOptions) iter.Seq2[Version, error] {
	return paged(o, func(yield func(Version) error) error {
		return r.subjects(ctx, ListOptions{Prefix: o.Prefix, Deleted: true}, func(subject string) error {
			var last *Version
			err := r.eachVersion(ctx, subject, func(v Version) error {
				switch {
				case !o.shows(v.Deleted):
					return nil
				case o.LatestOnly:
					last = &v
					return nil
				}
				return yield(v)
			})
			if err == nil && last != nil {
				err = yield(*last)
			}
			return err
		})
	})
}

// Versions lists the numbers of a subject's versions, oldest first.
func (r *Registry) Versions(ctx context.Context, subject string, o ListOptions) ([]int, error) {
	if err := validSubject(subject); err != nil {
		return nil, err
	}
	there, list := false, []int{}
	for v, err := range paged(o, func(yield func(int) error) error {
		return r.eachVersion(ctx, subject, func(v Version) error {
			there = there || !v.Deleted || o.Deleted || o.DeletedOnly
			if !o.shows(v.Deleted) {
				return nil
			}
			return yield(v.Version)
		})
	}) {
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if !there {
		return nil, invalid(codeSubjectNotFound, textSubjectNotFound, shortened(subject))
	}
	return list, nil
}

// Version returns a version of a subject, Latest for the newest.
func (r *Registry) Version(ctx context.Context, subject string, version int, deleted bool) (Version, error) {
	if err := validSubject(subject); err != nil {
		return Version{}, err
	}
	v, ok, err := r.find(ctx, subject, version, deleted)
	if err != nil || ok {
		return v, err
	}
	if version != Latest {
		if _, ok, err = r.find(ctx, subject, Latest, deleted); err != nil {
			return Version{}, err
		} else if ok {
			return Version{}, invalid(codeVersionNotFound, textVersionNotFound, version)
		}
	}
	return Version{}, invalid(codeSubjectNotFound, textSubjectNotFound, shortened(subject))
}

// find reads a version, Latest for the newest; one that is softly deleted is there if
// deleted says so.
func (r *Registry) find(
	ctx context.Context, subject string, version int, deleted bool,
) (v Version, ok bool, err error) {
	q := store.Query{Table: store.Schemas, PK: subject, Descending: true, Limit: 4, Consistency: store.Strong}
	if version != Latest {
		q.From = table.SchemaKey(subject, int64(version)).SK
		q.To = q.From
	}
	for row, err := range store.QueryAll(ctx, r.store, q) {
		if err != nil {
			return Version{}, false, fmt.Errorf("registry: read %s: %w", subject, err)
		}
		if row.Item.Get(table.AttrDeleted).True() && !deleted {
			continue
		}
		s, err := table.SchemaFrom(row)
		if err != nil {
			return Version{}, false, fmt.Errorf("registry: read %s: %w", subject, err)
		}
		return versionOf(s), true, nil
	}
	return Version{}, false, nil
}

// Uses returns the versions that have an id, those that are softly deleted too.
func (r *Registry) Uses(ctx context.Context, id int) ([]Version, error) {
	var list []Version
	if id > 0 {
		err := r.eachRow(ctx, table.SchemaUsePartition(int64(id)), "", "", func(row store.Row) error {
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
			if err == nil && int(s.ID) == id {
				list = append(list, versionOf(s))
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("registry: read id %d: %w", id, err)
		}
	}
	if len(list) == 0 {
		return nil, invalid(CodeSchemaNotFound, textSchemaNumber, id)
	}
	return list, nil
}

// MaxID is the highest id that was assigned, 0 if none was.
func (r *Registry) MaxID(ctx context.Context) (int, error) {
	it, err := r.store.Get(ctx, table.SchemaCounterKey(), store.Strong)
	if err != nil {
		return 0, fmt.Errorf("registry: read ids: %w", err)
	}
	return int(it.Get(table.AttrLastID).Int64()), nil
}

// Referrers returns the ids of the schemas that refer to a version and are not
// deleted.
func (r *Registry) Referrers(ctx context.Context, subject string, version int) ([]int, error) {
	v, err := r.Version(ctx, subject, version, true)
	if err != nil {
		return nil, err
	}
	return r.referrers(ctx, subject, v.Version, true)
}

// referrers returns the ids that refer to a version; alive leaves out those of which
// all versions are softly deleted.
func (r *Registry) referrers(ctx context.Context, subject string, version int, alive bool) ([]int, error) {
	var ids []int
	err := r.eachRow(ctx, table.SchemaReferrersPartition(subject, int64(version)), "", "", func(row store.Row) error {
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
		if isRefusal(err) {
			continue // the schema is deleted for good
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
	if isRefusal(err) {
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
