package explorer

import (
	"context"
	"math/bits"
	"slices"
	"strconv"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// set is a set of people.
type set [(maxPeople + 63) / 64]uint64

func of(users []string) (s set) {
	for _, u := range users {
		s.add(index(u))
	}
	return s
}

// index is the index of a user among names.
func index(user string) int {
	if len(user) == 1 {
		return int(user[0] - 'a')
	}
	n, _ := strconv.Atoi(user[1:])
	return n
}

func (s *set) add(u int)     { s[u/64] |= 1 << (u % 64) }
func (s set) has(u int) bool { return s[u/64]&(1<<(u%64)) != 0 }
func (s set) empty() bool    { return s == set{} }

func (s set) size() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

func (s set) and(o set) set {
	for i := range s {
		s[i] &= o[i]
	}
	return s
}

func (s set) or(o set) set {
	for i := range s {
		s[i] |= o[i]
	}
	return s
}

func (s set) without(o set) set {
	for i := range s {
		s[i] &^= o[i]
	}
	return s
}

// room is what is known of a chat after its last commit.
type room struct {
	id       string
	used     bool // by an op of this schedule
	exists   bool
	direct   bool
	name     string
	roles    []table.Role // of all people
	pending  set
	intended set // were to become members when it was created
	settled  set // became members, or were removed
	count    int64
	head     table.Head
	cause    event.Cause // of its first event
}

func (r *room) members() (s set) {
	for u, role := range r.roles {
		if role != "" {
			s.add(u)
		}
	}
	return s
}

// copied is the room as it is now.
func (r *room) copied() room {
	c := *r
	c.roles = slices.Clone(r.roles)
	return c
}

func (w *world) room(id string) *room {
	for _, r := range w.rooms {
		if r.id == id {
			return r
		}
	}
	r := &room{id: id, roles: make([]table.Role, w.people)}
	w.rooms = append(w.rooms, r)
	return r
}

func (w *world) get(k store.Key) store.Item {
	it, err := w.store.Get(context.Background(), k, store.Strong)
	if err != nil {
		w.fail("read %s: %v", k, err)
	}
	return it
}

// observe holds a committed plan of an op against the rules.
func (w *world) observe(o *op, p store.Plan) {
	var r *room
	var events []event.Event
	for _, wr := range p.Writes {
		if wr.Op == store.OpCheck {
			continue
		}
		switch wr.Key.Table {
		case store.Chats, store.ChatMemberships, store.ChatCounters, store.PendingMembers:
			r = w.room(wr.Key.PK)
		case store.Events:
			r = w.room(wr.Key.PK)
			row, err := table.EventFrom(store.Row{Key: wr.Key, Item: wr.Item})
			if err != nil {
				w.fail("%v", err)
				return
			}
			e, err := event.Unmarshal(row.Type, row.Payload)
			if err != nil || e.GetMetadata().GetVersion() != row.Version {
				w.fail("event %s@%d: %v, %v", r.id, row.Version, e, err)
				return
			}
			events = append(events, e)
		}
	}
	if r == nil {
		return // a user's own row, a request that changed nothing
	}
	before := r.copied()
	for _, wr := range p.Writes {
		switch {
		case wr.Op == store.OpCheck:
		case wr.Key.Table == store.ChatMemberships:
			w.membership(o, &before, r, wr)
		case wr.Key.Table == store.PendingMembers:
			r.pending = of(table.PendingFrom(r.id, w.get(wr.Key)).Members)
		case wr.Key.Table == store.DirectChatIndex:
			if other := w.pairs[wr.Key.PK]; other != "" && other != r.id {
				w.fail("%v: a second direct chat of %s", o, wr.Key.PK)
			}
			w.pairs[wr.Key.PK] = r.id
		}
	}
	if !before.exists {
		w.created(o, r)
	}
	w.pendingChanged(o, &before, r)
	w.state(o, &before, r)
	if w.bug == nil || w.bug.run == nil {
		w.log(o, &before, r, events)
		w.caused(o, &before, r, events)
	}
	if creates := o.kind == createGroup || o.kind == createDirect; (!creates && o.kind.changes()) ||
		(creates && !before.exists) {
		o.commits++
		o.countAfter = r.count
		if o.commits > 1 {
			w.fail("%v: carried out twice", o)
		}
		if o.refused != nil {
			w.fail("%v: carried out after %v", o, o.refused)
		}
	}
}

// created takes a new chat in.
func (w *world) created(o *op, r *room) {
	r.exists, r.used = true, true
	row := table.ChatFrom(r.id, w.get(table.ChatKey(r.id)))
	r.direct = row.Type == table.Direct
	r.intended = r.pending.or(r.members())
	r.settled = r.members()
	if o.kind != createGroup && o.kind != createDirect {
		w.fail("%v made the chat %s", o, r.id)
	}
	o.made = r.id
}

// membership holds one write of a membership against the rules, by what the chat
// was before the plan.
func (w *world) membership(o *op, before, after *room, wr store.Write) {
	u := index(wr.Key.SK)
	caller := before.roles[index(o.caller)]
	if before.exists && before.direct {
		w.fail("%v: the members of a direct chat change", o)
	}
	if w.failed != "" {
		return
	}
	target := o.target == names[u]
	switch wr.Op {
	case store.OpPut:
		role := table.Role(wr.Item.Get(table.AttrRole).Str())
		after.roles[u] = role
		after.settled.add(u)
		switch {
		case !before.exists:
		case before.roles[u] != "":
			w.fail("%v: the membership of %s (%s) is overwritten", o, names[u], before.roles[u])
		case before.pending.has(u) && role == table.Member: // whoever finishes it
		case before.pending.has(u) && o.kind == changeRole && target && role == o.role && caller == table.Owner &&
			role != table.Owner:
		case o.kind == add && target && role == o.role && mayAdd(caller, role) && before.count < w.size:
		default:
			w.fail("%v: %s becomes %s in a chat of %d, by a caller who is %q", o, names[u], role, before.count, caller)
		}
	case store.OpDelete:
		after.roles[u] = ""
		switch {
		case o.kind == remove && target && o.caller != o.target && mayRemove(caller, before.roles[u]):
		case o.kind == leave && o.caller == names[u] && (caller == table.Admin || caller == table.Member):
		default:
			w.fail("%v: %s, who is %q, goes, by a caller who is %q", o, names[u], before.roles[u], caller)
		}
	case store.OpUpdate:
		for _, a := range wr.Update.Set {
			if a.Name == table.AttrRole {
				after.roles[u] = table.Role(a.Value.Str())
			}
		}
		if o.kind != changeRole || !target || caller != table.Owner || before.roles[u] == table.Owner ||
			before.roles[u] == "" ||
			after.roles[u] != o.role || o.role == table.Owner {
			w.fail("%v: %s, who is %q, becomes %q, by a caller who is %q", o, names[u], before.roles[u], after.roles[u], caller)
		}
	}
}

func mayAdd(caller, role table.Role) bool {
	return caller == table.Owner && (role == table.Admin || role == table.Member) || caller == table.Admin &&
		role == table.Member
}

func mayRename(caller table.Role) bool { return caller == table.Owner || caller == table.Admin }

func mayRemove(caller, target table.Role) bool {
	return caller == table.Owner && (target == table.Admin || target == table.Member) || caller == table.Admin &&
		target == table.Member
}

// pendingChanged holds a change of the pending members against the rules.
func (w *world) pendingChanged(o *op, before, after *room) {
	if before.exists && !after.pending.without(before.pending).empty() {
		w.fail("%v: somebody becomes pending", o)
	}
	gone := before.pending.without(after.pending).without(after.members())
	after.settled = after.settled.or(gone)
	if gone.empty() {
		return
	}
	if gone.size() != 1 || o.kind != remove || !gone.has(index(o.target)) ||
		!mayRemove(before.roles[index(o.caller)], table.Member) {
		w.fail("%v: pending members disappear", o)
	}
}

// state holds what must be true of every committed state (L-046, L-066, X-38).
func (w *world) state(o *op, before, r *room) {
	it := w.get(table.ChatKey(r.id))
	row := table.ChatFrom(r.id, it)
	r.count, r.name = row.MemberCount, row.Name
	members := r.members()
	owners := 0
	for _, role := range r.roles {
		if role == table.Owner {
			owners++
		}
	}
	switch {
	case row.Type == "" || row.Status != table.Active:
		w.fail("%v: a chats row without a chat: %v", o, it)
	case before.exists && r.name != before.name &&
		(o.kind != rename || r.direct || !mayRename(before.roles[index(o.caller)]) || r.name != o.name()):
		w.fail("%v: the name becomes %q, by a caller who is %q", o, r.name, before.roles[index(o.caller)])
	case !members.and(r.pending).empty():
		w.fail("%v: members who are pending", o)
	case int(r.count) != members.size()+r.pending.size():
		w.fail("%v: count %d, %d members, %d pending", o, r.count, members.size(), r.pending.size())
	case r.direct && (members.size() != 2 || owners != 0 || !r.pending.empty()):
		w.fail("%v: a direct chat of %d people", o, members.size())
	case !r.direct && owners != 1:
		w.fail("%v: %d owners", o, owners)
	case r.count > w.size:
		w.fail("%v: %d members", o, r.count)
	}
}

// log holds head, events and the users' own rows against what the plan did.
func (w *world) log(o *op, before, r *room, events []event.Event) {
	r.head = table.HeadFrom(r.id, w.get(table.HeadKey(r.id)))
	row := table.ChatFrom(r.id, w.get(table.ChatKey(r.id)))
	v, mv, seq := before.head.Version, before.head.MembershipVersion, before.head.Sequence
	roles := slices.Clone(before.roles)
	for _, e := range events {
		v++
		md := e.GetMetadata()
		switch e := e.(type) {
		case *eventv1.MessagePersisted:
			seq++
			if roles[index(e.GetSenderId())] == "" || e.GetSequence() != seq {
				w.fail("%v: message %d of %s, who is no member", o, e.GetSequence(), e.GetSenderId())
			}
		case *eventv1.ChatCreated:
			mv++
			roles[index(e.GetCreatedBy())] = r.roles[index(e.GetCreatedBy())]
			if of(e.GetInitialMembers()) != r.intended || int64(e.GetMemberCount()) != r.count {
				w.fail("%v: %v; intended %x, count %d", o, e, r.intended, r.count)
			}
		case *eventv1.ChatUpdated:
			mv++
			if int64(e.GetMemberCount()) != r.count || e.GetName() != row.Name || row.Version != v {
				w.fail("%v: %v; chat %+v", o, e, row)
			}
		case *eventv1.MembershipChanged:
			mv++
			w.changed(o, before, r, e, v, roles)
			if int64(e.GetMemberCountAfter()) != r.count || row.Version != v && e == events[len(events)-1] {
				w.fail("%v: %v; chat %+v", o, e, row)
			}
		}
		if md.GetVersion() != v || md.GetMembershipVersion() != mv || md.GetGeneration() != "g" {
			w.fail("%v: version %d.%d in place of %d.%d", o, md.GetVersion(), md.GetMembershipVersion(), v, mv)
		}
	}
	h := r.head
	if len(events) == 0 || h.Version != v || h.MembershipVersion != mv || h.Sequence != seq ||
		h.ChangedAt < before.head.ChangedAt || row.UpdatedAt > h.ChangedAt {
		w.fail("%v: head %+v after %d events from %+v", o, h, len(events), before.head)
	}
	if !slices.Equal(roles, r.roles) {
		w.fail("%v: roles %v, the events say %v", o, r.roles, roles)
	}
	if late := w.now - h.ChangedAt; late > maxAge {
		w.fail("%v: a change of %d s ago", o, late/1000)
	}
	outbox := table.Outbox{Shard: event.Shard(r.id), AggregateID: r.id, FirstVersion: before.head.Version + 1}
	if got := w.get(outbox.Key()); got.Get("count").Int64() != int64(len(events)) {
		w.fail("%v: outbox row %v for %d events", o, got, len(events))
	}
}

// changed holds the event of a membership against the rows.
func (w *world) changed(
	o *op, before, r *room, e *eventv1.MembershipChanged, version int64, roles []table.Role,
) {
	u := index(e.GetUserId())
	own := table.UserChatFrom(names[u], r.id, w.get(table.UserChatKey(names[u], r.id)))
	switch e.GetChangeType() {
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED:
		from, sequence := version, before.head.Sequence
		if before.pending.has(u) || !before.exists { // theirs since the creation
			from, sequence = min(version, 1), 0
		}
		if r.direct {
			from = version
		}
		if own.Left() || own.JoinedVersion != from || own.JoinedSequence != sequence ||
			e.GetJoinedSequence() != own.JoinedSequence {
			w.fail("%v: own row %+v after %v", o, own, e)
		}
		roles[u] = r.roles[u]
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED:
		left := table.UserChatFrom(names[u], r.id, w.get(table.LeftKey(names[u], r.id)))
		if before.roles[u] != "" && (own.JoinedVersion != 0 || left.LeftVersion != version) {
			w.fail("%v: own row %+v, that of the chat left %+v after %v", o, own, left, e)
		}
		roles[u] = ""
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED:
		roles[u] = r.roles[u]
	}
	if !before.pending.has(u) && e.GetChangedBy() != o.caller {
		w.fail("%v: %v", o, e)
	}
}

// end holds what must be true when all is done, and pending members were seen to
// once more (L-041, L-055).
func (w *world) end() {
	for _, r := range w.rooms {
		if !r.used {
			continue
		}
		if !r.pending.empty() {
			w.fail("%s: %x still pending", r.id, r.pending)
		}
		if missing := r.intended.without(r.settled); !missing.empty() {
			w.fail("%s: %x never became members", r.id, missing)
		}
	}
}
