// Package identifier knows e-mail addresses and phone numbers: their one normal form, and
// whose they are.
//
// It owns the table identifiers. An identifier has one user, who has proven it; a user has at
// most ten. It does not own the proof of one (package otp) nor the permission to look up its
// user.
//
// Concurrency: a Directory is safe for concurrent use, also by several processes.
package identifier

import (
	"errors"
	"fmt"
	"net/mail"
	"strings"

	"golang.org/x/net/idna"
)

// Kind is what an identifier is.
type Kind string

// The kinds.
const (
	Email Kind = "email"
	Phone Kind = "phone"
)

// ErrInvalid says what is wrong with the form of an identifier.
var ErrInvalid = errors.New("identifier: not an e-mail address or phone number")

// Identifier is an e-mail address or a phone number in normal form. The zero Identifier is
// none.
type Identifier struct {
	kind  Kind
	value string
}

// Bounds of the forms: those of RFC 5321, and of E.164.
const (
	maxEmail  = 254
	maxLocal  = 64
	minDigits = 8
	maxDigits = 15
)

// Parse returns the normal form of an identifier. An e-mail address is in lower case, its
// domain in ASCII; a phone number begins with + and has digits only. Errors: ErrInvalid, in
// one line without the identifier.
func Parse(text string) (Identifier, error) {
	text = strings.TrimSpace(text)
	if strings.Contains(text, "@") {
		return parseEmail(text)
	}
	return parsePhone(text)
}

// parseEmail takes an address without a name, a comment or quotation marks. Mail servers
// may tell capitals apart and none do: otherwise the same person would be two.
func parseEmail(text string) (Identifier, error) {
	local, domain, _ := strings.Cut(text, "@")
	if strings.Contains(domain, "@") || strings.ContainsAny(local, "\"\\()<>[],:;# ") {
		return Identifier{}, fmt.Errorf("%w: an address is name@domain", ErrInvalid)
	}
	domain, err := idna.Lookup.ToASCII(strings.ToLower(domain))
	top := domain[strings.LastIndexByte(domain, '.')+1:]
	if err != nil || top == domain || strings.Trim(top, "0123456789") == "" { // numbers are no domain
		return Identifier{}, fmt.Errorf("%w: the domain of the address", ErrInvalid)
	}
	value := strings.ToLower(local) + "@" + domain
	for _, r := range value { // letters of other scripts would need SMTPUTF8, which few servers have
		if r <= ' ' || r > '~' {
			return Identifier{}, fmt.Errorf("%w: characters of the address", ErrInvalid)
		}
	}
	if len(local) > maxLocal || len(value) > maxEmail {
		return Identifier{}, fmt.Errorf("%w: the address is too long", ErrInvalid)
	}
	if parsed, err := mail.ParseAddress(value); err != nil || parsed.Address != value {
		return Identifier{}, fmt.Errorf("%w: an address is name@domain", ErrInvalid)
	}
	return Identifier{Email, value}, nil
}

func parsePhone(text string) (Identifier, error) {
	plus := strings.HasPrefix(text, "+")
	digits := strings.Map(func(r rune) rune {
		switch r {
		case ' ', '-', '.', '(', ')', '/', '\u00a0':
			return -1
		}
		return r
	}, strings.TrimPrefix(text, "+"))
	if !plus {
		digits, plus = strings.CutPrefix(digits, "00")
	}
	if !plus {
		return Identifier{}, fmt.Errorf("%w: a phone number begins with + and the country's code", ErrInvalid)
	}
	if len(digits) < minDigits || len(digits) > maxDigits || digits[0] == '0' ||
		strings.Trim(digits, "0123456789") != "" {
		return Identifier{}, fmt.Errorf("%w: a phone number has %d to %d digits", ErrInvalid, minDigits, maxDigits)
	}
	return Identifier{Phone, "+" + digits}, nil
}

// Kind is what the identifier is.
func (i Identifier) Kind() Kind { return i.kind }

// Value is the address or number.
func (i Identifier) Value() string { return i.value }

// Key is the identifier with its kind, as tables have it.
func (i Identifier) Key() string { return string(i.kind) + ":" + i.value }

// String hides the identifier from logs and errors: it says the kind only.
func (i Identifier) String() string { return string(i.kind) }

// fromKey reads what Key made.
func fromKey(key string) (Identifier, bool) {
	kind, value, ok := strings.Cut(key, ":")
	return Identifier{Kind(kind), value}, ok && (Kind(kind) == Email || Kind(kind) == Phone)
}
