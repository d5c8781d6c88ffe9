// Package registry is a schema registry as Confluent's API describes it: subjects
// with versions, ids that never change, references, levels of compatibility. It
// keeps all of it in the store, and takes a new version only if the rules of
// schemacheck allow it.
//
// It owns the table schemas and what a schema's identity is: its descriptor
// without file name, comments and order of options, and the versions that it
// refers to; equal schemas share an id, in all subjects. It does not own the rules
// (schemacheck/compat), HTTP (package api), or which schemas Parley has (package
// event). Schemas are protobuf; other types are refused.
//
// Concurrency: safe for use by many goroutines and processes. A change of a subject
// compares and sets the subject's revision: of two that race one wins, and the
// other looks again, its compatibility included.
package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Limits.
const (
	MaxSubject    = 512       // bytes of a subject's name
	MaxSchema     = 512 << 10 // bytes of a schema's text
	MaxReferences = 64        // of one schema
	maxFiles      = 256       // schemas that one refers to, directly or not
	maxVersions   = 1000      // of one subject
	maxMessages   = 20        // reasons that an answer names
	maxPage       = 1000      // entries of a list, if the caller asks for no fewer
	attempts      = 100       // races that one call may lose
)

// Registry is the registry of one store.
type Registry struct{ store store.Store }

// New makes a Registry.
func New(s store.Store) *Registry { return &Registry{store: s} }

// Schema is what is registered: a protobuf file as text, or as a FileDescriptorProto
// in base64, and where its imports are.
type Schema struct {
	Text       string
	References []Reference
}

// Reference is an import: the path it is imported by, and the version of a subject
// that it means.
type Reference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// Version is a registered version of a subject.
type Version struct {
	Subject string
	Version int
	ID      int
	Schema
	Descriptor []byte // FileDescriptorProto
	Deleted    bool   // softly
	referred   int64  // how often another schema began to refer to it
	legacy     bool   // a row that has neither text nor references yet
}

// Events registers the schemas of all events and returns their ids by event type.
func (r *Registry) Events(ctx context.Context) (map[string]int, error) {
	ids, done := map[string]int{}, map[string]Version{}
	for _, spec := range event.Specs() {
		v, err := r.message(ctx, spec.Topic, event.Prototype(spec.Type), done)
		if err != nil {
			return nil, err
		}
		ids[spec.Type] = v.ID
	}
	return ids, nil
}

// Also registers the schemas of the events of a declared topic for another topic that
// carries them. Their ids are the same: what is registered is.
func (r *Registry) Also(ctx context.Context, declared, topic string) error {
	done := map[string]Version{}
	for _, spec := range event.Specs() {
		if spec.Topic != declared {
			continue
		}
		if _, err := r.message(ctx, topic, event.Prototype(spec.Type), done); err != nil {
			return err
		}
	}
	return nil
}

// Message registers the schema of a message that a topic carries, the first of its
// file, with all that the file imports, and returns its id.
func (r *Registry) Message(ctx context.Context, topic string, m proto.Message) (int, error) {
	v, err := r.message(ctx, topic, m, map[string]Version{})
	return v.ID, err
}

func (r *Registry) message(ctx context.Context, topic string, m proto.Message, done map[string]Version) (Version, error) {
	d := m.ProtoReflect().Descriptor()
	return r.file(ctx, topic+"-"+string(d.FullName()), d.ParentFile(), done)
}

// file registers a file after its imports, unless done has it already. Imported files
// have their path as subject, at level NONE: they are judged through the events that
// use them.
func (r *Registry) file(ctx context.Context, subject string, f protoreflect.FileDescriptor, done map[string]Version) (Version, error) {
	if v, ok := done[subject]; ok {
		return v, nil
	}
	var s Schema
	for i := range f.Imports().Len() {
		dep := f.Imports().Get(i).FileDescriptor
		if strings.HasPrefix(dep.Path(), "google/protobuf/") {
			continue // every reader has them
		}
		v, err := r.file(ctx, dep.Path(), dep, done)
		if err != nil {
			return Version{}, err
		}
		s.References = append(s.References, Reference{Name: dep.Path(), Subject: dep.Path(), Version: v.Version})
	}
	d, err := canonical(f)
	if err != nil {
		return Version{}, err
	}
	b, err := marshal(d)
	if err != nil {
		return Version{}, err
	}
	// The usual start: everything is there, nothing is compiled.
	versions, err := r.versions(ctx, subject)
	if err != nil {
		return Version{}, err
	}
	for _, v := range versions {
		if !v.Deleted && !v.legacy && v.identity() == fingerprint(b, s.References) {
			done[subject] = v
			return v, nil
		}
	}
	d.Name = proto.String(f.Path())
	if b, err = marshal(d); err != nil {
		return Version{}, err
	}
	s.Text = base64.StdEncoding.EncodeToString(b)
	if subject == f.Path() {
		if _, set, err := r.setting(ctx, levels, subject); err != nil {
			return Version{}, err
		} else if !set {
			if err := r.SetLevel(ctx, subject, None); err != nil {
				return Version{}, err
			}
		}
	}
	v, err := r.Register(ctx, subject, s, RegisterOptions{own: true})
	if err != nil {
		return Version{}, fmt.Errorf("registry: register %s: %w", subject, err)
	}
	done[subject] = v
	return v, nil
}

