package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

const v1 = `syntax = "proto3";
package shop.v1;
message OrderPlaced {
  string order_id = 1;
}
`

var (
	added   = strings.Replace(v1, "}\n", "  optional string note = 2;\n}\n", 1)
	renamed = strings.Replace(v1, "order_id", "id", 1)
	// grown gives a oneof a second case: old readers do not know it, new ones read all.
	oneof = strings.Replace(v1, "}\n", "  oneof of { string a = 2; }\n}\n", 1)
	grown = strings.Replace(oneof, "string a = 2; }", "string a = 2; string b = 3; }", 1)
)

func pb(text string, refs ...sr.SchemaReference) sr.Schema {
	return sr.Schema{Schema: text, Type: sr.TypeProtobuf, References: refs}
}

func serve(t *testing.T, st store.Store) (*sr.Client, string) {
	t.Helper()
	h := httptest.NewServer(Handler(registry.New(st), slog.New(slog.DiscardHandler)))
	t.Cleanup(h.Close)
	c, err := sr.NewClient(sr.URLs(h.URL))
	if err != nil {
		t.Fatal(err)
	}
	return c, h.URL
}

func client(t *testing.T) (*sr.Client, context.Context) {
	t.Helper()
	c, _ := serve(t, storetest.NewMemory(time.Now))
	return c, t.Context()
}

func code(err error) int {
	var e *sr.ResponseError
	if errors.As(err, &e) {
		return e.ErrorCode
	}
	return 0
}

// Versions count up, ids stay, the level decides what may follow.
func TestSubjects(t *testing.T) {
	c, ctx := client(t)
	one := testkit.Value(c.CreateSchema(ctx, "orders-shop.v1.OrderPlaced", pb(v1)))(t)
	again := testkit.Value(c.CreateSchema(ctx, "orders-shop.v1.OrderPlaced", pb("// A comment.\n"+v1)))(t)
	two := testkit.Value(c.CreateSchema(ctx, "orders-shop.v1.OrderPlaced", pb(added)))(t)
	elsewhere := testkit.Value(c.CreateSchema(ctx, "other/with slash", pb(v1)))(t)
	if one.Version != 1 || again.Version != 1 || again.ID != one.ID || two.Version != 2 || two.ID == one.ID ||
		elsewhere.ID != one.ID || elsewhere.Version != 1 {
		t.Errorf("%+v, %+v, %+v, %+v", one, again, two, elsewhere)
	}
	if _, err := c.CreateSchema(ctx, "orders-shop.v1.OrderPlaced", pb(renamed)); code(err) != 409 ||
		!strings.Contains(err.Error(), "order_id") {
		t.Errorf("renamed: %v", err)
	}
	if got := testkit.Value(c.SchemaByID(ctx, one.ID))(t); got.Schema != v1 || got.Type != sr.TypeProtobuf {
		t.Errorf("by id: %+v", got)
	}
	if got := testkit.Value(c.SchemaTextByVersion(ctx, "orders-shop.v1.OrderPlaced", -1))(t); got != added {
		t.Errorf("latest: %q", got)
	}
	if got := testkit.Value(c.Subjects(ctx))(t); strings.Join(got, ",") != "orders-shop.v1.OrderPlaced,other/with slash" {
		t.Errorf("subjects %q", got)
	}
	if got := testkit.Value(c.SubjectsByID(ctx, one.ID))(t); len(got) != 2 {
		t.Errorf("subjects of an id %q", got)
	}
	if got := testkit.Value(c.LookupSchema(ctx, "orders-shop.v1.OrderPlaced", pb(added)))(t); got.Version != 2 {
		t.Errorf("lookup %+v", got)
	}
	// The same descriptor in base64 is the same schema, and readers get either form.
	binary := testkit.Value(c.SchemaByID(sr.WithParams(ctx, sr.Format("serialized")), two.ID))(t)
	if binary.Schema == added {
		t.Error("format=serialized gives text")
	}
	if got := testkit.Value(c.CreateSchema(ctx, "third", pb(binary.Schema)))(t); got.ID != two.ID {
		t.Errorf("id %d for the descriptor, %d for the text", got.ID, two.ID)
	}
	swapped := "syntax = \"proto3\";\npackage shop.v1;\nmessage OrderPlaced {\n  optional string note = 2;\n  string order_id = 1;\n}\n"
	ordered := testkit.Value(c.CreateSchema(sr.WithParams(ctx, sr.Normalize), "fourth", pb(swapped)))(t)
	if ordered.ID != two.ID || !strings.Contains(ordered.Schema.Schema, "string order_id = 1;") {
		t.Errorf("normalized: %+v", ordered)
	}
	if all := testkit.Value(c.AllSchemas(ctx))(t); len(all) != 5 {
		t.Errorf("%d schemas", len(all))
	}
}

