package delivery

import "github.com/parley-chat/parley/server/infra/bounded"

// maxRemembered bounds a departureSet; a dropped departure is sent again.
const maxRemembered = 1000

type sentDeparture struct {
	version   int64  // of the removal that was sent
	confirmed int64  // no addition followed up to this version
	applier   uint64 // has applied every change of the chat since; 0: none
}

// departureSet holds the departures of one stream's user by chat, so that neither a repeated delivery nor a
// synchronisation reads and sends one again. Its owner guards it.
type departureSet map[string]sentDeparture

// Add records that a removal is sent; false if it, or a later one, was sent before.
// applier, if not 0, identifies the state that applies all changes of the chat from that
// version on.
func (s departureSet) Add(chatID string, version int64, applier uint64) (isNew bool) {
	if d, ok := s[chatID]; ok && d.version >= version {
		return false
	}
	bounded.Put(s, chatID, sentDeparture{version: version, confirmed: version, applier: applier}, maxRemembered)
	return true
}

// Version is that of the removal that was sent; 0 for none.
func (s departureSet) Version(chatID string) int64 { return s[chatID].version }

// Confirm records that a read which began after a version was committed has found the
// departure again.
func (s departureSet) Confirm(chatID string, version int64) {
	if d, ok := s[chatID]; ok && d.confirmed < version {
		d.confirmed = version
		s[chatID] = d
	}
}

// Covers reports whether the departure was sent, and no change up to a version can have
// made the user a member again. applier identifies the state that applies the chat's changes
// now, up to applied.
func (s departureSet) Covers(chatID string, version int64, applier uint64, applied int64) bool {
	d, ok := s[chatID]
	if ok && applier != 0 && applier == d.applier {
		return version <= max(d.confirmed, applied)
	}
	return ok && version <= d.confirmed
}
