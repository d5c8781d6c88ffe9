// Package plan holds the rules of chats as pure functions: from a command and
// what is known of the chat they decide whether it is allowed, and make the plan
// for the store with the events that it commits.
//
// It owns who may do what, which rows and conditions a change needs, and what a
// failed condition means. It does not own reading, retries, queues and stamps
// (package chat), or the layout of rows (package table). Nothing here does I/O;
// functions may be called from many goroutines, a Draft belongs to one.
//
// What a plan was made from may be stale: every fact it stands on is a condition
// of the plan, so a stale plan fails as a whole and the failed conditions bring
// the present rows. They are taken in the order idempotency, membership, head,
// which is their order in the plan.
package plan

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Limits of chats.
const (
	MaxMembers   = 100      // of a group, those on their way in included
	MaxNameRunes = 128      // of a group's name
	MaxContent   = 16 << 10 // bytes of a message
)

// Errors that the rules answer with.
var (
	ErrNotAMember       = errors.New("chat: not a member") // or no such chat
	ErrForbidden        = errors.New("chat: not allowed")
	ErrChatFull         = errors.New("chat: chat is full")
	ErrInvalidOperation = errors.New("chat: not possible in this chat")
	ErrAlreadyMember    = errors.New("chat: already a member")
	ErrMemberNotFound   = errors.New("chat: no such member")
	ErrUserNotFound     = errors.New("chat: no such user")
	ErrKeyReused        = errors.New("chat: request id used before with other content")
	ErrInvalidArgument  = errors.New("chat: invalid argument")
)

// Names of the conditions of plans, by which failures are told apart.
const (
	CondRequest = "request"   // the request was not carried out before
	CondPair    = "pair"      // two people have no direct chat yet
	CondCaller  = "caller"    // the caller's membership
	CondTarget  = "target"    // the membership that is changed
	CondUser    = "user_chat" // the user's own row
	CondChat    = "chat"      // the chats row
	CondPending = "pending"   // the list of pending members
	CondHead    = "head"      // the head, the one point of serialization
)

// Maker makes plans for one process.
type Maker struct {
	Origin event.Origin
	NewID  func(prefix string) string
	// Members is the size of a group; by default, and at most, MaxMembers.
	Members int
}

func (m Maker) limit() int64 {
	if m.Members <= 0 || m.Members > MaxMembers {
		return MaxMembers
	}
	return int64(m.Members)
}

// Draft is a plan in the making: changes of one chat that follow on a head.
type Draft struct {
	Base   table.Head // compared by the plan; version 0 for a new chat
	Head   table.Head // after the changes so far
	At     int64      // stamp of all changes, unix ms
	Events []event.Event

	maker  Maker
	cause  event.Cause
	time   *timestamppb.Timestamp // At; shared by all messages of the draft
	writes []store.Write
	outbox store.Row
}

func (m Maker) draft(base table.Head, at int64, cause event.Cause, writes, events int) *Draft {
	d := &Draft{
		Base: base, Head: base, At: at, maker: m, cause: cause,
		time:   timestamppb.New(time.UnixMilli(at)),
		writes: make([]store.Write, 0, writes), Events: make([]event.Event, 0, events),
	}
	d.Head.ChangedAt = at
	return d
}

// Plan returns the finished plan. Its token is the id of its first event, which no
// other plan has; a plan without events has none.
func (d *Draft) Plan() store.Plan {
	if len(d.Events) == 0 {
		return store.Plan{Writes: d.writes}
	}
	return store.Plan{Writes: d.writes, Token: d.Events[0].GetMetadata().GetEventId()}
}

// Outbox returns the row that announces the finished draft's events to the relay.
func (d *Draft) Outbox() store.Row { return d.outbox }

func (d *Draft) outboxRow() store.Row {
	o := table.Outbox{
		Shard:        event.Shard(d.Head.ChatID),
		ChatID:       d.Head.ChatID,
		FirstVersion: d.Base.Version + 1,
		Count:        d.Head.Version - d.Base.Version,
		CreatedAt:    d.At,
	}
	return store.Row{Key: o.Key(), Item: o.Item()}
}

