package serving

import (
	"fmt"
	"sync"

	"github.com/parley-chat/parley/server/topic/refusal"
)

// How many members a group and how many sessions a server has at most, and how many of them are
// those of one principal, so that one that takes all it can get leaves room for others. The
// members of a group are usually of one principal: its share is large.
const (
	MaxMembers   = 10_000 // of a group
	MemberShare  = MaxMembers / 4
	MaxSessions  = 100_000 // of a server
	SessionShare = MaxSessions / 10
)

// Places are what principals take of something that has a limit. It is safe for concurrent use.
type Places struct {
	what        string // with "the" and its owner, for people
	most, share int

	mu  sync.Mutex
	all int
	of  map[string]int // by principal
}

// NewPlaces makes places of which there are most, and share for a principal.
func NewPlaces(what string, most, share int) *Places {
	return &Places{what: what, most: most, share: share, of: map[string]int{}}
}

// NewSessions makes the places of the sessions of a server.
func NewSessions() *Places { return NewPlaces("sessions of this server", MaxSessions, SessionShare) }

// Take takes a place for a principal, or says why there is none.
func (p *Places) Take(principal string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.of[principal] >= p.share:
		return refusal.New(refusal.TooMany, "%.255q has %d of the %d %s, which is the share of a principal: %s",
			principal, p.share, p.most, p.what, leave)
	case p.all >= p.most:
		return refusal.New(refusal.TooMany, "all %d %s are taken: %s", p.most, p.what, leave)
	}
	p.of[principal]++
	p.all++
	return nil
}

// leave is what a caller can do about it.
const leave = "call Detach for sessions that are not needed, and send the session that a Pull returns in the next one"

// Leave gives a place back that the principal has taken.
func (p *Places) Leave(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[principal]--; p.of[principal] <= 0 {
		delete(p.of, principal)
	}
	p.all--
}

// Taken is how many places are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// memberPlaces are the places of a group's members.
func memberPlaces(group string) *Places {
	return NewPlaces(fmt.Sprintf("members of group %.255q", group), MaxMembers, MemberShare)
}
