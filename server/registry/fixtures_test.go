package registry

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/gate"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// roots are the files that no other one imports: those that are registered as events.
func roots(files []protoreflect.FileDescriptor) (list []protoreflect.FileDescriptor) {
	imported := map[string]bool{}
	for _, f := range files {
		for i := range f.Imports().Len() {
			imported[f.Imports().Get(i).Path()] = true
		}
	}
	for _, f := range files {
		if !imported[f.Path()] {
			list = append(list, f)
		}
	}
	return list
}

// registered registers what a file imports, in a version of its own for each side, and
// returns the file as a schema.
func registered(t *testing.T, r *Registry, files map[string]string, f protoreflect.FileDescriptor) Schema {
	t.Helper()
	s := Schema{Text: files[f.Path()]}
	for i := range f.Imports().Len() {
		path := f.Imports().Get(i).Path()
		if _, given := files[path]; !given {
			continue
		}
		if err := r.SetLevel(t.Context(), path, None); err != nil {
			t.Fatal(err)
		}
		v := r.mustRegister(t, path, registered(t, r, files, f.Imports().Get(i).FileDescriptor), RegisterOptions{})
		s.References = append(s.References, Reference{Name: path, Subject: path, Version: v.Version})
	}
	return s
}

// The registry lets pass what the command line lets pass, for every pair of schemas that the
// rules are shown by.
func TestSameVerdictAsTheGate(t *testing.T) {
	racetest.SkipSerial(t)
	paths, err := filepath.Glob("../../schemacheck/compat/testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	seen, judged, refusals := 0, 0, 0
	for _, path := range paths {
		f, err := fixture.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		base, head := roots(f.Base), roots(f.Head)
		// A registry knows one file, by its subject, not by its path.
		if f.Scope != compat.Event || len(base) != 1 || len(head) != 1 || base[0].Path() != head[0].Path() {
			continue
		}
		seen++
		levels := levelsOf(seen)
		if levels == nil {
			continue
		}
		judged++
		r := New(storetest.NewMemory(time.Now))
		before := registered(t, r, f.BaseFiles, base[0])
		r.mustRegister(t, "event", before, RegisterOptions{})
		after := registered(t, r, f.HeadFiles, head[0])
		for _, level := range levels {
			policy, err := compat.ParsePolicy(level)
			if err != nil {
				t.Fatal(err)
			}
			want := true
			n, version := gate.InMemory([][]protoreflect.FileDescriptor{base})
			for c, err := range gate.CompareAll(t.Context(), n, version, head, compat.Options{Policy: policy}) {
				if err != nil {
					t.Fatal(err)
				}
				want = want && !slices.ContainsFunc(c.Findings, func(f compat.Finding) bool { return f.Severity == compat.Block })
			}
			if err := r.SetLevel(t.Context(), "event", level); err != nil {
				t.Fatal(err)
			}
			got, messages, err := r.Compatible(t.Context(), "event", Latest, after, false)
			if err != nil || got != want {
				t.Errorf("%s at %s: %t, the gate says %t, %v %v", filepath.Base(path), level, got, want,
					strings.Join(messages, "; "), err)
			}
			if !got {
				refusals++
			}
		}
	}
	if seen < 100 || judged < 33 || refusals < 50 {
		t.Errorf("%d fixtures judged, %d refusals", judged, refusals)
	}
}

// levelsOf are the levels at which a fixture is judged. A run judges a third of the fixtures, each at the default
// level and at another one, both of which PARLEY_SCHEMA_SEED rotates; with PARLEY_SCHEMA_LEVELS=all it judges all at
// all levels.
func levelsOf(fixture int) []string {
	others := []string{None, Backward, Forward, BackwardTransitive, ForwardTransitive, FullTransitive}
	if os.Getenv("PARLEY_SCHEMA_LEVELS") == "all" {
		return append(others, Full)
	}
	turn, _ := strconv.Atoi(os.Getenv("PARLEY_SCHEMA_SEED")) // 0 if it is not set
	if (fixture+turn)%3 != 0 {
		return nil
	}
	return []string{Full, others[(fixture/3+turn)%len(others)]}
}

// A registry refuses what breaks an event through an extension of a message in it, also where
// a referenced file declares the extension: by asking and by registering.
func TestExtensionsOfReferences(t *testing.T) {
	for _, name := range []string{"EXTENSION_CHANGED-imported", "EXTENSION_CHANGED-imported-number",
		"EXTENSION_CHANGED-imported-label", "EXTENSION_CHANGED-nested", "EXTENSION_REMOVED-imported",
		"SCALAR_TYPE_CHANGED-extension"} {
		t.Run(name, func(t *testing.T) {
			f, err := fixture.Load("../../schemacheck/compat/testdata/" + name + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			base, head := roots(f.Base), roots(f.Head)
			if len(base) != 1 || len(head) != 1 {
				t.Fatalf("%d and %d events, want one on each side", len(base), len(head))
			}
			r := New(storetest.NewMemory(time.Now))
			r.mustRegister(t, "event", registered(t, r, f.BaseFiles, base[0]), RegisterOptions{})
			if err := r.SetLevel(t.Context(), "event", Full); err != nil {
				t.Fatal(err)
			}
			after := registered(t, r, f.HeadFiles, head[0])
			ok, messages, err := r.Compatible(t.Context(), "event", Latest, after, false)
			if err != nil || ok {
				t.Errorf("compatible: %t, %v, %v, want the change refused", ok, messages, err)
			}
			_, err = r.Register(t.Context(), "event", after, RegisterOptions{})
			var refused *Error
			if !errors.As(err, &refused) || refused.Code != 409 {
				t.Errorf("registered: %v, want a refusal with code 409", err)
			}
		})
	}
}
