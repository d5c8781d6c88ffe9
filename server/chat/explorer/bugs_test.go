package explorer

import (
	"context"
	"errors"
	"slices"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// bug is a way to be wrong that the rules must notice.
type bug struct {
	name string
	// drop leaves the conditions of a name out of all plans.
	drop string
	// run carries an op out, in place of the service; ops are of these kinds.
	run      func(p *process, o *op) error
	kinds    []kind
	shape    func(o *op)
	noFaults bool        // the bug needs none, and the procedures know none
	finds    string      // part of what the rules must say
	slow     bool        // all schedules are
	still    bool        // a process's clock stands still while it works on an op
	hasty    bool        // Durable does not wait
	weak     store.Table // is read as it was at the beginning
	back     bool        // the head's time is that of the clock, whatever it was before
	large    bool        // in large groups
	forgets  bool        // the last member of a plan that adds many is forgotten
	barred   bool        // sends whoever is a member
	plan     func(store.Plan) store.Plan
}

// within is the number of schedules that must be enough to find a bug.
const within = 300_000

// bugs are the procedures as the source text has them (its defects by their ids), and
// ours without one of the conditions.
var bugs = []bug{
	{name: "X-34 phase 2 puts without a condition", kinds: []kind{finish, finish, remove}, noFaults: true, shape: inHalf,
		run: literal(procedures{finish: unconditionalPhase2, remove: literalRemove})},
	{name: "X-35 the intended members stand nowhere", finds: "count", kinds: []kind{createGroup}, noFaults: true,
		run: literal(procedures{createGroup: literalCreate})},
	{name: "X-36 the creator among the members", finds: "is overwritten", kinds: []kind{createGroup}, noFaults: true,
		run: literal(procedures{createGroup: creatorAsMember})},
	{name: "X-37 creation without a request row", finds: "carried out twice", kinds: []kind{createGroup},
		run: func(p *process, o *op) error {
			c, err := p.svc.CreateGroup(context.Background(), chat.CreateGroup{Caller: o.caller, Name: "g", Members: o.members})
			if err == nil {
				o.checkCreated(c.ChatID)
			}
			return err
		}},
	{name: "X-39 the reconciler sets the count to the members it sees", finds: "pending",
		kinds: []kind{checkCount, finish, add}, noFaults: true,
		run: literal(procedures{checkCount: literalReconcile})},
	{name: "X-41 add: the caller's role is read before the transaction", kinds: []kind{add, changeRole, remove},
		noFaults: true, shape: noOwner, finds: "becomes",
		run: literal(procedures{add: literalAdd, changeRole: literalRole, remove: literalRemove})},
	{name: "X-42 remove: an admin who was just promoted", kinds: []kind{changeRole, remove}, noFaults: true,
		shape: promotion, finds: `who is "admin", goes, by a caller who is "admin"`,
		run: literal(procedures{changeRole: literalRole, remove: literalRemove})},
	{name: "X-42 remove in a direct chat", finds: "direct chat", kinds: []kind{remove}, noFaults: true,
		shape: func(o *op) { o.slot, o.caller, o.target = pair, "a", "b" },
		run:   literal(procedures{remove: literalRemoveMember})},
	{name: "X-43 a second owner", kinds: []kind{changeRole}, noFaults: true, shape: inReady, finds: "becomes \"owner\"",
		run: literal(procedures{changeRole: literalRole})},
	{name: "X-44 leave: no condition on the chat", finds: "direct chat", kinds: []kind{leave}, noFaults: true,
		shape: func(o *op) { o.slot, o.caller = pair, "a" },
		run:   literal(procedures{leave: literalLeave})},
	{name: "X-50 a direct chat of others", finds: "between others", kinds: []kind{createDirect}, noFaults: true,
		run: literal(procedures{createDirect: literalDirect})},
	{name: "X-54 add without a request row", finds: "already a member, but it was carried out", kinds: []kind{add},
		shape: inReady,
		run: func(p *process, o *op) error {
			_, err := p.svc.Change(context.Background(), chat.OpAdd,
				chat.MemberChange{Caller: o.caller, ChatID: o.chat(), UserID: o.target, Role: o.role})
			return err
		}},
	{name: "X-55 the count after is read after", finds: "the event says", kinds: []kind{add, add, leave}, noFaults: true,
		shape: inReady,
		run:   literal(procedures{add: countReadAfter, leave: literalLeave})},

	{name: "rename: the caller's role is read before the transaction", kinds: []kind{rename, changeRole}, noFaults: true,
		shape: demotion, finds: `by a caller who is "member"`,
		run: literal(procedures{rename: literalRename, changeRole: literalRole})},
	{name: "mute and archive write what they have read", drop: plan.CondUser, kinds: []kind{mute, archive, archive},
		noFaults: true, shape: ofOne, finds: "another's"},
	{name: "mute without a request row", kinds: []kind{mute}, shape: ofOne, finds: "carried out twice",
		run: func(p *process, o *op) error {
			_, err := p.svc.SetMemberSettings(context.Background(),
				chat.MemberSettings{Caller: o.caller, ChatID: o.chat(), MutedUntil: &o.until, Procedure: "mute"})
			return err
		}},
	{name: "mark read compares with what it has read", drop: plan.CondUser, kinds: []kind{send, send, markRead, markRead},
		noFaults: true, shape: reading, finds: "goes back"},
	{name: "a plan is sent at any age", slow: true, still: true, finds: "s ago"},
	{name: "the time of a change is the clock's alone", slow: true, back: true, finds: "head"},
	{name: "the answer does not wait for the disk", hasty: true, finds: "not on disk"},
	{name: "members are counted as they were", weak: store.ChatMemberships,
		kinds: []kind{add, remove, checkCount, checkCount}, noFaults: true, shape: inReady, finds: "check count by"},

	{name: "a chunk loses its last member", large: true, forgets: true, finds: "pending"},
	{name: "of many: without the condition on the pending members", large: true, drop: plan.CondPending,
		kinds: []kind{finish, finish, remove, changeRole}, shape: inHalf},
	{name: "of many: without the condition on the chat", large: true, drop: plan.CondChat},

	{name: "who is blocked sends", barred: true, kinds: blocking, shape: quarrel, finds: "barrier"},
	{name: "without the condition on block lists", drop: plan.CondBlock, kinds: blocking, shape: quarrel, finds: "barrier"},
	{name: "a block while a direct chat is made", drop: people.NoChat, kinds: blocking, shape: quarrel, finds: "barrier"},

	{name: "a mark that the other person is not told of", plan: unnotified, kinds: peerKinds, shape: between,
		finds: "is shown"},
	{name: "the other person's row keeps its revision", plan: unrevised, kinds: peerKinds, shape: between,
		finds: "the other row becomes"},
	{name: "the other person's row keeps its time", plan: timeless, kinds: peerKinds, shape: between,
		finds: "the other row becomes"},
	{name: "who blocks is told on", plan: pastBlocks, kinds: peerKinds, shape: between, finds: "mark read"},

	{name: "a message marks what its sender has not seen", plan: sendReads, kinds: peerKinds, shape: between,
		finds: "own messages"},
	{name: "a mark forgets the own messages behind it", plan: forgetsOwn, kinds: peerKinds, shape: between,
		finds: "own messages"},

	{name: "each event is its own cause", plan: selfCaused, kinds: []kind{createDirect}, finds: "the cause of event"},
	{name: "the pending members lose the trace", plan: untraced, kinds: []kind{createGroup}, finds: "the cause of event"},

	{name: "without the condition on the caller", drop: plan.CondCaller},
	{name: "without the condition on the target", drop: plan.CondTarget},
	{name: "without the condition on the chat", drop: plan.CondChat},
	{name: "without the condition on the pending members", drop: plan.CondPending},
	{name: "without the condition on the sender", drop: plan.CondUser},
	{name: "without the condition on the pair", drop: plan.CondPair},
	{name: "without the condition on the request", drop: plan.CondRequest},
	{name: "without the condition on the head", drop: plan.CondHead},
}

// without is a plan that lacks the conditions of a name.
func without(p store.Plan, name string) store.Plan {
	writes := make([]store.Write, 0, len(p.Writes))
	for _, wr := range p.Writes {
		if wr.Name == name {
			if wr.Op == store.OpCheck {
				continue
			}
			wr.Cond = nil
			if wr.Op == store.OpUpdate && name != plan.CondUser { // that row goes with its membership
				wr.Cond = store.Exists() // an update of nothing is another bug
			}
		}
		writes = append(writes, wr)
	}
	return store.Plan{Writes: writes}
}

// forgetful is a plan that lacks the last of the memberships that it adds, if they are many.
func forgetful(p store.Plan) store.Plan {
	last, n := -1, 0
	for i, wr := range p.Writes {
		if wr.Key.Table == store.ChatMemberships && wr.Op == store.OpPut {
			last, n = i, n+1
		}
	}
	if n < 2 {
		return p
	}
	return store.Plan{Writes: slices.Delete(slices.Clone(p.Writes), last, last+1), Token: p.Token}
}

// backward is a plan whose head has the time of a clock that is slow.
func (w *world) backward(o *op, p store.Plan) store.Plan {
	writes := slices.Clone(p.Writes)
	for i, wr := range writes {
		if wr.Key.Table != store.ChatCounters || wr.Op != store.OpUpdate {
			continue
		}
		set := slices.Clone(wr.Update.Set)
		for j := range set {
			if set[j].Name == table.AttrChangedAt {
				set[j].Value = store.Int(w.now - int64(o.n%2)*maxSkew)
			}
		}
		writes[i].Update.Set = set
	}
	return store.Plan{Writes: writes}
}

func inHalf(o *op)  { o.slot = half }
func inReady(o *op) { o.slot = ready }

// noOwner keeps the text from making second owners, which is another bug.
func noOwner(o *op) {
	o.slot = ready
	if o.role == table.Owner {
		o.role = table.Admin
	}
}

// promotion: b, an admin, removes c while a makes c an admin.
func promotion(o *op) {
	o.slot, o.target, o.role, o.caller = ready, "c", table.Admin, "a"
	if o.kind == remove {
		o.caller = "b"
	}
}

// demotion: b, an admin, renames while a makes b a member.
func demotion(o *op) {
	o.slot, o.caller = ready, "b"
	if o.kind == changeRole {
		o.caller, o.target, o.role = "a", "b", table.Member
	}
}

// ofOne is what one member does with the own row.
func ofOne(o *op) { o.slot, o.caller = ready, "b" }

// reading: b reads what c sends.
func reading(o *op) {
	if o.slot, o.caller = ready, "b"; o.kind == send {
		o.caller = "c"
	}
}

// literalRename reads the caller's role and then writes, as §5 has it.
func literalRename(p *process, o *op) error {
	id := o.chat()
	caller, err := p.role(id, o.caller)
	if err != nil {
		return err
	}
	if !mayRename(caller) {
		return chat.ErrForbidden
	}
	return guess(p.commit(store.Write{
		Op: store.OpUpdate, Key: table.ChatKey(id), Cond: isGroup(), Name: "chat",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrName, Value: store.String(o.name())}}},
	}), chat.ErrInvalidOperation)
}

