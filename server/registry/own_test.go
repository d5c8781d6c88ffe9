package registry

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Whatever was done to the registry, Parley's own schemas are registered at the next
// start, under the ids that they had: records are written with them.
func TestOwnSchemasHangOnNothing(t *testing.T) {
	racetest.SkipSerial(t)
	subject := event.Specs()[0].Subject()
	for name, harm := range map[string]func(t *testing.T, r *Registry, must func(error)){
		"read-only": func(t *testing.T, r *Registry, must func(error)) {
			must(r.SetMode(t.Context(), "", ReadOnlyOverride, true))
		},
		"import": func(t *testing.T, r *Registry, must func(error)) { must(r.SetMode(t.Context(), subject, Import, true)) },
		"deleted": func(t *testing.T, r *Registry, must func(error)) {
			_, err := r.DeleteSubject(t.Context(), subject, false)
			must(err)
			must(r.SetMode(t.Context(), "", ReadOnly, true))
		},
		"all deleted": func(t *testing.T, r *Registry, must func(error)) {
			for range 3 { // those that others refer to, later
				subjects, err := collect(r.Subjects(t.Context(), ListOptions{}))
				must(err)
				for _, s := range subjects {
					_, _ = r.DeleteSubject(t.Context(), s, false)
				}
			}
			must(r.SetMode(t.Context(), "", ReadOnly, true))
		},
		"deleted for good": func(t *testing.T, r *Registry, must func(error)) {
			for _, permanent := range []bool{false, true} {
				_, err := r.DeleteSubject(t.Context(), subject, permanent)
				must(err)
			}
		},
		"replaced": func(t *testing.T, r *Registry, must func(error)) {
			_, err := r.DeleteSubject(t.Context(), subject, false)
			must(err)
			must(r.SetLevel(t.Context(), subject, None))
			_, err = r.Register(t.Context(), subject,
				Schema{Text: "syntax = \"proto3\";\npackage other;\nmessage M { string a = 1; }\n"}, RegisterOptions{})
			must(err)
			must(r.SetLevel(t.Context(), subject, FullTransitive))
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			r := New(storetest.NewMemory(time.Now))
			before, err := r.Events(t.Context())
			must(err)
			harm(t, r, must)
			for range 2 {
				after, err := r.Events(t.Context())
				must(err)
				if !maps.Equal(before, after) {
					t.Errorf("ids were %v and are %v", before, after)
				}
			}
		})
	}
	// Modes are still for others.
	r := New(storetest.NewMemory(time.Now))
	if err := r.SetMode(t.Context(), "", ReadOnly, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Register(t.Context(), "s", Schema{Text: small}, RegisterOptions{}); err == nil {
		t.Error("a read-only registry took a schema")
	}
}

// A process that must not register says what is missing and changes nothing; it finds
// what a deployment registered, under the same ids, also if it was deleted softly since.
func TestFindOwn(t *testing.T) {
	r := New(storetest.NewMemory(time.Now))
	deadLetters := Message{Topic: "dead_letters", Proto: &eventv1.DeadLetter{}}
	var missing *MissingError
	if _, err := r.FindOwn(t.Context(), deadLetters); !errors.As(err, &missing) {
		t.Fatalf("an empty registry: %v", err)
	}
	for v, err := range r.List(t.Context(), ListOptions{Deleted: true}) {
		t.Fatalf("looking registered %+v, %v", v, err)
	}
	if _, err := r.Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.FindOwn(t.Context(), deadLetters); !errors.As(err, &missing) ||
		missing.Subject != "parley/event/v1/dead_letter_metadata.proto" {
		t.Fatalf("without dead letters: %v", err)
	}
	want, err := r.RegisterOwn(t.Context(), deadLetters)
	if err != nil {
		t.Fatal(err)
	}
	same := func() {
		t.Helper()
		got, err := r.FindOwn(t.Context(), deadLetters)
		if err != nil || !maps.Equal(got.Events, want.Events) || len(got.Messages) != 1 ||
			got.Messages[0] != want.Messages[0] {
			t.Fatalf("%+v, want %+v, %v", got, want, err)
		}
	}
	same()
	subject := event.Specs()[0].Subject()
	if _, err := r.DeleteSubject(t.Context(), subject, false); err != nil {
		t.Fatal(err)
	}
	same()
	if _, err := r.DeleteSubject(t.Context(), subject, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.FindOwn(t.Context(), deadLetters); !errors.As(err, &missing) || missing.Subject != subject {
		t.Errorf("deleted for good: %v", err)
	}
}

// The schemas of a topic under another name are searched for as those under its own.
func TestAlso(t *testing.T) {
	r := New(storetest.NewMemory(time.Now))
	if _, err := r.Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	var missing *MissingError
	if err := r.EnsureTopic(t.Context(), "messages.persisted", "messages.persisted.v2", false); !errors.As(err,
		&missing) || !strings.HasPrefix(missing.Subject, "messages.persisted.v2-") {
		t.Fatalf("nothing is registered for it: %v", err)
	}
	for subject, err := range r.Subjects(t.Context(), ListOptions{}) {
		if err != nil || strings.Contains(subject, ".v2-") {
			t.Fatalf("looking registered %q, %v", subject, err)
		}
	}
	for _, register := range []bool{true, false} {
		if err := r.EnsureTopic(t.Context(), "messages.persisted", "messages.persisted.v2", register); err != nil {
			t.Errorf("register is %v: %v", register, err)
		}
	}
}