func (d *Draft) put(key store.Key, it store.Item) {
	d.writes = append(d.writes, store.Write{Op: store.OpPut, Key: key, Item: it})
}

func (d *Draft) putIf(name string, cond store.Condition, key store.Key, it store.Item) {
	d.writes = append(d.writes, store.Write{Op: store.OpPut, Key: key, Item: it, Cond: cond, Name: name})
}

func (d *Draft) update(name string, cond store.Condition, key store.Key, u store.Update) {
	d.writes = append(d.writes, store.Write{Op: store.OpUpdate, Key: key, Update: u, Cond: cond, Name: name})
}

var absent = store.Absent()

// finish adds what every plan that changes a chat ends with: the head's comparison
// and change, then the rows that carry no condition because the head's comparison
// covers them, events and outbox row.
func (d *Draft) finish() error {
	key := table.HeadKey(d.Head.ChatID)
	if d.Base.Version == 0 {
		d.putIf(CondHead, absent, key, d.Head.Item())
	} else {
		cond := store.Condition{{Test: store.TestEqual, Attr: table.AttrVersion, Value: store.Int(d.Base.Version)}}
		d.update(CondHead, cond, key, d.Head.Update())
	}
	for _, e := range d.Events {
		payload, err := event.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		md := e.GetMetadata()
		row := table.Event{ChatID: d.Head.ChatID, Version: md.GetVersion(), EventID: md.GetEventId(), Type: md.GetEventType(), Payload: payload}
		d.put(table.EventKey(row.ChatID, row.Version), row.Item())
	}
	d.outbox = d.outboxRow()
	d.put(d.outbox.Key, d.outbox.Item)
	return nil
}

// next moves the head on by one change and returns the change's metadata.
func (d *Draft) next(eventType string) *eventv1.EventMetadata {
	d.Head.Version++
	if eventType != event.TypeMessagePersisted {
		d.Head.MembershipVersion++
	}
	return event.NewMetadata(eventType, d.maker.NewID("evt_"), d.Head.ChatID, time.UnixMilli(d.At), d.maker.Origin, d.cause,
		event.Position{Version: d.Head.Version, MembershipVersion: d.Head.MembershipVersion})
}

// join adds the rows of a user who became a member with the last change.
func (d *Draft) join(user string, role table.Role, history table.History) table.Membership {
	m := table.Membership{
		ChatID: d.Head.ChatID, UserID: user, Role: role, JoinedAt: d.At,
		JoinedSequence: d.Head.Sequence, JoinedVersion: d.Head.Version, Version: d.Head.Version,
	}
	d.putIf(CondTarget, absent, table.MembershipKey(m.ChatID, user), m.Item())
	// The whole row is replaced: nothing of an earlier membership remains, neither
	// its end nor its mark of what was read. No condition: a user has no open
	// membership row and a row without left_version at once.
	row := table.UserChat{
		UserID: user, ChatID: m.ChatID, History: history, JoinedSequence: m.JoinedSequence, JoinedVersion: m.JoinedVersion,
		ReadSequence: m.JoinedSequence, DeliveredSequence: m.JoinedSequence, ChangedAt: d.At,
	}
	d.put(table.UserChatKey(user, m.ChatID), row.Item())
	return m
}

// added makes a user a member, with an event of its own.
func (d *Draft) added(user string, role table.Role, c *table.Chat, by string, count int64) table.Membership {
	md := d.next(event.TypeMembershipChanged)
	d.Events = append(d.Events, &eventv1.MembershipChanged{
		Metadata:         md,
		ChatId:           d.Head.ChatID,
		UserId:           user,
		ChangeType:       eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED,
		Role:             protoRole(role),
		ChangedBy:        by,
		MemberCountAfter: int32(count),
		ChangedAt:        d.time,
		JoinedSequence:   d.Head.Sequence,
	})
	return d.join(user, role, c.History)
}

func protoRole(r table.Role) eventv1.MemberRole {
	switch r {
	case table.Owner:
		return eventv1.MemberRole_MEMBER_ROLE_OWNER
	case table.Admin:
		return eventv1.MemberRole_MEMBER_ROLE_ADMIN
	default:
		return eventv1.MemberRole_MEMBER_ROLE_MEMBER
	}
}