// Each level lets pass what it promises to, alone and over all versions.
func TestLevels(t *testing.T) {
	c, ctx := client(t)
	unknown := strings.Replace(v1, "}\n", "  optional int64 note = 2;\n}\n", 1)
	for _, tt := range []struct {
		level sr.CompatibilityLevel
		chain []string
		last  int // code of the last one
	}{
		{sr.CompatNone, []string{v1, renamed}, 0},
		{sr.CompatBackward, []string{oneof, grown}, 0},
		{sr.CompatForward, []string{oneof, grown}, 409},
		{sr.CompatFull, []string{oneof, grown}, 409},
		{sr.CompatForward, []string{grown, oneof}, 409}, // a case removed without a reservation
		{sr.CompatFull, []string{v1, added}, 0},
		{sr.CompatFullTransitive, []string{v1, added, unknown}, 409},
		{sr.CompatBackwardTransitive, []string{v1, renamed}, 409},
	} {
		name := tt.level.String()
		subject := name + "/" + tt.chain[len(tt.chain)-1]
		subject = strings.Map(func(r rune) rune {
			if r < ' ' {
				return -1
			}
			return r
		}, subject)
		if r := c.SetCompatibility(ctx, sr.SetCompatibility{Level: tt.level}, subject); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		if r := c.Compatibility(ctx, subject); r[0].Err != nil || r[0].Level != tt.level {
			t.Errorf("%s: level %v, %v", name, r[0].Level, r[0].Err)
		}
		last := len(tt.chain) - 1
		for _, text := range tt.chain[:last] {
			testkit.Value(c.CreateSchema(ctx, subject, pb(text)))(t)
		}
		asked := testkit.Value(c.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), subject, -1,
			pb(tt.chain[last])))(t)
		_, err := c.CreateSchema(ctx, subject, pb(tt.chain[last]))
		if code(err) != tt.last || asked.Is != (tt.last == 0) || asked.Is == (len(asked.Messages) > 0) {
			t.Errorf("%s: %v; asked %+v", subject, err, asked)
		}
	}
	if r := c.Compatibility(ctx, ""); r[0].Level != sr.CompatFull {
		t.Errorf("level of all: %v", r[0].Level)
	}
}

