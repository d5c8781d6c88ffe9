package identifier_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

func parse(t testing.TB, text string) identifier.Identifier {
	t.Helper()
	return testkit.Value(identifier.Parse(text))(t)
}

// The same person has one identifier, however it is written.
func TestNormalForm(t *testing.T) {
	for text, want := range map[string]string{
		"ann@example.com":            "email:ann@example.com",
		" Ann@Example.COM ":          "email:ann@example.com",
		"ann+tea@mail.example.co.uk": "email:ann+tea@mail.example.co.uk",
		"o'hara@example.com":         "email:o'hara@example.com",
		"ann@bücher.example":         "email:ann@xn--bcher-kva.example",
		"ann@BÜCHER.example":         "email:ann@xn--bcher-kva.example",
		"+49 151 2345678":            "phone:+491512345678",
		"0049 (151) 234-56.78":       "phone:+491512345678",
		"+49/151/2345678":            "phone:+491512345678",
		"+12025550123":               "phone:+12025550123",
	} {
		id, err := identifier.Parse(text)
		if err != nil || id.Key() != want {
			t.Errorf("%q is %q, %v", text, id.Key(), err)
			continue
		}
		if again := parse(t, id.Value()); again != id {
			t.Errorf("%q is not its own normal form", id.Value())
		}
		if said := fmt.Sprintf("%v %s", id, id); strings.Contains(said, id.Value()) {
			t.Errorf("a log would show %s", said)
		}
	}
}

// What is none is refused in one line that does not repeat it.
func TestNoIdentifiers(t *testing.T) {
	for _, text := range []string{
		"", " ", "ann", "ann@", "@example.com", "ann@localhost", "ann@example.com.", "a@b@example.com", "ann@exa mple.com",
		"Ann <ann@example.com>", "\"ann\"@example.com", "ann@[127.0.0.1]", "ann,bob@example.com",
		"ann@example.com\r\nBcc: x@y.z",
		"#ann@example.com", "ann@127.0.0.1", "ann@example.0", "ann\x00@example.com", "änn@example.com",
		"ann@-example.com", ".ann@example.com", "ann..x@example.com",
		strings.Repeat("a", 65) + "@example.com", "a@" + strings.Repeat("a.", 126) + "example",
		"151 2345678", "+49", "+0151234567", "+4915123456789012", "+49151x345678", "+49 151 2345678\x00", "++491512345678",
		"+49#1512345678", "٠٠٤٩١٥١٢٣٤٥٦٧٨", "+\u0664\u0669151234567",
	} {
		id, err := identifier.Parse(text)
		if !errors.Is(err, identifier.ErrInvalid) || id != (identifier.Identifier{}) {
			t.Errorf("%q is %q", text, id.Key())
		} else if strings.Contains(err.Error(), "\n") || len(text) > 3 && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"ann@example.com", "+49 151 2345678", "@", "a@b.c", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := identifier.Parse(text)
		if err != nil {
			return
		}
		if again, err := identifier.Parse(id.Value()); err != nil || again != id {
			t.Fatalf("%q is %q and then %q, %v", text, id.Key(), again.Key(), err)
		}
		if len(id.Key()) > 300 || strings.ContainsAny(id.Key(), "\r\n \x00#") {
			t.Fatalf("%q is %q", text, id.Key())
		}
	})
}

// An identifier has one user, a user at most ten of them.
func TestDirectory(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	d := identifier.NewDirectory(storetest.NewMemory(func() time.Time { return now }), func() time.Time { return now })
	ctx, mail, phone := t.Context(), parse(t, "ann@example.com"), parse(t, "+49 151 2345678")
	owner := func(id identifier.Identifier, want string) {
		t.Helper()
		testkit.Equal(t, "owner", testkit.Value(d.Lookup(ctx, id))(t), want)
	}
	owner(mail, "")
	for range 2 { // it may be repeated
		testkit.Must(t, d.Bind(ctx, "ann", mail))
		testkit.Must(t, d.Bind(ctx, "ann", phone))
	}
	owner(mail, "ann")
	if err := d.Bind(ctx, "bob", mail); !errors.Is(err, identifier.ErrTaken) {
		t.Errorf("taken twice: %v", err)
	}
	testkit.Must(t, d.Unbind(ctx, "bob", mail)) // who does not have it takes it from nobody
	owner(mail, "ann")
	testkit.Equal(t, "identifiers", testkit.Value(d.OfUser(ctx, "ann"))(t), []identifier.Identifier{mail, phone})
	for range 2 {
		testkit.Must(t, d.Unbind(ctx, "ann", mail))
	}
	owner(mail, "")
	testkit.Must(t, d.Bind(ctx, "bob", mail))
	for n := range 9 {
		testkit.Must(t, d.Bind(ctx, "bob", parse(t, fmt.Sprint("bob", n, "@example.com"))))
	}
	if err := d.Bind(ctx, "bob", parse(t, "bob10@example.com")); !errors.Is(err, identifier.ErrTooMany) {
		t.Errorf("eleven: %v", err)
	}
	testkit.Must(t, d.Unbind(ctx, "bob", mail))
	testkit.Must(t, d.Bind(ctx, "bob", parse(t, "bob10@example.com")))
	testkit.Equal(t, "number", len(testkit.Value(d.OfUser(ctx, "bob"))(t)), 10)
}

// Of many who claim an identifier at the same time one gets it.
func TestClaims(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	d := identifier.NewDirectory(storetest.NewMemory(func() time.Time { return now }), func() time.Time { return now })
	mail := parse(t, "ann@example.com")
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = d.Bind(t.Context(), fmt.Sprint("user", i), mail) })
	}
	wg.Wait()
	winner := slices.Index(errs, nil)
	testkit.Equal(t, "owner", testkit.Value(d.Lookup(t.Context(), mail))(t), fmt.Sprint("user", winner))
	for i, err := range errs {
		if i != winner && !errors.Is(err, identifier.ErrTaken) {
			t.Errorf("user%d: %v", i, err)
		}
	}
}