type procedures map[kind]func(p *process, o *op) error

// literal runs the procedures of the source text; kinds without one are ours.
func literal(of procedures) func(p *process, o *op) error {
	return func(p *process, o *op) error {
		if f := of[o.kind]; f != nil {
			return f(p, o)
		}
		b := o.w.bug
		o.w.bug = nil
		defer func() { o.w.bug = b }()
		return o.run(p)
	}
}

func (p *process) item(k store.Key) (store.Item, error) {
	return p.Get(context.Background(), k, store.Strong)
}

func (p *process) role(id, user string) (table.Role, error) {
	it, err := p.item(table.MembershipKey(id, user))
	return table.Role(it.Get(table.AttrRole).Str()), err
}

func (p *process) commit(writes ...store.Write) error {
	return p.Transact(context.Background(), store.Plan{Writes: writes})
}

func membership(op store.Op, id, user string, role table.Role, cond store.Condition) store.Write {
	w := store.Write{Op: op, Key: table.MembershipKey(id, user), Cond: cond, Name: "membership"}
	switch op {
	case store.OpPut:
		w.Item = table.Membership{ChatID: id, UserID: user, Role: role, JoinedAt: 1}.Item()
	case store.OpUpdate:
		w.Update = store.Update{Set: []store.Attr{{Name: table.AttrRole, Value: store.String(string(role))}}}
	}
	return w
}

