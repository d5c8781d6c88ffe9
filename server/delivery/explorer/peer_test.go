package explorer

import (
	"slices"
	"testing"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// In a direct chat each device shows how far the other person has read.

func TestDirectSchedules(t *testing.T) {
	schedules(t, 600, 250, 2, &bug{direct: true})
}

// comparePeer demands that an open direct chat shows how far the other person has read, for
// all messages that it shows.
func (w *world) comparePeer(d *phone, v device.View, row table.UserChat) {
	if row.Peer == "" {
		if v.PeerRead != 0 {
			w.failf("%s shows %s as read up to %d by nobody", d.name, short(v.ChatID), v.PeerRead)
		}
		return
	}
	other := table.UserChatFrom(row.Peer, v.ChatID, w.peek(table.UserChatKey(row.Peer, v.ChatID)))
	if older := v.First - 1; max(v.PeerRead, older) != max(other.ReadSequence, older) {
		w.failf("%s shows that %s has read %s up to %d, the store has %d", d.name, row.Peer, short(v.ChatID), v.PeerRead,
			other.ReadSequence)
	}
}

// Mistakes with what the other person has read.
func init() {
	bugs = append(bugs,
		bug{name: "the devices of the other person of a direct chat are not told", direct: true, frame: selfish},
		bug{name: "the other person has read one message more", direct: true, plan: ofPeer(func(wr *store.Write) {
			wr.Update.Set = slices.Clone(wr.Update.Set)
			for i, a := range wr.Update.Set {
				if a.Name == table.AttrPeerReadSequence {
					wr.Update.Set[i].Value = store.Int(a.Value.Int64() + 1)
				}
			}
		})},
		bug{name: "what the other person has read leaves the time of the row", from: 9042, direct: true, skewed: true,
			plan: ofPeer(func(wr *store.Write) {
				wr.Update.Set = slices.DeleteFunc(slices.Clone(wr.Update.Set),
					func(a store.Attr) bool { return a.Name == table.AttrChangedAt })
			})})
}

// selfish loses receipts that say what the other person of a direct chat has read.
func selfish(c *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
	v, ok := c.d.m.View(f.GetChatId())
	if ok && f.GetMemberState().GetPeerReadSequence() > v.State.GetPeerReadSequence() {
		return nil
	}
	return one(f)
}

// ofPeer is a mistake in the write that notifies the other person of a direct chat.
func ofPeer(change func(*store.Write)) func(*world, *store.Plan) {
	return func(_ *world, p *store.Plan) {
		i := slices.IndexFunc(p.Writes, func(wr store.Write) bool { return wr.Name == plan.CondPeer })
		if i >= 0 {
			p.Writes = slices.Clone(p.Writes)
			change(&p.Writes[i])
		}
	}
}
