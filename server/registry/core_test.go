package registry

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/registry/source"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

const small = "syntax = \"proto3\";\npackage t;\nmessage A { string a = 1; }\n"

func collect[T any](list iter.Seq2[T, error]) ([]T, error) {
	all := []T{}
	for v, err := range list {
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// Integrators can read Parley's own events: every schema comes as text that
// compiles with its references, imports at level NONE, events at FULL.
func TestOwnSchemasAreReadable(t *testing.T) {
	r := New(dynamotest.Store(t, time.Now))
	if _, err := r.Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := collect(r.List(t.Context(), ListOptions{}))
	if err != nil || len(list) < len(event.Specs())+3 {
		t.Fatal(len(list), err)
	}
	for _, v := range list {
		if !strings.HasPrefix(v.Text, "syntax = ") {
			t.Errorf("%s is not text: %.40q", v.Subject, v.Text)
		}
		p, err := r.parse(t.Context(), v.Schema, false)
		if err != nil || p.fingerprint != v.identity() {
			t.Errorf("%s: its text is another schema, %v", v.Subject, err)
		}
		level, err := r.Level(t.Context(), v.Subject, true)
		want := Full
		if strings.HasSuffix(v.Subject, ".proto") {
			want = None
		}
		if err != nil || level != want {
			t.Errorf("%s has level %s, %v", v.Subject, level, err)
		}
	}
}

// Rows of before there were texts and references keep their ids and gain both.
func TestOldRows(t *testing.T) {
	st := dynamotest.Store(t, time.Now)
	m := (&eventv1.ChatCreated{}).ProtoReflect().Descriptor()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(m.ParentFile()))
	if err != nil {
		t.Fatal(err)
	}
	subject := "chats.created-" + string(m.FullName())
	old := store.NewItem(store.Attr{Name: "id", Value: store.Int(9)}, store.Attr{Name: "schema", Value: store.Bytes(b)})
	for _, w := range []store.Write{
		{Op: store.OpPut, Key: table.SchemaKey(subject, 1), Item: old},
		{Op: store.OpPut, Key: table.SchemaCounterKey(),
			Item: store.NewItem(store.Attr{Name: table.AttrLastID, Value: store.Int(9)})},
	} {
		if err := st.Transact(t.Context(), store.Plan{Writes: []store.Write{w}}); err != nil {
			t.Fatal(err)
		}
	}
	r := New(st)
	for range 2 {
		ids, err := r.Events(t.Context())
		if err != nil || ids[event.TypeChatCreated] != 9 {
			t.Fatal(ids, err)
		}
	}
	uses, err := r.Uses(t.Context(), 9)
	if err != nil || len(uses) != 1 || len(uses[0].References) == 0 || !strings.HasPrefix(uses[0].Text, "syntax") {
		t.Fatalf("%+v, %v", uses, err)
	}
	if list, err := r.Versions(t.Context(), subject, ListOptions{}); err != nil || len(list) != 1 {
		t.Errorf("%d versions, %v", len(list), err)
	}
}

// Versions that race for one subject are compared with one another: two additions
// that each follow version 1 and exclude each other do not both get in.
func TestRacingVersionsAreCompared(t *testing.T) {
	r := New(dynamotest.Store(t, time.Now))
	ctx := t.Context()
	if _, err := r.Register(ctx, "s", Schema{Text: small}, RegisterOptions{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		kind := []string{"int64", "string"}[i%2]
		wg.Go(func() {
			text := strings.Replace(small, "}", " optional "+kind+" b = 2; }", 1)
			_, results[i] = r.Register(ctx, "s", Schema{Text: text}, RegisterOptions{})
		})
	}
	wg.Wait()
	refusals := 0
	for _, err := range results {
		var refusal *Error
		if errors.As(err, &refusal) && refusal.Code == codeIncompatible {
			refusals++
		} else if err != nil {
			t.Error(err)
		}
	}
	list, err := r.Versions(ctx, "s", ListOptions{})
	if err != nil || len(list) != 2 || refusals != len(results)/2 {
		t.Errorf("%d versions, %d refusals, %v", len(list), refusals, err)
	}
}

// unsure is a store whose plans are written and reported as unknown, now and then.
type unsure struct {
	store.Store
	n int
}

func (u *unsure) Transact(ctx context.Context, p store.Plan) error {
	err := u.Store.Transact(ctx, p)
	if u.n++; err == nil && u.n%2 == 1 {
		return store.ErrAmbiguous
	}
	return err
}

// A write of which nobody knows whether it happened is searched for, not repeated, and a
// setting is repeated; the schemas of a start are registered all the same.
func TestAmbiguousWrites(t *testing.T) {
	r := New(&unsure{Store: dynamotest.Store(t, time.Now)})
	for _, level := range []string{None, Full, ""} {
		if err := r.set(t.Context(), levels, "s", level); err != nil {
			t.Fatal(err)
		}
		got, there, err := r.setting(t.Context(), levels, "s")
		if err != nil || got != level || there != (level != "") {
			t.Fatal(got, there, err)
		}
	}
	for i, text := range []string{small, strings.Replace(small, "}", " optional string b = 2; }", 1)} {
		v, err := r.Register(t.Context(), "s", Schema{Text: text}, RegisterOptions{})
		if err != nil || v.Version != i+1 || v.ID != i+1 {
			t.Fatalf("%+v, %v", v, err)
		}
	}
}

// Limits hold: names, references, pages.
func TestLimits(t *testing.T) {
	r := New(dynamotest.Store(t, time.Now))
	refuse := func(what string, code int, err error) {
		t.Helper()
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != code {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, subject := range []string{"", strings.Repeat("s", MaxSubject+1), "a\x00b", "a\nb", "\xff", "#ids", ":.c:s",
		"__GLOBAL"} {
		_, err := r.Register(t.Context(), subject, Schema{Text: small}, RegisterOptions{})
		refuse(subject, CodeSubject, err)
	}
	_, err := r.Register(t.Context(), "s",
		Schema{Text: small, References: slices.Repeat([]Reference{{Name: "a", Subject: "a", Version: 1}}, MaxReferences+1)},
		RegisterOptions{})
	refuse("references", CodeSchema, err)
	for _, ref := range []Reference{{Name: "", Subject: "a", Version: 1}, {Name: "a\n", Subject: "a", Version: 1},
		{Name: source.Self, Subject: "a", Version: 1}, {Name: "a", Subject: "a", Version: 0},
		{Name: "a", Subject: "a", Version: 7}} {
		_, err = r.Register(t.Context(), "s", Schema{Text: small, References: []Reference{ref}}, RegisterOptions{})
		refuse("reference "+ref.Name, CodeSchema, err)
	}
	for _, subject := range []string{"a", "b", "c"} {
		if _, err := r.Register(t.Context(), subject, Schema{Text: small}, RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := collect(r.Subjects(t.Context(), ListOptions{Offset: 1, Limit: 1}))
	if err != nil || !slices.Equal(got, []string{"b"}) {
		t.Error(got, err)
	}
}

// BenchmarkStart measures what a start costs when everything is registered already.
func BenchmarkStart(b *testing.B) {
	r := New(dynamotest.Store(b, time.Now))
	for b.Loop() {
		if _, err := r.Events(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRegister measures a registration that is compared with the version before.
func BenchmarkRegister(b *testing.B) {
	r := New(dynamotest.Store(b, time.Now))
	next := strings.Replace(small, "}", " optional string b = 2; }", 1)
	if _, err := r.Register(b.Context(), "s", Schema{Text: small}, RegisterOptions{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if ok, _, err := r.Compatible(b.Context(), "s", 0, Schema{Text: next}, false); err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}
