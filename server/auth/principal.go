package auth

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of a caller.
type Kind uint8

// The kinds of principals.
const (
	KindUser    Kind = iota // a user with an access token
	KindService             // a service account with one of its keys
)

// Principal is an authenticated caller. Two of them can be compared.
type Principal struct {
	Kind      Kind
	UserID    string // of a service account, the user that it is, or in whose name it calls
	SessionID string // of a service account, the id of its key
	ExpiresAt time.Time
	// IssuedAt is when the token was made, to the second, or when the service account's rights
	// were read.
	IssuedAt time.Time
	// Service is the service account that is calling, or that asked for the user's token.
	Service string
	// ServiceKey is the id of the service account's key with which the user's token was asked for.
	ServiceKey string
	Scopes     Scopes // of a service account
	// SigningKey is the key that the token is signed with; empty without a token.
	SigningKey string
}

// ByService is the service account that is calling, "" for a user.
func (p Principal) ByService() string {
	if p.Kind == KindService {
		return p.Service
	}
	return ""
}

type principalKey struct{}

// PrincipalFrom returns the caller; ok is false outside of a gate.
func PrincipalFrom(ctx context.Context) (p Principal, ok bool) {
	p, ok = ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// WithPrincipal returns a context in which a principal is calling.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Scope is a right of a service account.
type Scope string

// Scopes are rights of a service account, sorted, with spaces between them: a value that can
// be compared.
type Scopes string

// NewScopes makes a set.
func NewScopes(list ...Scope) Scopes {
	list = slices.Clone(list)
	slices.Sort(list)
	words := make([]string, 0, len(list))
	for _, s := range slices.Compact(list) {
		words = append(words, string(s))
	}
	return Scopes(strings.Join(words, " "))
}

// Has reports whether a right is in the set.
func (s Scopes) Has(scope Scope) bool {
	for rest := string(s); rest != ""; {
		var word string
		if word, rest, _ = strings.Cut(rest, " "); word == string(scope) {
			return true
		}
	}
	return false
}

// List returns the rights.
func (s Scopes) List() []Scope {
	var list []Scope
	for _, word := range strings.Fields(string(s)) {
		list = append(list, Scope(word))
	}
	return list
}
