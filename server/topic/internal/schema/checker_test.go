package schema

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parley-chat/parley/server/registry/source"
)

// compiled compiles a schema's text as the registry does.
func compiled(t testing.TB, text, message string) *checker {
	t.Helper()
	file, err := source.Build(context.Background(), text, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newChecker(file.Descriptor, message)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const plainText = `syntax = "proto3";
package t.v1;
import "google/protobuf/timestamp.proto";
message Order {
  string id = 1;
  int64 amount = 2;
  repeated int32 parts = 3;
  repeated string tags = 4;
  map<string, Line> lines = 5;
  Line first = 6;
  oneof how { string card = 7; Line cash = 8; }
  fixed32 f32 = 9;
  sfixed64 f64 = 10;
  double d = 11;
  bool b = 12;
  bytes raw = 13;
  Kind kind = 14;
  repeated Kind kinds = 15;
  google.protobuf.Timestamp at = 16;
  repeated double ds = 17;
  Order parent = 18;
}
message Line { string text = 1; sint32 n = 2; }
enum Kind { KIND_UNSPECIFIED = 0; KIND_A = 1; }
message Other { int32 id = 1; }
`

const oldText = `syntax = "proto2";
package t.v1;
message Order {
  required string id = 1;
  optional Inner inner = 2;
  optional group Extra = 3 { optional string text = 1; }
  optional Kind kind = 4;
  repeated Kind kinds = 5 [packed = true];
  extensions 100 to 199;
}
message Inner { required int32 n = 1; }
enum Kind { A = 1; B = 2; }
extend Order { optional Inner more = 100; optional string word = 101; }
`

const anyText = `syntax = "proto3";
package t.v1;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
message Order { google.protobuf.Any what = 1; }
message Line { int32 n = 1; google.protobuf.Duration d = 2; }
`

const ruledText = `syntax = "proto3";
package t.v1;
import "buf/validate/validate.proto";
message Order {
  string id = 1 [(buf.validate.field).string.min_len = 3];
  Line line = 2;
  option (buf.validate.message).cel = {
    id: "pair" message: "a line needs a long id" expression: "!has(this.line) || size(this.id) > 4"
  };
}
message Line { int32 n = 1 [(buf.validate.field).int32 = {gte: 0, lte: 9}]; }
`

// wire puts fields of Protobuf's encoding together: numbers with what follows them.
func field(n protowire.Number, content any) []byte {
	switch v := content.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), uint64(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), v)
	case []byte:
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), v)
	}
	panic("no such content")
}

// check is what a topic of the encoding says of a payload.
func check(c *checker, payload []byte, json bool) error {
	if !json {
		if err := c.read(payload); err != nil || !c.parses {
			return err
		}
	}
	return c.parse(payload, json)
}

