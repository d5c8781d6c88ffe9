package session_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// fixture is a service over a store, with a clock that is set, and what it had revoked.
type fixture struct {
	*session.Service
	t     *testing.T
	store store.Store

	mu      sync.Mutex
	now     time.Time
	revoked map[string]time.Time
	users   []string // whose tokens were revoked, with the bounds
	fail    error    // of the revoker
	events  []securitylog.Event
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

// Open begins a session with a proof of its own.
func (f *fixture) Open(ctx context.Context, user, device string) (session.Tokens, error) {
	proof := session.Proof{Hash: sha256.Sum256([]byte(rand.Text())), Until: f.clock().Add(time.Minute)}
	return f.Service.Open(ctx, user, device, proof)
}

// RevokeSession makes the fixture a revoker.
func (f *fixture) RevokeSession(_ context.Context, session string, until time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.revoked[session] = until
	}
	return f.fail
}

// RevokeUser makes it one of users.
func (f *fixture) RevokeUser(_ context.Context, user string, issuedBefore, until time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.users = append(f.users, fmt.Sprintf("%s %v %v", user, issuedBefore.Sub(f.now), until.Sub(f.now)))
	}
	return f.fail
}

func (f *fixture) count(kind securitylog.Kind) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_900_000_000, 0), revoked: map[string]time.Time{}}
	f.store = dynamotest.Store(t, f.clock)
	f.Service = f.service(f.store, 'p')
	return f
}

// service is a service of another process, over a store and with a pepper.
func (f *fixture) service(s store.Store, pepper byte) *session.Service {
	f.t.Helper()
	return testkit.Value(session.New(session.Config{Store: s, Clock: f.clock,
		Pepper: []byte(strings.Repeat(string(pepper), session.PepperSize)), Revoker: f,
		Issue: func(user, session string, now time.Time) (string, error) {
			return fmt.Sprintf("access %s %s %d", user, session, now.Unix()), nil
		},
		Record: func(_ context.Context, e securitylog.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, e)
		}}))(f.t)
}

func (f *fixture) open(user string) session.Tokens {
	f.t.Helper()
	return testkit.Value(f.Open(f.t.Context(), user, "phone"))(f.t)
}

func (f *fixture) refresh(token string) session.Tokens {
	f.t.Helper()
	return testkit.Value(f.Refresh(f.t.Context(), token))(f.t)
}

func (f *fixture) refused(what, token string, want error) {
	f.t.Helper()
	if tokens, err := f.Refresh(f.t.Context(), token); !errors.Is(err, want) || tokens != (session.Tokens{}) {
		f.t.Errorf("%s: %+v, %v", what, tokens, err)
	}
}

func (f *fixture) ids(user string) (list []string) {
	f.t.Helper()
	for _, x := range testkit.Value(f.List(f.t.Context(), user))(f.t) {
		list = append(list, x.Session)
	}
	return list
}

// S-11: each use of a refresh token makes another one, of 256 bits, of the same family.
func TestSec_S_11_Rotation(t *testing.T) {
	f := newFixture(t)
	tokens := f.open("ann")
	if tokens.User != "ann" || !strings.HasPrefix(tokens.Session, "ses_") ||
		tokens.AccessExpires != f.now.Add(15*time.Minute) || tokens.RefreshExpires != f.now.Add(30*24*time.Hour) {
		t.Fatalf("%+v", tokens)
	}
	seen := map[string]bool{}
	for range 20 {
		if seen[tokens.Refresh] {
			t.Fatal("a token comes again")
		}
		seen[tokens.Refresh] = true
		raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(tokens.Refresh, "prt_"))
		if err != nil || len(raw) != 1+3+1+30+32+16 {
			t.Fatalf("%d bytes, %v", len(raw), err)
		}
		f.advance(10 * time.Minute)
		next := f.refresh(tokens.Refresh)
		if next.User != "ann" || next.Session != tokens.Session ||
			next.Access != fmt.Sprintf("access ann %s %d", tokens.Session, f.now.Unix()) {
			t.Fatalf("%+v", next)
		}
		tokens = next
	}
	testkit.Equal(t, "refreshes", f.count(securitylog.Refreshed), 20)
}

