package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

func with(fields string) Schema {
	return Schema{Text: strings.Replace(small, "}", fields+" }", 1)}
}

func refusal(t *testing.T, err error, code int, text string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("%v, want code %d with %q", err, code, text)
	}
}

func (r *Registry) mustRegister(t *testing.T, subject string, s Schema, o RegisterOptions) Version {
	t.Helper()
	v, err := r.Register(t.Context(), subject, s, o)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A transitive level compares with every version, the others with the last: here the
// third version follows the second and excludes the first.
func TestTransitiveLevels(t *testing.T) {
	for level, fits := range map[string]bool{
		"BACKWARD": true, "FORWARD": true, "FULL": true,
		"BACKWARD_TRANSITIVE": false, "FORWARD_TRANSITIVE": false, "FULL_TRANSITIVE": false,
	} {
		r := New(dynamotest.Store(t, time.Now))
		ctx := t.Context()
		if err := r.SetLevel(ctx, "s", "NONE"); err != nil {
			t.Fatal(err)
		}
		r.mustRegister(t, "s", with(" optional string b = 2;"), RegisterOptions{})
		r.mustRegister(t, "s", with(""), RegisterOptions{})
		if err := r.SetLevel(ctx, "s", level); err != nil {
			t.Fatal(err)
		}
		third := with(" optional int64 b = 2;")
		if ok, why, err := r.Compatible(ctx, "s", 0, third, false); err != nil || ok != fits {
			t.Errorf("%s: compatible %t, %v, %v", level, ok, why, err)
		}
		_, err := r.Register(ctx, "s", third, RegisterOptions{})
		if fits && err != nil {
			t.Errorf("%s: %v", level, err)
		} else if !fits {
			refusal(t, err, 409, "version 1")
		}
	}
}

// between is a store that lets something happen just before a plan is written.
type between struct {
	store.Store
	before func()
}

func (b *between) Transact(ctx context.Context, p store.Plan) error {
	if f := b.before; f != nil {
		b.before = nil
		f()
	}
	return b.Store.Transact(ctx, p)
}

// A version is deleted while another schema that refers to it is registered: one of
// the two is refused, whichever comes second.
func TestReferenceBesideDeletion(t *testing.T) {
	referring := Schema{
		Text:       "syntax = \"proto3\";\npackage t;\nimport \"a.proto\";\nmessage B { A a = 1; }\n",
		References: []Reference{{Name: "a.proto", Subject: "a", Version: 1}},
	}
	for name, permanent := range map[string]bool{"softly": false, "for good": true} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			set := func() (st *between, slow, fast *Registry) {
				st = &between{Store: dynamotest.Store(t, time.Now)}
				slow, fast = New(st), New(st.Store)
				fast.mustRegister(t, "a", Schema{Text: small}, RegisterOptions{})
				return st, slow, fast
			}
			remove := func(r *Registry) (err error) {
				for _, good := range []bool{false, true} {
					if err == nil && (!good || permanent) {
						_, err = r.DeleteVersion(ctx, "a", 1, good)
					}
				}
				return err
			}
			st, slow, fast := set()
			st.before = func() {
				if err := remove(fast); err != nil {
					t.Error(err)
				}
			}
			_, err := slow.Register(ctx, "b", referring, RegisterOptions{})
			refusal(t, err, CodeSchema, "")

			st, slow, fast = set()
			st.before = func() { fast.mustRegister(t, "b", referring, RegisterOptions{}) }
			refusal(t, remove(slow), 42206, "")
			if _, err := fast.Version(ctx, "a", 1, false); err != nil {
				t.Errorf("the version that is referred to is gone: %v", err)
			}
		})
	}
}

// An import may not give a schema an id that another has or has had.
func TestImportedIds(t *testing.T) {
	st := dynamotest.Store(t, time.Now)
	r, ctx := New(st), t.Context()
	for _, subject := range []string{"s", "u"} {
		if err := r.SetLevel(ctx, subject, None); err != nil {
			t.Fatal(err)
		}
		if err := r.SetMode(ctx, subject, "IMPORT", false); err != nil {
			t.Fatal(err)
		}
	}
	first := r.mustRegister(t, "s", with(""), RegisterOptions{ID: 5})
	if first.ID != 5 {
		t.Fatalf("%+v", first)
	}
	other := with(" optional string b = 2;")
	_, err := r.Register(ctx, "u", other, RegisterOptions{ID: 5})
	refusal(t, err, 42205, "5")
	// A row of a use without a counter that has reached it, as a restore of some tables leaves.
	if err := st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.SchemaUseKey(9, "x", 1), Item: store.NewItem(store.Attr{Name: "id", Value: store.Int(9)}),
	}}}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Register(ctx, "u", other, RegisterOptions{ID: 9})
	refusal(t, err, 42205, "9")
	if v := r.mustRegister(t, "u", other, RegisterOptions{ID: 7}); v.ID != 7 {
		t.Errorf("%+v", v)
	}
}

// A transitive level compares with all versions, however many: here the first of forty is
// the one that excludes the next.
func TestManyVersions(t *testing.T) {
	r, ctx := New(storetest.NewMemory(time.Now)), t.Context()
	if err := r.SetLevel(ctx, "s", None); err != nil {
		t.Fatal(err)
	}
	r.mustRegister(t, "s", with(" optional string b = 2;"), RegisterOptions{})
	for i := range 39 {
		r.mustRegister(t, "s", with(fmt.Sprintf(" reserved 100 to %d;", 100+i)), RegisterOptions{})
	}
	if err := r.SetLevel(ctx, "s", FullTransitive); err != nil {
		t.Fatal(err)
	}
	_, err := r.Register(ctx, "s", with(" reserved 100 to 138; optional int64 b = 2;"), RegisterOptions{})
	refusal(t, err, 409, "version 1:")
}
