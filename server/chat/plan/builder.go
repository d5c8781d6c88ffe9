package plan

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// builder makes a Plan, change by change. It belongs to one goroutine.
type builder struct {
	Plan
	planner   Planner
	cause     event.Cause            // of the command; in a plan of sends, of the present message
	time      *timestamppb.Timestamp // At; shared by all messages of the plan
	chatLimit int64                  // chats that a user who joins may be in already; 0: any number

	oneSent [1]command.Sent // most plans have one, whose list needs no memory of its own
}

func (p Planner) builder(base table.Head, at int64, cause event.Cause, writes, events int) *builder {
	b := &builder{
		Plan: Plan{
			Base: base, Head: base, At: at, maxChats: p.maxChats(),
			writes: make([]store.Write, 0, writes),
		},
		planner: p, cause: cause, time: timestamppb.New(time.UnixMilli(at)),
	}
	// A caller that keeps a commit's events must not keep the builder with its writes.
	b.Events, b.Payloads = make([]event.Event, 0, max(1, events)), make([][]byte, 0, max(1, events))
	b.Head.ChangedAt = at
	if base.Version == 0 {
		b.Head.LastAt = at
	}
	return b
}

// finish adds what every plan that changes a chat ends with: the head's comparison
// and change, then the rows that carry no condition because the head's comparison
// covers them, events and outbox row. Each event is encoded here, once. All of it is one
// plan or none: a command that does not fit into a plan is refused, never divided.
func (b *builder) finish() (*Plan, error) {
	key := table.HeadKey(b.Head.ChatID)
	if b.Base.Version == 0 {
		b.putIf(CondHead, absent, key, b.Head.Item())
	} else {
		cond := store.Condition{{Test: store.TestEqual, Attr: table.AttrVersion, Value: store.Int(b.Base.Version)}}
		b.update(CondHead, cond, key, b.Head.Update())
	}
	for _, e := range b.Events {
		payload, err := event.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("encode event: %w", err)
		}
		b.Payloads = append(b.Payloads, payload)
		md := e.GetMetadata()
		row := table.Event{ChatID: b.Head.ChatID, Version: md.GetVersion(), EventID: md.GetEventId(), Type: md.GetEventType(),
			Payload: payload}
		w, err := row.Put(table.Cause{Actor: md.GetActorId(), Correlation: md.GetCorrelationId(),
			Causation: md.GetCausationId()})
		if err != nil {
			return nil, err
		}
		b.writes = append(b.writes, w)
	}
	b.Outbox = b.outboxRow()
	b.put(b.Outbox.Key, b.Outbox.Item)
	if len(b.writes) > store.MaxPlanWrites || b.eventBytes() > store.MaxPlanBytes {
		return nil, command.TooLarge(len(b.Events), store.MaxPlanWrites)
	}
	return &b.Plan, nil
}

// eventBytes is the size of the encoded events, which are the largest part of a plan.
func (b *builder) eventBytes() (n int) {
	for _, payload := range b.Payloads {
		n += len(payload)
	}
	return n
}

func (b *builder) outboxRow() store.Row {
	o := table.Outbox{
		Shard:        event.Shard(b.Head.ChatID),
		AggregateID:  b.Head.ChatID,
		FirstVersion: b.Base.Version + 1,
		Count:        b.Head.Version - b.Base.Version,
		CreatedAt:    b.At,
	}
	return store.Row{Key: o.Key(), Item: o.Item()}
}

var absent = store.Absent()

func (b *builder) put(key store.Key, it store.Item) {
	b.writes = append(b.writes, store.Write{Op: store.OpPut, Key: key, Item: it})
}

func (b *builder) putIf(name string, cond store.Condition, key store.Key, it store.Item) {
	b.writes = append(b.writes, store.Write{Op: store.OpPut, Key: key, Item: it, Cond: cond, Name: name})
}

func (b *builder) update(name string, cond store.Condition, key store.Key, u store.Update) {
	b.writes = append(b.writes, store.Write{Op: store.OpUpdate, Key: key, Update: u, Cond: cond, Name: name})
}

