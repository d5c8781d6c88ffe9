package explorer

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
)

type kind uint8

const (
	add kind = iota
	remove
	leave
	changeRole
	rename
	createGroup
	createDirect
	finish
	checkCount
	send
	mute
	archive
	markRead
	block
	unblock
)

func (k kind) String() string {
	return [...]string{"add", "remove", "leave", "change role", "rename", "create group", "create direct", "finish",
		"check count", "send", "mute", "archive", "mark read", "block", "unblock"}[k]
}

// changes reports whether an op of the kind changes a chat by its own wish.
func (k kind) changes() bool { return k < mute && k != finish }

// mustCommit reports whether success means that something was committed for the
// request. A role or name may be there already, a direct chat too.
func (k kind) mustCommit() bool {
	switch k {
	case add, remove, leave, createGroup, send, mute, archive:
		return true
	}
	return false
}

// op is what a client wants. It is asked for again, with the same request id, as
// long as the client does not know.
type op struct {
	n        int
	kind     kind
	caller   string
	target   string
	role     table.Role
	slot     int // which chat
	members  []string
	w        *world
	attempts int
	since    int64  // when a process took it first
	id       string // the chat of the slot, once it was needed

	commits    int
	made       string // chat that it made
	answered   string // chat that it was answered with
	countAfter int64  // of its commit
	until      int64  // of a mute; 0: none
	archived   bool
	refused    error
}

// String names the op in traces.
func (o *op) String() string {
	return fmt.Sprintf("op %d (%v by %s of %s as %s in %d %v)", o.n, o.kind, o.caller, o.target, o.role, o.slot, o.members)
}

// The chats that there are from the beginning, and the one that may be made.
const (
	ready   = iota // a is owner, b admin, c member
	half           // a is owner, b and c are pending: its process died
	pair           // direct, of a and b
	created        // by the first op that makes a group, half otherwise
	slots
)

var slotIDs = [...]string{ready: "chat_ready", half: "chat_half", pair: "chat_pair"}

// name is the one that a rename wishes.
func (o *op) name() string { return "n" + o.target }

// chat finds the chat of a slot, the same for all attempts.
func (o *op) chat() string {
	switch {
	case o.id != "":
	case o.slot < created:
		o.id = slotIDs[o.slot]
	default:
		o.id = slotIDs[half]
		for _, other := range o.w.ops {
			if other.kind == createGroup && other.made != "" {
				o.id = other.made
			}
		}
	}
	o.w.room(o.id).used = true
	return o.id
}

// person is anybody, in a large world half of the time one of those who do most there.
func (w *world) person() string {
	n := w.people
	if n > small.people && w.rng.IntN(2) == 0 {
		n = small.people
	}
	return names[w.rng.IntN(n)]
}

// someone is a person who has a role in the chats of the beginning, mostly.
func (w *world) someone() string {
	if w.rng.IntN(4) == 0 {
		return w.person()
	}
	return names[w.rng.IntN(3)]
}

// focus is where a crowded schedule happens.
func (w *world) focus() int {
	if len(w.ops) > 0 {
		return w.ops[0].slot
	}
	return ready + w.rng.IntN(2)
}

// wish makes an op of one of some kinds.
func (w *world) wish(of []kind) *op {
	o := &op{w: w, n: len(w.ops), kind: of[w.rng.IntN(len(of))], caller: w.someone(), target: w.person(),
		role: table.Member, slot: w.rng.IntN(slots)}
	if o.slot == pair && w.rng.IntN(3) > 0 {
		o.slot = ready
	}
	if w.crowded {
		o.slot, o.target = w.focus(), names[1+w.rng.IntN(3)]
	}
	switch n := w.rng.IntN(12); {
	case n < 5:
		o.role = table.Admin
	case n == 5:
		o.role = table.Owner
	}
	switch o.kind {
	case createGroup:
		o.members = []string{w.person(), w.person(), w.person()}[:1+w.rng.IntN(3)]
		if w.people > small.people {
			o.members = names[w.rng.IntN(8):][:w.size-1-w.rng.Int64N(40)]
		}
	case createDirect:
		o.caller, o.target = names[3+w.rng.IntN(2)], names[3+w.rng.IntN(2)] // d and e have none yet
	case leave:
		o.target = o.caller
	case mute:
		o.until = int64(w.rng.IntN(2)) * (epoch + 1_000_000_000)
	case archive:
		o.archived = w.rng.IntN(4) > 0
	}
	w.ops = append(w.ops, o)
	return o
}

