package explorer

import (
	"errors"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// blocking are the kinds of ops of schedules in which people block each other.
var blocking = []kind{block, block, block, unblock, unblock, send, send, send, createDirect, createDirect, add}

// quarrel has ops happen between people who block each other: in the direct chat of a and b,
// in the one that d and e may get, and where a and b add people.
func quarrel(o *op) {
	two := [...][2]string{{"a", "b"}, {"d", "e"}, {"d", "a"}, {"e", "b"}}
	of := two[o.w.rng.IntN(len(two))]
	if o.kind != add && o.w.rng.IntN(2) == 0 {
		of[0], of[1] = of[1], of[0]
	}
	o.slot = pair
	switch o.kind {
	case send:
		if o.caller = of[0]; o.caller == "d" || o.caller == "e" {
			o.caller = "a"
		}
	case createDirect: // its people are given
	case add:
		o.slot, o.role, o.caller, o.target = ready, table.Member, "a", "d"
		if o.w.rng.IntN(2) == 0 {
			o.caller, o.target = "b", "e"
		}
	default:
		o.caller, o.target = of[0], of[1]
	}
}

// Whatever happens between, nobody gets past a block that is committed: no message, no new
// direct chat, no addition (S-26).
func TestBlockSchedules(t *testing.T) {
	schedules(t, small, usual/2, 2, &bug{kinds: blocking, shape: quarrel})
}

// barriers holds a committed plan against the block lists, and the rows of direct chats
// against them.
func (w *world) barriers(o *op, p store.Plan) {
	changed := false
	for _, wr := range p.Writes {
		if wr.Key.Table != store.People || wr.Op == store.OpCheck {
			continue
		}
		of := [2]string{wr.Key.PK, rows.BlockFrom(store.Row{Key: wr.Key, Item: wr.Item}).Other}
		if !w.blocks[of] && wr.Op == store.OpDelete || w.blocks[of] && wr.Op == store.OpPut {
			w.fail("%v: a block is made, or ended, twice", o)
		}
		if w.blocks[of], changed = wr.Op == store.OpPut, true; wr.Op == store.OpDelete {
			w.unblocked = w.now
		}
	}
	if changed {
		w.barred(o)
		return
	}
	for _, wr := range p.Writes {
		switch {
		case wr.Op == store.OpCheck:
		case wr.Key.Table == store.DirectChatIndex:
			w.apart(o, o.caller, o.target)
		case wr.Key.Table == store.ChatMemberships && wr.Op == store.OpPut && o.kind == add && wr.Key.SK == o.target:
			if w.blocks[[2]string{o.target, o.caller}] {
				w.fail("%v: added past a barrier", o)
			}
		case wr.Key.Table == store.Messages && wr.Op == store.OpPut:
			for _, u := range w.directUsers(wr.Key.PK) {
				w.apart(o, u, wr.Item.Get("sender_id").Str())
			}
		}
	}
}

func (w *world) directUsers(id string) []string {
	return table.ChatFrom(id, w.get(table.ChatKey(id))).DirectUsers
}

// barrier reports whether a block list refused.
func barrier(err error) bool {
	var refused *chat.Refusal
	return errors.As(err, &refused) &&
		(refused.Rule == command.CallerBlocks.Rule || refused.Rule == command.NotReachable.Rule ||
			refused.Rule == command.InvitationRequired.Rule)
}

// apart fails if one of two people blocks the other.
func (w *world) apart(o *op, a, b string) {
	if w.blocks[[2]string{a, b}] || w.blocks[[2]string{b, a}] {
		w.fail("%v: past a barrier between %s and %s", o, a, b)
	}
}

// barred holds the rows of direct chats against the block lists.
func (w *world) barred(o *op) {
	for _, id := range w.pairs {
		two := w.directUsers(id)
		for i, user := range two {
			other := two[1-i]
			blocks, blocked := rows.Barred(w.get(table.UserChatKey(user, id)))
			if blocks != w.blocks[[2]string{user, other}] || blocked != w.blocks[[2]string{other, user}] {
				w.fail("%v: the barrier is not in the row of %s", o, user)
			}
		}
	}
}

// unbarred is a plan that asks of senders only that they are members.
func unbarred(p store.Plan) store.Plan {
	writes := append([]store.Write(nil), p.Writes...)
	for i, wr := range writes {
		if wr.Key.Table == store.DeliveryState && len(wr.Cond) == len(rows.MaySend()) {
			writes[i].Cond = table.IsMember()
		}
	}
	return store.Plan{Writes: writes, Token: p.Token}
}
