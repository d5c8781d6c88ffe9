package service

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// A key is parley_sk_ACCOUNT_KEY_SECRET_TAG: ids, 260 random bits, and a MAC of all before.
const (
	keyIDSize = 12
	tagSize   = 8 // bytes
	maxText   = 256
)

// CreateKey makes a key of an account and returns it, this once. expires is when it ends;
// zero: never. Other keys stay good. Errors: ErrNotFound, ErrDisabled, ErrTooMany, ErrInvalid.
func (s *Service) CreateKey(ctx context.Context, account, by string, expires time.Time) (Key, string, error) {
	now := s.cfg.Clock()
	if !expires.IsZero() && !expires.After(now) {
		return Key{}, "", fmt.Errorf("%w: a key ends in the future", ErrInvalid)
	}
	a, keys, err := s.Get(ctx, account)
	switch {
	case err != nil:
		return Key{}, "", err
	case a.Disabled:
		return Key{}, "", ErrDisabled
	}
	gone, err := room(keys, now)
	if err != nil {
		return Key{}, "", err
	}
	k := Key{Account: account, ID: strings.ToLower(rand.Text()[:keyIDSize]), CreatedAt: now.UnixMilli(), CreatedBy: by}
	if !expires.IsZero() {
		k.ExpiresAt = expires.UnixMilli()
	}
	text := auth.ServiceKeyPrefix + account + "_" + k.ID + "_" + strings.ToLower(rand.Text()+rand.Text())
	text += "_" + s.tag(text)
	sum := sha256.Sum256([]byte(text))
	k.Hash = sum[:]
	writes := []store.Write{
		{Op: store.OpCheck, Key: people.AccountKey(account), Name: "account",
			Cond: store.Exists().Without(people.AttrDisabled)},
		{Op: store.OpPut, Key: people.ServiceKeyKey(account, k.ID), Item: k.Item()},
	}
	for _, old := range gone {
		writes = append(writes, store.Write{Op: store.OpDelete, Key: people.ServiceKeyKey(account, old.ID)})
	}
	err = s.commits.Repeat(ctx, writes...)
	if commit.ConditionError(err) != nil {
		return Key{}, "", s.commits.Durable(ctx, ErrDisabled)
	}
	if err != nil {
		return Key{}, "", err
	}
	return k, text, nil
}

// room returns the oldest keys that are good no more, where their rows must make room.
// Errors: ErrTooMany.
func room(keys []Key, now time.Time) (gone []Key, err error) {
	live := 0
	for i, k := range keys {
		if !k.Revoked && (k.ExpiresAt == 0 || now.UnixMilli() < k.ExpiresAt) {
			live++
		} else if i >= maxKeys-maxLive {
			gone = append(gone, k)
		}
	}
	if live >= maxLive {
		return nil, ErrTooMany
	}
	return gone, nil
}

// RevokeKey ends a key, and the tokens that were asked for with it. It may be repeated, and is
// to be after an error. Errors: ErrNotFound.
func (s *Service) RevokeKey(ctx context.Context, account, id string) error {
	if !accountID.MatchString(account) || len(id) != keyIDSize {
		return ErrNotFound
	}
	err := s.commits.Repeat(ctx, store.Write{Op: store.OpUpdate, Key: people.ServiceKeyKey(account, id), Name: "key",
		Cond:   store.Exists(),
		Update: store.Update{Set: []store.Attr{{Name: people.AttrRevoked, Value: store.Bool(true)}}}})
	if commit.ConditionError(err) != nil {
		return s.commits.Durable(ctx, ErrNotFound)
	}
	if err != nil {
		return err
	}
	return s.cfg.Revoker.RevokeKey(ctx, session(account, id))
}

// session is what the key of an account is for what it opens.
func session(account, id string) string { return "key_" + account + "_" + id }

// tag authenticates the beginning of a key.
func (s *Service) tag(text string) string {
	mac := hmac.New(sha256.New, s.cfg.Secret)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil)[:tagSize])
}

// Authenticate returns whose key a text is, for the gate: the account itself, or in the name
// of a user. Errors: auth.ErrInvalidToken, ErrTokenExpired, ErrRevoked and ErrOtherUser.
func (s *Service) Authenticate(ctx context.Context, text, user string) (auth.Principal, error) {
	account, id, ok := s.parse(text)
	if !ok {
		return auth.Principal{}, auth.ErrInvalidToken
	}
	keys := []store.Key{people.AccountKey(account), people.ServiceKeyKey(account, id)}
	if user != "" {
		keys = append(keys, table.UserKey(user))
	}
	items, err := s.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return auth.Principal{}, err
	}
	a, k := people.AccountFrom(account, items[0]), people.ServiceKeyFrom(account, id, items[1])
	sum := sha256.Sum256([]byte(text))
	now := s.cfg.Clock()
	switch {
	case items[0] == nil || items[1] == nil || a.Disabled || k.Revoked:
		return auth.Principal{}, auth.ErrRevoked // a key that was made here, and whose row made room
	case subtle.ConstantTimeCompare(sum[:], k.Hash) != 1:
		return auth.Principal{}, auth.ErrInvalidToken
	case k.ExpiresAt != 0 && now.UnixMilli() >= k.ExpiresAt:
		return auth.Principal{}, auth.ErrTokenExpired
	}
	p := auth.Principal{Kind: auth.KindService, UserID: auth.ServiceUserPrefix + account, SessionID: session(account, id),
		ExpiresAt: now.Add(auth.MaxTTL), Service: account, Scopes: scopesOf(a)}
	if k.ExpiresAt != 0 && k.ExpiresAt < p.ExpiresAt.UnixMilli() {
		p.ExpiresAt = time.UnixMilli(k.ExpiresAt)
	}
	if user != "" {
		there := items[2] != nil || p.Scopes.Has(ScopeUsers)
		if !p.Scopes.SpeakFor(user) || !there || !active(user, items[2]) {
			return auth.Principal{}, auth.ErrOtherUser
		}
		p.UserID = user
	}
	return p, nil
}

// active reports whether a user may act; the user may not exist yet.
func active(user string, it store.Item) bool {
	status := table.UserFrom(user, it).Status
	return status == "" || status == table.Active
}

// Active reports whether tokens may be made for a user, who may not be there yet.
func (s *Service) Active(ctx context.Context, user string) (bool, error) {
	it, err := s.cfg.Store.Get(ctx, table.UserKey(user), store.Strong)
	return active(user, it), err
}

func scopesOf(a Account) auth.Scopes {
	list := make([]auth.Scope, len(a.Scopes))
	for i, s := range a.Scopes {
		list[i] = auth.Scope(s)
	}
	return auth.NewScopes(list...)
}

// parse takes a key apart, if this installation made it.
func (s *Service) parse(text string) (account, id string, ok bool) {
	i := strings.LastIndexByte(text, '_')
	if i < 0 || len(text) > maxText {
		return "", "", false
	}
	if !hmac.Equal([]byte(s.tag(text[:i])), []byte(text[i+1:])) {
		return "", "", false
	}
	rest, ok := strings.CutPrefix(text[:i], auth.ServiceKeyPrefix)
	parts := strings.Split(rest, "_")
	if !ok || len(parts) != 3 || !accountID.MatchString(parts[0]) || len(parts[1]) != keyIDSize {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// SessionOf makes the id of a session of tokens that an account asks for; Owns recognises it.
func SessionOf(account string) string { return "ses_" + account + "_" + rand.Text() }

// Owns reports whether a session is one of an account's.
func Owns(account, session string) bool {
	return strings.HasPrefix(session, "ses_"+account+"_")
}
