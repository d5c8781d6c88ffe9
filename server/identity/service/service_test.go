package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

type fixture struct {
	*Service
	now     time.Time
	store   store.Store
	fault   func(faulty.Call) faulty.Fault
	reads   int
	revoked []string
	fail    error
}

// RevokeKey implements Revoker.
func (b *fixture) RevokeKey(_ context.Context, key string) error {
	b.revoked = append(b.revoked, key)
	return b.fail
}

// RevokeService implements Revoker.
func (b *fixture) RevokeService(_ context.Context, account string, before, _ time.Time) error {
	if !before.Equal(b.now) {
		return errors.New("another time")
	}
	b.revoked = append(b.revoked, account)
	return b.fail
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return b.now }
	b.store = faulty.New(storetest.NewMemory(clock), faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if c.Method == faulty.BatchGet {
			b.reads++
		}
		if b.fault != nil {
			return b.fault(c)
		}
		return faulty.Fault{}
	}})
	var err error
	b.Service, err = New(Config{Store: b.store, Clock: clock, Secret: slices.Repeat([]byte{7}, 32), Revoker: b})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *fixture) account(t *testing.T, id string, scopes ...string) {
	t.Helper()
	_, err := b.Create(t.Context(), Account{ID: id, Description: "shop", Scopes: scopes, CreatedBy: "ada"})
	if err != nil {
		t.Fatal(err)
	}
}

func (b *fixture) key(t *testing.T, account string, expires time.Time) (Key, string) {
	t.Helper()
	k, text, err := b.CreateKey(t.Context(), account, "ada", expires)
	if err != nil {
		t.Fatal(err)
	}
	return k, text
}