// S-11: what the store has is of no use: no token stands there, nor a part of one that is secret.
func TestSec_S_11_DumpHasNoToken(t *testing.T) {
	f := newFixture(t)
	first := f.open("ann")
	f.advance(time.Minute)
	second := f.refresh(first.Refresh)
	var dump strings.Builder
	for row, err := range store.ScanAll(t.Context(), f.store, store.Scan{Table: store.Sessions, Segments: 1}) {
		testkit.Must(t, err)
		for _, a := range row.Item {
			fmt.Fprintf(&dump, "%s %s %x\n", row.Key, a.Value, a.Value.Blob())
		}
	}
	for _, text := range []string{first.Refresh, second.Refresh} {
		raw := testkit.Value(base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, "prt_")))(t)
		secret := raw[len(raw)-48:]
		for _, part := range []string{text, hex.EncodeToString(secret[:32]), hex.EncodeToString(secret[32:])} {
			if strings.Contains(dump.String(), part) {
				t.Errorf("the store has %s", part)
			}
		}
	}
	if dump.Len() < 200 {
		t.Error(dump.String())
	}
}

// S-12: within ten seconds a token that was used gets the same successor again, after that it ends
// its family: nobody's token is good any more, access is revoked, and it is reported.
func TestSec_S_12_Grace(t *testing.T) {
	f := newFixture(t)
	first := f.open("ann")
	second := f.refresh(first.Refresh)
	f.advance(10 * time.Second)
	if again := f.refresh(first.Refresh); again.Refresh != second.Refresh || again.Session != second.Session {
		t.Fatal("another successor")
	}
	third := f.refresh(second.Refresh) // a second later the first one's grace is over
	f.advance(time.Second)
	f.refused("after the grace", first.Refresh, session.ErrReused)
	f.refused("the last one", third.Refresh, session.ErrToken)
	f.refused("the one before", second.Refresh, session.ErrToken)
	if until := f.revoked[first.Session]; !until.Equal(f.now.Add(16 * time.Minute)) {
		t.Errorf("revoked until %v", until)
	}
	testkit.Equal(t, "sessions", len(f.ids("ann")), 0)
	testkit.Equal(t, "reuse", f.count(securitylog.RefreshReused), 1)
	last := f.events[len(f.events)-1]
	for _, e := range f.events {
		if e.Kind == securitylog.SessionEnded {
			last = e
		}
	}
	testkit.Equal(t, "event", last, securitylog.Event{Kind: securitylog.SessionEnded, User: "ann", Session: first.Session,
		Reason: "refresh token reused"})
}

// S-12: a thief takes Ann's token. Whoever of the two is second ends the session, the other
// sessions of Ann are left alone, and neither has access any more.
func TestSec_S_12_Theft(t *testing.T) {
	for _, thiefFirst := range []bool{true, false} {
		f := newFixture(t)
		other := f.open("ann")
		stolen := f.open("ann")
		f.advance(5 * time.Minute)
		first, second := "Ann", "the thief"
		if thiefFirst {
			first, second = second, first
		}
		theirs := f.refresh(stolen.Refresh)
		for range 3 { // the first one continues as if nothing had happened
			f.advance(5 * time.Minute)
			theirs = f.refresh(theirs.Refresh)
		}
		f.refused(second+" comes late", stolen.Refresh, session.ErrReused)
		f.refused(first+" again", theirs.Refresh, session.ErrToken)
		f.refused(second+" again", stolen.Refresh, session.ErrToken)
		if len(f.revoked) != 1 || f.revoked[stolen.Session].IsZero() {
			t.Errorf("revoked: %v", f.revoked)
		}
		testkit.Equal(t, "sessions", f.ids("ann"), []string{other.Session})
		f.refresh(other.Refresh)
	}
}

// A session's id, which stands in access tokens and lists, is not enough to end the session.
func TestForgedTokensEndNothing(t *testing.T) {
	f := newFixture(t)
	tokens := f.open("ann")
	raw := testkit.Value(base64.RawURLEncoding.DecodeString(strings.TrimPrefix(tokens.Refresh, "prt_")))(t)
	text := func(b []byte) string { return "prt_" + base64.RawURLEncoding.EncodeToString(b) }
	forged := map[string]string{
		"empty": "", "prefix": "prt_", "an access token": "eyJhbGciOiJFZERTQSJ9.e30.c2ln", "not base64": "prt_+++",
		"short": text(raw[:len(raw)-1]), "long": text(append(slices.Clone(raw), 0)),
		"huge":    "prt_" + strings.Repeat("A", 1000),
		"no user": text(append([]byte{0}, raw[4:]...)), "lengths beyond the end": text([]byte{255, 'a'}),
		"no text":                    text(append([]byte{2, 0xff, 0xfe}, raw[4:]...)),
		"a partition of the store's": text(append([]byte("\x06#ended"), raw[4:]...)),
	}
	for i := range raw {
		bad := slices.Clone(raw)
		bad[i] ^= 1
		if i < len(raw)-16 { // the mark alone makes no difference to a token that is good
			forged[fmt.Sprint("byte ", i)] = text(bad)
		}
	}
	for name, token := range forged {
		f.refused(name, token, session.ErrToken)
	}
	if len(f.revoked) != 0 || f.count(securitylog.RefreshReused) != 0 {
		t.Fatalf("ended: %v", f.revoked)
	}
	f.refresh(tokens.Refresh)
}