// Each mistake in a payload is refused with its path, in both encodings, and the same payload
// without it is not.
func TestMistakes(t *testing.T) {
	nested := func(depth int) []byte {
		var b []byte
		for range depth {
			b = field(18, b)
		}
		return b
	}
	for name, tt := range map[string]struct {
		text    string
		payload []byte // in JSON if the name begins so
		wrong   string // "" if it is as the schema says
	}{
		"empty":              {plainText, nil, ""},
		"text":               {plainText, field(1, "x"), ""},
		"of another message": {plainText, field(1, 5), "t.v1.Order.id is not written as a string"},
		"truncated":          {plainText, field(1, "hello")[:4], "unexpected EOF"},
		"truncated tag":      {plainText, []byte{0x80}, "unexpected EOF"},
		"truncated number":   {plainText, []byte{0x10, 0x80}, "t.v1.Order.amount cannot be read"},
		"of 10 MB, it says": {
			plainText, append(protowire.AppendVarint(field(1, "")[:1], 10<<20), "xyz"...),
			"unexpected EOF",
		},
		"more than there can be": {
			plainText, append(protowire.AppendVarint(field(1, "")[:1], 1<<63), "xyz"...),
			"unexpected EOF",
		},
		"truncated within": {
			plainText, field(6, field(1, "hello")[:4]),
			"t.v1.Line.text cannot be read",
		},
		"no protobuf":          {plainText, []byte("hello, world"), "t.v1.Order"},
		"unknown field":        {plainText, field(99, 1), "t.v1.Order has no field 99"},
		"unknown field within": {plainText, field(6, field(99, 1)), "t.v1.Line has no field 99"},
		"unknown field in a map": {
			plainText, field(5, field(2, field(3, 1))),
			"t.v1.Line has no field 3",
		},
		"unknown field in an entry": {plainText, field(5, field(3, 1)), "has no field 3"},
		"unknown field far down":    {plainText, field(18, field(18, field(99, 1))), "has no field 99"},
		"not UTF-8":                 {plainText, field(1, "a\xff"), "t.v1.Order.id is not valid UTF-8"},
		"not UTF-8 in a list": {
			plainText, slices.Concat(field(4, "a"), field(4, "\xff")),
			"not valid UTF-8",
		},
		"not UTF-8 as a key":  {plainText, field(5, field(1, "\xff")), "not valid UTF-8"},
		"bytes need no UTF-8": {plainText, field(13, "\xff"), ""},
		"packed":              {plainText, field(3, []byte{1, 2, 3}), ""},
		"not packed":          {plainText, slices.Concat(field(3, 1), field(3, 2)), ""},
		"packed and truncated": {
			plainText, field(3, []byte{1, 0x80}),
			"t.v1.Order.parts cannot be read",
		},
		"packed where none is": {
			plainText, field(2, []byte{1}),
			"t.v1.Order.amount is not written as a int64",
		},
		"open enum":            {plainText, field(14, 77), ""},
		"deep":                 {plainText, nested(99), ""},
		"too deep":             {plainText, nested(100), "nested deeper than 100"},
		"end of no group":      {plainText, []byte{0x0c}, "t.v1.Order.id"},
		"field 0":              {plainText, []byte{0x00, 0x00}, "invalid field number"},
		"required":             {oldText, field(1, "x"), ""},
		"required and missing": {oldText, nil, "required field t.v1.Order.id not set"},
		"missing within":       {oldText, slices.Concat(field(1, "x"), field(2, "")), "t.v1.Inner.n"},
		"in two parts": {
			oldText, slices.Concat(field(1, "x"), field(2, ""), field(2, field(1, 1))),
			"",
		},
		"closed enum": {oldText, slices.Concat(field(1, "x"), field(4, 2)), ""},
		"beyond a closed enum": {
			oldText, slices.Concat(field(1, "x"), field(4, 3)),
			"t.v1.Kind has no value 3",
		},
		"beyond it, packed": {
			oldText, slices.Concat(field(1, "x"), field(5, []byte{1, 3})),
			"t.v1.Kind has no value 3",
		},
		"group": {oldText, slices.Concat(field(1, "x"), []byte{0x1b, 0x0a, 1, 'x', 0x1c}), ""},
		"unknown field in a group": {
			oldText, slices.Concat(field(1, "x"), []byte{0x1b, 0x10, 1, 0x1c}),
			"has no field 2",
		},
		"group without end": {
			oldText, slices.Concat(field(1, "x"), []byte{0x1b, 0x0a, 1, 'x'}),
			"cannot be read",
		},
		"extension": {oldText, slices.Concat(field(1, "x"), field(101, "x")), ""},
		"unknown extension": {
			oldText, slices.Concat(field(1, "x"), field(150, "x")),
			"has no field 150",
		},
		"extension, missing within": {
			oldText, slices.Concat(field(1, "x"), field(100, "")),
			"t.v1.Inner.n",
		},
		"by the rules":     {ruledText, slices.Concat(field(1, "abcde"), field(2, field(1, 9))), ""},
		"a rule is broken": {ruledText, field(1, "ab"), "id: must be at least 3 characters"},
		"a rule is broken within": {
			ruledText, slices.Concat(field(1, "abcde"), field(2, field(1, 10))),
			"line.n",
		},
		"a rule of two fields": {
			ruledText, slices.Concat(field(1, "abc"), field(2, "")),
			"a line needs a long id",
		},
		"JSON": {
			plainText, []byte(`{"id":"x","lines":{"a":{"n":-1}},"at":"2030-01-02T03:04:05Z"}`),
			"",
		},
		"JSON, empty object":         {plainText, []byte(`{}`), ""},
		"JSON, nothing":              {plainText, nil, "unexpected"},
		"JSON, of another":           {plainText, []byte(`{"id":5}`), "invalid value for string field id"},
		"JSON, truncated":            {plainText, []byte(`{"id":"x"`), "unexpected"},
		"JSON, two":                  {plainText, []byte(`{} {}`), "unexpected token"},
		"JSON, twice":                {plainText, []byte(`{"id":"x","id":"y"}`), "duplicate field"},
		"JSON, unknown field":        {plainText, []byte(`{"idd":"x"}`), `unknown field "idd"`},
		"JSON, unknown field within": {plainText, []byte(`{"first":{"x":1}}`), `unknown field "x"`},
		"JSON, not UTF-8":            {plainText, []byte("{\"id\":\"\xff\"}"), "UTF-8"},
		"JSON, a list":               {plainText, []byte(`[]`), "unexpected token"},
		"JSON, too large a number":   {plainText, []byte(`{"parts":[3000000000]}`), "invalid value"},
		"JSON, required":             {oldText, []byte(`{}`), "required field"},
		"JSON, closed enum":          {oldText, []byte(`{"id":"x","kind":3}`), "t.v1.Kind has no value 3"},
		"JSON, extension":            {oldText, []byte(`{"id":"x","[t.v1.word]":"y"}`), ""},
		"JSON, a rule is broken": {
			ruledText, []byte(`{"id":"ab"}`),
			"id: must be at least 3 characters",
		},
		"JSON, in Protobuf": {plainText, field(1, "x"), "invalid"},
		"JSON, any of the schema": {
			anyText, []byte(`{"what":{"@type":"type.googleapis.com/t.v1.Line","n":1}}`), "",
		},
		"JSON, any that is imported": {
			anyText, []byte(`{"what":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"3s"}}`), "",
		},
		"JSON, any of this program": {
			anyText, []byte(`{"what":{"@type":"type.googleapis.com/google.protobuf.Timestamp","value":"2030-01-02T03:04:05Z"}}`),
			"unable to resolve",
		},
		"JSON, any with an unknown field": {
			anyText, []byte(`{"what":{"@type":"type.googleapis.com/t.v1.Line","m":1}}`), "unknown field",
		},
		"JSON, deep": {
			plainText, []byte(strings.Repeat(`{"parent":`, 200) + "{}" + strings.Repeat("}", 200)),
			"recursion",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := compiled(t, tt.text, "")
			err := check(c, tt.payload, strings.HasPrefix(name, "JSON"))
			var m *mismatch
			switch {
			case tt.wrong == "" && err != nil:
				t.Errorf("%v, want none", err)
			case tt.wrong != "" && (!errors.As(err, &m) || !strings.Contains(err.Error(), tt.wrong)):
				t.Errorf("%v, want %q", err, tt.wrong)
			}
		})
	}
}

