package frame

import (
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
)

// Change is one event on its way to the streams of its chat. Its owner guards it.
type Change struct {
	Version           int64
	MembershipVersion int64
	Membership        bool // the event changed MembershipVersion
	Target            string
	Effect            Effect

	event  event.Event
	shared *Frame
}

// NewChange makes the change that an event stands for.
func NewChange(e event.Event) *Change {
	c := &Change{
		Version:           e.GetMetadata().GetVersion(),
		MembershipVersion: e.GetMetadata().GetMembershipVersion(),
		event:             e,
	}
	_, message := e.(*eventv1.MessagePersisted)
	c.Membership = !message
	c.Target, c.Effect = EffectOf(e)
	return c
}

// Frame returns the change's frame, the same one for all streams.
func (c *Change) Frame() *Frame {
	if c.shared == nil {
		c.shared = Of(c.event, c.Version-1)
	}
	return c.shared
}

// IndexOfAddition returns the index of the first change that makes a user a member,
// -1 without one.
func IndexOfAddition(changes []*Change, user string) int {
	for i, c := range changes {
		if c.Effect == Added && c.Target == user {
			return i
		}
	}
	return -1
}
