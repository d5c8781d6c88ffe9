// Package registry gives schemas their ids and keeps their versions, in the
// store: subject by subject, each version once.
//
// It owns the table schemas. It does not own which schemas there are (package
// event). Concurrency: safe for use by many goroutines and processes; a race for
// an id or a version has one winner, and the loser reads on.
package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// attempts bounds the races that one registration may lose.
const attempts = 100

// Registry is the registry of one store.
type Registry struct{ store store.Store }

// New makes a Registry.
func New(s store.Store) *Registry { return &Registry{store: s} }

// Events registers the schemas of all events and returns their ids by event type.
func (r *Registry) Events(ctx context.Context) (map[string]int, error) {
	ids := map[string]int{}
	for _, spec := range event.Specs() {
		var err error
		if ids[spec.Type], err = r.Message(ctx, spec.Topic, event.Prototype(spec.Type)); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// Message registers the schema of a message that a topic carries, the first of its
// file, and returns its id.
func (r *Registry) Message(ctx context.Context, topic string, m proto.Message) (int, error) {
	d := m.ProtoReflect().Descriptor()
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(d.ParentFile()))
	if err != nil {
		return 0, fmt.Errorf("registry: describe %s: %w", d.FullName(), err)
	}
	return r.Register(ctx, topic+"-"+string(d.FullName()), text)
}

// Register returns the id of a schema under a subject; a schema that is not there
// yet becomes the subject's next version.
func (r *Registry) Register(ctx context.Context, subject string, text []byte) (int, error) {
	for range attempts {
		versions, err := r.Versions(ctx, subject)
		if err != nil {
			return 0, err
		}
		for _, v := range versions {
			if bytes.Equal(v.Text, text) {
				return int(v.ID), nil
			}
		}
		it, err := r.store.Get(ctx, table.SchemaCounterKey(), store.Strong)
		if err != nil {
			return 0, fmt.Errorf("registry: read ids: %w", err)
		}
		last := it.Get(table.AttrLastID)
		cond := store.Absent()
		if it != nil {
			cond = store.Condition{}.Eq(table.AttrLastID, last)
		}
		row := table.Schema{Subject: subject, Version: int64(len(versions)) + 1, ID: last.Int64() + 1, Text: text}
		err = r.store.Transact(ctx, store.Plan{Writes: []store.Write{
			{Op: store.OpPut, Key: table.SchemaKey(subject, row.Version), Item: row.Item(), Cond: store.Absent(), Name: "version"},
			{
				Op: store.OpPut, Key: table.SchemaCounterKey(), Cond: cond, Name: "id",
				Item: store.NewItem(store.Attr{Name: table.AttrLastID, Value: store.Int(row.ID)}),
			},
		}})
		var failed *store.ConditionError
		switch {
		case err == nil:
			return int(row.ID), nil
		case errors.As(err, &failed), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrAmbiguous):
			continue // somebody else was faster, or it was written: look again
		}
		return 0, fmt.Errorf("registry: register %s: %w", subject, err)
	}
	return 0, fmt.Errorf("registry: register %s: %w", subject, store.ErrConflict)
}

// Versions returns the versions of a subject, oldest first.
func (r *Registry) Versions(ctx context.Context, subject string) (list []table.Schema, err error) {
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, err := r.store.Query(ctx, store.Query{Table: store.Schemas, PK: subject, Cursor: cursor, Consistency: store.Strong})
		if err != nil {
			return nil, fmt.Errorf("registry: read %s: %w", subject, err)
		}
		for _, row := range page.Rows {
			s, err := table.SchemaFrom(row)
			if err != nil {
				return nil, fmt.Errorf("registry: read %s: %w", subject, err)
			}
			list = append(list, s)
		}
		cursor = page.Cursor
	}
	return list, nil
}
