package command

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/internal/report"
)

const root = "../../.."

// orders is a schema with validation, well-known types and an enum, without any
// option that declares an event.
const orders = `syntax = "proto3";
package shop.v1;
import "buf/validate/validate.proto";
import "google/protobuf/timestamp.proto";
import "shop/v1/kind.proto";
message OrderPlaced {
  string order_id = 1 [(buf.validate.field).string = {min_len: 1, max_len: 64}];
  google.protobuf.Timestamp placed_at = 2;
  Kind kind = 3;
  optional string note = 4;
}
`

const kinds = `syntax = "proto3";
package shop.v1;
import "google/api/field_behavior.proto";
import "google/rpc/status.proto";
enum Kind {
  KIND_UNSPECIFIED = 0;
  KIND_GIFT = 1;
}
message Unused {
  google.rpc.Status status = 1 [(google.api.field_behavior) = OPTIONAL];
}
`

func write(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func shop(change ...string) map[string]string {
	return map[string]string{"shop/v1/order.proto": strings.NewReplacer(change...).Replace(orders),
		"shop/v1/kind.proto": kinds}
}

type outcome struct {
	code     int
	out, err string
}

func run(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	var out, msg bytes.Buffer
	code := Run(t.Context(), args, Env{Dir: dir, Stdout: &out, Stderr: &msg, Getenv: func(string) string { return "" }})
	return outcome{code, out.String(), msg.String()}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c",
		"commit.gpgsign=false"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

// Exit codes are part of the contract: 0 compatible, 1 failed, 2 findings, and what
// failed is said in one line.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	base := write(t, t.TempDir(), shop())
	same := write(t, t.TempDir(), shop())
	added := write(t, t.TempDir(),
		shop("optional string note = 4;", "optional string note = 4; optional string gift = 5;"))
	renamed := write(t, t.TempDir(), shop("string order_id", "string id"))
	warned := write(t, t.TempDir(), shop("optional string note", "string note"))
	broken := write(t, t.TempDir(), shop("string order_id", "strin order_id"))
	for name, tt := range map[string]struct {
		args []string
		code int
		says string // in the output, or in the one line on stderr
	}{
		"same":          {[]string{"--base", base, "--head", same}, Clean, "compatible: 0 blocks"},
		"check by name": {[]string{"check", "--base", base, "--head", same}, Clean, "compatible"},
		"added":         {[]string{"--base", base, "--head", added}, Clean, "compatible"},
		"renamed":       {[]string{"--base", base, "--head", renamed}, Findings, "block FIELD_RENAMED (N01)"},
		"renamed, event": {[]string{"--base", base, "--head", renamed, "--scope", "event"}, Findings,
			"block FIELD_RENAMED (N01)"},
		"warning": {[]string{"--base", base, "--head", warned, "--scope", "event"}, Clean,
			"warn PRESENCE_TO_IMPLICIT (P02)"},
		"warning, strict": {[]string{"--base", base, "--head", warned, "--scope", "event", "--strict"}, Findings,
			"warn PRESENCE_TO_IMPLICIT (P02)"},
		"excluded": {[]string{"--base", base, "--head", renamed, "--exclude", "shop"}, Failed,
			"nothing to judge: --scope all finds no file"},
		"no base":         {nil, Failed, "--base is missing"},
		"no such ref":     {[]string{"--base", "nowhere"}, Failed, "nowhere is no directory, image or git ref"},
		"ref as a flag":   {[]string{"--base", "git:--output=x"}, Failed, "no git ref"},
		"no such flag":    {[]string{"--bass", base}, Failed, "flag provided but not defined: -bass"},
		"stray argument":  {[]string{"--base", base, "more"}, Failed, `unexpected argument "more"`},
		"no such command": {[]string{"chekc"}, Failed, `no command "chekc"`},
		"no such policy":  {[]string{"--base", base, "--policy", "SOME"}, Failed, "FULL_TRANSITIVE"},
		"no such scope":   {[]string{"--base", base, "--scope", "rpc"}, Failed, `no scope "rpc"`},
		"no such format":  {[]string{"--base", base, "--format", "xml"}, Failed, `no format "xml"`},
		"does not compile": {
			[]string{"--base", base, "--head", broken},
			Failed, "shop/v1/order.proto:7:3: ",
		},
		"empty directory": {[]string{"--base", t.TempDir()}, Failed, "no .proto file and no image"},
		"no image": {[]string{"--base", "image:" + filepath.Join(base, "shop/v1/kind.proto")}, Failed,
			"neither a buf image nor a FileDescriptorSet"},
		"no registry":        {[]string{"--base", "registry"}, Failed, "SCHEMA_REGISTRY_URL"},
		"registry, no verb":  {[]string{"registry"}, Failed, "check, register or verify"},
		"registry, no URL":   {[]string{"registry", "check", "--registry", "localhost"}, Failed, "must be a URL"},
		"nothing released":   {[]string{"ci"}, Failed, "schemacheck release makes it"},
		"help":               {[]string{"help"}, Clean, "Exit code"},
		"help by flag":       {[]string{"--help"}, Clean, "Exit code"},
		"help about events":  {[]string{"help", "events"}, Clean, "Break an event"},
		"help about nothing": {[]string{"help", "nothing"}, Failed, "no help about"},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, same, tt.args...)
			if got.code != tt.code || !strings.Contains(got.out+got.err, tt.says) {
				t.Errorf("exit %d, want %d and %q:\n%s%s", got.code, tt.code, tt.says, got.out, got.err)
			}
			if lines := strings.Count(got.err, "\n"); (got.code == Failed) != (lines > 0) || lines > 2 {
				t.Errorf("%d lines on stderr: %q", lines, got.err)
			}
		})
	}
}

