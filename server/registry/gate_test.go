package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

const validated = "syntax = \"proto3\";\npackage t;\nimport \"buf/validate/validate.proto\";\n"

// What the command line blocks, the registry refuses too, by asking and by registering.
func TestVerdictsOfTheGate(t *testing.T) {
	racetest.SkipSerial(t)
	plainFile := func(body string) string { return "syntax = \"proto3\";\npackage t;\n" + body }
	for name, tt := range map[string]struct {
		before, after string
		refused       []string // levels
		allowed       []string
	}{
		"a oneof becomes required": {
			validated + "message A { string a = 1; oneof o { string b = 2; string c = 3; } }",
			validated + "message A { string a = 1; oneof o { option (buf.validate.oneof).required = true; string b = 2; string c = 3; } }",
			[]string{Backward, Full, FullTransitive, BackwardTransitive}, []string{None},
		},
		"a required oneof is removed": {
			validated + "message A { string a = 1; oneof o { option (buf.validate.oneof).required = true; string b = 2; string c = 3; } }",
			validated + "message A { reserved 2, 3; reserved \"b\", \"c\"; string a = 1; }",
			[]string{Forward, Full, FullTransitive, ForwardTransitive}, []string{None},
		},
		"a number gets another name and type": {
			plainFile("message A { string user_name = 1; }"),
			plainFile("message A { int32 userName = 1; }"),
			[]string{Backward, Forward, Full, BackwardTransitive, ForwardTransitive, FullTransitive}, []string{None},
		},
		"a JSON name is another field's name": {
			plainFile("message A { string a = 1; string b = 2; }"),
			plainFile("message A { string a = 1 [json_name = \"b\"]; string b = 2 [json_name = \"c\"]; }"),
			[]string{Backward, Forward, Full}, []string{None},
		},
		"two oneofs are merged": {
			plainFile("message A { oneof x { string a = 1; } oneof y { string b = 2; } }"),
			plainFile("message A { oneof x { string a = 1; string b = 2; } }"),
			[]string{Backward, Full, FullTransitive}, []string{None},
		},
		"an optional field is added": {
			plainFile("message A { string a = 1; }"),
			plainFile("message A { string a = 1; optional string b = 2; }"),
			nil, []string{None, Backward, Forward, Full, BackwardTransitive, ForwardTransitive, FullTransitive},
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := New(storetest.NewMemory(time.Now))
			verdict := func(level string) bool {
				t.Helper()
				r.mustRegister(t, level, Schema{Text: tt.before}, RegisterOptions{})
				if err := r.SetLevel(t.Context(), level, level); err != nil {
					t.Fatal(err)
				}
				ok, _, err := r.Compatible(t.Context(), level, Latest, Schema{Text: tt.after}, false)
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.Register(t.Context(), level, Schema{Text: tt.after}, RegisterOptions{})
				var e *Error
				if err != nil && (!errors.As(err, &e) || e.Code != 409) {
					t.Fatal(err)
				}
				if ok != (err == nil) {
					t.Errorf("%s: asked %t, registered: %v", level, ok, err)
				}
				return ok
			}
			for _, level := range tt.refused {
				if verdict(level) {
					t.Errorf("%s lets it pass", level)
				}
			}
			for _, level := range tt.allowed {
				if !verdict(level) {
					t.Errorf("%s refuses it", level)
				}
			}
		})
	}
}

// Ladders of imports, where each rung imports both files of the rung below, are resolved
// by reading each file once, public or not; ways through them double with each rung.
func TestDiamonds(t *testing.T) {
	const rungs = 30
	for name, public := range map[string]string{"plain": "", "public": "public "} {
		t.Run(name, func(t *testing.T) {
			counted := &gets{Store: storetest.NewMemory(time.Now), n: map[string]int{}}
			r := New(counted)
			text, refs := "", []Reference(nil)
			for rung := range rungs {
				text, refs = rungOf(rung, public)
				for side := range 2 {
					s := Schema{Text: text + fmt.Sprintf("message M%d_%d { %s }\n", rung, side, fieldsOf(rung)), References: refs}
					r.mustRegister(t, fmt.Sprintf("l%d_%d.proto", rung, side), s, RegisterOptions{})
				}
			}
			clear(counted.n)
			// A second version: both are compiled, normalised, printed and compared.
			s := Schema{Text: text + fmt.Sprintf("message M%d_0 { %s optional string more = 9; }\n", rungs-1, fieldsOf(rungs-1)),
				References: refs}
			v := r.mustRegister(t, fmt.Sprintf("l%d_0.proto", rungs-1), s, RegisterOptions{Normalize: true})
			if v.Version != 2 {
				t.Errorf("%+v", v)
			}
			for key, n := range counted.n {
				if strings.Contains(key, "/l0_") && n > 2 { // for the new schema and for the one before
					t.Errorf("%s was read %d times", key, n)
				}
			}
			if len(counted.n) < rungs {
				t.Errorf("%d keys were read", len(counted.n))
			}
		})
	}
}

func rungOf(rung int, public string) (text string, refs []Reference) {
	text = "syntax = \"proto3\";\npackage t;\n"
	for side := range 2 {
		if rung > 0 {
			name := fmt.Sprintf("l%d_%d.proto", rung-1, side)
			text += fmt.Sprintf("import %s%q;\n", public, name)
			refs = append(refs, Reference{Name: name, Subject: name, Version: 1})
		}
	}
	return text, refs
}

// fieldsOf uses what a file imports, and through public imports the lowest rung.
func fieldsOf(rung int) string {
	if rung == 0 {
		return "string s = 1;"
	}
	return fmt.Sprintf("M%d_0 a = 1; M%d_1 b = 2;", rung-1, rung-1)
}

// gets counts reads by key.
type gets struct {
	store.Store
	n map[string]int
}

func (g *gets) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	g.n[key.String()]++
	return g.Store.Get(ctx, key, c)
}

// What is nested deeper than compilers go is refused before one is called.
func TestNesting(t *testing.T) {
	r := New(storetest.NewMemory(time.Now))
	const levels = 20_000
	nested := func(before, open, end, after string) string {
		return before + strings.Repeat(open, levels) + strings.Repeat(end, levels) + after
	}
	d := []byte{}
	for range 15_000 { // nested_type = 3, from the inside
		d = append(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), d), 0x0a, 0x01, 'A')
		if len(d) > 380_000 {
			break
		}
	}
	file := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), d)
	for name, text := range map[string]string{
		"messages":    nested("syntax = \"proto3\"; ", "message A{", "}", ""),
		"aggregates":  nested("syntax = \"proto3\"; option (o) = ", "{a:", "}", ";"),
		"lists":       nested("syntax = \"proto3\"; option (o) = {a:", "[", "]", "};"),
		"angles":      nested("syntax = \"proto3\"; option (o) = {a", "<a", ">", "};"),
		"descriptors": base64.StdEncoding.EncodeToString(file),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // a compiler that was called would say so
		_, err := r.Register(ctx, "s", Schema{Text: text}, RegisterOptions{})
		refusal(t, err, 42201, "nested deeper than 100 levels")
		_ = name
	}
	// Brackets in comments and strings are none.
	flat := "syntax = \"proto3\";\n// " + strings.Repeat("{", 200) + "\n/* " + strings.Repeat("[\n", 200) +
		"*/ message A { string s = 1 [json_name = \"" + strings.Repeat("(", 200) + "\"]; }\n"
	r.mustRegister(t, "flat", Schema{Text: flat}, RegisterOptions{})
}
