package compat_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
)

// sources reads the proto files below a directory of the repository.
func sources(t testing.TB, dir string) map[string]string {
	t.Helper()
	root := filepath.Join("../../proto", dir)
	files := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".proto") {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		files[filepath.ToSlash(name)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The events of this repository fulfil the conditions that verdicts rely on, and small changes
// of them get the expected verdicts (K-150, K-151, KS12, KS13, KS15).
func TestOwnEvents(t *testing.T) {
	t.Parallel()
	own := sources(t, "event")
	base, err := fixture.Compile(own)
	if err != nil {
		t.Fatal(err)
	}
	if findings := compare(t, base, base, compat.Options{}); len(findings) > 0 {
		t.Errorf("the events break conditions of one schema: %v, expected no findings", findings)
	}
	const message, enums = "parley/event/v1/message_persisted.proto", "parley/event/v1/enums.proto"
	for _, c := range []struct{ name, file, old, new, rules string }{
		{"optional field", message, "// When it was stored.", "optional string priority = 10; // When.",
			"EVENT_VERSION_NOT_RAISED"},
		{"required field", message, "// When it was stored.",
			"optional string priority = 10 [(buf.validate.field).required = true]; // When.",
			"EVENT_VERSION_NOT_RAISED FIELD_ADDED_VALIDATION_REQUIRED"},
		{"field removed", message, "  int64 sequence = 4 [(buf.validate.field).int64.gte = 1];",
			"  reserved 4; reserved \"sequence\";", "FIELD_REMOVED_ZERO_INVALID"},
		{"ceiling raised", message, "max_bytes = 65536", "max_bytes = 131072", "VALIDATION_LOOSENED"},
		{"topic", message, `topic: "messages.persisted"`, `topic: "messages"`, "EVENT_TOPIC_CHANGED"},
		{"key", message, `key: "chat_id"`, `key: "message_id"`, "CUSTOM_OPTION_CHANGED"},
		{"version alone", message, "version: 1", "version: 2", "EVENT_VERSION_CHANGED"},
		{"enum value", enums, "  CONTENT_TYPE_TEXT = 1;", "  CONTENT_TYPE_TEXT = 1;\n  CONTENT_TYPE_IMAGE = 2;", ""},
		{"enum value renamed", enums, "CONTENT_TYPE_TEXT = 1", "CONTENT_TYPE_PLAIN = 1",
			"ENUM_VALUE_RENAMED IMPORTED_TYPE_BROKEN"},
	} {
		changed := map[string]string{}
		for name, text := range own {
			changed[name] = text
		}
		changed[c.file] = strings.Replace(changed[c.file], c.old, c.new, 1)
		if changed[c.file] == own[c.file] {
			t.Errorf("%s: expected %q in %s", c.name, c.old, c.file)
			continue
		}
		head, err := fixture.Compile(changed)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		seen := map[string]bool{}
		for _, f := range compare(t, base, head, compat.Options{}) {
			seen[string(f.Rule)] = true
			if !slices.Contains(strings.Fields(c.rules), string(f.Rule)) {
				t.Errorf("%s: unexpected finding %s", c.name, fixture.Line(f))
			}
		}
		for _, id := range strings.Fields(c.rules) {
			if !seen[id] {
				t.Errorf("%s: no finding of %s, expected one", c.name, id)
			}
		}
	}
}

// The API of this repository may replace itself.
func TestOwnAPI(t *testing.T) {
	t.Parallel()
	files := sources(t, "api")
	maps.Copy(files, sources(t, "third_party"))
	maps.Copy(files, sources(t, "event")) // the content of what clients report
	base, err := fixture.Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	if findings := compare(t, base, base, compat.Options{Scope: compat.API}); len(findings) > 0 {
		t.Errorf("the API compared with itself has the findings %v, expected none", findings)
	}
}

func BenchmarkCompareOwnEvents(b *testing.B) {
	base, err := fixture.Compile(sources(b, "event"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		compare(b, base, base, compat.Options{})
	}
}
