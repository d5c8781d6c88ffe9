package signin_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/table"
)

// fixture is a service over a store, with a clock that is set and the codes that people get.
type fixture struct {
	*signin.Service
	t      *testing.T
	store  store.Store
	signUp bool

	mu     sync.Mutex
	now    time.Time
	codes  map[string]string // by identifier
	events []securitylog.Kind
	ids    int
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// outbox is the fixture as the way to people.
type outbox struct{ *fixture }

func (outbox) Takes(identifier.Kind) bool { return true }
func (outbox) Room() bool                 { return true }
func (o outbox) Send(m otp.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.codes[m.To.Value()] = m.Code
}

// RevokeSession makes the fixture a revoker.
func (*fixture) RevokeSession(context.Context, string, time.Time) error         { return nil }
func (*fixture) RevokeUser(context.Context, string, time.Time, time.Time) error { return nil }

// Exchange makes the fixture an issuer.
func (f *fixture) Exchange(_ context.Context, token string) (user string, proof session.Proof, err error) {
	text, ok := strings.CutPrefix(token, "token of ")
	if !ok {
		return "", proof, signin.ErrForeignToken
	}
	user, _, _ = strings.Cut(text, " ")
	return user, session.Proof{Hash: sha256.Sum256([]byte(token)), Until: f.clock().Add(time.Minute)}, nil
}

func newFixture(t *testing.T, signUp bool) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_900_000_000, 0), codes: map[string]string{}, signUp: signUp}
	f.store = dynamotest.Store(t, f.clock)
	f.Service = f.service(f.store, f)
	return f
}

func (f *fixture) service(s store.Store, issuers signin.Exchanger) *signin.Service {
	f.t.Helper()
	pepper := make([]byte, 32)
	record := func(_ context.Context, e securitylog.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, e.Kind)
	}
	sessions := testkit.Value(session.New(session.Config{Store: s, Clock: f.clock, Pepper: pepper, Revoker: f,
		Record: record, Issue: func(user, session string, _ time.Time) (string, error) { return user + session, nil }}))(f.t)
	return testkit.Value(signin.New(signin.Config{Store: s, Clock: f.clock, Pepper: pepper, Outbox: outbox{f},
		SignUp: f.signUp, Sessions: sessions, Exchanger: issuers, Record: record,
		NewID: func(prefix string) string {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ids++
			return fmt.Sprint(prefix, f.ids)
		}}))(f.t)
}

// proof asks for a code and returns what signs in.
func (f *fixture) proof(id string) signin.Proof {
	f.t.Helper()
	f.advance(time.Minute)
	r := testkit.Value(f.RequestCode(f.t.Context(), id, ""))(f.t)
	parsed := testkit.Value(identifier.Parse(id))(f.t)
	return signin.Proof{Identifier: id, Request: r.ID, Code: f.codes[parsed.Value()], Device: "phone"}
}

func (f *fixture) users() (n int) {
	f.t.Helper()
	for _, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.Users, Segments: 1}) {
		testkit.Must(f.t, err)
		n++
	}
	return n
}

// Who comes first becomes a user, who comes again is the same one, however the identifier
// is written.
func TestSignUpAndIn(t *testing.T) {
	f := newFixture(t, true)
	first, isNew, err := f.WithCode(t.Context(), f.proof("Ann@Example.com"))
	if err != nil || !isNew || first.User != "usr_1" || first.Refresh == "" {
		t.Fatalf("%+v, %v, %v", first, isNew, err)
	}
	second, isNew, err := f.WithCode(t.Context(), f.proof("ann@example.COM"))
	if err != nil || isNew || second.User != "usr_1" || second.Session == first.Session {
		t.Fatalf("%+v, %v, %v", second, isNew, err)
	}
	phone, isNew, err := f.WithCode(t.Context(), f.proof("+49 151 2345678"))
	if err != nil || !isNew || phone.User != "usr_2" {
		t.Fatalf("%+v, %v, %v", phone, isNew, err)
	}
	row := table.UserFrom("usr_1", testkit.Value(f.store.Get(t.Context(), table.UserKey("usr_1"), store.Strong))(t))
	if row.Status != table.Active || !row.Counted || row.CreatedAt == 0 {
		t.Errorf("%+v", row)
	}
	testkit.Equal(t, "users", f.users(), 2)
	testkit.Equal(t, "sessions", len(testkit.Value(f.Sessions().List(t.Context(), "usr_1"))(t)), 2)
}

