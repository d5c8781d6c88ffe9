package registry

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Compiled returns the file of a schema by its id, as the compiler has it. A schema all versions of
// which are softly deleted has one, too, unless live says that it is to have another version.
// Errors: *Error if there is none, the store's otherwise.
func (r *Registry) Compiled(ctx context.Context, id int, live bool) (protoreflect.FileDescriptor, error) {
	v, err := r.byID(ctx, id, live)
	if err != nil {
		return nil, err
	}
	files, err := r.files(ctx, r.referenceCache(), parsed{}, v)
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

// byID returns a version that has an id, one that is not deleted if there is one.
func (r *Registry) byID(ctx context.Context, id int, wantLive bool) (Version, error) {
	uses, err := r.Uses(ctx, id)
	if err != nil {
		return Version{}, err
	}
	if alive := live(uses); len(alive) > 0 {
		return alive[0], nil
	}
	if wantLive {
		return Version{}, invalid(CodeSchemaNotFound, "Schema %d was soft deleted", id)
	}
	return uses[0], nil
}

// Follows says why a schema may not take the place of others at the level FULL, the oldest of which
// comes first: it must be able to read what was written with each, and each what is written with it.
// Nothing is said of one that may.
func (r *Registry) Follows(ctx context.Context, id int, earlier []int) ([]string, error) {
	head, err := r.Compiled(ctx, id, false)
	if err != nil {
		return nil, err
	}
	return judge(ctx, judged{
		head: head, policy: compat.FullTransitive, n: len(earlier),
		files: func(i int) ([]protoreflect.FileDescriptor, error) {
			f, err := r.Compiled(ctx, earlier[i], false)
			return []protoreflect.FileDescriptor{f}, err
		},
		name: func(i int) string { return fmt.Sprintf("schema %d", earlier[i]) },
	})
}

// KeptName is the name of the write of Keep that fails if the schema is deleted meanwhile.
const KeptName = "kept schema"

// Keep returns the writes after which a schema is not deleted for good until its keeper gives it up.
// They belong into the plan that makes the keeper use the schema. A plan with them fails, with KeptName, if the
// schema is deleted meanwhile: they change the version that they count on, on which a deletion has a condition,
// and a deletion that reads the version later finds the keeper. Errors are those of Compiled for one
// that is live.
func (r *Registry) Keep(ctx context.Context, id int, keeper string) ([]store.Write, error) {
	v, err := r.byID(ctx, id, true)
	if err != nil {
		return nil, err
	}
	return []store.Write{
		counted(table.SchemaKey(v.Subject, int64(v.Version)), KeptName),
		{Op: store.OpPut, Key: table.SchemaKeeperKey(int64(id), keeper), Item: idItem(int64(id)), Name: "keeper"},
	}, nil
}

// counted is the write by which a deletion of a version notices that something began to need it.
func counted(version store.Key, name string) store.Write {
	return store.Write{
		Op: store.OpUpdate, Key: version, Cond: store.Exists().Ne(table.AttrDeleted, store.Bool(true)), Name: name,
		Update: store.Update{Add: []store.Increment{{Name: table.AttrReferred, N: 1}}},
	}
}

// keeper returns one that keeps a schema, "" if none does.
func (r *Registry) keeper(ctx context.Context, id int) (name string, err error) {
	q := store.Query{
		Table: store.Schemas, PK: table.SchemaKeepersPartition(int64(id)), Limit: 1, Consistency: store.Strong,
	}
	page, err := r.store.Query(ctx, q)
	if err != nil {
		return "", fmt.Errorf("registry: read keepers: %w", err)
	}
	for _, row := range page.Rows {
		name = row.Key.SK
	}
	return name, nil
}
