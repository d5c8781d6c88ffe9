// Package plan holds the rules of chats as pure functions: from a command and the
// loaded rows of the chat they decide whether it is allowed, and make the plan for
// the store with the events that it commits.
//
// It owns permissions, the rows and conditions that a change needs, and the meaning of a
// failed condition. It does not own the commands (package command), reading, retries and
// queues (packages chat, commit and queue), timestamps (package timestamp), or the layout
// of rows (package table). Nothing here does I/O; functions may be called from many
// goroutines, a Plan is not changed once it is made.
//
// The facts from which a plan was made may be stale: every one of them is a condition of
// the plan, so a stale plan fails as a whole and the failed conditions bring the present
// rows. They are read in the order idempotency, membership, head, which is their order in
// the plan.
package plan

import (
	"iter"
	"math"
	"slices"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Limits of chats.
const (
	Members    = 100    // default size of a group, pending members included, unless the configuration says otherwise
	MaxMembers = 1000   // highest size of a group that can be configured
	MaxChats   = 10_000 // of a user, unless the configuration says otherwise
)

// Names of the conditions of plans, by which failures are told apart.
const (
	CondRequest = command.CondRequest // the request was not carried out before
	CondPair    = "pair"              // two people have no direct chat yet
	CondCaller  = "caller"            // the caller's membership
	CondTarget  = "target"            // the membership that is changed
	CondUser    = "user_chat"         // the user's own row
	CondPeer    = "peer"              // the row of the other person of a direct chat
	CondChat    = "chat"              // the chats row
	CondPending = "pending"           // the list of pending members
	CondChats   = "chats"             // the number of the user's chats
	CondBlock   = "block"             // a block list
	CondHead    = "head"              // the head, the one point of serialization
)

// Planner makes plans for one process.
type Planner struct {
	Origin event.Origin
	NewID  func(prefix string) string
	// Members is how many members a group can have: 0 stands for the constant Members, more than
	// the constant MaxMembers for that.
	Members int
	// Chats is the number of chats that a user may be in; by default MaxChats.
	Chats int
}

// MaxMembers is how many members a group can have.
func (p Planner) MaxMembers() int64 {
	if p.Members <= 0 {
		return Members
	}
	return int64(min(p.Members, MaxMembers))
}

func (p Planner) maxChats() int64 {
	if p.Chats <= 0 {
		return MaxChats
	}
	return int64(p.Chats)
}

// CheckChatCount returns a *command.TooManyChats if a user can be in no more chats, as
// far as the row says.
func (p Planner) CheckChatCount(u table.User) error {
	if u.Counted && u.Chats >= p.maxChats() {
		return &command.TooManyChats{UserID: u.UserID, Limit: p.maxChats()}
	}
	return nil
}

// Plan is a finished plan: changes of one chat that follow on a head.
type Plan struct {
	Base     table.Head     // compared by the plan; version 0 for a new chat
	Head     table.Head     // after the plan
	At       int64          // timestamp of all changes, unix ms
	Events   []event.Event  // none for a plan that changes nothing
	Payloads [][]byte       // the encoded Events, as the store's rows have them
	Outbox   store.Row      // announces the events to the relay
	Sent     []command.Sent // of a plan of sends: what it makes of each

	maxChats int64
	writes   []store.Write
}

// Transaction is the plan as the store runs it. Its token is the id of its first event,
// which no other plan has; a plan without events has none.
func (p *Plan) Transaction() store.Plan {
	if len(p.Events) == 0 {
		return store.Plan{Writes: p.writes}
	}
	return store.Plan{Writes: p.writes, Token: p.Events[0].GetMetadata().GetEventId()}
}

// MemberChanges are the users whom the plan makes members (true), and those whose
// memberships it ends.
func (p *Plan) MemberChanges() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, e := range p.Events {
			more := true
			switch e := e.(type) {
			case *eventv1.ChatCreated:
				more = yield(e.GetCreatedBy(), true)
			case *eventv1.MembershipChanged:
				more = yield(e.GetUserId(), e.GetChangeType() != eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED)
			}
			if !more {
				return
			}
		}
	}
}

// isCounted is the condition that a user's row has the number of the user's chats.
// Rows of earlier releases get it by being counted; no chat is joined or left before.
var isCounted = store.Condition{}.Gt(table.AttrChats, store.Int(math.MinInt64))

// ChatCountConflicts reads from failed conditions what they say about the number of
// users' chats: the users whose chats were not counted yet, and the error if one is in
// too many. Both are empty if no such condition failed.
func (p *Plan) ChatCountConflicts(failed *store.ConditionError) (uncounted []string, full error) {
	for _, f := range failed.Failures {
		if f.Name != CondChats {
			continue
		}
		user := p.writes[f.Index].Key.PK
		if row := table.UserFrom(user, f.Current); !row.Counted {
			uncounted = append(uncounted, user)
		} else if full == nil && row.Chats >= p.maxChats {
			full = &command.TooManyChats{UserID: user, Limit: p.maxChats}
		}
	}
	return uncounted, full
}

// MayStillSucceed reports whether nothing stood against the plan but what changes without
// the chat's head: numbers of users' chats, block lists, what people allow.
func (p *Plan) MayStillSucceed(failed *store.ConditionError) bool {
	return !slices.ContainsFunc(failed.Failures, func(f store.Failure) bool {
		return f.Name != CondChats && f.Name != CondBlock && (f.Name != CondUser || Barred(f.Current) == nil)
	})
}

// Disallowed reads from failed conditions which person does not allow what the caller asks
// for; nil if none of them says so.
func (p *Plan) Disallowed(caller string, failed *store.ConditionError) error {
	for _, f := range failed.Failures {
		key := p.writes[f.Index].Key
		switch {
		case f.Name == CondBlock && key.PK == caller:
			return command.CallerBlocks
		case f.Name == CondBlock:
			return command.Unreachable(key.PK)
		case f.Name == CondChats && people.AccessFrom(f.Current).Deleted():
			return command.UnknownUser(key.PK)
		}
	}
	return nil
}

// Barred refuses the messages of a member of a direct chat by the member's own row; nil for
// a member who may send.
func Barred(row store.Item) error {
	switch blocks, blocked := people.Barred(row); {
	case blocks:
		return command.CallerBlocks
	case blocked:
		return command.NotReachable
	}
	return nil
}
