package sample_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/schemacheck/compat/fixture"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
	"github.com/parley-chat/parley/schemacheck/differential/sample"
)

func message(t testing.TB, fields string) protoreflect.MessageDescriptor {
	t.Helper()
	files, err := fixture.Compile(map[string]string{"e.proto": `syntax = "proto3";
package t.v1;
import "buf/validate/validate.proto";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind {
  KIND_UNSPECIFIED = 0;
  KIND_A = 1;
}
message Part {
  string name = 1 [(buf.validate.field).string.min_len = 2];
  E whole = 2;
}
message E {
` + fields + "\n}\n"})
	if err != nil {
		t.Fatal(err)
	}
	return files[0].Messages().ByName("E")
}

// reader is another schema with one message, of which no field is known to be the same.
type reader struct {
	of protoreflect.MessageDescriptor
}

func (r reader) Message(protoreflect.FullName) protoreflect.MessageDescriptor { return r.of }
func (reader) Same(protoreflect.FieldDescriptor) bool                         { return false }

func validator(t testing.TB, of protoreflect.MessageDescriptor) protovalidate.Validator {
	t.Helper()
	v, err := sample.Validator(schema.New([]protoreflect.FileDescriptor{of.ParentFile()}))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func generator(t testing.TB, of, other protoreflect.MessageDescriptor) *sample.Generator {
	t.Helper()
	return sample.New(validator(t, of), reader{other}, 1)
}

func samples(t testing.TB, m protoreflect.MessageDescriptor) []protoreflect.Message {
	t.Helper()
	g := generator(t, m, nil)
	list, err := g.Messages(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Every sample passes the rules, can be written in both forms, and the same schema
// gives the same samples.
func TestSamplesAreValid(t *testing.T) {
	m := message(t, `
  string id = 1 [(buf.validate.field).string = {min_len: 1 max_len: 64}];
  optional string note = 2 [(buf.validate.field).string.max_bytes = 70000];
  int32 n = 3 [(buf.validate.field).int32 = {gte: -5 lt: 5}];
  repeated string tags = 4 [(buf.validate.field).repeated = {min_items: 1 max_items: 1000 unique: true items: {string: {max_len: 8}}}];
  map<string, Kind> kinds = 5 [(buf.validate.field).map = {max_pairs: 7 keys: {string: {min_len: 2}} values: {enum: {defined_only: true}}}];
  Part part = 6 [(buf.validate.field).required = true];
  oneof choice {
    option (buf.validate.oneof).required = true;
    bytes raw = 7 [(buf.validate.field).bytes.len = 16];
    double x = 8 [(buf.validate.field).double = {gt: 0 finite: true}];
  }
  google.protobuf.Timestamp at = 9 [(buf.validate.field).timestamp.lt_now = true];
  google.protobuf.Duration long = 10 [(buf.validate.field).duration = {gt: {seconds: 1}}];
  google.protobuf.Any any = 11;
  google.protobuf.Struct struct = 12;
  google.protobuf.Value value = 13;
  google.protobuf.FieldMask mask = 14;
  google.protobuf.StringValue wrapped = 15 [(buf.validate.field).string.min_len = 3];
  string slug = 16 [(buf.validate.field).string.pattern = "^[a-z]{3,5}(-[0-9]+)?$"];
  option (buf.validate.message).cel = {id: "n", expression: "this.n < 4"};`)
	list, again := samples(t, m), samples(t, m)
	if len(list) < 100 || len(list) != len(again) {
		t.Fatalf("%d samples, then %d", len(list), len(again))
	}
	v := validator(t, m)
	set := map[string]int{}
	for i, s := range list {
		if err := v.Validate(s.Interface()); err != nil {
			t.Errorf("sample %d: %v", i, err)
		}
		if _, err := proto.Marshal(s.Interface()); err != nil {
			t.Errorf("sample %d: %v", i, err)
		}
		if _, err := protojson.Marshal(s.Interface()); err != nil {
			t.Errorf("sample %d: %v", i, err)
		}
		if !proto.Equal(s.Interface(), again[i].Interface()) {
			t.Errorf("sample %d is another one the second time", i)
		}
		for f := range s.Range {
			set[string(f.Name())]++
		}
	}
	for i := range m.Fields().Len() {
		if name := string(m.Fields().Get(i).Name()); set[name] == 0 {
			t.Errorf("no sample sets %s", name)
		}
	}
}

// The limits of rules are among the samples, of both schemas.
func TestBoundaries(t *testing.T) {
	for _, c := range []struct{ rules, field string }{
		{"int64 f = 1 [(buf.validate.field).int64 = {gt: 10 lt: 20}];", "11 19"},
		{"int64 f = 1;", "0 9223372036854775807 -9223372036854775808 -1"},
		{"uint32 f = 1 [(buf.validate.field).uint32.lte = 7];", "0 7"},
		{"Kind f = 1;", "0 1 1000004"},
		{"Kind f = 1 [(buf.validate.field).enum.defined_only = true];", "0 1"},
		{"bool f = 1;", "true false"},
	} {
		m := message(t, "string id = 2;\n"+c.rules)
		seen := map[string]bool{}
		for _, s := range samples(t, m) {
			seen[fmt.Sprint(s.Get(m.Fields().ByName("f")).Interface())] = true
		}
		for _, want := range strings.Fields(c.field) {
			if !seen[want] {
				t.Errorf("%s: no %s in %v", c.rules, want, seen)
			}
		}
	}
	m := message(t, "string f = 1 [(buf.validate.field).string.max_len = 40];")
	other := message(t, "string f = 1 [(buf.validate.field).string.max_len = 20];")
	g := generator(t, m, other)
	list, err := g.Messages(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	lengths := map[int]bool{}
	for _, s := range list {
		lengths[len([]rune(s.Get(m.Fields().ByName("f")).String()))] = true
	}
	for _, want := range []int{0, 20, 21, 39, 40} {
		if !lengths[want] || lengths[41] {
			t.Errorf("lengths %v, want %d", lengths, want)
		}
	}
}

// Texts of each well-known format pass the format's rule.
func TestFormats(t *testing.T) {
	validate := message(t, "string f = 1 [(buf.validate.field).string.email = true];").ParentFile().Imports().Get(0)
	rules := validate.Messages().ByName("StringRules")
	formats := rules.Oneofs().ByName("well_known").Fields()
	if formats.Len() < 20 {
		t.Fatalf("%d formats", formats.Len())
	}
	for i := range formats.Len() {
		value := "true"
		if formats.Get(i).Enum() != nil {
			value = "KNOWN_REGEX_HTTP_HEADER_NAME"
		}
		m := message(t, fmt.Sprintf("string f = 1 [(buf.validate.field).string.%s = %s];", formats.Get(i).Name(), value))
		if s := samples(t, m)[0].Get(m.Fields().ByName("f")).String(); s == "" {
			t.Errorf("no text of format %s", formats.Get(i).Name())
		}
	}
}

// Texts that match patterns, without any other hint.
func TestPatterns(t *testing.T) {
	for _, pattern := range []string{
		"^[a-z]+$", "^(a|bc)d?$", "^[0-9A-HJKMNP-TV-Z]{26}$", "^chat_[0-9A-Z]{26}$", `^\d{4}-\d{2}-\d{2}$`, "^[^a]$",
		`^\p{L}{2}$`, "x",
	} {
		m := message(t, fmt.Sprintf("string f = 1 [(buf.validate.field).string.pattern = %q];", pattern))
		if s := samples(t, m)[0].Get(m.Fields().ByName("f")).String(); s == "" {
			t.Errorf("no text for %s", pattern)
		}
	}
}

// Rules that nothing passes are said to be so.
func TestNoSample(t *testing.T) {
	m := message(t, `string f = 1 [(buf.validate.field).string = {min_len: 5 max_len: 3}];`)
	g := generator(t, m, nil)
	if list, err := g.Messages(t.Context(), m); !errors.Is(err, sample.ErrNone) {
		t.Errorf("%d samples, %v", len(list), err)
	}
}

// Rules of an imported file hold, wherever protovalidate's own file lies; a schema without rules lets all pass.
func TestValidatorOfImports(t *testing.T) {
	own, err := os.ReadFile("../../../proto/third_party/buf/validate/validate.proto")
	if err != nil {
		t.Fatal(err)
	}
	const syntax = "syntax = \"proto3\";\npackage t.v1;\n"
	for name, c := range map[string]struct {
		files map[string]string
		valid bool
	}{
		"in the import": {map[string]string{
			"e.proto": syntax + "import \"part.proto\";\nmessage E {\n  Part part = 1;\n}\n",
			"part.proto": syntax + "import \"vendored/rules.proto\";\nmessage Part {\n" +
				"  string name = 1 [(buf.validate.field).string.min_len = 2];\n}\n",
			"vendored/rules.proto": string(own),
		}, false},
		"none": {map[string]string{
			"e.proto":    syntax + "import \"part.proto\";\nmessage E {\n  Part part = 1;\n}\n",
			"part.proto": syntax + "message Part {\n  string name = 1;\n}\n",
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := fixture.Compile(c.files)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(files, func(f protoreflect.FileDescriptor) bool { return f.Path() == "e.proto" })
			m := files[at].Messages().ByName("E")
			e := dynamicpb.NewMessage(m)
			part := e.Mutable(m.Fields().ByName("part")).Message()
			part.Set(part.Descriptor().Fields().ByName("name"), protoreflect.ValueOfString("x"))
			if err := validator(t, m).Validate(e); (err == nil) != c.valid {
				t.Errorf("%v, expected it to be valid: %t", err, c.valid)
			}
		})
	}
}
