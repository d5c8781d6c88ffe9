package delivery

import (
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// catchUpPlan divides a user's chats into what a new stream has to do for each: by what the client has, and by what
// changed since. Full and the client's versions stay. One goroutine uses it at a time.
type catchUpPlan struct {
	Full    bool
	Named   []string     // chats that the client named and the user is in
	Touched []string     // of them, those whose own state changed, which no event shows
	Unnamed []catchUpRow // the user's other chats

	since time.Time // the client knows the changes before
	known map[string]int64
	order []string // of known, as the client gave them
}

// catchUpRow is what is kept of a user's row until its chat is active: there may be very many.
type catchUpRow struct {
	ChatID     string
	MinVisible int64
	ChangedAt  int64
}

// catchUpRowOf returns what is kept of a row.
func catchUpRowOf(r *table.UserChat) catchUpRow {
	return catchUpRow{ChatID: r.ChatID, MinVisible: r.Floor(), ChangedAt: r.ChangedAt}
}

// endedMembership is a chat that the user is not in since a version; 0 where none is known.
type endedMembership struct {
	ChatID  string
	Version int64
}

// planCatchUp makes the plan of a client that has a token, or none, and versions of chats.
func planCatchUp(hasToken bool, token view.Token, known []*deliveryv1.KnownChat) catchUpPlan {
	p := catchUpPlan{Full: token.Full, since: token.At, known: map[string]int64{}}
	if hasToken && token.Full {
		return p // of another generation or too old: its versions say nothing
	}
	for _, k := range known {
		if _, ok := p.known[k.GetChatId()]; !ok {
			p.order = append(p.order, k.GetChatId())
		}
		p.known[k.GetChatId()] = k.GetVersion()
	}
	return p
}

// Changed reports whether something with this time, in unix ms, is new to the client.
func (p *catchUpPlan) Changed(at int64) bool { return p.Full || at >= p.since.UnixMilli() }

// Known is the version of a chat that the client has.
func (p *catchUpPlan) Known(chatID string) int64 { return p.known[chatID] }

// Divide fills the plan from all rows of the user. It returns the chats to subscribe to,
// and the departures that the client may not know of.
func (p *catchUpPlan) Divide(rows []table.UserChat) (subscribe []string, left []endedMembership) {
	named := make(map[string]*table.UserChat, len(p.known))
	subscribe = make([]string, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		_, known := p.known[r.ChatID]
		if known {
			named[r.ChatID] = r
		}
		switch {
		case !r.Left():
			subscribe = append(subscribe, r.ChatID)
			if !known {
				p.Unnamed = append(p.Unnamed, catchUpRowOf(r))
			}
		case known || (!p.Full && p.Changed(r.ChangedAt)):
			left = append(left, endedMembership{ChatID: r.ChatID, Version: r.LeftVersion})
		}
	}
	for _, id := range p.order {
		r, ok := named[id]
		switch {
		case !ok: // not a chat of the user, or none at all: the same answer
			left = append(left, endedMembership{ChatID: id})
		case !r.Left():
			p.Named = append(p.Named, r.ChatID)
			if p.Changed(r.ChangedAt) {
				p.Touched = append(p.Touched, r.ChatID)
			}
		}
	}
	return subscribe, left
}
