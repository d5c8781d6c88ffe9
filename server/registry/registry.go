// Package registry is a schema registry as Confluent's API describes it: subjects
// with versions, ids that never change, references, levels of compatibility. It
// keeps all of it in the store, and accepts a new version only if the rules of
// schemacheck allow it.
//
// It owns the table schemas; equal schemas share an id, in all subjects. It does not own the
// rules (schemacheck/gate), what a schema's identity is (package source), HTTP (package api), or
// which schemas Parley has (package event). Schemas are protobuf; other types are refused.
//
// Concurrency: safe for use by many goroutines and processes. A change of a subject
// compares and sets the subject's revision: of two that race one wins, and the
// other reads the subject again and repeats the check of compatibility.
package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/parley-chat/parley/server/registry/source"
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
type Reference = source.Reference

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

// validSubject refuses names that no subject can have.
func validSubject(subject string) error {
	switch {
	case subject == "" || len(subject) > MaxSubject:
		return invalid(CodeSubject, "A subject has 1 to %d bytes", MaxSubject)
	case strings.HasPrefix(subject, "#"), strings.HasPrefix(subject, ":"), subject == "__GLOBAL", subject == "__EMPTY":
		return invalid(CodeSubject, "The subject %q is reserved; contexts are not offered", shortened(subject))
	case !plain(subject):
		return invalid(CodeSubject, "The subject has control characters or is no UTF-8")
	}
	return nil
}

// versions returns all versions of a subject, oldest first.
func (r *Registry) versions(ctx context.Context, subject string) (list []Version, err error) {
	err = r.eachVersion(ctx, subject, func(v Version) error {
		list = append(list, v)
		return nil
	})
	return list, err
}

// eachVersion calls visit for the versions of a subject, oldest first.
func (r *Registry) eachVersion(ctx context.Context, subject string, visit func(Version) error) error {
	err := r.eachRow(ctx, subject, "", "", func(row store.Row) error {
		s, err := table.SchemaFrom(row)
		if err != nil {
			return err
		}
		return visit(versionOf(s))
	})
	if err != nil {
		return fmt.Errorf("registry: read %s: %w", subject, err)
	}
	return nil
}

// eachRow calls visit for the rows of a partition.
func (r *Registry) eachRow(ctx context.Context, pk, from, to string, visit func(store.Row) error) error {
	q := store.Query{Table: store.Schemas, PK: pk, From: from, To: to, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, r.store, q) {
		if err == nil {
			err = visit(row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func versionOf(s table.Schema) Version {
	v := Version{Subject: s.Subject, Version: int(s.Version), ID: int(s.ID), Descriptor: s.Descriptor, Deleted: s.Deleted,
		referred: s.Referred, legacy: s.Format < table.SchemaFormat}
	v.Text = s.Text
	if v.legacy {
		v.Text = base64.StdEncoding.EncodeToString(s.Descriptor)
	}
	for _, ref := range s.References {
		v.References = append(v.References, Reference{Name: ref.Name, Subject: ref.Subject, Version: int(ref.Version)})
	}
	return v
}

func rowOf(v Version) table.Schema {
	s := table.Schema{
		Subject: v.Subject, Version: int64(v.Version), ID: int64(v.ID), Format: table.SchemaFormat,
		Text: v.Text, Descriptor: v.Descriptor, Deleted: v.Deleted, Referred: v.referred,
	}
	for _, ref := range v.References {
		s.References = append(s.References,
			table.SchemaReference{Name: ref.Name, Subject: ref.Subject, Version: int64(ref.Version)})
	}
	return s
}

// retryable says whether a plan lost a race, or may have been written: its caller reads
// the subject again.
func retryable(err error) bool {
	var failed *store.ConditionError
	return errors.As(err, &failed) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrAmbiguous)
}

// A snapshot is a subject with its versions, and the condition that neither has
// changed.
type snapshot struct {
	subject   string
	counts    table.SchemaSubject
	versions  []Version
	unchanged store.Condition
}

// snapshot reads a subject. Its row is read first: a caller that adds a version after that
// raises the revision, and the condition fails.
func (r *Registry) snapshot(ctx context.Context, name string) (s snapshot, err error) {
	it, err := r.store.Get(ctx, table.SchemaSubjectKey(name), store.Strong)
	if err != nil {
		return s, fmt.Errorf("registry: read %s: %w", name, err)
	}
	s.subject = name
	if s.versions, err = r.versions(ctx, name); err != nil {
		return s, err
	}
	if it != nil {
		s.counts = table.SchemaSubjectFrom(it)
		s.unchanged = store.Condition{}.Eq(table.AttrRevision, store.Int(s.counts.Revision))
		return s, nil
	}
	s.unchanged = store.Absent()
	for _, v := range s.versions { // rows from before there were such counts
		s.counts.Last, s.counts.Live, s.counts.Total = int64(v.Version), s.counts.Live+1, s.counts.Total+1
	}
	return s, nil
}