// A payload that is nearly as large as one can be, in the form that takes the most memory, is read
// without allocating.
func TestReadingAllocatesNothing(t *testing.T) {
	c := compiled(t, plainText, "")
	var b []byte
	for len(b) < 1<<20 {
		b = append(b, field(5, "")...)
	}
	if n := testing.AllocsPerRun(5, func() {
		if err := c.read(b); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// parsed reports whether Protobuf's own runtime parses a payload, without unknown fields. The runtime panics at an
// entry of a map with a key and, behind it, another one of a wrong type; such a payload must not be read either.
func parsed(c *checker, payload []byte) (ok bool) {
	m := dynamicpb.NewMessage(c.message)
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	err := proto.UnmarshalOptions{Resolver: c.types, AllowPartial: true, RecursionLimit: maxDepth}.Unmarshal(payload, m)
	return err == nil && !unknown(m)
}

func unknown(m protoreflect.Message) (is bool) {
	is = len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				is = is || unknown(v.Message())
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				is = is || unknown(v.List().Get(i).Message())
			}
		case f.Message() != nil && !f.IsMap():
			is = is || unknown(v.Message())
		}
		return !is
	})
	return is
}

// What is read is what Protobuf's runtime parses without unknown fields, whatever the bytes. The
// runtime also passes over what maps have beside keys and values, and over what a later value of a
// oneof replaces; so of what it lets pass only the payloads that it writes itself must be read.
func FuzzRead(f *testing.F) {
	c := compiled(f, plainText, "")
	for _, text := range []string{
		`{}`, `{"id":"x","amount":"5","parts":[1,2],"tags":["a","b"]}`,
		`{"lines":{"a":{"text":"x","n":-1}},"first":{"n":3},"card":"c","kind":"KIND_A","kinds":[1,77]}`,
		`{"at":"2030-01-02T03:04:05Z","ds":[1,2],"f32":1,"f64":"-1","raw":"/w==","parent":{"parent":{"b":true}}}`,
	} {
		m := dynamicpb.NewMessage(c.message)
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		read := c.read(payload) == nil
		fine := parsed(c, payload)
		if read && !fine {
			t.Errorf("%x is read, and the runtime does not parse it", payload)
		}
		if !fine {
			return
		}
		m := dynamicpb.NewMessage(c.message)
		if err := proto.Unmarshal(payload, m); err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.read(b); err != nil {
			t.Errorf("%x, which the runtime writes, is not read: %v", b, err)
		}
	})
}

// What a schema imports of this program's own is shared with it: Parley's events, registered with all
// that they import, and protovalidate built in.
func TestSharedImports(t *testing.T) {
	if n := (compiled(t, ruledText, "").size - ruledSize) / perRuledByte; n > 1000 {
		t.Errorf("a schema with rules has %d bytes of its own", n)
	}
	s, _ := schemas(t)
	events, err := s.registry.Events(t.Context())
	if err != nil || len(events) == 0 {
		t.Fatal(events, err)
	}
	for name, id := range events {
		c, err := s.load(t.Context(), key{id: int32(id)}, true)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := (c.size - ruledSize) / perRuledByte; c.rules == nil || n > 10_000 {
			t.Errorf("%s has %d bytes of its own, rules: %t", name, n, c.rules != nil)
		}
		var m *mismatch
		if err := check(c, nil, false); !errors.As(err, &m) { // its rules want more than nothing
			t.Errorf("%s: %v, want a mismatch", name, err)
		}
	}
}