// A base is read from git's objects: neither the work tree nor the index changes,
// and what is not committed is head's. A folder compares with itself, K-157.
func TestGitBase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	write(t, filepath.Join(dir, "sub"), shop())
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "one")
	git(t, dir, "tag", "v1")
	write(t, filepath.Join(dir, "sub"), shop("string order_id = 1", "int64 order_id = 1"))
	before := git(t, dir, "status", "--porcelain")
	for _, from := range []string{dir, filepath.Join(dir, "sub")} {
		got := run(t, from, "--base", "v1")
		if got.code != Findings || !strings.Contains(got.out,
			"sub/shop/v1/order.proto:7:3: block SCALAR_TYPE_CHANGED (T16)") || !strings.Contains(got.out, "against v1 (") {
			t.Errorf("from %s: exit %d\n%s%s", from, got.code, got.out, got.err)
		}
	}
	if got := run(t, t.TempDir(), "--base", "v1", "--head", filepath.Join(dir, "sub")); got.code != Findings {
		t.Errorf("from elsewhere: exit %d\n%s%s", got.code, got.out, got.err)
	}
	if got := run(t, dir, "--base", "main", "--head", "git:v1"); got.code != Clean {
		t.Errorf("ref against ref: exit %d\n%s%s", got.code, got.out, got.err)
	}
	if after := git(t, dir, "status", "--porcelain"); after != before {
		t.Errorf("status was %q and is %q", before, after)
	}
}

