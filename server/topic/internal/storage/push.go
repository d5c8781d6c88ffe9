package storage

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"time"
)

// Push is what a subscription with a webhook has beside its settings, which are shown. It does not change.
type Push struct {
	// Secret signs requests, and until OldUntil Old does, too.
	Secret   string `json:"secret"`
	Old      string `json:"old,omitempty"`
	OldUntil int64  `json:"old_until,omitempty"` // unix ms
	// Principal is the principal that set the webhook, in whose name the server acts.
	Principal string `json:"principal"`
	Operator  bool   `json:"operator,omitempty"` // it was one, and needs no binding
	// GoneAt is when the webhook wanted no more messages, which paused the subscription, unix ms; 0: it does.
	GoneAt int64 `json:"gone_at,omitempty"`
}

// PushedBy is the principal that sets a webhook, with the secret that it asks for.
type PushedBy struct {
	Principal string
	Operator  bool
	Secret    string        // empty: that which there is or, of a new webhook, one that New makes
	New       func() string // makes a secret
}

// OldSecretFor is how long requests have signatures with the secret before the last change, too.
const OldSecretFor = 24 * time.Hour

// SetPush returns what a webhook has after it was set; old is nil for a new one. made is the secret, if that
// was made.
func SetPush(old *Push, by PushedBy, now time.Time) (next *Push, made string) {
	next = &Push{Principal: by.Principal, Operator: by.Operator, Secret: by.Secret}
	switch {
	case old != nil && (by.Secret == "" || by.Secret == old.Secret):
		next.Secret, next.Old, next.OldUntil, next.GoneAt = old.Secret, old.Old, old.OldUntil, old.GoneAt
	case old != nil:
		next.Old, next.OldUntil, next.GoneAt = old.Secret, now.Add(OldSecretFor).UnixMilli(), old.GoneAt
	case by.Secret == "":
		made = by.New()
		next.Secret = made
	}
	return next, made
}

// Secrets are those that sign requests at a time.
func (p *Push) Secrets(now time.Time) []string {
	if p.Old != "" && now.UnixMilli() < p.OldUntil {
		return []string{p.Secret, p.Old}
	}
	return []string{p.Secret}
}

// Signs reports whether a secret is the one that was set last. How long that takes says nothing about the secret.
func (p *Push) Signs(secret string) bool {
	return p != nil && subtle.ConstantTimeCompare([]byte(p.Secret), []byte(secret)) == 1
}

// WithGone returns the same with another time at which the webhook wanted no more messages; 0: it does.
func (p *Push) WithGone(at int64) *Push {
	if p == nil {
		return nil
	}
	next := *p
	next.GoneAt = at
	return &next
}

// text is its form in the row; empty for nil.
func (p *Push) text() (string, error) {
	if p == nil {
		return "", nil
	}
	b, err := json.Marshal(p) //nolint:gosec // the row is where the secret is stored
	return string(b), err
}

// pushOf reads the form in the row. The error has nothing of the text, in which there are secrets.
func pushOf(text string) (*Push, error) {
	if text == "" {
		return nil, nil
	}
	p := &Push{}
	if json.Unmarshal([]byte(text), p) != nil {
		return nil, fmt.Errorf("the attribute push is not valid")
	}
	return p, nil
}
