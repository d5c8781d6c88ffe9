package delivery

import (
	"fmt"

	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/event"
)

// Delivery says that a chat has changed.
type Delivery struct {
	Generation        string
	ChatID            string
	Version           int64    // of the last change
	MembershipVersion int64    // of the chat, with that change
	Targets           []string // users whose membership the changes began or ended
	// Events are the changes, in consecutive versions that end with Version. A
	// delivery without events only says that there are changes, any number of them.
	Events []event.Event
	// Payloads are the encoded Events, one for each, or none: a link that sends them on
	// need not encode them again.
	Payloads [][]byte
}

// Of makes the delivery of committed events of one chat, in version order; it
// must not be empty.
func Of(events []event.Event) Delivery {
	last := events[len(events)-1]
	md := last.GetMetadata()
	d := Delivery{
		Generation:        md.GetGeneration(),
		ChatID:            last.GetChatId(),
		Version:           md.GetVersion(),
		MembershipVersion: md.GetMembershipVersion(),
		Events:            events,
	}
	for _, e := range events {
		if target, effect := frame.EffectOf(e); effect != frame.None {
			d.Targets = append(d.Targets, target)
		}
	}
	return d
}

// String names chat and version, for logs.
func (d Delivery) String() string {
	return fmt.Sprintf("%s@%d (%d events)", d.ChatID, d.Version, len(d.Events))
}