func counted(id string, by int64, cond store.Condition) store.Write {
	return store.Write{
		Op: store.OpUpdate, Key: table.ChatKey(id), Cond: cond, Name: "chat",
		Update: store.Update{Add: []store.Increment{{Name: table.AttrMemberCount, N: by}}},
	}
}

// notOwner is `attribute_exists(user_id) AND role <> owner`.
func notOwner() store.Condition {
	return store.Exists().Ne(table.AttrRole, store.String(string(table.Owner)))
}

func active() store.Condition {
	return store.Condition{}.Eq(table.AttrStatus, store.String(string(table.Active)))
}

func isGroup() store.Condition {
	return store.Condition{}.Eq(table.AttrChatType, store.String(string(table.Group)))
}

// guess is the answer to a failed condition, as far as the text tells them apart.
func guess(err, is error) error {
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return is
	}
	return err
}

// §4.1.
func literalAdd(p *process, o *op) error {
	id := o.chat()
	caller, err := p.role(id, o.caller)
	if err != nil {
		return err
	}
	if !mayAdd(caller, o.role) {
		return chat.ErrForbidden
	}
	return guess(p.commit(
		membership(store.OpPut, id, o.target, o.role, store.Absent()),
		counted(id, 1, isGroup().Lt(table.AttrMemberCount, store.Int(groupSize))),
	), chat.ErrAlreadyMember)
}

