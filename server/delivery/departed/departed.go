// Package departed remembers which ends of its user's memberships a stream was shown, so
// that neither a repeated delivery nor a synchronisation has one read and shown again.
//
// It does not own what is shown (package delivery). A Set is guarded by its owner.
package departed

// maxRemembered bounds a Set; what is forgotten is shown again.
const maxRemembered = 1000

type departure struct {
	told   int64  // version of the removal that was shown
	asOf   int64  // no addition followed up to this version
	walker uint64 // who has walked every change of the chat since; 0 for nobody
}

// Set holds the departures of one stream's user by chat.
type Set map[string]departure

// Show notes that a removal is shown; false if it, or a later one, was shown before.
// walker, if not 0, is whoever walks all changes of the chat from that version on.
func (s Set) Show(chatID string, version int64, walker uint64) (fresh bool) {
	if d, ok := s[chatID]; ok && d.told >= version {
		return false
	}
	if len(s) >= maxRemembered {
		clear(s)
	}
	s[chatID] = departure{told: version, asOf: version, walker: walker}
	return true
}

// Told is the version of the removal that was shown; 0 for none.
func (s Set) Told(chatID string) int64 { return s[chatID].told }

// Confirm notes that a read which began after a version was committed has found the
// departure again.
func (s Set) Confirm(chatID string, version int64) {
	if d, ok := s[chatID]; ok && d.asOf < version {
		d.asOf = version
		s[chatID] = d
	}
}

// Covers reports whether the departure was shown, and no change up to a version can have
// made the user a member again. walker is who walks the chat now, up to walked.
func (s Set) Covers(chatID string, version int64, walker uint64, walked int64) bool {
	d, ok := s[chatID]
	if ok && walker != 0 && walker == d.walker {
		return version <= max(d.asOf, walked)
	}
	return ok && version <= d.asOf
}