// An account's program changes over from a key to another while both are good; each is good
// until it expires or is revoked, and the store has nothing that authenticates.
func TestKeys(t *testing.T) {
	b := newFixture(t)
	b.account(t, "shop", "api", "users:shop.")
	first, one := b.key(t, "shop", b.now.Add(time.Hour))
	b.now = b.now.Add(time.Second)
	second, two := b.key(t, "shop", time.Time{})
	for text, expires := range map[string]time.Time{
		one: b.now.Add(time.Hour - time.Second), two: b.now.Add(24 * time.Hour),
	} {
		p, err := b.Authenticate(t.Context(), text, "")
		if err != nil || p.UserID != "service:shop" || p.Kind != auth.KindService || p.Service != "shop" ||
			!p.Scopes.Has("api") || !p.ExpiresAt.Equal(expires) || auth.CheckUserID(p.UserID) != nil || len(p.SessionID) > 64 {
			t.Fatalf("%+v, %v", p, err)
		}
		for row, err := range store.QueryAll(t.Context(), b.store, store.Query{Table: store.Services, PK: "keys/shop"}) {
			secret := strings.Split(text, "_")[4]
			if err != nil || strings.Contains(fmt.Sprint(row.Key, row.Item), secret) {
				t.Fatal("the store tells a key", err)
			}
		}
	}
	a, keys, err := b.Get(t.Context(), "shop")
	if err != nil || a.CreatedBy != "ada" || len(keys) != 2 || keys[0].ID != second.ID {
		t.Fatal(a, keys, err)
	}
	if err := b.Service.RevokeKey(t.Context(), "shop", first.ID); err != nil ||
		!slices.Equal(b.revoked, []string{"key_shop_" + first.ID}) {
		t.Fatal(b.revoked, err)
	}
	if _, err := b.Authenticate(t.Context(), one, ""); !errors.Is(err, auth.ErrRevoked) {
		t.Fatal(err)
	}
	third, text := b.key(t, "shop", b.now.Add(time.Minute))
	b.now = b.now.Add(time.Minute)
	if _, err := b.Authenticate(t.Context(), text, ""); !errors.Is(err, auth.ErrTokenExpired) {
		t.Fatal(third, err)
	}
	if _, err := b.Authenticate(t.Context(), two, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Disable(t.Context(), "shop"); err != nil || b.revoked[1] != "shop" {
		t.Fatal(b.revoked, err)
	}
	if _, err := b.Authenticate(t.Context(), two, ""); !errors.Is(err, auth.ErrRevoked) {
		t.Fatal(err)
	}
	if _, _, err := b.CreateKey(t.Context(), "shop", "ada", time.Time{}); !errors.Is(err, ErrDisabled) {
		t.Fatal(err)
	}
}

// What this installation did not make costs no read, and nothing of a key may be changed.
func TestMadeUpKeys(t *testing.T) {
	b := newFixture(t)
	b.account(t, "shop", "api")
	b.account(t, "shop2", "api")
	_, text := b.key(t, "shop", time.Time{})
	parts := strings.Split(text, "_")
	change := func(i int, to string) string {
		p := slices.Clone(parts)
		p[i] = to
		return strings.Join(p, "_")
	}
	for name, made := range map[string]string{
		"empty": "", "the prefix": auth.ServiceKeyPrefix, "another account": change(2, "shop2"),
		"another key": change(3, strings.Repeat("a", 12)), "another secret": change(4, strings.Repeat("a", 52)),
		"another tag": change(5, strings.Repeat("0", 16)), "no tag": strings.Join(parts[:5], "_"),
		"a part more": text + "_x", "long": text + strings.Repeat("x", 1<<12), "a part less": change(4, ""),
	} {
		if _, err := b.Authenticate(t.Context(), made, ""); !errors.Is(err, auth.ErrInvalidToken) || b.reads != 0 {
			t.Errorf("%s: %v, %d reads", name, err, b.reads)
		}
	}
	// The tag alone lets nobody in: a key whose row is gone, as after a restore.
	other := strings.Join(parts[:4], "_") + "_" + strings.Repeat("b", 52)
	other += "_" + b.tag(other)
	if _, err := b.Authenticate(t.Context(), other, ""); !errors.Is(err, auth.ErrInvalidToken) || b.reads != 1 {
		t.Errorf("%v, %d reads", err, b.reads)
	}
	gone := strings.Join(parts[:3], "_") + "_" + strings.Repeat("b", 12) + "_" + parts[4]
	gone += "_" + b.tag(gone)
	if _, err := b.Authenticate(t.Context(), gone, ""); !errors.Is(err, auth.ErrRevoked) || b.reads != 2 {
		t.Errorf("%v, %d reads", err, b.reads)
	}
}

// What an account has open, and the tokens that it asked for, end when it loses a right, also
// where that is repeated because it was not known everywhere; not when it only gets some.
func TestLostScopes(t *testing.T) {
	b := newFixture(t)
	b.account(t, "shop", "api")
	for i, step := range []struct {
		scopes []string
		fail   error
		ends   bool
	}{
		{[]string{"topics", "api"}, nil, false}, {[]string{"users:*", "api", "topics"}, nil, false},
		{[]string{"api", "users:*"}, store.ErrUnavailable, true}, {[]string{"users:*", "api"}, nil, true},
		{[]string{"tokens.issue", "users:*"}, nil, true}, {[]string{"users:a", "users:b", "api"}, nil, true},
	} {
		b.revoked, b.fail = nil, step.fail
		_, err := b.SetScopes(t.Context(), "shop", step.scopes)
		if ended := slices.Equal(b.revoked, []string{"shop"}); ended != step.ends || !errors.Is(err, step.fail) {
			t.Errorf("step %d: ended %q, %v", i, b.revoked, err)
		}
	}
}

// An account speaks for the users that its scopes name, while they are active, and for no
// other account.
func TestSpeakingForUsers(t *testing.T) {
	b := newFixture(t)
	b.account(t, "shop", "chats.write", "users.write", "users:shop.", "users:guest-1")
	b.account(t, "all", "chats.write", "users:*") // for those who are there
	b.account(t, "none", "chats.write")
	for user, status := range map[string]table.Status{"shop.gone": "suspended", "bob": "", "shop.ann": ""} {
		row := table.User{UserID: user, Status: status}
		if err := b.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: table.UserKey(user),
			Item: row.Item()}}); err != nil {
			t.Fatal(err)
		}
	}
	for account, users := range map[string]map[string]bool{
		"shop": {"shop.ann": true, "shop.": true, "shop": false, "guest-1": true, "guest-12": true, "bob": false,
			"shop.gone":    false,
			"service:shop": false, "a b": false},
		"all":  {"bob": true, "shop.ann": true, "service:shop": false, "shop.gone": false, "ghost": false},
		"none": {"bob": false},
	} {
		_, text := b.key(t, account, time.Time{})
		for user, want := range users {
			p, err := b.Authenticate(t.Context(), text, user)
			if want != (err == nil) || err == nil && (p.UserID != user || p.Service != account) ||
				err != nil && !errors.Is(err, auth.ErrOtherUser) {
				t.Errorf("%s for %s: %+v, %v", account, user, p, err)
			}
		}
	}
	if active, err := b.Active(t.Context(), "shop.gone"); err != nil || active {
		t.Error("a suspended user is active", err)
	}
	if _, err := b.SetScopes(t.Context(), "none", []string{"users:bob"}); err != nil {
		t.Fatal(err)
	}
	if a, _, err := b.Get(t.Context(), "none"); err != nil || !slices.Equal(a.Scopes, []string{"users:bob"}) {
		t.Fatal(a, err)
	}
}

