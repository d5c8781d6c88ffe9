package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What stands in this repository follows everything that was released, and reads
// the events that releases have left, K-158.
func TestThisRepository(t *testing.T) {
	t.Parallel()
	got := run(t, root, "ci")
	if got.code != Clean || strings.Contains(got.out, "has read 0 ") {
		t.Errorf("exit %d\n%s%s", got.code, got.out, got.err)
	}
}

const placed = `syntax = "proto3";
package shop.v1;
import "google/protobuf/descriptor.proto";
import "shop/v1/item.proto";
message EventOptions { string topic = 1; string event_type = 2; int32 version = 3; }
extend google.protobuf.MessageOptions { EventOptions event = 50800; }
`

const event = `syntax = "proto3";
package shop.v1;
import "shop/v1/item.proto";
import "shop/v1/options.proto";
message OrderPlaced {
  option (event) = {topic: "orders" event_type: "OrderPlaced" version: 1};
  string order_id = 1;
  repeated Item items = 2;
}
`

const item = `syntax = "proto3";
package shop.v1;
message Item { string sku = 1; int64 count = 2; }
`

// Releases follow one another: an additive change with its version is released, a
// break is refused, and what is released stays as it is.
func TestReleases(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := func(change ...string) {
		write(t, dir, map[string]string{
			"shop/v1/options.proto": strings.Replace(placed, "import \"shop/v1/item.proto\";\n", "", 1),
			"shop/v1/item.proto":    strings.NewReplacer(change...).Replace(item),
			"shop/v1/placed.proto":  strings.NewReplacer(change...).Replace(event),
		})
	}
	expect := func(code int, says string, args ...string) {
		t.Helper()
		if got := run(t, dir, args...); got.code != code || !strings.Contains(got.out+got.err, says) {
			t.Fatalf("%v: exit %d, want %d and %q\n%s%s", args, got.code, code, says, got.out, got.err)
		}
	}
	git(t, dir, "init", "-q", "-b", "main")
	commit := func() { git(t, dir, "add", "."); git(t, dir, "commit", "-q", "-m", "next") }
	set()
	expect(Clean, "released as 0001", "release", "--released", "rel")
	expect(Clean, "nothing new since 0001", "release", "--released", "rel")
	commit()
	expect(Clean, "head has read", "ci", "--released", "rel")

	// Renames break the corpus too, whatever the rules say.
	set("string sku", "string article")
	expect(Findings, "block FIELD_RENAMED (N01)", "ci", "--released", "rel")
	expect(Findings, "different events", "ci", "--released", "rel")
	expect(Findings, "block FIELD_RENAMED (N01)", "release", "--released", "rel")

	// Two additive steps, each with its version: the first release is two behind.
	for i, change := range [][]string{
		{"version: 1", "version: 2", "int64 count = 2;", "int64 count = 2; optional string note = 3;"},
		{"version: 1", "version: 3", "int64 count = 2;",
			"int64 count = 2; optional string note = 3; optional string gift = 4;"},
	} {
		set(change...)
		expect(Clean, "compatible", "ci", "--released", "rel")
		expect(Clean, []string{"released as 0002", "released as 0003"}[i], "release", "--released", "rel")
		commit()
	}
	expect(Clean, "compatible", "ci", "--released", "rel")

	// The newest image alone is the base under FULL, every image under FULL_TRANSITIVE.
	expect(Clean, "against 0003.binpb under FULL", "--base", "rel")
	expect(Clean, "against 0001.binpb, 0002.binpb, 0003.binpb under", "--base", "rel", "--policy", "FULL_TRANSITIVE")

	samples, err := filepath.Glob(filepath.Join(dir, "rel/0001/*.json"))
	if err != nil || len(samples) == 0 {
		t.Fatal(samples, err)
	}
	for _, damage := range []func() error{
		func() error { return os.Remove(samples[0]) },
		func() error { return os.WriteFile(samples[0], []byte("{}\n"), 0o600) },
		func() error { return os.WriteFile(strings.TrimSuffix(samples[0], ".json")+".binpb", nil, 0o600) },
		func() error { return os.Remove(filepath.Join(dir, "rel/0003.binpb")) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		expect(Findings, "released and ", "ci", "--released", "rel")
		git(t, dir, "checkout", "-q", "--", "rel")
	}
	// A commit that changes a release is found in the history.
	if err := os.Remove(samples[0]); err != nil {
		t.Fatal(err)
	}
	commit()
	expect(Findings, "released and removed", "ci", "--released", "rel")
	if err := os.Remove(filepath.Join(dir, "rel/0002.binpb")); err != nil {
		t.Fatal(err)
	}
	expect(Failed, "0002.binpb is missing", "ci", "--released", "rel")
}