// Imports are found through references, which keep what they name.
func TestReferences(t *testing.T) {
	c, ctx := client(t)
	item := "syntax = \"proto3\";\npackage shop.v1;\nimport \"buf/validate/validate.proto\";\nmessage Item { string sku = 1 [(buf.validate.field).string.min_len = 1]; }\n"
	order := "syntax = \"proto3\";\npackage shop.v1;\nimport \"google/protobuf/timestamp.proto\";\nimport \"shop/v1/item.proto\";\nmessage Order { repeated Item items = 1; google.protobuf.Timestamp at = 2; }\n"
	ref := sr.SchemaReference{Name: "shop/v1/item.proto", Subject: "shop/v1/item.proto", Version: 1}
	if _, err := c.CreateSchema(ctx, "order", pb(order, ref)); code(err) != 42201 {
		t.Errorf("reference that is not there: %v", err)
	}
	testkit.Value(c.CreateSchema(ctx, "shop/v1/item.proto", pb(item)))(t)
	if _, err := c.CreateSchema(ctx, "order", pb(order)); code(err) != 42201 ||
		!strings.Contains(err.Error(), "item.proto") {
		t.Errorf("no reference: %v", err)
	}
	got := testkit.Value(c.CreateSchema(ctx, "order", pb(order, ref)))(t)
	if len(got.References) != 1 || got.References[0] != ref {
		t.Errorf("references %+v", got.References)
	}
	by := testkit.Value(c.SchemaReferences(ctx, "shop/v1/item.proto", 1))(t)
	if len(by) != 1 || by[0].Subject != "order" {
		t.Errorf("referenced by %+v", by)
	}
	if _, err := c.DeleteSubject(ctx, "shop/v1/item.proto", sr.SoftDelete); code(err) != 42206 {
		t.Errorf("delete what is referred to: %v", err)
	}
	testkit.Value(c.DeleteSubject(ctx, "order", sr.SoftDelete))(t)
	testkit.Value(c.DeleteSubject(ctx, "order", sr.HardDelete))(t)
	testkit.Value(c.DeleteSubject(ctx, "shop/v1/item.proto", sr.SoftDelete))(t)
}

// Softly deleted versions are found by their id, others not at all; ids come back.
func TestDelete(t *testing.T) {
	c, ctx := client(t)
	one := testkit.Value(c.CreateSchema(ctx, "s", pb(v1)))(t)
	two := testkit.Value(c.CreateSchema(ctx, "s", pb(added)))(t)
	if err := c.DeleteSchema(ctx, "s", 1, sr.HardDelete); code(err) != 40407 {
		t.Errorf("hard first: %v", err)
	}
	if err := c.DeleteSchema(ctx, "s", 1, sr.SoftDelete); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteSchema(ctx, "s", 1, sr.SoftDelete); code(err) != 40406 {
		t.Errorf("soft twice: %v", err)
	}
	if _, err := c.SchemaByVersion(ctx, "s", 1); code(err) != 40402 {
		t.Errorf("by version: %v", err)
	}
	if _, err := c.SchemaByVersion(sr.WithParams(ctx, sr.ShowDeleted), "s", 1); err != nil {
		t.Errorf("deleted=true: %v", err)
	}
	testkit.Value(c.SchemaByID(ctx, one.ID))(t)
	if _, err := c.DeleteSubject(ctx, "s", sr.HardDelete); code(err) != 40405 {
		t.Errorf("hard first: %v", err)
	}
	if got := testkit.Value(c.DeleteSubject(ctx, "s", sr.SoftDelete))(t); len(got) != 1 || got[0] != 2 {
		t.Errorf("deleted %v", got)
	}
	if _, err := c.DeleteSubject(ctx, "s", sr.SoftDelete); code(err) != 40404 {
		t.Errorf("soft twice: %v", err)
	}
	if got := testkit.Value(c.Subjects(ctx))(t); len(got) != 0 {
		t.Errorf("subjects %v", got)
	}
	if got := testkit.Value(c.Subjects(sr.WithParams(ctx, sr.ShowDeleted)))(t); len(got) != 1 {
		t.Errorf("subjects %v", got)
	}
	if got := testkit.Value(c.DeleteSubject(ctx, "s", sr.HardDelete))(t); len(got) != 2 {
		t.Errorf("deleted %v", got)
	}
	if _, err := c.SchemaByID(ctx, two.ID); code(err) != 40403 {
		t.Errorf("by id: %v", err)
	}
	back := testkit.Value(c.CreateSchema(ctx, "s", pb(added)))(t)
	other := testkit.Value(c.CreateSchema(ctx, "t", pb(renamed)))(t)
	if back.ID != two.ID || back.Version != 3 || other.ID <= two.ID {
		t.Errorf("ids %d %d, then %d as version %d and %d", one.ID, two.ID, back.ID, back.Version, other.ID)
	}
}

