package view

import (
	"context"
	"slices"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const (
	changesPage, maxChangesPage = 100, 100
	// maxBehind is how far a client may be behind before it starts over.
	maxBehind = 1000
)

// Changes returns what changed in a chat after a version: the present state of
// what the changes touched, each object once.
func (r *Reader) Changes(
	ctx context.Context, user string, req *messagev1.ListChangesRequest,
) (*messagev1.ListChangesResponse, error) {
	chatID := req.GetChatId()
	head, row, err := r.open(ctx, user, chatID)
	if err != nil {
		return nil, err
	}
	size := int64(pageSize(int(req.GetPageSize()), changesPage, maxChangesPage))
	// Changes that are hidden from the user need not be read.
	after := max(req.GetAfterVersion(), min(row.Floor()-1, head.Version))
	if after > head.Version || head.Version-after > maxBehind {
		return r.startOver(ctx, user, head, row, size)
	}
	to := min(after+size, head.Version)
	events, err := r.Events(ctx, chatID, after, int(to-after))
	if err != nil {
		return nil, err
	}
	if len(events) == 0 && after < to {
		return nil, incomplete(chatID, after+1)
	}
	touched := touchedBy(events)
	changes, err := r.present(ctx, chatID, touched, after)
	if err != nil {
		return nil, err
	}
	if row, err = r.confirm(ctx, user, chatID); err != nil {
		return nil, err
	}
	return &messagev1.ListChangesResponse{
		Changes: slices.DeleteFunc(changes, func(c *messagev1.Change) bool { return hidden(c, row) }),
		Version: after + int64(len(events)),
		Head:    headMessage(head, row),
	}, nil
}

// startOver answers a client that is too far behind, or has a version that this
// store never gave.
func (r *Reader) startOver(
	ctx context.Context, user string, head table.Head, row table.UserChat, size int64,
) (*messagev1.ListChangesResponse, error) {
	messages, err := r.messages(ctx, head.ChatID, max(head.Sequence-size+1, row.FirstSequence()), head.Sequence)
	if err != nil {
		return nil, err
	}
	if row, err = r.confirm(ctx, user, head.ChatID); err != nil {
		return nil, err
	}
	return &messagev1.ListChangesResponse{
		Version:  head.Version,
		Head:     headMessage(head, row),
		Reset_:   true,
		Messages: visible(messages, row),
	}, nil
}

func hidden(c *messagev1.Change, row table.UserChat) bool {
	return c.GetVersion() < row.Floor() ||
		(c.GetMessage() != nil && c.GetMessage().GetSequence() < row.FirstSequence())
}

// touch is one object that changed, with the last event that changed it.
type touch struct {
	key   store.Key
	event event.Event
	added bool // one of the events made the user a member
}

func (t touch) version() int64 { return t.event.GetMetadata().GetVersion() }

// touchedBy returns the objects that events changed, in order of their last
// change.
func touchedBy(events []event.Event) []touch {
	touched := make([]touch, 0, len(events))
	seen := make(map[store.Key]int, len(events)) // index in touched, from 1
	for _, e := range slices.Backward(events) {
		t := touch{event: e}
		added := false
		switch e := e.(type) {
		case *eventv1.MessagePersisted:
			t.key = table.MessageKey(e.GetChatId(), e.GetSequence())
		case *eventv1.MembershipChanged:
			t.key = table.MembershipKey(e.GetChatId(), e.GetUserId())
			added = e.GetChangeType() == eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED
		default:
			t.key = table.ChatKey(e.GetChatId())
		}
		if seen[t.key] == 0 {
			touched = append(touched, t)
			seen[t.key] = len(touched)
		}
		if added {
			touched[seen[t.key]-1].added = true
		}
	}
	slices.Reverse(touched)
	return touched
}

// present reads the present state of what was touched. No state is older than
// the change that touched it.
func (r *Reader) present(
	ctx context.Context, chatID string, touched []touch, after int64,
) ([]*messagev1.Change, error) {
	keys := make([]store.Key, 0, len(touched)+8)
	for _, t := range touched {
		keys = append(keys, t.key)
	}
	for _, t := range touched {
		if t.key.Table == store.ChatMemberships {
			keys = append(keys, table.UserChatKey(t.key.SK, chatID), table.LeftKey(t.key.SK, chatID))
		}
	}
	items, err := r.items(ctx, keys)
	if err != nil {
		return nil, err
	}
	userRows := items[len(touched):]
	changes := make([]*messagev1.Change, len(touched))
	for i, t := range touched {
		c := &messagev1.Change{Version: t.version()}
		var ok bool
		switch t.key.Table {
		case store.Messages:
			var m table.Message
			if m, err = table.MessageFrom(store.Row{Key: t.key, Item: items[i]}); err != nil {
				return nil, err
			}
			ok = items[i] != nil
			c.Body = &messagev1.Change_Message{Message: messageMessage(m)}
		case store.ChatMemberships:
			var m *messagev1.MembershipChange
			m, ok = membershipNow(t, items[i], firstItem(userRows[0], userRows[1]), after)
			c.Body = &messagev1.Change_MembershipChange{MembershipChange: m}
			userRows = userRows[2:]
		default:
			row := table.ChatFrom(chatID, items[i])
			ok = row.Version >= t.version()
			c.Body = &messagev1.Change_Chat{Chat: Chat(row)}
		}
		if !ok {
			return nil, incomplete(chatID, t.version())
		}
		changes[i] = c
	}
	return changes, nil
}

// membershipNow returns the present state of a membership that an event changed: membership
// is its row and userRow what the member's own row of the chat says, or the row of
// the chat as one that was left; either nil if there is none. after is the version
// that the client has. It returns false if the rows do not yet show the event.
func membershipNow(t touch, membership, userRow store.Item, after int64) (*messagev1.MembershipChange, bool) {
	e, ok := t.event.(*eventv1.MembershipChanged)
	if !ok {
		return nil, false
	}
	chatID, user := t.key.PK, t.key.SK
	own := table.UserChatFrom(user, chatID, userRow)
	now := &messagev1.MembershipChange{UserId: user, Version: t.version()}
	var joinedAt int64 // of a membership that the client does not know
	switch {
	case membership != nil:
		m := table.MembershipFrom(chatID, user, membership)
		if m.Version < now.Version {
			return nil, false
		}
		now.Version, now.Role = m.Version, memberRole(m.Role)
		now.Kind = messagev1.MembershipChange_KIND_ROLE_CHANGED
		// The membership of a user who was added in a group's second phase begins with the
		// creation, which the client may have: then the event shows it.
		if m.JoinedVersion > after || t.added {
			joinedAt = m.JoinedAt
		}
	case userRow == nil || own.LeftVersion >= now.Version:
		// The row is kept for 90 days; without it the version of the last known
		// change must do, and the removal's own event, newer, comes later.
		now.Kind = messagev1.MembershipChange_KIND_REMOVED
		if own.LeftVersion > now.Version {
			now.Version = own.LeftVersion
			now.ChangedAt = timestampOf(own.ChangedAt)
		}
	default:
		return nil, false
	}
	if now.Version == t.version() { // the event itself has the rest
		if now.Kind != messagev1.MembershipChange_KIND_REMOVED {
			now.Kind = messagev1.MembershipChange_Kind(e.GetChangeType())
			now.Role = chatv1.MemberRole(e.GetRole())
		}
		now.ChangedBy, now.MemberCount, now.ChangedAt = e.GetChangedBy(), e.GetMemberCountAfter(), e.GetChangedAt()
		now.ServiceId = e.GetMetadata().GetServiceId()
	}
	if joinedAt != 0 && now.Kind == messagev1.MembershipChange_KIND_ROLE_CHANGED {
		// To the client this is a new member, who has been one since then.
		now.Kind, now.ChangedAt = messagev1.MembershipChange_KIND_ADDED, timestampOf(joinedAt)
	}
	return now, true
}

func firstItem(a, b store.Item) store.Item {
	if a != nil {
		return a
	}
	return b
}