// S-10: where nobody can sign up, an identifier that nobody has is answered like any other, gets no
// code and leads nowhere.
func TestSec_S_10_NoSignUp(t *testing.T) {
	f := newFixture(t, false)
	id := testkit.Value(identifier.Parse("ann@example.com"))(t)
	testkit.Must(t, f.Directory().Bind(t.Context(), "ann", id))
	for _, who := range []string{"ann@example.com", "bob@example.com"} {
		r, err := f.RequestCode(t.Context(), who, "")
		if err != nil || !r.Expires.Equal(f.now.Add(5*time.Minute)) || len(r.ID) != 42 {
			t.Fatalf("%s: %+v, %v", who, r, err)
		}
		_, _, err = f.WithCode(t.Context(), signin.Proof{Identifier: who, Request: r.ID, Code: "x"})
		if !errors.Is(err, otp.ErrCode) {
			t.Errorf("%s: %v", who, err)
		}
	}
	if len(f.codes) != 1 || f.codes["ann@example.com"] == "" {
		t.Errorf("codes to %v", f.codes)
	}
	tokens, isNew, err := f.WithCode(t.Context(), f.proof("ann@example.com"))
	if err != nil || isNew || tokens.User != "ann" {
		t.Errorf("%+v, %v, %v", tokens, isNew, err)
	}
	p := f.proof("ann@example.com") // who loses the identifier meanwhile
	testkit.Must(t, f.Directory().Unbind(t.Context(), "ann", id))
	if _, _, err := f.WithCode(t.Context(), p); !errors.Is(err, otp.ErrCode) {
		t.Errorf("unbound: %v", err)
	}
	testkit.Equal(t, "users", f.users(), 0)
}

// S-09: of many with one code one signs in, and one user is made.
func TestSec_S_09_ParallelSignUp(t *testing.T) {
	f := newFixture(t, true)
	p := f.proof("ann@example.com")
	var wg sync.WaitGroup
	var mu sync.Mutex
	served := 0
	for range 16 {
		wg.Go(func() {
			_, _, err := f.WithCode(t.Context(), p)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				served++
			} else if !errors.Is(err, otp.ErrCode) && !errors.Is(err, store.ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testkit.Equal(t, "served", served, 1)
	testkit.Equal(t, "users", f.users(), 1)
	sessions := 0
	for row, err := range store.ScanAll(t.Context(), f.store, store.Scan{Table: store.Sessions, Segments: 1}) {
		testkit.Must(t, err)
		if strings.HasPrefix(row.Key.SK, "ses_") {
			sessions++
		}
	}
	testkit.Equal(t, "sessions", sessions, 1)
}

// Who is suspended does not sign in, and the code is used up.
func TestSuspended(t *testing.T) {
	f := newFixture(t, true)
	tokens, _, err := f.WithCode(t.Context(), f.proof("ann@example.com"))
	testkit.Must(t, err)
	row := table.User{UserID: tokens.User, CreatedAt: 1, Status: "suspended", Counted: true}
	testkit.Must(t, f.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: table.UserKey(tokens.User),
		Item: row.Item()}}))
	p := f.proof("ann@example.com")
	for _, want := range []error{session.ErrSuspended, otp.ErrCode} {
		if _, _, err := f.WithCode(t.Context(), p); !errors.Is(err, want) {
			t.Errorf("%v, expected %v", err, want)
		}
	}
	if _, err := f.WithToken(t.Context(), "token of "+tokens.User, ""); !errors.Is(err, session.ErrSuspended) {
		t.Errorf("by a token: %v", err)
	}
}