func TestModes(t *testing.T) {
	c, ctx := client(t)
	if r := c.SetMode(ctx, sr.ModeReadOnly, "s"); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if _, err := c.CreateSchema(ctx, "s", pb(v1)); code(err) != 42205 {
		t.Errorf("read only: %v", err)
	}
	if r := c.ResetMode(ctx, "s"); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if _, err := c.CreateSchemaWithIDAndVersion(ctx, "s", pb(v1), 77, 5); code(err) != 42205 {
		t.Errorf("ids outside IMPORT: %v", err)
	}
	if r := c.SetMode(ctx, sr.ModeImport, "s"); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	got := testkit.Value(c.CreateSchemaWithIDAndVersion(ctx, "s", pb(v1), 77, 5))(t)
	if got.ID != 77 || got.Version != 5 {
		t.Errorf("imported as %+v", got)
	}
	if _, err := c.CreateSchemaWithIDAndVersion(ctx, "s", pb(renamed), 77, 6); code(err) != 42205 {
		t.Errorf("id of another schema: %v", err)
	}
	if next := testkit.Value(c.CreateSchema(ctx, "t", pb(added)))(t); next.ID != 78 {
		t.Errorf("next id %d", next.ID)
	}
}

// Codes are those that Confluent documents; nothing else is said.
func TestRefusals(t *testing.T) {
	_, base := serve(t, storetest.NewMemory(time.Now))
	broken := storetest.NewMemory(time.Now)
	_, brokenBase := serve(t, broken)
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	schema := func(text string) string {
		b, _ := json.Marshal(map[string]string{"schemaType": "PROTOBUF", "schema": text})
		return string(b)
	}
	for name, tt := range map[string]struct {
		method, path, body string
		status, code       int
	}{
		"no subject":        {"GET", "/subjects/none/versions", "", 404, 40401},
		"no version":        {"GET", "/subjects/none/versions/1", "", 404, 40401},
		"bad version":       {"GET", "/subjects/none/versions/x", "", 422, 42202},
		"version zero":      {"GET", "/subjects/none/versions/0", "", 422, 42202},
		"no id":             {"GET", "/schemas/ids/99", "", 404, 40403},
		"id is no number":   {"GET", "/schemas/ids/x", "", 404, 404},
		"no level":          {"GET", "/config/none", "", 404, 40408},
		"no mode":           {"GET", "/mode/none", "", 404, 40409},
		"bad level":         {"PUT", "/config", `{"compatibility":"SOME"}`, 422, 42203},
		"bad mode":          {"PUT", "/mode", `{"mode":"SOME"}`, 422, 42204},
		"no path":           {"GET", "/nowhere", "", 404, 404},
		"no JSON":           {"POST", "/subjects/s/versions", "{", 400, 400},
		"Avro":              {"POST", "/subjects/s/versions", `{"schema":"\"string\""}`, 422, 42201},
		"no protobuf":       {"POST", "/subjects/s/versions", schema("mesage X {}"), 422, 42201},
		"empty":             {"POST", "/subjects/s/versions", schema(""), 422, 42201},
		"base64 of nothing": {"POST", "/subjects/s/versions", schema("AAAA"), 422, 42201},
		"too large":         {"POST", "/subjects/s/versions", schema(strings.Repeat("/", 512<<10+1)), 422, 42209},
		"far too large":     {"POST", "/subjects/s/versions", schema(strings.Repeat("/", maxBody)), 422, 42209},
		"rules": {"POST", "/subjects/s/versions",
			`{"schemaType":"PROTOBUF","schema":"x","ruleSet":{"domainRules":[{}]}}`, 422, 42210},
		"reserved subject": {"POST", "/subjects/%23ids/versions", schema(v1), 422, 42208},
		"context":          {"POST", "/subjects/:.x:s/versions", schema(v1), 422, 42208},
		"long subject":     {"POST", "/subjects/" + strings.Repeat("s", 513) + "/versions", schema(v1), 422, 42208},
	} {
		for at, want := range map[string][2]int{base: {tt.status, tt.code}, brokenBase: {500, 50001}} {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, at+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			var got failure
			if err := json.Unmarshal(b, &got); err != nil || got.Message == "" || len(b) > 2000 ||
				res.Header.Get("Content-Type") != contentType {
				t.Errorf("%s: %v: %.200s", name, err, b)
			}
			if at == brokenBase {
				if strings.Contains(string(b), "closed") {
					t.Errorf("%s: an error leaks: %s", name, b)
				}
				continue
			}
			if res.StatusCode != want[0] || got.Code != want[1] {
				t.Errorf("%s: %d, %s", name, res.StatusCode, b)
			}
		}
	}
}

