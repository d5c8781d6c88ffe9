// Package caller names the caller of a call that one process passes on to another.
//
// A process that admits a caller and passes the call on over a link (package link) names the
// caller in a header. The receiver trusts the header because the link authenticates the
// process. The package owns the form of that header, which several versions understand side
// by side. The header has no effect outside of a link. Concurrency: everything is safe for
// concurrent use.
package caller

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Header has the caller.
const Header = "Parley-Caller"

// Caller is the caller of a call.
type Caller struct {
	Principal string    `json:"p"`
	Operator  bool      `json:"o,omitempty"`
	Creator   bool      `json:"c,omitempty"` // may make topics
	Session   string    `json:"s,omitempty"` // of the token; empty for operators
	ExpiresAt time.Time `json:"e,omitzero"`  // of the token
}

// Introduce writes the caller into headers.
func (c Caller) Introduce(h http.Header) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("caller: %w", err)
	}
	h.Set(Header, base64.RawURLEncoding.EncodeToString(b))
	return nil
}

// errNobody reports that a call names no caller.
var errNobody = errors.New("caller: the call names no caller")

// From reads the caller from headers.
func From(h http.Header) (c Caller, err error) {
	b, err := base64.RawURLEncoding.DecodeString(h.Get(Header))
	if err != nil {
		return c, fmt.Errorf("caller: %w", err)
	}
	if len(b) == 0 {
		return c, errNobody
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("caller: %w", err)
	}
	return c, nil
}
