package command

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// letters is a payload on Kafka that declares no topic: its message, a type that it
// uses, and beside them an event and an API.
func letters(change ...string) map[string]string {
	r := strings.NewReplacer(change...)
	files := map[string]string{
		"proto/event/shop/v1/options.proto": strings.Replace(placed, "import \"shop/v1/item.proto\";\n", "", 1),
		"proto/event/shop/v1/item.proto":    item,
		"proto/event/shop/v1/placed.proto":  event,
		"proto/event/shop/v1/letter.proto": `syntax = "proto3";
package shop.v1;
import "shop/v1/reason.proto";
option java_package = "old";
message Letter {
  bytes value = 1;
  Reason reason = 2;
  optional string note = 3;
}
`,
		"proto/event/shop/v1/reason.proto": `syntax = "proto3";
package shop.v1;
message Reason {
  string text = 1;
}
`,
		"proto/api/store/v1/store.proto": `syntax = "proto3";
package store.v1;
option java_package = "old";
service Store {
  rpc Open(OpenRequest) returns (OpenResponse);
}
message OpenRequest {}
message OpenResponse {}
`,
		"buf.yaml": "version: v2\nmodules:\n  - path: proto/event\n  - path: proto/api\n",
	}
	for name, text := range maps.Clone(files) {
		files[name] = r.Replace(text)
	}
	return files
}

// What the caller calls events is judged by the rules of events, whatever it
// declares, by the name of its package, its import path, or its place.
func TestEventsByName(t *testing.T) {
	t.Parallel()
	base := write(t, t.TempDir(), letters())
	change := func(change ...string) string { return write(t, t.TempDir(), letters(change...)) }
	moved := change(`message Letter`, "option java_outer_classname = \"L\";\nmessage Letter")
	elsewhere := change(`service Store`, "option java_outer_classname = \"S\";\nservice Store")
	second := change("message Letter {", "message Note {}\nmessage Letter {")
	support := change("message Reason {", "message Note {}\nmessage Reason {")
	corrupt := change("bytes value = 1;", "bytes value = 1; reserved 3; reserved \"note\";", "optional string note = 3;",
		"")
	for name, tt := range map[string]struct {
		head string
		args string
		code int
		says string
	}{
		"by the stricter rules": {moved, "", Findings, "block FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"by package":            {moved, "--events shop.v1", Clean, "warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"by the package above":  {moved, "--events shop", Clean, "warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"by a pattern":          {moved, "--events sh*.v1", Clean, "warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"by import path": {moved, "--events shop/v1/letter.proto", Clean,
			"warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"by place": {moved, "--events proto/event/", Clean,
			"warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"by the second pattern": {moved, "--events shop/v1/item.proto --events shop/v1/letter.proto", Clean,
			"warn FILE_OPTION_CHANGED (K07)"},
		"another file": {moved, "--events shop/v1/item.proto", Findings,
			"block FILE_OPTION_CHANGED (K07) shop/v1/letter.proto"},
		"the API stays an API": {elsewhere, "--events shop.v1", Findings,
			"block FILE_OPTION_CHANGED (K07) store/v1/store.proto"},
		"nothing of that name": {moved, "--events shop.v2", Failed, "--events shop.v2 matches no file, folder or package"},
		"half a name":          {moved, "--events sho", Failed, "matches no file"},
		"said what is what": {base, "--events proto/event", Clean,
			"judged as events: shop.v1.OrderPlaced version 1 on orders, shop.v1.Letter; with 3 types that they use\nnote: judged as API: proto/api/store/v1/store.proto\n"},
		"said without": {base, "", Clean,
			"judged as events: shop.v1.OrderPlaced version 1 on orders; with 1 type that they use\nnote: judged as API: proto/event/shop/v1/letter.proto, "},
		"API alone": {moved, "--events shop.v1 --scope api", Clean, "compatible"},
		"its root is registered": {second, "--events shop.v1", Findings,
			"block MESSAGE_ADDED_BEFORE_OTHERS (M06) shop.v1.Note"},
		"its types are not": {support, "--events shop.v1", Clean, "compatible: 0 blocks, 0 warnings"},
		"field reserved":    {corrupt, "--events shop.v1", Clean, "compatible: 0 blocks"},
		"reserved, as API":  {corrupt, "", Findings, "shop.v1.Letter.note"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--base", base, "--head", tt.head}, strings.Fields(tt.args)...)
			got := run(t, base, args...)
			if got.code != tt.code || !strings.Contains(got.out+got.err, tt.says) {
				t.Errorf("exit %d, want %d and %q:\n%s%s", got.code, tt.code, tt.says, got.out, got.err)
			}
		})
	}
}

// Releases hold whole packages of events, so this is what they are judged as. Their
// images do not know where files stood.
func TestReleasedPackagesAreEvents(t *testing.T) {
	t.Parallel()
	dir := write(t, t.TempDir(), letters())
	expect := func(code int, says string, args ...string) {
		t.Helper()
		if got := run(t, dir, append(args, "--released", "rel")...); got.code != code ||
			!strings.Contains(got.out+got.err, says) {
			t.Fatalf("%v: exit %d, want %d and %q\n%s%s", args, got.code, code, says, got.out, got.err)
		}
	}
	expect(Clean, "released as 0001", "release")
	write(t, dir, letters("message Letter", "option java_outer_classname = \"L\";\nmessage Letter"))
	expect(Clean, "warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto", "ci")
	expect(Clean, "warn FILE_OPTION_CHANGED (K07) shop/v1/letter.proto", "ci", "--events", filepath.Join("proto", "event"))
	expect(Findings, "block FILE_OPTION_CHANGED (K07) shop/v1/letter.proto", "ci", "--events", "shop/v1/placed.proto")
	expect(Findings, "block FILE_OPTION_CHANGED (K07) shop/v1/letter.proto", "release", "--events", "shop/v1/placed.proto")
	expect(Clean, "released as 0002", "release")
}
