package api

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What users write is stored byte for byte; what could harm a reader is refused
// (S-23). Lengths are rules of the contracts, in proto.

// checkContent checks the text of a message: UTF-8 without control characters,
// but for tab and the two of line ends.
func checkContent(field, s string) error {
	if !utf8.ValidString(s) {
		return invalidField(field, "must be valid UTF-8")
	}
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\n' && c != '\t' && c != '\r' {
			return invalidField(field, fmt.Sprintf("must not contain the control character U+%04X (byte %d)", c, i))
		}
	}
	return nil
}

// checkName checks the name of a group: one line that looks like what it is.
func checkName(field, s string) error {
	if !utf8.ValidString(s) {
		return invalidField(field, "must be valid UTF-8")
	}
	if strings.TrimSpace(s) == "" {
		return invalidField(field, "must not be blank")
	}
	runes := []rune(s)
	for i, r := range runes {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return invalidField(field, fmt.Sprintf("must not contain the control character U+%04X", r))
		case isJoiner(r):
			// Emoji and some scripts need them, between their characters only.
			if i == 0 || i == len(runes)-1 || !joinable(runes[i-1]) || !joinable(runes[i+1]) {
				return invalidField(field, fmt.Sprintf("must not contain the invisible character U+%04X here", r))
			}
		case isInvisible(r):
			return invalidField(field, fmt.Sprintf("must not contain the invisible character U+%04X", r))
		}
	}
	return nil
}

func isJoiner(r rune) bool { return r == '\u200c' || r == '\u200d' }

func joinable(r rune) bool { return r > unicode.MaxLatin1 && !isJoiner(r) && !unicode.IsSpace(r) }

// isInvisible reports characters that take no room, or change the direction of
// what follows.
func isInvisible(r rune) bool {
	switch {
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069': // embeddings, overrides, isolates
		return true
	case r == '\u200b', r == '\u200e', r == '\u200f', r == '\u061c', r == '\u180e', r == '\u2060', r == '\ufeff', r == '\u00ad':
		return true
	}
	return false
}
