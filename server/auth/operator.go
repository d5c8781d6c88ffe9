package auth

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// OperatorAudience is what tokens of operators say, and those of users never do: none
// is good for the other's services.
const OperatorAudience = "parley-ops"

// OperatorName is the form of operators' names, which stand in logs and audits.
var OperatorName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// Operator is an operator of the installation.
type Operator struct {
	Name      string
	Role      Role
	ExpiresAt time.Time
}

// IssueOperator makes a token for an operator who may do everything.
func (k *Key) IssueOperator(name string, now time.Time, ttl time.Duration) (string, error) {
	return k.IssueRole(name, Admin, now, ttl)
}

// IssueRole makes a token for an operator with a role.
func (k *Key) IssueRole(name string, role Role, now time.Time, ttl time.Duration) (string, error) {
	switch {
	case !OperatorName.MatchString(name):
		return "", fmt.Errorf("an operator's name must be 1 to 64 letters, digits, dots, dashes, underscores or at signs, not %.80q", name)
	case !role.Valid():
		return "", fmt.Errorf("an operator's role must be one of %v, not %.40q", Roles(), role)
	}
	return k.sign(claims{RegisteredClaims: jwt.RegisteredClaims{Subject: name,
		Audience: jwt.ClaimStrings{OperatorAudience}}, Role: role}, now, ttl)
}

// Operator returns which operator's token a request carries. Errors: ErrMissingToken,
// ErrInvalidToken, ErrTokenExpired.
func (k *Key) Operator(header http.Header, now time.Time) (Operator, error) {
	token, err := Bearer(header)
	if err != nil {
		return Operator{}, err
	}
	c, err := k.parse(token, OperatorAudience, now)
	if c.Role == "" {
		// A token of the release before, which knew no roles: its holder could do everything.
		// It was made with the key, and is good for hours.
		c.Role = Admin
	}
	switch {
	case err != nil:
		return Operator{}, err
	case !OperatorName.MatchString(c.Subject) || c.SessionID != "" || !c.Role.Valid():
		return Operator{}, ErrInvalidToken
	}
	return Operator{Name: c.Subject, Role: c.Role, ExpiresAt: c.ExpiresAt.Time}, nil
}

// Bearer returns the one token of a request. Errors: ErrMissingToken, ErrNotBearer, ErrInvalidToken.
func Bearer(header http.Header) (string, error) {
	values := header.Values("Authorization")
	if len(values) == 0 {
		return "", ErrMissingToken
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case len(values) > 1 || !strings.EqualFold(scheme, "Bearer"):
		return "", ErrNotBearer
	case token == "": // a variable of a shell that was not set
		return "", ErrMissingToken
	case len(token) > maxToken:
		return "", ErrInvalidToken
	}
	return token, nil
}
