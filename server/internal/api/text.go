package api

import (
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Text of users is stored byte for byte; characters that could deceive or harm a reader
// are refused. Lengths are rules of the contracts, in proto.

// CheckName and CheckText check what users write for other services: a name of one line, and
// a text of several.
func CheckName(field, s string) error { return checkName(field, s) }

// CheckText is explained at CheckName.
func CheckText(field, s string) error { return checkContent(field, s) }

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

// checkName checks the name of a group: one line that looks like what it is, with
// something to see in it.
func checkName(field, s string) error {
	if !utf8.ValidString(s) {
		return invalidField(field, "must be valid UTF-8")
	}
	runes := []rune(s)
	for i, r := range runes {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return invalidField(field, fmt.Sprintf("must not contain the control character U+%04X", r))
		case unicode.Is(unicode.Noncharacter_Code_Point, r):
			return invalidField(field, fmt.Sprintf("must not contain U+%04X, which is no character", r))
		case isJoiner(r):
			// Emoji and some scripts need them, between their characters only.
			if i == 0 || i == len(runes)-1 || !joinable(runes[i-1]) || !joinable(runes[i+1]) {
				return invalidField(field, fmt.Sprintf("must not contain the invisible character U+%04X here", r))
			}
		case isInvisible(r):
			return invalidField(field, fmt.Sprintf("must not contain the invisible character U+%04X", r))
		}
	}
	if !slices.ContainsFunc(runes, isVisible) {
		return invalidField(field, "must not be blank: it has no visible character")
	}
	return nil
}

func isJoiner(r rune) bool { return r == '\u200c' || r == '\u200d' }

func joinable(r rune) bool { return r > unicode.MaxLatin1 && !isJoiner(r) && !unicode.IsSpace(r) }

// isInvisible reports characters that take no room, or change the direction of
// what follows, and that no name needs: none of them belongs to an emoji or to the
// spelling of a word.
func isInvisible(r rune) bool {
	switch {
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069': // embeddings, overrides, isolates
		return true
	// joiners, operators of formulas, annotations
	case r >= '\u2060' && r <= '\u2065', r >= '\u206a' && r <= '\u206f', r >= '\ufff0' && r <= '\ufffb':
		return true
	case r == '\u200b', r == '\u200e', r == '\u200f', r == '\u061c', r == '\u180e', r == '\ufeff', r == '\u00ad',
		r == '\U000e0001':
		return true
	}
	return false
}

// isVisible reports characters that leave something to see when they stand alone: no
// space, and none that Unicode has renderers ignore, such as the fillers of Hangul
// (U+3164), variation selectors and tags. The blank pattern of Braille is a symbol by its
// properties, and a space to the eye.
func isVisible(r rune) bool {
	switch {
	case unicode.IsSpace(r), unicode.Is(unicode.Z, r), r == '\u2800':
		return false
	case unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		return false
	case unicode.Is(unicode.Cf, r):
		return unicode.Is(unicode.Prepended_Concatenation_Mark, r)
	}
	return true
}