// S-12: who comes late within the grace gets the token that is good then, not one that others have
// used meanwhile, with which the session would end as stolen.
func TestSec_S_12_LateTabGetsTheGoodToken(t *testing.T) {
	f := newFixture(t)
	first := f.open("ann").Refresh
	second := f.refresh(first).Refresh
	f.advance(5 * time.Second)
	third := f.refresh(f.refresh(first).Refresh).Refresh // another tab goes one further
	f.advance(4 * time.Second)
	late := f.refresh(first).Refresh // and a third is late
	f.advance(14 * time.Minute)
	f.refresh(late)
	if late != third || third == second {
		t.Error("another token than the good one")
	}
}

// S-12: ten callers with the same token at the same time get one successor.
func TestSec_S_12_ParallelRefreshes(t *testing.T) {
	f := newFixture(t)
	token := f.open("ann").Refresh
	for round := range 20 {
		next := make([]string, 10)
		var wg sync.WaitGroup
		for i := range next {
			wg.Go(func() {
				tokens, err := f.Refresh(t.Context(), token)
				if err != nil {
					t.Error(err)
				}
				next[i] = tokens.Refresh
			})
		}
		wg.Wait()
		if slices.Sort(next); next[0] != next[9] || next[0] == token || next[0] == "" {
			t.Fatalf("round %d: %v", round, slices.Compact(next))
		}
		token = next[0]
		f.advance(2 * time.Second)
	}
	testkit.Equal(t, "ended", len(f.revoked), 0)
}

// Who refreshes all the time is slowed down, and loses nothing.
func TestRefreshesAreBounded(t *testing.T) {
	f := newFixture(t)
	token := f.open("ann").Refresh
	first := token
	for range 8 {
		token = f.refresh(token).Refresh
	}
	f.refused("the ninth", token, session.ErrTooFast)
	f.advance(9 * time.Second)
	f.refresh(first) // all of them are within their grace
	f.advance(2 * time.Second)
	f.refresh(token)
}

// S-13: a session ends 30 days after its last refresh, and 90 days after its beginning.
func TestSec_S_13_IdleAndAbsolute(t *testing.T) {
	const day = 24 * time.Hour
	f := newFixture(t)
	idle := f.open("ann")
	f.advance(30*day - time.Second)
	idle = f.refresh(idle.Refresh)
	f.advance(30 * day)
	f.refused("idle", idle.Refresh, session.ErrToken)
	testkit.Equal(t, "sessions", len(f.ids("ann")), 0)

	tokens := f.open("ann")
	begun := f.clock()
	for range 4 {
		f.advance(20 * day)
		tokens = f.refresh(tokens.Refresh)
	}
	if !tokens.RefreshExpires.Equal(begun.Add(90 * day)) {
		t.Errorf("expires %v after the beginning", tokens.RefreshExpires.Sub(begun))
	}
	f.advance(10*day - time.Second)
	tokens = f.refresh(tokens.Refresh)
	f.advance(time.Second)
	f.refused("after 90 days", tokens.Refresh, session.ErrToken)
	testkit.Equal(t, "sessions", len(f.ids("ann")), 0)
	testkit.Equal(t, "reuse", f.count(securitylog.RefreshReused), 0)
}