// validSubject refuses names that no subject can have.
func validSubject(subject string) error {
	switch {
	case subject == "" || len(subject) > MaxSubject:
		return invalid(codeSubject, "A subject has 1 to %d bytes", MaxSubject)
	case strings.HasPrefix(subject, "#"), strings.HasPrefix(subject, ":"), subject == "__GLOBAL", subject == "__EMPTY":
		return invalid(codeSubject, "The subject %q is reserved; contexts are not offered", subject)
	case !plain(subject):
		return invalid(codeSubject, "The subject has control characters or is no UTF-8")
	}
	return nil
}

// versions returns all versions of a subject, oldest first.
func (r *Registry) versions(ctx context.Context, subject string) (list []Version, err error) {
	err = r.each(ctx, subject, "", "", func(row store.Row) error {
		s, err := table.SchemaFrom(row)
		if err != nil {
			return err
		}
		v, err := versionOf(s)
		list = append(list, v)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("registry: read %s: %w", subject, err)
	}
	return list, nil
}

// each calls visit for the rows of a partition.
func (r *Registry) each(ctx context.Context, pk, from, to string, visit func(store.Row) error) error {
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, err := r.store.Query(ctx, store.Query{Table: store.Schemas, PK: pk, From: from, To: to, Cursor: cursor, Consistency: store.Strong})
		if err != nil {
			return err
		}
		for _, row := range page.Rows {
			if err := visit(row); err != nil {
				return err
			}
		}
		cursor = page.Cursor
	}
	return nil
}

func versionOf(s table.Schema) (Version, error) {
	v := Version{Subject: s.Subject, Version: int(s.Version), ID: int(s.ID), Descriptor: s.Descriptor, Deleted: s.Deleted, referred: s.Referred, legacy: s.Format < table.SchemaFormat}
	v.Text = s.Text
	if v.legacy {
		v.Text = base64.StdEncoding.EncodeToString(s.Descriptor)
	}
	for _, ref := range s.References {
		v.References = append(v.References, Reference{Name: ref.Name, Subject: ref.Subject, Version: int(ref.Version)})
	}
	return v, nil
}

func rowOf(v Version) table.Schema {
	s := table.Schema{
		Subject: v.Subject, Version: int64(v.Version), ID: int64(v.ID), Format: table.SchemaFormat,
		Text: v.Text, Descriptor: v.Descriptor, Deleted: v.Deleted, Referred: v.referred,
	}
	for _, ref := range v.References {
		s.References = append(s.References, referenceRow(ref))
	}
	return s
}

func referenceRow(r Reference) table.SchemaReference {
	return table.SchemaReference{Name: r.Name, Subject: r.Subject, Version: int64(r.Version)}
}

// again says whether a plan lost a race, or may have been written: look again.
func again(err error) bool {
	var failed *store.ConditionError
	return errors.As(err, &failed) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrAmbiguous)
}

// A snapshot is a subject with its versions, and the condition that neither has
// changed.
type snapshot struct {
	whole     table.SchemaSubject
	versions  []Version
	unchanged store.Condition
}

// snapshot reads a subject. Its row is read first: whoever adds a version after that
// raises the revision, and the condition fails.
func (r *Registry) snapshot(ctx context.Context, name string) (s snapshot, err error) {
	it, err := r.store.Get(ctx, table.SchemaSubjectKey(name), store.Strong)
	if err != nil {
		return s, fmt.Errorf("registry: read %s: %w", name, err)
	}
	if s.versions, err = r.versions(ctx, name); err != nil {
		return s, err
	}
	if it != nil {
		s.whole = table.SchemaSubjectFrom(it)
		s.unchanged = store.Condition{}.Eq(table.AttrRevision, store.Int(s.whole.Revision))
		return s, nil
	}
	s.unchanged = store.Absent()
	for _, v := range s.versions { // rows from before there were such counts
		s.whole.Last, s.whole.Live, s.whole.Total = int64(v.Version), s.whole.Live+1, s.whole.Total+1
	}
	return s, nil
}