// §4.2, with the rules of §8 as they are read before the transaction.
func literalRemove(p *process, o *op) error {
	id := o.chat()
	caller, err := p.role(id, o.caller)
	if err != nil {
		return err
	}
	target, err := p.role(id, o.target)
	if err != nil {
		return err
	}
	if !mayRemove(caller, target) || o.caller == o.target {
		return chat.ErrForbidden
	}
	return removal(p, id, o.target)
}

// literalRemoveMember is the same where nothing but the transaction keeps a direct
// chat from changing.
func literalRemoveMember(p *process, o *op) error { return removal(p, o.chat(), o.target) }

func removal(p *process, id, user string) error {
	return guess(p.commit(
		membership(store.OpDelete, id, user, "", notOwner()),
		counted(id, -1, active().Gt(table.AttrMemberCount, store.Int(1))),
	), chat.ErrMemberNotFound)
}

// §4.3: the chat is changed without any condition.
func literalLeave(p *process, o *op) error {
	id := o.chat()
	return guess(p.commit(
		membership(store.OpDelete, id, o.caller, "", notOwner()),
		counted(id, -1, nil),
	), chat.ErrNotAMember)
}

// §4.4: any role, and no check of the caller in the write.
func literalRole(p *process, o *op) error {
	id := o.chat()
	caller, err := p.role(id, o.caller)
	if err != nil {
		return err
	}
	if caller != table.Owner || o.caller == o.target {
		return chat.ErrForbidden
	}
	return guess(p.commit(membership(store.OpUpdate, id, o.target, o.role, notOwner())), chat.ErrMemberNotFound)
}

// §3.1: the count says all, the list of them stands in the request alone.
func literalCreate(p *process, o *op) error {
	id := o.w.newID("chat_")
	row := table.Chat{ChatID: id, Type: table.Group, CreatedBy: o.caller, Status: table.Active,
		MemberCount: int64(len(o.members)) + 1}
	err := p.commit(
		store.Write{Op: store.OpPut, Key: table.ChatKey(id), Item: row.Item(), Cond: store.Absent(), Name: "chat"},
		membership(store.OpPut, id, o.caller, table.Owner, store.Absent()),
	)
	for _, u := range o.members {
		if err == nil {
			err = p.commit(membership(store.OpPut, id, u, table.Member, nil))
		}
	}
	return err
}

