package chat

import (
	"time"

	"github.com/parley-chat/parley/server/store/table"
)

// Meter counts what commands did, for metrics. It must be quick; nil functions are not
// called.
type Meter struct {
	// ChatCreated counts a new chat, and CreationTook how long each phase took: 1, and
	// for a group 2.
	ChatCreated  func(kind table.Type)
	CreationTook func(kind table.Type, phase int, took time.Duration)
	// CreationRetried counts each time that a chunk of a group's members runs again because
	// the store throttled it, met another transaction, or did not say what became of it.
	CreationRetried func()
	// DirectAsked counts a direct chat that was asked for.
	DirectAsked func(existed bool)
	// MembershipChanged counts a change of a membership by a member.
	MembershipChanged func(op Operation, took time.Duration)
}

func (m *Meter) setDefaults() {
	if m.ChatCreated == nil {
		m.ChatCreated = func(table.Type) {}
	}
	if m.CreationTook == nil {
		m.CreationTook = func(table.Type, int, time.Duration) {}
	}
	if m.CreationRetried == nil {
		m.CreationRetried = func() {}
	}
	if m.DirectAsked == nil {
		m.DirectAsked = func(bool) {}
	}
	if m.MembershipChanged == nil {
		m.MembershipChanged = func(Operation, time.Duration) {}
	}
}
