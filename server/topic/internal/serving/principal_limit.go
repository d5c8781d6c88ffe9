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

// PrincipalLimit are what principals take of something that has a limit. It is safe for concurrent use.
type PrincipalLimit struct {
	what         string // with "the" and its owner, for people
	limit, share int

	mu          sync.Mutex
	all         int
	byPrincipal map[string]int
}

// NewPrincipalLimit makes a limit of most slots in all and share slots for a principal.
func NewPrincipalLimit(what string, limit, share int) *PrincipalLimit {
	return &PrincipalLimit{what: what, limit: limit, share: share, byPrincipal: map[string]int{}}
}

// NewSessions makes the limit of the sessions of a server.
func NewSessions() *PrincipalLimit {
	return NewPrincipalLimit("sessions of this server", MaxSessions, SessionShare)
}

// Take takes a slot for a principal, or says why there is none.
func (p *PrincipalLimit) Take(principal string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.byPrincipal[principal] >= p.share:
		return refusal.New(refusal.TooMany, "%.255q has %d of the %d %s, which is the share of a principal: %s",
			principal, p.share, p.limit, p.what, leave)
	case p.all >= p.limit:
		return refusal.New(refusal.TooMany, "all %d %s are taken: %s", p.limit, p.what, leave)
	}
	p.byPrincipal[principal]++
	p.all++
	return nil
}

// leave is what a caller can do about it.
const leave = "call Detach for sessions that are not needed, and send the session that a Pull returns in the next one"

// Leave gives a slot back that the principal has taken.
func (p *PrincipalLimit) Leave(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byPrincipal[principal]--; p.byPrincipal[principal] <= 0 {
		delete(p.byPrincipal, principal)
	}
	p.all--
}

// Taken is how many slots are taken.
func (p *PrincipalLimit) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// memberLimit is the limit of a group's members.
func memberLimit(group string) *PrincipalLimit {
	return NewPrincipalLimit(fmt.Sprintf("members of group %.255q", group), MaxMembers, MemberShare)
}
