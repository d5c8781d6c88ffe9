package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// UserHeader names the user in whose name a service account calls.
const UserHeader = "Parley-As-User"

// ServiceUserPrefix begins the ids of the users that service accounts are themselves, and of
// no other users.
const ServiceUserPrefix = "service:"

// PersonPrefix begins the ids of people who signed up here, and of no other users.
const PersonPrefix = "usr_"

// ScopeUsers begins the scopes that say whom a service account may speak for: users whose
// ids begin with what follows, or all with "*".
const ScopeUsers = "users:"

// ScopeMakeUsers is the right of a service account to make users.
const ScopeMakeUsers Scope = "users.write"

// ErrOtherUser refuses a service account that speaks for a user for whom it has no
// permission.
var ErrOtherUser = fmt.Errorf("auth: %s names no user whom the service account may speak for", UserHeader)

// ErrScope refuses a call that the scopes of a service account do not allow, and one by a user
// that is for service accounts only.
var ErrScope = errors.New("auth: the scopes of the caller do not allow this")

// SpeakFor reports whether a service account with these scopes may speak for a user.
func (s Scopes) SpeakFor(user string) bool {
	if CheckUserID(user) != nil || strings.HasPrefix(user, ServiceUserPrefix) {
		return false
	}
	for _, scope := range s.List() {
		begins, ok := strings.CutPrefix(string(scope), ScopeUsers)
		if ok && (begins == "*" || begins != "" && strings.HasPrefix(user, begins)) {
			return true
		}
	}
	return false
}

// userHeader is the user in whose name a request is made, "" for the caller's own. Errors:
// ErrOtherUser.
func userHeader(h http.Header) (string, error) {
	values := h.Values(UserHeader)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1 || CheckUserID(values[0]) != nil:
		return "", ErrOtherUser
	}
	return values[0], nil
}