func (b *builder) delete(name string, cond store.Condition, key store.Key) {
	b.writes = append(b.writes, store.Write{Op: store.OpDelete, Key: key, Cond: cond, Name: name})
}

func (b *builder) check(name string, cond store.Condition, key store.Key) {
	b.writes = append(b.writes, store.Write{Op: store.OpCheck, Key: key, Cond: cond, Name: name})
}

// recordIdempotency adds the row of a request, as the first write of the plan.
func (b *builder) recordIdempotency(i command.Idempotency, version int64) {
	if i.Key != "" {
		b.writes = append(b.writes, i.Record(b.Head.ChatID, version, b.Head.Sequence, b.At))
	}
}

// eventPrefix begins the ids of events.
const eventPrefix = "evt_"

// next advances the head by one change and returns the change's metadata. The first event
// of a command completes the cause, which the others share.
func (b *builder) next(eventType string) *eventv1.EventMetadata {
	id := b.planner.NewID(eventPrefix)
	b.cause = b.cause.Complete(id)
	b.Head.Version++
	if eventType != event.TypeMessagePersisted {
		b.Head.MembershipVersion++
	}
	return event.Metadata{
		Type: eventType, ID: id, ChatID: b.Head.ChatID, At: time.UnixMilli(b.At),
		Origin: b.planner.Origin, Cause: b.cause,
		Version: b.Head.Version, MembershipVersion: b.Head.MembershipVersion,
	}.Proto()
}

// newMember is a user who becomes a member with the last change.
type newMember struct {
	user    string
	role    table.Role
	history table.History
	// pending says that the user was pending since the group's creation. The group was
	// theirs from the moment in which its creation was answered, so their membership begins
	// with the group's: messages sent since then are for them.
	pending bool
	// peer is the other person of a direct chat.
	peer string
	// access, if given, adds to the condition on the user's row what the user allows.
	access func(store.Condition) store.Condition
}

// start returns where in the chat the membership begins: with what comes after the
// sequence, and the change of the version.
func (b *builder) start(m newMember) (sequence, version int64) {
	if m.pending {
		return 0, 1
	}
	return b.Head.Sequence, b.Head.Version
}

// join adds the rows of a new member.
func (b *builder) join(m newMember) table.Membership {
	sequence, version := b.start(m)
	row := table.Membership{
		ChatID: b.Head.ChatID, UserID: m.user, Role: m.role, JoinedAt: b.At,
		JoinedSequence: sequence, JoinedVersion: version, Version: b.Head.Version,
	}
	b.putIf(CondTarget, absent, table.MembershipKey(row.ChatID, m.user), row.Item())
	// The whole row is replaced: nothing of an earlier membership remains. No
	// condition: a user has no open membership row and a row without left_version at
	// once.
	own := table.UserChat{
		UserID: m.user, ChatID: row.ChatID, Role: m.role, History: m.history, JoinedSequence: sequence,
		JoinedVersion: version,
		ReadSequence:  sequence, OwnFrom: sequence, DeliveredSequence: sequence, ChangedAt: b.At,
		Revision: table.FirstRevision(version),
		Peer:     m.peer,
	}
	b.put(table.UserChatKey(m.user, row.ChatID), own.Item())
	cond := isCounted
	if b.chatLimit > 0 {
		cond = store.Condition{}.Lt(table.AttrChats, store.Int(b.chatLimit))
	}
	if m.access != nil {
		cond = m.access(cond)
	}
	b.update(CondChats, cond, table.UserKey(m.user), store.Update{Add: []store.Increment{{Name: table.AttrChats, N: 1}}})
	return row
}

// add makes a user a member, with an event of its own. count is the group's number of
// members after it.
func (b *builder) add(m newMember, by string, count int64) table.Membership {
	md := b.next(event.TypeMembershipChanged)
	sequence, _ := b.start(m)
	b.Events = append(b.Events, &eventv1.MembershipChanged{
		Metadata:         md,
		ChatId:           b.Head.ChatID,
		UserId:           m.user,
		ChangeType:       eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED,
		Role:             protoRole(m.role),
		ChangedBy:        by,
		MemberCountAfter: int32(count),
		ChangedAt:        b.time,
		JoinedSequence:   sequence,
	})
	return b.join(m)
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