// Processes that register at once agree on ids and versions, and a new process
// finds all of it.
func TestConcurrentRegistrations(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	var wg sync.WaitGroup
	ids := make([]int, 16)
	for i := range ids {
		c, _ := serve(t, st)
		wg.Go(func() {
			id, err := c.RegisterSchema(t.Context(), []string{"a", "b"}[i%2], pb(v1), -1, -1)
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id < 1 {
			t.Fatalf("ids %v", ids)
		}
	}
	c, _ := serve(t, st)
	for _, subject := range []string{"a", "b"} {
		if got := testkit.Value(c.SubjectVersions(t.Context(), subject))(t); len(got) != 1 {
			t.Errorf("%s has versions %v", subject, got)
		}
	}
}

// The gate's own command works with the registry: what the server registers is
// found, verified, and protected.
func TestSchemacheck(t *testing.T) {
	racetest.SkipSerial(t)
	st := storetest.NewMemory(time.Now)
	if _, err := registry.New(st).Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, url := serve(t, st)
	bin := filepath.Join(t.TempDir(), "schemacheck")
	if out, err := exec.Command("go", "build", "-o", bin, "../../../schemacheck").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(dir string, args ...string) (int, string) {
		t.Helper()
		cmd := exec.Command(bin, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	before := testkit.Value(c.SchemaByVersion(t.Context(), event.Specs()[0].Subject(), -1))(t)
	for _, verb := range []string{"check", "register", "verify"} {
		if code, out := run("../../..", "registry", verb, "--registry", url); code != 0 {
			t.Errorf("%s: exit %d\n%s", verb, code, out)
		}
	}
	after := testkit.Value(c.SchemaByVersion(t.Context(), event.Specs()[0].Subject(), -1))(t)
	if after.ID != before.ID || after.Version != before.Version {
		t.Errorf("id %d version %d, was %d and %d: the source is not the schema that the server registered", after.ID,
			after.Version, before.ID, before.Version)
	}
	if code, out := run("../../..", "--base", "registry", "--registry", url, "--policy", "FULL_TRANSITIVE"); code != 0 {
		t.Errorf("compare: exit %d\n%s", code, out)
	}

	// Elsewhere, with a break.
	dir := t.TempDir()
	put := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "order.proto"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(v1)
	for _, tt := range []struct {
		verb string
		text string
		code int
		says string
	}{
		{"verify", v1, 2, "does not have this schema"},
		{"check", v1, 0, "is new to the registry"},
		{"register", v1, 0, "is version 1"},
		{"verify", v1, 0, "is version 1"},
		{"check", renamed, 2, "N01"},
		{"register", renamed, 2, "N01"},
		{"register", added, 0, "is version 2"},
	} {
		put(tt.text)
		if code, out := run(dir, "registry", tt.verb, "--registry", url); code != tt.code || !strings.Contains(out, tt.says) {
			t.Errorf("%s: exit %d, want %d and %q\n%s", tt.verb, code, tt.code, tt.says, out)
		}
	}
	if r := c.SetCompatibility(t.Context(), sr.SetCompatibility{Level: sr.CompatBackward},
		"shop.v1.OrderPlaced"); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if code, out := run(dir, "registry", "verify", "--registry", url); code != 2 || !strings.Contains(out, "BACKWARD") {
		t.Errorf("level: exit %d\n%s", code, out)
	}
}