// Any protobuf repository is understood, whatever its layout.
func TestLayouts(t *testing.T) {
	t.Parallel()
	in := func(folder string, files map[string]string, more ...string) map[string]string {
		out := map[string]string{}
		for name, text := range files {
			out[filepath.Join(folder, name)] = text
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	alone := map[string]string{"a.proto": "syntax = \"proto3\";\nmessage A { string order_id = 1; }\n"}
	noise := []string{".hidden/x.proto", "not protobuf", "node_modules/x.proto", "not protobuf", "README.md", "text"}
	for name, files := range map[string]map[string]string{
		"plain":             shop(),
		"below a folder":    in("proto", shop(), noise...),
		"no package":        alone,
		"below, no package": in("schemas", alone),
		"buf.yaml v1":       in("", shop(), "buf.yaml", "version: v1\n"),
		"buf.yaml v1 deeper": in("api", shop(), "api/buf.yaml", "version: v1\nbuild:\n  excludes: [bad]\n",
			"api/bad/x.proto", "bad"),
		"buf.yaml v1beta1": in("p", shop(), "buf.yaml", "version: v1beta1\nbuild:\n  roots: [p]\n"),
		"buf.yaml v2": in("a", shop(), "buf.yaml", "version: v2\nmodules:\n  - path: a\n    excludes: [a/bad]\n",
			"a/bad/x.proto", "bad", "other/x.proto", "bad"),
		"buf.yaml v2, bare": in("", shop(), "buf.yaml", "version: v2\n"),
		"buf.work.yaml": in("a", shop(), "buf.work.yaml", "version: v1\ndirectories: [a, b]\n", "a/buf.yaml",
			"version: v1\n", "b/x/b.proto",
			"syntax = \"proto3\"; package x; import \"shop/v1/kind.proto\"; message B { shop.v1.Kind k = 1; }"),
		"vendored validation": in("", shop(), "google/rpc/status.proto",
			"syntax = \"proto3\"; package google.rpc; message Status { int32 code = 1; string message = 2; }"),
	} {
		t.Run(name, func(t *testing.T) {
			base := write(t, t.TempDir(), files)
			if got := run(t, base, "--base", base); got.code != Clean {
				t.Fatalf("same: exit %d\n%s%s", got.code, got.out, got.err)
			}
			changed := map[string]string{}
			for p, text := range files {
				changed[p] = strings.ReplaceAll(text, "string order_id", "bool order_id")
			}
			if got := run(t, write(t, t.TempDir(), changed), "--base", base); got.code != Findings ||
				!strings.Contains(got.out, "order_id") {
				t.Errorf("changed: exit %d\n%s%s", got.code, got.out, got.err)
			}
		})
	}
	for name, tt := range map[string]struct {
		files map[string]string
		says  string
	}{
		"import is missing": {map[string]string{"a.proto": "syntax = \"proto3\";\nimport \"nowhere/x.proto\";"},
			`a.proto:2:8: "nowhere/x.proto" is neither given nor built in`},
		"leaves the tree": {in("", shop(), "buf.yaml", "version: v2\nmodules: [{path: ../x}]\n"), "leaves the repository"},
		"no YAML":         {in("", shop(), "buf.yaml", "version: [\n"), "buf.yaml"},
		"imported twice": {map[string]string{"buf.yaml": "version: v2\nmodules: [{path: a}, {path: b}]\n",
			"a/x.proto": "syntax = \"proto3\";", "b/x.proto": "syntax = \"proto3\"; package b;"},
			`are both imported as "x.proto"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, t.TempDir(), tt.files)
			if got := run(t, dir, "--base", dir); got.code != Failed || !strings.Contains(got.err, tt.says) {
				t.Errorf("exit %d: %s", got.code, got.err)
			}
		})
	}
}

// An image stands for a tree; files that it marks as imports are not judged.
func TestImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("a.proto"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/timestamp.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("A"), Field: []*descriptorpb.FieldDescriptorProto{{
			Name: proto.String("at"), Number: proto.Int32(1), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".google.protobuf.Timestamp"),
		}}}},
	}
	write := func(name string, set *descriptorpb.FileDescriptorSet) string {
		b, err := proto.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	base := write("base.binpb", &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{file}})
	whole := write("whole.binpb", &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(timestamppb.File_google_protobuf_timestamp_proto), file,
	}})
	changed := proto.CloneOf(file)
	changed.MessageType[0].Field[0].Name = proto.String("when")
	renamed := write("renamed.binpb", &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{changed}})
	imported := proto.CloneOf(changed)
	imported.ProtoReflect().SetUnknown([]byte{0xd2, 0xf6, 0x03, 2, 8, 1}) // buf's mark
	marked := write("marked.binpb", &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{imported}})
	lacking := proto.CloneOf(file)
	lacking.Dependency = append(lacking.Dependency, "b.proto")
	lost := write("lost.binpb", &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{lacking}})
	for _, tt := range []struct {
		base, head string
		code       int
		says       string
	}{
		{base, whole, Clean, "1 file of whole.binpb"},
		{base, renamed, Findings, "a.proto: block FIELD_RENAMED (N01)"},
		{marked, renamed, Clean, "compatible"},
		{base, lost, Failed, "b.proto"},
	} {
		if got := run(t, dir, "--base", tt.base, "--head", tt.head); got.code != tt.code ||
			!strings.Contains(got.out+got.err, tt.says) {
			t.Errorf("%s to %s: exit %d\n%s%s", tt.base, tt.head, got.code, got.out, got.err)
		}
	}
}

// Output is stable: JSON has what its schema names and nothing else, SARIF and
// annotations carry rule, location and way out, and equal input gives equal output.
func TestFormats(t *testing.T) {
	t.Parallel()
	base := write(t, t.TempDir(), shop())
	head := write(t, t.TempDir(), shop("string order_id", "string id", "  optional string note = 4;\n", ""))
	args := []string{"--base", base, "--format"}
	got := run(t, head, append(args, "json")...)
	var r report.Report
	d := json.NewDecoder(strings.NewReader(got.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || r.Version != 1 || r.Result != "findings" || r.Blocks < 2 || len(r.Findings) < 2 {
		t.Fatalf("%v: %s", err, got.out)
	}
	if again := run(t, head, append(args, "json")...); again.out != got.out {
		t.Error("a second run says something else")
	}
	inBase := map[string]bool{}
	lost, renamed := 0, 0
	for _, f := range r.Findings {
		inBase[f.Rule] = f.InBase
		switch {
		case strings.HasPrefix(f.Rule, "R0") && f.InBase && f.Line == 10 && f.Against == r.Base[0]:
			lost++
		case f.Rule == "N01" && !f.InBase && f.Line == 7 && f.File == "shop/v1/order.proto" && f.OldReadsNew &&
			f.NewReadsOld && f.Suggestion != "":
			renamed++
		}
	}
	if lost != 1 || renamed != 1 {
		t.Errorf("findings: %+v", r.Findings)
	}
	schemaAgrees(t, got.out)

	var log struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct{ Rules []struct{ ID string } }
			}
			Results []struct {
				RuleID    string
				RuleIndex int
				Level     string
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           *struct{ StartLine int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(run(t, head, append(args, "sarif")...).out), &log); err != nil ||
		log.Version != "2.1.0" || len(log.Runs) != 1 {
		t.Fatalf("%v, %+v", err, log)
	}
	results := log.Runs[0].Results
	if len(results) != len(r.Findings) {
		t.Errorf("%d results for %d findings", len(results), len(r.Findings))
	}
	for _, one := range results {
		position := one.Locations[0].PhysicalLocation
		if log.Runs[0].Tool.Driver.Rules[one.RuleIndex].ID != one.RuleID || position.ArtifactLocation.URI == "" ||
			one.Level != "error" ||
			(position.Region == nil) != inBase[one.RuleID] {
			t.Errorf("result %+v", one)
		}
	}

	out := run(t, head, append(args, "github")...).out
	if !strings.Contains(out, "::error file=shop/v1/order.proto,line=7,col=3,title=schemacheck FIELD_RENAMED (N01)%3A ") ||
		!strings.Contains(out, "%0A") {
		t.Errorf("annotations:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "::error ") && !strings.HasPrefix(line, "::notice ") &&
			!strings.HasPrefix(line, "not compatible: ") {
			t.Errorf("line %q", line)
		}
	}
}

// schemaAgrees holds the published JSON schema to the output: the same fields.
func schemaAgrees(t *testing.T, out string) {
	t.Helper()
	var s struct {
		Required   []string
		Properties map[string]struct {
			Items struct {
				Required   []string
				Properties map[string]any
			}
		}
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(report.Schema), &s); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	same := func(what string, required []string, known func(string) bool, fields map[string]any) {
		for name := range fields {
			if !known(name) {
				t.Errorf("%s: the schema does not know %s", what, name)
			}
		}
		for _, name := range required {
			if _, ok := fields[name]; !ok {
				t.Errorf("%s: %s is missing", what, name)
			}
		}
		if len(required) != len(fields) {
			t.Errorf("%s: %d fields, %d in the schema", what, len(fields), len(required))
		}
	}
	same("report", s.Required, func(n string) bool { _, ok := s.Properties[n]; return ok }, got)
	items := s.Properties["findings"].Items
	for _, f := range got["findings"].([]any) {
		same("finding", items.Required, func(n string) bool { _, ok := items.Properties[n]; return ok }, f.(map[string]any))
	}
}

// The list has every rule with its reason, in both forms.
func TestRules(t *testing.T) {
	t.Parallel()
	text := run(t, t.TempDir(), "rules").out
	var listed struct {
		Version int
		Rules   []struct{ Rule, RuleID, Why, Title string }
	}
	if err := json.Unmarshal([]byte(run(t, t.TempDir(), "rules", "--format", "json").out), &listed); err != nil ||
		listed.Version != 1 {
		t.Fatal(err)
	}
	for i, r := range compat.Rules() {
		if listed.Rules[i].Rule != r.Code || listed.Rules[i].RuleID != string(r.ID) || listed.Rules[i].Why == "" ||
			listed.Rules[i].Title == "" || !strings.Contains(text, r.Why) {
			t.Errorf("rule %s: %+v", r.ID, listed.Rules[i])
		}
	}
}

// The policy decides which direction counts, K-150.
func TestPolicies(t *testing.T) {
	t.Parallel()
	base := write(t, t.TempDir(), shop("optional string note = 4;", "oneof a { string b = 5; }"))
	head := write(t, t.TempDir(), shop("optional string note = 4;", "oneof a { string b = 5; string c = 6; }"))
	for policy, code := range map[string]int{"FULL": Findings, "full_transitive": Findings, "FORWARD": Findings,
		"BACKWARD": Clean} {
		if got := run(t, head, "--base", base, "--policy", policy); got.code != code {
			t.Errorf("%s: exit %d\n%s%s", policy, got.code, got.out, got.err)
		}
	}
}