// S-13: sessions are listed, ended one by one, all others, and all.
func TestSec_S_13_ListAndEnd(t *testing.T) {
	f := newFixture(t)
	var all []session.Tokens
	for range 4 {
		all = append(all, f.open("ann"))
		f.advance(time.Minute)
	}
	bob := f.open("bob")
	all[0] = f.refresh(all[0].Refresh)
	testkit.Equal(t, "sessions", f.ids("ann"), []string{all[0].Session, all[3].Session, all[2].Session, all[1].Session})
	info := testkit.Value(f.List(t.Context(), "ann"))(t)[0]
	if info.Device != "phone" || !info.Created.Equal(f.now.Add(-4*time.Minute)) || !info.Used.Equal(f.now) ||
		!info.Expires.Equal(f.now.Add(30*24*time.Hour)) {
		t.Errorf("%+v", info)
	}
	for what, id := range map[string]string{"somebody else's": bob.Session, "none": "ses_NONE"} {
		if err := f.End(t.Context(), "ann", id, session.Revoked); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	testkit.Must(t, f.End(t.Context(), "ann", all[1].Session, session.Revoked))
	f.refused("ended", all[1].Refresh, session.ErrToken)
	n := testkit.Value(f.EndEverything(t.Context(), "ann", all[0].Session, session.Revoked))(t)
	testkit.Equal(t, "others", n, 2)
	testkit.Equal(t, "sessions", f.ids("ann"), []string{all[0].Session})
	testkit.Equal(t, "users whose tokens end while a session continues", len(f.users), 0)
	f.advance(time.Minute)
	all[0] = f.refresh(all[0].Refresh)
	testkit.Equal(t, "all", testkit.Value(f.EndEverything(t.Context(), "ann", "", session.Revoked))(t), 1)
	testkit.Equal(t, "users whose tokens end", f.users, []string{"ann 1ms 24h1m0s"})
	for i := range all {
		f.refused(fmt.Sprint("session ", i), all[i].Refresh, session.ErrToken)
		if f.revoked[all[i].Session].IsZero() {
			t.Errorf("session %d has access", i)
		}
	}
	f.refresh(bob.Refresh)
	testkit.Equal(t, "revoked", len(f.revoked), 4)
}

// A user has 32 sessions; the one that was not used for the longest time makes room.
func TestSessionsAreBounded(t *testing.T) {
	f := newFixture(t)
	first := f.open("ann")
	second := f.open("ann")
	for range 30 {
		f.advance(time.Second)
		f.open("ann")
	}
	f.refresh(first.Refresh)
	f.advance(time.Second)
	last := f.open("ann")
	list := f.ids("ann")
	if len(list) != 32 || slices.Contains(list, second.Session) || !slices.Contains(list, first.Session) ||
		list[0] != last.Session {
		t.Fatalf("%d: %v", len(list), list)
	}
	if len(f.revoked) != 1 || f.revoked[second.Session].IsZero() {
		t.Errorf("revoked: %v", f.revoked)
	}
}

// Who is suspended or deleted begins no session and refreshes none, not within the grace either.
func TestSuspendedUsers(t *testing.T) {
	for _, status := range []table.Status{"suspended", "deleted", "deleted_at"} {
		f := newFixture(t)
		first := f.open("ann")
		second := f.refresh(first.Refresh)
		set := func(s table.Status) {
			row := table.User{UserID: "ann", CreatedAt: 1, Status: s, Counted: true}.Item()
			if s == "deleted_at" { // a row says it by its status, or by this
				row = store.NewItem(store.Attr{Name: "deleted_at", Value: store.Int(1)})
			}
			testkit.Must(t, f.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: table.UserKey("ann"),
				Item: row}}))
		}
		set(status)
		f.refused("the good one", second.Refresh, session.ErrSuspended)
		f.refused("the one before", first.Refresh, session.ErrSuspended)
		if _, err := f.Open(t.Context(), "ann", ""); !errors.Is(err, session.ErrSuspended) {
			t.Errorf("a new session: %v", err)
		}
		set(table.Active)
		f.refresh(second.Refresh)
		f.open("ann")
	}
}

// With another key a token that is good stays good. What came before it is refused; a
// theft is not reported then, and nothing ends.
func TestAnotherKey(t *testing.T) {
	f := newFixture(t)
	first := f.open("ann")
	second := f.refresh(first.Refresh)
	f.Service = f.service(f.store, 'q')
	f.refused("in its grace", first.Refresh, session.ErrToken)
	third := f.refresh(second.Refresh)
	testkit.Equal(t, "successor", f.refresh(second.Refresh).Refresh, third.Refresh)
	f.advance(time.Minute)
	f.refresh(third.Refresh)
	f.refused("of the other key", first.Refresh, session.ErrToken)
	testkit.Equal(t, "ended", len(f.revoked), 0)
	f.advance(time.Minute)
	f.refused("used before", third.Refresh, session.ErrReused)
}