// A token of an issuer begins a session of the user that it stands for.
func TestTokenOfAnIssuer(t *testing.T) {
	f := newFixture(t, true)
	tokens, err := f.WithToken(t.Context(), "token of ann", "laptop")
	if err != nil || tokens.User != "ann" {
		t.Fatalf("%+v, %v", tokens, err)
	}
	if _, err := f.Sessions().Refresh(t.Context(), tokens.Refresh); err != nil {
		t.Error(err)
	}
	if _, err := f.WithToken(t.Context(), "nonsense", ""); !errors.Is(err, signin.ErrForeignToken) {
		t.Error(err)
	}
	f.Service = f.service(f.store, nil)
	if _, err := f.WithToken(t.Context(), "token of ann", ""); !errors.Is(err, signin.ErrNoIssuer) {
		t.Error(err)
	}
}

// A token of an issuer begins one session, whichever process it is brought to, at once or one after
// the other, and where the answer of the store is lost as well.
func TestTokensAreGoodOnce(t *testing.T) {
	f := newFixture(t, true)
	processes := []*signin.Service{f.Service, f.service(f.store, f), f.service(f.store, f)}
	for n := range 10 {
		token := fmt.Sprintf("token of ann %d", n)
		var begun atomic.Int64
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				_, err := processes[i%3].WithToken(t.Context(), token, "")
				if err == nil {
					begun.Add(1)
				} else if !errors.Is(err, signin.ErrForeignToken) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		testkit.Equal(t, "sessions of one token", begun.Load(), 1)
	}
	testkit.Equal(t, "sessions", len(testkit.Value(f.Sessions().List(t.Context(), "ann"))(t)), 10)
	lost := faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if c.Method == faulty.Transact && c.Number < 6 {
			return faulty.Fault{When: faulty.After, Err: store.ErrAmbiguous}
		}
		return faulty.Fault{}
	}})
	_ = testkit.Value(f.service(lost, f).WithToken(t.Context(), "token of bob", ""))(t)
	testkit.Equal(t, "sessions after a lost answer", len(testkit.Value(f.Sessions().List(t.Context(), "bob"))(t)), 1)
	if _, err := f.WithToken(t.Context(), "token of bob", ""); !errors.Is(err, signin.ErrForeignToken) {
		t.Errorf("once more: %v", err)
	}
}

// A process is killed before and after each call of the store while somebody signs up. Either
// nothing has happened and the code is good, or everything has and it is used up.
func TestKilledWhileSomebodySignsUp(t *testing.T) {
	outcomes := map[bool]int{}
	for call := 1; call <= 8; call++ {
		for _, when := range []faulty.When{faulty.Before, faulty.After} {
			f := newFixture(t, true)
			p := f.proof("ann@example.com")
			killed := faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
				switch {
				case c.Number == call:
					return faulty.Fault{When: when, Err: store.ErrClosed}
				case c.Number > call:
					return faulty.Fault{When: faulty.Before, Err: store.ErrClosed}
				}
				return faulty.Fault{}
			}})
			_, _, err := f.service(killed, nil).WithCode(t.Context(), p)
			owner := testkit.Value(f.Directory().Lookup(t.Context(), testkit.Value(identifier.Parse("ann@example.com"))(t)))(t)
			users, sessions := f.users(), 0
			if owner != "" {
				sessions = len(testkit.Value(f.Sessions().List(t.Context(), owner))(t))
			}
			done := owner != ""
			outcomes[done]++
			if done && (users != 1 || sessions != 1) || !done && (users != 0 || err == nil) {
				t.Errorf("call %d, %v: owner %q, %d users, %d sessions, %v", call, when, owner, users, sessions, err)
			}
			if _, _, err := f.WithCode(t.Context(), p); done != errors.Is(err, otp.ErrCode) {
				t.Errorf("call %d, %v: done %v, and again: %v", call, when, done, err)
			}
		}
	}
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("%v", outcomes)
	}
}

// Signing in is the same on DynamoDB.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestSignUpAndIn, TestSec_S_10_NoSignUp, TestSec_S_09_ParallelSignUp, TestSuspended,
		TestTokenOfAnIssuer)
}
