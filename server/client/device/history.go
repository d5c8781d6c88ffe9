package device

import (
	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/history"
)

// history is what the device was shown at most, as it says it with each call: the server refuses a
// call if that is not part of its store's history. Empty before the first answer.
func (s *Session) history() string {
	return history.Commit{Generation: s.Generation, Commit: s.Commit}.String()
}

// errHistory is the failure of a call whose answer cannot be applied. It is made again.
var errHistory = &Failure{Code: connect.CodeUnavailable, Reason: "OTHER_GENERATION"}

// answered takes what an answer says of the store's history, and returns why it cannot be applied.
func (m *Machine) answered(asked, said string) *Failure {
	shows, ok := history.Parse(said)
	if !ok || !m.reach(asked, shows.Generation, shows.Commit) {
		return errHistory
	}
	return nil
}

// reach says that what follows may show a commit, and reports whether it may be applied. An answer
// of another generation than the device is in holds all that the device had said when it asked; if
// it has been shown more since, that may be missing there.
func (m *Machine) reach(asked, generation string, commit int64) bool {
	s := &m.session
	switch {
	case generation == s.Generation:
		commit = max(commit, s.Commit)
	case asked != s.history():
		return false
	case m.unnamed: // the stored messages may be of another history
		m.unnamed = false
		m.generation(generation)
		return false
	}
	m.moved = m.moved || generation != s.Generation || commit != s.Commit
	s.Generation, s.Commit = generation, commit
	return true
}

// refused starts over if the device was shown what the server does not have; asked is what the
// refused call said.
func (m *Machine) refused(asked string, why *Failure) {
	if why == nil || why.Reason != reasonHistory || asked != m.session.history() {
		return
	}
	m.dropVersions()
	m.session = Session{}
	m.sessionDirty = true
	m.resync()
	if m.stream.id != 0 {
		m.closeStream(m.cfg.Clock())
	}
}

// generation drops what belongs to another generation of the store, of a server that does not
// compare histories. Answers about one chat do not name theirs there: those before the first
// that does count as another's.
func (m *Machine) generation(g string) {
	m.unnamed = m.unnamed && g == ""
	if g == "" || g == m.session.Generation {
		return
	}
	if m.session.Generation != "" || len(m.chats)+len(m.left)+len(m.sending) > 0 {
		m.dropVersions()
		m.setToken("")
	}
	m.session.Generation, m.session.Commit, m.sessionDirty = g, 0, true
}