// §3.1 with the list beside it, but the creator not taken out of it.
func creatorAsMember(p *process, o *op) error {
	id := o.w.newID("chat_")
	members := append(slices.Clone(o.members), o.caller)
	slices.Sort(members)
	members = slices.Compact(members)
	others := slices.DeleteFunc(slices.Clone(members), func(u string) bool { return u == o.caller })
	if len(others) == 0 {
		return chat.ErrInvalidArgument
	}
	row := table.Chat{ChatID: id, Type: table.Group, CreatedBy: o.caller, Status: table.Active,
		MemberCount: int64(len(others)) + 1}
	err := p.commit(
		store.Write{Op: store.OpPut, Key: table.ChatKey(id), Item: row.Item(), Cond: store.Absent(), Name: "chat"},
		store.Write{Op: store.OpPut, Key: table.PendingKey(id), Item: table.Pending{Members: others}.Item()},
		membership(store.OpPut, id, o.caller, table.Owner, store.Absent()),
	)
	for i, u := range members {
		if err != nil {
			break
		}
		rest := slices.DeleteFunc(slices.Clone(others), func(x string) bool { return slices.Index(members, x) <= i })
		err = p.commit(membership(store.OpPut, id, u, table.Member, nil), pendingIs(id, rest))
	}
	return err
}

func pendingIs(id string, rest []string) store.Write {
	if len(rest) == 0 {
		return store.Write{Op: store.OpDelete, Key: table.PendingKey(id)}
	}
	return store.Write{Op: store.OpPut, Key: table.PendingKey(id), Item: table.Pending{Members: rest}.Item()}
}

// §3.1, phase 2, on the list as it was read: each member is put, whatever happened
// to the membership since.
func unconditionalPhase2(p *process, o *op) error {
	id := o.chat()
	it, err := p.item(table.PendingKey(id))
	if err != nil {
		return err
	}
	list := table.PendingFrom(id, it).Members
	for i, u := range list {
		if err := p.commit(membership(store.OpPut, id, u, table.Member, nil), pendingIs(id, list[i+1:])); err != nil {
			return err
		}
	}
	return nil
}

// §3.3.
func literalReconcile(p *process, o *op) error {
	id := o.chat()
	page, err := p.Query(context.Background(),
		store.Query{Table: store.ChatMemberships, PK: id, Consistency: store.Strong})
	if err != nil {
		return err
	}
	n := store.Int(int64(len(page.Rows)))
	return guess(p.commit(store.Write{
		Op: store.OpUpdate, Key: table.ChatKey(id), Cond: store.Exists().Ne(table.AttrMemberCount, n), Name: "chat",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrMemberCount, Value: n}}},
	}), nil)
}

// §2.2: the members are those of the request, whoever asks.
func literalDirect(p *process, o *op) error {
	x, y := o.target, names[5]
	if x == y || x == o.caller || y == o.caller {
		return chat.ErrInvalidArgument
	}
	id := o.w.newID("chat_")
	row := table.Chat{ChatID: id, Type: table.Direct, CreatedBy: o.caller, Status: table.Active, MemberCount: 2,
		DirectUsers: []string{x, y}}
	err := guess(p.commit(
		store.Write{Op: store.OpPut, Key: table.DirectIndexKey(x, y), Item: table.DirectIndex{ChatID: id}.Item(),
			Cond: store.Absent(), Name: "pair"},
		store.Write{Op: store.OpPut, Key: table.ChatKey(id), Item: row.Item(), Cond: store.Absent(), Name: "chat"},
		membership(store.OpPut, id, x, table.Member, store.Absent()),
		membership(store.OpPut, id, y, table.Member, store.Absent()),
	), chat.ErrInvalidOperation)
	if err == nil && o.w.room(id).roles[index(o.caller)] == "" {
		o.w.fail("%v: a chat between others", o)
	}
	return err
}

// §6.2: transactions return no values, so the count of the event is read later.
func countReadAfter(p *process, o *op) error {
	if err := literalAdd(p, o); err != nil {
		return err
	}
	it, err := p.item(table.ChatKey(o.chat()))
	if err != nil {
		return err
	}
	if n := it.Get(table.AttrMemberCount).Int64(); n != o.countAfter {
		o.w.fail("%v: the event says %d members, the transaction made it %d", o, n, o.countAfter)
	}
	return nil
}
