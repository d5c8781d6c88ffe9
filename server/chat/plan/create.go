package plan

import (
	"fmt"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// MaxChunk is the number of members that one plan moves from pending to
// membership: four writes each besides the event's, and four for chat, pending
// row, head and outbox row. The design sets at most 25 (L-034).
const MaxChunk = min(25, (store.MaxPlanWrites-4)/4)

// NewChat describes a chat to create.
type NewChat struct {
	ChatID  string
	Caller  string
	Name    string        // of a group
	Others  []string      // a group's other members, from Others; the other person of a direct chat
	History table.History // empty: table.All
	Request Request
	Cause   event.Cause
}

// Others checks the list of a group's other members and returns it sorted,
// without repetitions and the caller (L-025…L-027).
func (m Maker) Others(caller string, members []string) ([]string, error) {
	others := slices.Clone(members)
	slices.Sort(others)
	others = slices.DeleteFunc(slices.Compact(others), func(u string) bool { return u == caller })
	if most := m.limit() - 1; len(others) < 1 || int64(len(others)) > most {
		return nil, fmt.Errorf("%w: a group has 1 to %d other members", ErrInvalidArgument, most)
	}
	for _, u := range others {
		if err := CheckUser(u); err != nil {
			return nil, err
		}
	}
	return others, nil
}

// userID is the form of user ids (L-011), the same as in the contracts.
var userID = regexp.MustCompile(`^[^\p{C}\p{Z}#/]+$`)

// CheckUser checks a user id.
func CheckUser(id string) error {
	if len(id) > table.MaxUserID || !utf8.ValidString(id) || !userID.MatchString(id) || id == "." || id == ".." {
		return fmt.Errorf("%w: a user id has 1 to %d bytes of printable characters, no white space, '#' or '/'; . and .. are none", ErrInvalidArgument, table.MaxUserID)
	}
	return nil
}

// CheckName checks the name of a group.
func CheckName(name string) error {
	if n := utf8.RuneCountInString(name); n < 1 || n > MaxNameRunes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: a name has 1 to %d characters", ErrInvalidArgument, MaxNameRunes)
	}
	return nil
}

// CheckHistory checks a history mode; empty is table.All.
func CheckHistory(h table.History) (table.History, error) {
	switch h {
	case "":
		return table.All, nil
	case table.All, table.SinceJoined:
		return h, nil
	}
	return "", fmt.Errorf("%w: unknown history mode %q", ErrInvalidArgument, h)
}

// Direct makes the plan of a direct chat, complete in one.
//
// Version 1 is ChatCreated, which makes the creator a member, as in a group;
// version 2 is a MembershipChanged of the other person. So every membership but a
// creator's begins with the same event, and whoever routes by it, such as the
// person's open streams, needs no other rule for direct chats.
func (m Maker) Direct(c NewChat, at int64) (*Draft, error) {
	other := c.Others[0]
	row := table.Chat{
		ChatID: c.ChatID, Type: table.Direct, CreatedBy: c.Caller, History: c.History,
		MemberCount: 2, DirectUsers: []string{c.Caller, other}, Version: 2,
	}
	d := m.draft(table.Head{ChatID: c.ChatID}, at, c.Cause, 13, 2)
	d.room = m.chats()
	d.remember(c.Request, 2)
	d.putIf(CondPair, absent, table.DirectIndexKey(c.Caller, other), table.DirectIndex{ChatID: c.ChatID, CreatedAt: at}.Item())
	d.create(row, table.Member, row.DirectUsers)
	d.added(other, table.Member, &row, c.Caller, 2)
	return d, d.finish()
}

// Group makes the plan of the first phase of a group: the group with its owner,
// and the other members as pending.
func (m Maker) Group(c NewChat, at int64) (*Draft, error) {
	row := table.Chat{
		ChatID: c.ChatID, Type: table.Group, Name: c.Name, CreatedBy: c.Caller, History: c.History,
		MemberCount: int64(len(c.Others)) + 1, Version: 1,
	}
	d := m.draft(table.Head{ChatID: c.ChatID}, at, c.Cause, 9, 1)
	d.room = m.chats()
	d.remember(c.Request, 1)
	d.create(row, table.Owner, append([]string{c.Caller}, c.Others...))
	md := d.Events[0].GetMetadata()
	pending := table.Pending{
		Members: c.Others, CreatedBy: c.Caller, CreatedAt: at, Correlation: md.GetCorrelationId(), Causation: md.GetEventId(),
	}
	d.putIf(CondPending, absent, table.PendingKey(c.ChatID), pending.Item())
	return d, d.finish()
}

// create adds a new chat and its creator, and the event.
func (d *Draft) create(c table.Chat, role table.Role, members []string) {
	d.cause.Actor = c.CreatedBy
	md := d.next(event.TypeChatCreated)
	c.Status, c.CreatedAt, c.UpdatedAt = table.Active, d.At, d.At
	d.putIf(CondChat, absent, table.ChatKey(c.ChatID), c.Item())
	d.join(c.CreatedBy, role, c.History, d.now())
	kind, history := protoChat(&c)
	d.Events = append(d.Events, &eventv1.ChatCreated{
		Metadata: md, ChatId: c.ChatID, ChatType: kind, Name: c.Name, Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE,
		CreatedBy: c.CreatedBy, MemberCount: int32(c.MemberCount), InitialMembers: members, CreatedAt: d.time, History: history,
	})
}

func protoChat(c *table.Chat) (eventv1.ChatType, eventv1.HistoryMode) {
	kind, history := eventv1.ChatType_CHAT_TYPE_GROUP, eventv1.HistoryMode_HISTORY_MODE_ALL
	if c.Type == table.Direct {
		kind = eventv1.ChatType_CHAT_TYPE_DIRECT
	}
	if c.History == table.SinceJoined {
		history = eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED
	}
	return kind, history
}

func protoTime(ms int64) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(ms)) }

// Chunk makes the plan that moves up to size pending members to membership, each
// with an event. The pending row must be as it was read: somebody removed
// meanwhile is never resurrected, and nobody is added twice. The member count
// stays, because pending members count already. Their memberships begin with the
// group's. That they have room for the chat was seen to when the group was created,
// and is not asked again: a group that was announced with them is not to get stuck.
func (m Maker) Chunk(s *State, size int, at int64) (*Draft, error) {
	p := s.Pending
	n := min(size, len(p.Members))
	cause := event.Cause{Actor: p.CreatedBy, Correlation: p.Correlation, Causation: p.Causation}
	d := m.draft(s.Head, at, cause, 4*n+4, n)
	for _, user := range p.Members[:n] {
		d.arrived(user, table.Member, s.Chat, p.CreatedBy, s.Chat.MemberCount)
	}
	d.pending(p, p.Members[n:])
	d.count(s.Chat, 0, activeGroup())
	return d, d.finish()
}

// pending changes the list of pending members to the rest of it.
func (d *Draft) pending(p *table.Pending, rest []string) {
	key := table.PendingKey(d.Head.ChatID)
	as := store.Condition{}.Eq(table.AttrMembers, store.List(p.Members))
	if len(rest) == 0 {
		d.writes = append(d.writes, store.Write{Op: store.OpDelete, Key: key, Cond: as, Name: CondPending})
		return
	}
	d.update(CondPending, as, key, store.Update{Set: []store.Attr{{Name: table.AttrMembers, Value: store.List(rest)}}})
}