// What is not as it must be is refused, and lists have limits.
func TestLimitsOfAccounts(t *testing.T) {
	b := newFixture(t)
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprint("users:", i)
	}
	for name, a := range map[string]Account{
		"id": {ID: "a_b", Scopes: []string{"api"}}, "long id": {ID: strings.Repeat("a", 33), Scopes: []string{"api"}},
		"no scopes": {ID: "a"}, "unknown scope": {ID: "a", Scopes: []string{"root"}},
		"nobody":   {ID: "a", Scopes: []string{"users:"}},
		"too many": {ID: "a", Scopes: many}, "other accounts": {ID: "a", Scopes: []string{"users:service:x"}},
		"long scope":  {ID: "a", Scopes: []string{"users:" + strings.Repeat("x", 64)}},
		"description": {ID: "a", Scopes: []string{"api"}, Description: strings.Repeat("x", 257)},
	} {
		if _, err := b.Create(t.Context(), a); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if good := name == "id" || name == "long id" || name == "description"; good != (b.Check(a.Scopes) == nil) {
			t.Errorf("%s: %v", name, b.Check(a.Scopes))
		}
	}
	b.account(t, "shop", "api")
	if _, err := b.Create(t.Context(), Account{ID: "shop", Scopes: []string{"topics"}}); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	for range 10 {
		b.key(t, "shop", b.now.Add(time.Hour))
	}
	if _, _, err := b.CreateKey(t.Context(), "shop", "ada", time.Time{}); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	for range 12 { // the rows of those that are over make room
		b.now = b.now.Add(2 * time.Hour)
		for range 10 {
			b.key(t, "shop", b.now.Add(time.Hour))
		}
	}
	if _, keys, err := b.Get(t.Context(), "shop"); err != nil || len(keys) > 100 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if _, _, err := b.CreateKey(t.Context(), "shop", "ada", b.now); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"key": b.Service.RevokeKey(t.Context(), "shop", strings.Repeat("a", 12)),
		"id":  b.Service.RevokeKey(t.Context(), "shop", "x"),
		"scopes": func() error {
			_, err := b.SetScopes(t.Context(), "nobody", []string{"api"})
			return err
		}(),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range 5 {
		b.account(t, fmt.Sprint("a", i), "api")
	}
	list, more, err := b.List(t.Context(), "a0", 3)
	if err != nil || !more || len(list) != 3 || list[0].ID != "a1" {
		t.Fatal(list, more, err)
	}
	if list, more, err = b.List(t.Context(), "a3", 3); err != nil || more || len(list) != 2 || list[1].ID != "shop" {
		t.Fatal(list, more, err)
	}
}

// A creation whose answer was lost is done once.
func TestLostAnswers(t *testing.T) {
	b := newFixture(t)
	lost := 0
	b.fault = func(c faulty.Call) faulty.Fault {
		if c.Method == faulty.Transact && lost == 0 {
			lost++
			return faulty.Fault{When: faulty.After, Err: store.ErrAmbiguous}
		}
		return faulty.Fault{}
	}
	b.account(t, "shop", "api")
	lost = 0
	_, text := b.key(t, "shop", time.Time{})
	if _, err := b.Authenticate(t.Context(), text, ""); err != nil {
		t.Fatal(err)
	}
	if _, keys, err := b.Get(t.Context(), "shop"); err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	b.fail = store.ErrUnavailable
	if _, err := b.Disable(t.Context(), "shop"); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal("what is not known everywhere is said to be done:", err)
	}
}
