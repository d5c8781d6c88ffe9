package plan

import (
	"slices"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// State is what a change is decided on. Its parts may have been
// read at different moments: plans have conditions on all of them.
type State struct {
	Head         table.Head
	Chat         *table.Chat       // nil: no such chat
	Caller       *table.Membership // nil: not a member
	Target       *table.Membership // nil: not a member
	Pending      *table.Pending    // nil: no member is pending
	TargetExists bool              // as a user
	TargetUser   table.User        // the target's row
	TargetAccess people.Access     // what that row says about what others may do
	Shares       bool              // target and caller share a chat; read if TargetAccess asks for it
	Blocked      bool              // the target has blocked the caller
	Meets        bool              // the target has blocked another member; read if TargetAccess says of a block list
}

// Keys returns the keys of the rows that a change is decided on, for ReadState.
func Keys(c command.Change) []store.Key {
	keys := make([]store.Key, 0, 6)
	keys = append(keys, table.ChatKey(c.ChatID), table.PendingKey(c.ChatID), table.MembershipKey(c.ChatID, c.Caller))
	if c.UserID != "" {
		keys = append(keys, table.UserKey(c.UserID))
		if c.UserID != c.Caller {
			keys = append(keys, table.MembershipKey(c.ChatID, c.UserID))
		}
	}
	if c.Idempotency.Key != "" {
		keys = append(keys, table.RequestKey(c.Idempotency.Key))
	}
	return keys
}

// ReadState makes the state from the items of Keys, and returns the result if the
// request was carried out before. Errors: ErrKeyReused.
func ReadState(c command.Change, head table.Head, items []store.Item) (*State, *table.Request, error) {
	s := &State{Head: head, Chat: chatRow(c.ChatID, items[0]), Pending: pendingRow(c.ChatID, items[1]),
		Caller: member(c.ChatID, c.Caller, items[2])}
	if c.UserID != "" {
		s.TargetExists, s.TargetUser = items[3] != nil, table.UserFrom(c.UserID, items[3])
		s.TargetAccess = people.AccessFrom(items[3])
		s.Target = s.Caller
		if c.UserID != c.Caller {
			s.Target = member(c.ChatID, c.UserID, items[4])
		}
	}
	if c.Idempotency.Key == "" {
		return s, nil, nil
	}
	done, err := c.Idempotency.Replay(items[len(items)-1])
	return s, done, err
}

// ApplyConflict replaces the stale rows by the present ones, from failed conditions. In all
// that a decision needs, the state then is that of the moment in which the plan failed:
// rows that the plan has no condition on cannot have changed (users stay, and no member
// becomes pending). So what is decided next is exact, without another read. It reports
// false if no row of the state failed.
func (s *State) ApplyConflict(c command.Change, failed *store.ConditionError) bool {
	_, s.Blocked = failed.Failed(CondBlock)
	applied := s.Blocked
	for _, f := range failed.Failures {
		switch f.Name {
		case CondCaller:
			s.Caller = member(c.ChatID, c.Caller, f.Current)
		case CondTarget:
			s.Target = member(c.ChatID, c.UserID, f.Current)
			if c.UserID == c.Caller {
				s.Caller = s.Target
			}
		case CondChat:
			s.Chat = chatRow(c.ChatID, f.Current)
		case CondPending:
			s.Pending = pendingRow(c.ChatID, f.Current)
		case CondChats:
			s.TargetUser, s.TargetAccess = table.UserFrom(c.UserID, f.Current), people.AccessFrom(f.Current)
		case CondHead:
			s.Head = table.Head{ChatID: c.ChatID}
			if f.Current != nil {
				s.Head = table.HeadFrom(c.ChatID, f.Current)
			}
		default:
			continue
		}
		applied = true
	}
	return applied
}

func chatRow(chatID string, it store.Item) *table.Chat {
	if it == nil {
		return nil
	}
	row := table.ChatFrom(chatID, it)
	return &row
}

func pendingRow(chatID string, it store.Item) *table.Pending {
	if it == nil {
		return nil
	}
	row := table.PendingFrom(chatID, it)
	return &row
}

func member(chatID, user string, it store.Item) *table.Membership {
	if it == nil {
		return nil
	}
	row := table.MembershipFrom(chatID, user, it)
	return &row
}

// isPending reports whether a user is pending.
func (s *State) isPending(user string) bool {
	return s.Pending != nil && slices.Contains(s.Pending.Members, user)
}
