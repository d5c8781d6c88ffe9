package explorer

import (
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// peerKinds are the kinds of ops of schedules in which the two of a direct chat read what the
// other has sent.
var peerKinds = []kind{send, send, send, markRead, markRead, markRead, archive, mute, block, unblock}

// between has ops happen between a and b, in their direct chat.
func between(o *op) {
	o.slot, o.caller, o.target = pair, "a", "b"
	if o.w.rng.IntN(2) == 0 {
		o.caller, o.target = "b", "a"
	}
}

// Whatever happens between, a mark in a direct chat and what the other person is shown of
// it are one commit, and nobody is notified past a block.
func TestPeerSchedules(t *testing.T) {
	schedules(t, small, usual/2, 2, &bug{kinds: peerKinds, shape: between})
}

// checkPeerRow holds the row of the other person of a direct chat, which a mark has changed, against
// the rules.
func (w *world) checkPeerRow(o *op, was, is table.UserChat) {
	reader := table.UserChatFrom(o.caller, was.ChatID, w.get(table.UserChatKey(o.caller, was.ChatID)))
	want := was
	want.ChangedAt, want.Revision, want.PeerReadSequence = reader.ChangedAt, was.Revision+1, reader.ReadSequence
	if is != want || was.Peer != o.caller || reader.Peer != was.UserID || is.PeerReadSequence <= was.PeerReadSequence {
		w.fail("%v: the other row becomes %+v: it was %+v, who has read is %+v", o, is, was, reader)
	}
	w.apart(o, was.UserID, o.caller)
}

// wantPeerNotified demands that a mark notifies the other person of a direct chat in the same commit.
func (w *world) wantPeerNotified(o *op, reader table.UserChat) {
	two := [2]string{reader.UserID, reader.Peer}
	if reader.Peer == "" || w.blocks[two] || w.blocks[[2]string{two[1], two[0]}] || w.unblocked > o.since {
		return // a block that ended since was there when it was decided
	}
	is := table.UserChatFrom(reader.Peer, reader.ChatID, w.get(table.UserChatKey(reader.Peer, reader.ChatID)))
	if is.PeerReadSequence != reader.ReadSequence {
		w.fail("%v: %s has read %d, and %s is shown %d", o, reader.UserID, reader.ReadSequence, is.UserID,
			is.PeerReadSequence)
	}
}

// ofPeer is a plan whose write for the other person is another one, or none.
func ofPeer(change func(store.Write) (store.Write, bool)) func(store.Plan) store.Plan {
	return func(p store.Plan) store.Plan {
		writes := make([]store.Write, 0, len(p.Writes))
		for _, wr := range p.Writes {
			keep := true
			if wr.Name == plan.CondPeer {
				wr, keep = change(wr)
			}
			if keep {
				writes = append(writes, wr)
			}
		}
		return store.Plan{Writes: writes, Token: p.Token}
	}
}

// unnotified does not notify the other person.
var unnotified = ofPeer(func(wr store.Write) (store.Write, bool) { return wr, false })

// unrevised notifies under the revision that the row has.
var unrevised = ofPeer(func(wr store.Write) (store.Write, bool) {
	wr.Update.Add = nil
	return wr, true
})

// timeless notifies at the time that the row has, for which no synchronisation looks.
var timeless = ofPeer(func(wr store.Write) (store.Write, bool) {
	wr.Update.Set = slices.DeleteFunc(slices.Clone(wr.Update.Set),
		func(a store.Attr) bool { return a.Name == table.AttrChangedAt })
	return wr, true
})

// pastBlocks also notifies a person who blocks the other one or is blocked by then.
func pastBlocks(p store.Plan) store.Plan {
	writes := slices.Clone(p.Writes)
	notifies := slices.ContainsFunc(writes, func(wr store.Write) bool { return wr.Name == plan.CondPeer })
	for i, wr := range writes {
		if notifies && wr.Name == plan.CondUser {
			writes[i].Cond = slices.DeleteFunc(slices.Clone(wr.Cond), func(c store.Term) bool {
				return c.Attr == rows.AttrBlocks || c.Attr == rows.AttrBlocked
			})
		}
	}
	return store.Plan{Writes: writes, Token: p.Token}
}