// run carries an op out in a process.
func (o *op) run(p *process) error {
	if b := o.w.bug; b != nil && b.run != nil {
		return b.run(p, o)
	}
	ctx := context.Background()
	request := "r" + strconv.Itoa(o.n)
	change := chat.MemberChange{Caller: o.caller, ChatID: o.chat(), UserID: o.target, Role: o.role, RequestID: request,
		Cause: o.cause()}
	var err error
	switch o.kind {
	case add:
		_, err = p.svc.Change(ctx, chat.OpAdd, change)
	case remove:
		_, err = p.svc.Change(ctx, chat.OpRemove, change)
	case leave:
		_, err = p.svc.Change(ctx, chat.OpLeave, change)
	case changeRole:
		_, err = p.svc.Change(ctx, chat.OpRole, change)
	case rename:
		name := o.name()
		_, _, err = p.svc.UpdateChat(ctx,
			chat.ChatChange{Caller: o.caller, ChatID: o.chat(), Name: &name, RequestID: request, Cause: o.cause()})
	case createGroup:
		var c chat.Created
		c, err = p.svc.CreateGroup(ctx, chat.CreateGroup{Caller: o.caller, Name: "g", Members: o.members,
			RequestID: request, Cause: o.cause()})
		if err == nil {
			o.checkCreated(c.ChatID)
		}
	case createDirect:
		var c chat.Created
		c, err = p.svc.CreateDirect(ctx, chat.CreateDirect{Caller: o.caller, Other: o.target, RequestID: request,
			Cause: o.cause()})
		if err == nil {
			o.checkCreated(c.ChatID)
		}
	case finish:
		err = p.svc.FinishPending(ctx, o.chat())
	case checkCount:
		var c chat.Count
		if c, err = p.svc.CheckCount(ctx, o.chat()); err == nil && c.Corrected {
			o.w.fail("%v: corrected %+v", o, c)
		}
	case send:
		_, err = p.svc.Send(ctx, chat.Send{Caller: o.caller, ChatID: o.chat(), Content: "x", ClientMessageID: request,
			Cause: o.cause()})
	case mute:
		_, err = p.svc.SetMemberSettings(ctx,
			chat.MemberSettings{Caller: o.caller, ChatID: o.chat(), MutedUntil: &o.until, Procedure: "mute", RequestID: request})
	case archive:
		_, err = p.svc.SetMemberSettings(ctx,
			chat.MemberSettings{Caller: o.caller, ChatID: o.chat(), Archived: &o.archived, Procedure: "archive",
				RequestID: request})
	case markRead:
		_, err = p.svc.MarkRead(ctx, chat.MarkRead{Caller: o.caller, ChatID: o.chat(), Sequence: int64(1 + o.n%3)})
	case block:
		err = p.people.Block(ctx, o.caller, o.target)
	case unblock:
		err = p.people.Unblock(ctx, o.caller, o.target)
	}
	return err
}

// checkCreated checks the chat that a creation answers with against those that exist.
func (o *op) checkCreated(id string) {
	w := o.w
	switch {
	case o.answered != "" && o.answered != id:
		w.fail("%v: answered with %s and then with %s", o, o.answered, id)
	case o.kind == createGroup && o.made != id:
		w.fail("%v: answered with %s, made %q", o, id, o.made)
	case o.kind == createDirect && w.pairs[table.DirectIndexKey(o.caller, o.target).PK] != id:
		w.fail("%v: answered with %s", o, id)
	}
	o.answered = id
}

// base makes the world that schedules of a scale begin with.
func base(of scale) *world {
	w := newWorld(1, of, nil)
	ctx := context.Background()
	p := &process{w: w, alone: true}
	p.boot()
	p.op = &op{w: w, kind: createGroup, caller: "a"}
	must := func(err error) {
		if err != nil {
			w.fail("base: %v", err)
		}
	}
	for _, u := range names[:of.people] {
		must(p.svc.EnsureUser(ctx, u))
	}
	others := names[small.people:max(small.people, min(of.people, int(of.size)))] // of the groups: room for a few more
	w.fixed = slotIDs[:]
	_, err := p.svc.CreateGroup(ctx, chat.CreateGroup{Caller: "a", Name: "g",
		Members: append([]string{"c"}, others...)})
	must(err)
	p.op = &op{w: w, kind: add, caller: "a", target: "b", role: table.Admin}
	_, err = p.svc.Change(ctx, chat.OpAdd,
		chat.MemberChange{Caller: "a", ChatID: slotIDs[ready], UserID: "b", Role: table.Admin})
	must(err)
	for range 3 { // to be read
		p.op = &op{w: w, kind: send, caller: "a"}
		_, err = p.svc.Send(ctx, chat.Send{Caller: "a", ChatID: slotIDs[ready], Content: "x"})
		must(err)
	}
	p.op = &op{w: w, kind: createGroup, caller: "a"}
	p.plans = 1
	c, err := p.svc.CreateGroup(ctx, chat.CreateGroup{Caller: "a", Name: "g",
		Members: append([]string{"b", "c"}, others...)})
	must(err)
	if !errors.Is(c.Incomplete, errDead) {
		w.fail("base: a group that is complete")
	}
	p.plans = 0
	p.op = &op{w: w, kind: createDirect, caller: "a", target: "b"}
	_, err = p.svc.CreateDirect(ctx, chat.CreateDirect{Caller: "a", Other: "b"})
	must(err)
	return w
}
