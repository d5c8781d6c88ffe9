package chat

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Names of the conditions of plans, by which failures are told apart.
const (
	condHead    = "head"
	condRequest = "request"
	condCaller  = "caller"
	condTarget  = "target"
	condUser    = "user_chat"
	condChat    = "chat"
	condPending = "pending"
	condPair    = "pair"
)

// draft is a plan in the making: the changes of one chat that follow on a head.
type draft struct {
	svc    *Service
	base   table.Head // compared by the plan; zero for a new chat
	head   table.Head // after the changes so far
	at     int64      // stamp of all changes
	cause  event.Cause
	writes []store.Write
	events []event.Event
}

func (s *Service) newDraft(base table.Head, cause event.Cause) *draft {
	d := &draft{svc: s, base: base, head: base, cause: cause}
	d.at = s.stamp(base.ChangedAt)
	d.head.ChangedAt = d.at
	return d
}

func (d *draft) put(key store.Key, it store.Item) {
	d.writes = append(d.writes, store.Write{Op: store.OpPut, Key: key, Item: it})
}

func (d *draft) putIf(key store.Key, it store.Item, cond store.Condition, name string) {
	d.writes = append(d.writes, store.Write{Op: store.OpPut, Key: key, Item: it, Cond: cond, Name: name})
}

func (d *draft) time() *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(d.at)) }

// next moves the head on by one change and returns the change's metadata.
func (d *draft) next(eventType string) *eventv1.EventMetadata {
	d.head.Version++
	if eventType != event.TypeMessagePersisted {
		d.head.MembershipVersion++
	}
	return event.NewMetadata(eventType, d.svc.cfg.NewID("evt_"), d.head.ChatID, time.UnixMilli(d.at),
		event.Origin{Generation: d.svc.cfg.Generation, Producer: d.svc.cfg.Producer}, d.cause,
		event.Position{Version: d.head.Version, MembershipVersion: d.head.MembershipVersion})
}

// record adds the event that next was called for.
func (d *draft) record(e event.Event) error {
	payload, err := event.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	md := e.GetMetadata()
	row := table.Event{ChatID: d.head.ChatID, Version: md.GetVersion(), EventID: md.GetEventId(), Type: md.GetEventType(), Payload: payload}
	// No condition: the comparison of the head covers it.
	d.put(table.EventKey(row.ChatID, row.Version), row.Item())
	d.events = append(d.events, e)
	return nil
}

// request adds the row that makes a request safe to repeat, if it has an id.
func (d *draft) request(r request) {
	if r.scope == "" {
		return
	}
	row := table.Request{
		Scope: r.scope, Hash: r.hash, ChatID: d.head.ChatID, Version: d.head.Version,
		CreatedAt: d.at, ExpiresAt: d.at/1000 + int64(table.RequestRetention/time.Second),
	}
	d.putIf(table.RequestKey(r.scope), row.Item(), store.Absent(), condRequest)
}

// plan completes the draft with head and outbox row.
func (d *draft) plan() store.Plan {
	cond := store.Condition{}.Eq(table.AttrVersion, store.Int(d.base.Version))
	if d.base.Version == 0 {
		cond = store.Absent()
	}
	d.putIf(table.HeadKey(d.head.ChatID), d.head.Item(), cond, condHead)
	o := d.outboxRow()
	d.put(o.Key, o.Item)
	return store.Plan{Writes: d.writes, Token: newRequestID()}
}

func (d *draft) outboxRow() store.Row {
	o := table.Outbox{
		Shard:        event.Shard(d.head.ChatID),
		ChatID:       d.head.ChatID,
		FirstVersion: d.base.Version + 1,
		Count:        d.head.Version - d.base.Version,
		CreatedAt:    d.at,
	}
	return store.Row{Key: o.Key(), Item: o.Item()}
}

// joined adds a new member: membership, the user's row, and unless it is the
// creator the event.
func (d *draft) joined(user string, role table.Role, history table.History, by string, count int64, cond store.Condition) error {
	md := d.next(event.TypeMembershipChanged)
	d.putIf(table.MembershipKey(d.head.ChatID, user), table.Membership{Role: role, JoinedAt: d.at, Version: d.head.Version}.Item(), store.Absent(), condTarget)
	row := d.userRow(user, history)
	if cond == nil {
		d.put(table.UserChatKey(user, d.head.ChatID), row.Item())
	} else {
		d.putIf(table.UserChatKey(user, d.head.ChatID), row.Item(), cond, condUser)
	}
	return d.record(&eventv1.MembershipChanged{
		Metadata:         md,
		ChatId:           d.head.ChatID,
		UserId:           user,
		ChangeType:       eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED,
		Role:             protoRole(role),
		ChangedBy:        by,
		MemberCountAfter: int32(count),
		ChangedAt:        d.time(),
		JoinedSequence:   d.head.Sequence,
	})
}

// userRow is the row of a user who becomes a member with the last change.
func (d *draft) userRow(user string, history table.History) table.UserChat {
	return table.UserChat{
		UserID:            user,
		ChatID:            d.head.ChatID,
		History:           history,
		JoinedSequence:    d.head.Sequence,
		JoinedVersion:     d.head.Version,
		ReadSequence:      d.head.Sequence,
		DeliveredSequence: d.head.Sequence,
		ChangedAt:         d.at,
	}
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
