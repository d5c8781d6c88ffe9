package registry

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// A schema that is kept can be deleted softly, and is still compiled by its id, but not for good until
// its keeper gives it up: neither version of it, nor by its subject.
func TestKept(t *testing.T) {
	st, ctx := dynamotest.Store(t, time.Now), t.Context()
	r := New(st)
	v := r.mustRegister(t, "a", Schema{Text: small}, RegisterOptions{})
	again := r.mustRegister(t, "b", Schema{Text: small}, RegisterOptions{})
	if again.ID != v.ID {
		t.Fatalf("ids %d and %d, want the same", v.ID, again.ID)
	}
	writes, err := r.Keep(ctx, v.ID, "topic orders")
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"a", "b"} {
		if _, err := r.DeleteVersion(ctx, subject, 1, false); err != nil {
			t.Errorf("softly: %v", err)
		}
	}
	for _, subject := range []string{"a", "b"} {
		_, err := r.DeleteVersion(ctx, subject, 1, true)
		refusal(t, err, 42206, "which topic orders uses")
		_, err = r.DeleteSubject(ctx, subject, true)
		refusal(t, err, 42206, "which topic orders uses")
	}
	file, err := r.Compiled(ctx, v.ID, false)
	if err != nil || file.Messages().Len() != 1 {
		t.Errorf("compiled: %v, %v", file, err)
	}
	_, err = r.Compiled(ctx, v.ID, true)
	refusal(t, err, CodeSchemaNotFound, "soft deleted")
	_, err = r.Keep(ctx, v.ID, "topic bills")
	refusal(t, err, CodeSchemaNotFound, "soft deleted")

	release := store.Write{Op: store.OpDelete, Key: table.SchemaKeeperKey(int64(v.ID), "topic orders")}
	if err := st.Transact(ctx, store.Plan{Writes: []store.Write{release}}); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"a", "b"} {
		if _, err := r.DeleteVersion(ctx, subject, 1, true); err != nil {
			t.Errorf("for good: %v", err)
		}
	}
	_, err = r.Compiled(ctx, v.ID, false)
	refusal(t, err, CodeSchemaNotFound, "")
}

// A deletion for good and a plan that begins to keep the schema never both succeed, whichever comes
// between the other's reads and its write.
func TestKeptBesideDeletion(t *testing.T) {
	ctx := t.Context()
	set := func() (st *between, slow, fast *Registry, id int) {
		st = &between{Store: dynamotest.Store(t, time.Now)}
		slow, fast = New(st), New(st.Store)
		return st, slow, fast, fast.mustRegister(t, "a", Schema{Text: small}, RegisterOptions{}).ID
	}
	remove := func(r *Registry) error {
		if _, err := r.DeleteVersion(ctx, "a", 1, false); err != nil {
			return err
		}
		_, err := r.DeleteVersion(ctx, "a", 1, true)
		return err
	}
	st, slow, fast, id := set()
	st.before = func() {
		if err := remove(fast); err != nil {
			t.Error(err)
		}
	}
	writes, err := slow.Keep(ctx, id, "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Transact(ctx, store.Plan{Writes: writes}); !retryable(err) || !strings.Contains(err.Error(), KeptName) {
		t.Errorf("a deleted schema is kept: %v", err)
	}

	st, slow, fast, id = set()
	st.before = func() {
		writes, err := fast.Keep(ctx, id, "k")
		if err == nil {
			err = st.Store.Transact(ctx, store.Plan{Writes: writes})
		}
		if err != nil {
			t.Error(err)
		}
	}
	refusal(t, remove(slow), 42206, "k uses")
	if _, err := fast.Compiled(ctx, id, false); err != nil {
		t.Errorf("the schema that is kept is gone: %v", err)
	}
}

// A schema follows others if it may follow each of them, in both directions, and what is said names the
// one that it may not follow.
func TestFollows(t *testing.T) {
	r, ctx := New(dynamotest.Store(t, time.Now)), t.Context()
	id := func(subject, text string) int {
		t.Helper()
		if err := r.SetLevel(ctx, subject, None); err != nil {
			t.Fatal(err)
		}
		return r.mustRegister(t, subject, Schema{Text: text}, RegisterOptions{}).ID
	}
	first := id("s", small)
	grown := id("s", "syntax = \"proto3\";\npackage t;\nmessage A { string a = 1; string b = 2; }\n")
	other := id("s", "syntax = \"proto3\";\npackage t;\nmessage A { int32 a = 1; }\n")
	for _, tt := range []struct {
		head    int
		earlier []int
		names   []string // of earlier schemas, in what is said
	}{
		{first, nil, nil},
		{grown, []int{first}, nil},
		{first, []int{grown}, []string{"schema 2:"}}, // its number would be free again
		{other, []int{first}, []string{"schema 1:"}},
		{grown, []int{other, first}, []string{"schema 3:"}},
	} {
		said, err := r.Follows(ctx, tt.head, tt.earlier)
		if err != nil || len(said) != 0 != (len(tt.names) > 0) {
			t.Errorf("%d after %v: %q, %v", tt.head, tt.earlier, said, err)
		}
		for _, name := range tt.names {
			if !strings.Contains(strings.Join(said, "\n"), name) {
				t.Errorf("%d after %v: %q does not name %s", tt.head, tt.earlier, said, name)
			}
		}
	}
	_, err := r.Follows(ctx, grown, []int{99})
	refusal(t, err, CodeSchemaNotFound, "99")
}
