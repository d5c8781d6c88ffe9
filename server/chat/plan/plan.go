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
	"iter"
	"math"
	"slices"
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
	MaxChats     = 10_000   // of a user, unless the configuration says otherwise
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
	ErrVersionMismatch  = errors.New("chat: another version than expected")
	ErrTooManyChats     = errors.New("chat: user is in too many chats") // see TooManyChats
)

// TooManyChats is ErrTooManyChats with the user whom it is about.
type TooManyChats struct {
	UserID string
	Limit  int64
}

// Error names the user and the limit.
func (e *TooManyChats) Error() string {
	return fmt.Sprintf("%v: %s is in %d or more", ErrTooManyChats, e.UserID, e.Limit)
}

// Is makes the error ErrTooManyChats.
func (e *TooManyChats) Is(target error) bool { return target == ErrTooManyChats }

// Names of the conditions of plans, by which failures are told apart.
const (
	CondRequest = "request"   // the request was not carried out before
	CondPair    = "pair"      // two people have no direct chat yet
	CondCaller  = "caller"    // the caller's membership
	CondTarget  = "target"    // the membership that is changed
	CondUser    = "user_chat" // the user's own row
	CondChat    = "chat"      // the chats row
	CondPending = "pending"   // the list of pending members
	CondChats   = "chats"     // the number of the user's chats
	CondHead    = "head"      // the head, the one point of serialization
)

// Maker makes plans for one process.
type Maker struct {
	Origin event.Origin
	NewID  func(prefix string) string
	// Members is the size of a group; by default, and at most, MaxMembers.
	Members int
	// Chats is the number of chats that a user may be in; by default MaxChats.
	Chats int
}

func (m Maker) chats() int64 {
	if m.Chats <= 0 {
		return MaxChats
	}
	return int64(m.Chats)
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
	room   int64 // chats that a user who joins may be in already; 0: any number
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
	if base.Version == 0 {
		d.Head.LastAt = at
	}
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

// Members are the users whom the draft makes members (true), and those whose
// memberships it ends.
func (d *Draft) Members() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, e := range d.Events {
			goOn := true
			switch e := e.(type) {
			case *eventv1.ChatCreated:
				goOn = yield(e.GetCreatedBy(), true)
			case *eventv1.MembershipChanged:
				goOn = yield(e.GetUserId(), e.GetChangeType() != eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED)
			}
			if !goOn {
				return
			}
		}
	}
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

// start is where in a chat a membership begins: with what comes after the sequence,
// and the change of the version.
type start struct{ sequence, version int64 }

// creation is where the memberships of those begin whom a group was created with, also
// if they become members later: the group was theirs from the moment in which its
// creation was answered, and what was sent since then is for them.
var creation = start{sequence: 0, version: 1}

// now is where memberships of the last change begin.
func (d *Draft) now() start { return start{d.Head.Sequence, d.Head.Version} }

// join adds the rows of a user who became a member with the last change.
func (d *Draft) join(user string, role table.Role, history table.History, from start) table.Membership {
	m := table.Membership{
		ChatID: d.Head.ChatID, UserID: user, Role: role, JoinedAt: d.At,
		JoinedSequence: from.sequence, JoinedVersion: from.version, Version: d.Head.Version,
	}
	d.putIf(CondTarget, absent, table.MembershipKey(m.ChatID, user), m.Item())
	// The whole row is replaced: nothing of an earlier membership remains. No
	// condition: a user has no open membership row and a row without left_version at
	// once.
	row := table.UserChat{
		UserID: user, ChatID: m.ChatID, Role: role, History: history, JoinedSequence: m.JoinedSequence, JoinedVersion: m.JoinedVersion,
		ReadSequence: m.JoinedSequence, DeliveredSequence: m.JoinedSequence, ChangedAt: d.At, Revision: table.FirstRevision(m.JoinedVersion),
	}
	d.put(table.UserChatKey(user, m.ChatID), row.Item())
	cond := isCounted
	if d.room > 0 {
		cond = store.Condition{}.Lt(table.AttrChats, store.Int(d.room))
	}
	d.update(CondChats, cond, table.UserKey(user), store.Update{Add: []store.Increment{{Name: table.AttrChats, N: 1}}})
	return m
}

// isCounted is the condition that a user's row has the number of the user's chats.
// Rows of earlier releases get it by being counted; no chat is joined or left before.
var isCounted = store.Condition{}.Gt(table.AttrChats, store.Int(math.MinInt64))

// ChatsFailed tells what failed conditions say about the number of users' chats: the
// users whose chats were not counted yet, and the error if one is in too many. Both
// are empty if no such condition failed.
func (d *Draft) ChatsFailed(failed *store.ConditionError) (uncounted []string, full error) {
	for _, f := range failed.Failures {
		if f.Name != CondChats {
			continue
		}
		user := d.writes[f.Index].Key.PK
		if row := table.UserFrom(user, f.Current); !row.Counted {
			uncounted = append(uncounted, user)
		} else if full == nil {
			full = &TooManyChats{UserID: user, Limit: d.maker.chats()}
		}
	}
	return uncounted, full
}

// OnlyChats reports whether nothing but the numbers of users' chats stood against the
// plan. They change without the chat's head, so that the same plan may succeed yet.
func (d *Draft) OnlyChats(failed *store.ConditionError) bool {
	return !slices.ContainsFunc(failed.Failures, func(f store.Failure) bool { return f.Name != CondChats })
}

// CheckRoom reports with TooManyChats if a user can be in no more chats, as far as
// the row says.
func (m Maker) CheckRoom(u table.User) error {
	if u.Counted && u.Chats >= m.chats() {
		return &TooManyChats{UserID: u.UserID, Limit: m.chats()}
	}
	return nil
}

// added makes a user a member from the last change on, with an event of its own.
func (d *Draft) added(user string, role table.Role, c *table.Chat, by string, count int64) table.Membership {
	md := d.next(event.TypeMembershipChanged)
	return d.member(md, user, role, c, by, count, d.now())
}

// arrived makes somebody a member who was on the way in since the creation.
func (d *Draft) arrived(user string, role table.Role, c *table.Chat, by string, count int64) table.Membership {
	md := d.next(event.TypeMembershipChanged)
	return d.member(md, user, role, c, by, count, creation)
}

func (d *Draft) member(md *eventv1.EventMetadata, user string, role table.Role, c *table.Chat, by string, count int64, from start) table.Membership {
	d.Events = append(d.Events, &eventv1.MembershipChanged{
		Metadata:         md,
		ChatId:           d.Head.ChatID,
		UserId:           user,
		ChangeType:       eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED,
		Role:             protoRole(role),
		ChangedBy:        by,
		MemberCountAfter: int32(count),
		ChangedAt:        d.time,
		JoinedSequence:   from.sequence,
	})
	return d.join(user, role, c.History, from)
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
