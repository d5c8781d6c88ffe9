// Package tense recognises names in the past tense, which say what has happened.
//
// It owns the list of words. It does not know what the names are of.
//
// Concurrency: functions are pure and may run together.
package tense

import (
	"regexp"
	"slices"
	"strings"
)

// Past says whether the last word of a name is in the past tense: it ends with "ed",
// or is one of the irregular ones or of more. A suffix Event, and a version as V2,
// are ignored. Names may be in any case: OrderPlaced, order_placed,
// order.placed.
func Past(name string, more ...string) bool {
	word := Last(name)
	if word == "" {
		return false
	}
	if slices.Contains(irregular, word) ||
		slices.ContainsFunc(more, func(m string) bool { return strings.EqualFold(m, word) }) {
		return true
	}
	return strings.HasSuffix(word, "ed") && len(word) > len("need") && !slices.Contains(present, word)
}

// Last returns the last word of a name in lower case, "" if it has none.
func Last(name string) string {
	all := words.FindAllString(name, -1)
	for len(all) > 1 {
		last := strings.ToLower(all[len(all)-1])
		if last != "event" && !version.MatchString(last) {
			break
		}
		all = all[:len(all)-1]
	}
	if len(all) == 0 {
		return ""
	}
	return strings.TrimRight(strings.ToLower(all[len(all)-1]), "0123456789")
}

var (
	words   = regexp.MustCompile(`[A-Z]+[0-9]+|[A-Z]?[a-z]+[0-9]*|[A-Z]+|[0-9]+`)
	version = regexp.MustCompile(`^v?[0-9]+$`)
)

// irregular are participles and past forms that do not end with "ed".
var irregular = strings.Fields(`
	added aged begun bent bid born bought bound broken brought built burnt caught chosen
	come cut dealt done drawn driven ended fallen fed fled forgotten found frozen given
	gone grown held hidden hit hurt kept known laid led left lent let lit lost made meant met
	mown outbid outrun overdrawn overridden owed paid proven put read rebuilt redone
	remade repaid resent reset resold retaken rewound rewritten ridden risen run said seen
	sent set shown shrunk shut sold sought spent split spread stolen stood stuck struck
	sunk swept swum taken taught thrown tied told undone understood unset upset used
	withdrawn withheld woken won worn wound written`)

// present end with "ed" and are no past tense.
var present = strings.Fields("breed embed exceed indeed proceed speed succeed hundred sacred")
