package explorer

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/store/table"
)

// readMark is what a user has read: the store must have it in the end, unless the
// membership or the store became another one.
type readMark struct {
	sequence, join int64
	generation     string
}

// mark has the user of a device read a chat up to a message.
func (d *phone) mark(v device.View, sequence int64) {
	w := d.w
	w.tracef("%s marks %d of %s", d.name, sequence, short(v.ChatID))
	d.m.MarkRead(v.ChatID, sequence)
	if s := w.chat(v.ChatID).open(d.user); s != nil && v.Newest >= s.join && d.m.Session().Generation == w.generation {
		if k := d.marked[v.ChatID]; k.join != s.join || k.generation != w.generation || k.sequence < sequence {
			d.marked[v.ChatID] = readMark{sequence, s.join, w.generation}
		}
	}
}

// compareMarks demands that what a user has read is in the store.
func (w *world) compareMarks(d *phone) {
	for _, id := range w.chatIDs {
		k, ok := d.marked[id]
		if s := w.chat(id).open(d.user); !ok || s == nil || s.join != k.join || k.generation != w.generation {
			continue
		}
		row := table.UserChatFrom(d.user, id, w.peek(table.UserChatKey(d.user, id)))
		if row.ReadSequence < k.sequence {
			w.failf("%s has read %s up to %d, the store has %d", d.name, short(id), k.sequence, row.ReadSequence)
		}
	}
}

// acknowledge has the stream's process record the marks of an Ack beside each other, as the
// handler does, and then take its position. The answer is late, or lost.
func (c *conn) acknowledge(life int, call device.Call, req *deliveryv1.AckRequest) {
	w, d, p := c.w, c.d, c.p
	left, failed := len(req.GetReadMarks()), (*device.Failure)(nil)
	res := &deliveryv1.AckResponse{ReadOutcomes: make([]*deliveryv1.ReadOutcome, left)}
	for i, k := range req.GetReadMarks() {
		busy := d.user + " reads " + k.GetChatId() // a second one of the user would wait for the first
		w.spawn(p, "mark of "+d.name, busy, func(ctx context.Context) {
			o, why := p.mark(ctx, d.user, k)
			if res.ReadOutcomes[i] = o; why != nil {
				failed = why
			}
			if left--; left == 0 {
				w.later("reply", func() bool { c.acknowledged(life, call, res, failed); return false })
			}
		})
	}
}

func (p *process) mark(
	ctx context.Context, user string, k *deliveryv1.ReadMark,
) (*deliveryv1.ReadOutcome, *device.Failure) {
	if p.w.bug.unrecorded && p.w.choose.chance(300) {
		return &deliveryv1.ReadOutcome{State: &chatv1.MemberState{ReadSequence: k.GetSequence()}}, nil
	}
	out, err := p.chats.MarkRead(ctx, chat.MarkRead{Caller: user, ChatID: k.GetChatId(), Sequence: k.GetSequence()})
	if err == nil {
		err = (&stops{w: p.w, p: p}).Durable(ctx)
	}
	if why := failure(err); err != nil && why.Reason != "" {
		return &deliveryv1.ReadOutcome{Reason: why.Reason}, nil
	} else if err != nil {
		return nil, why
	}
	return &deliveryv1.ReadOutcome{State: p.view.State(out.Head, out.Row)}, nil
}

// acknowledged gives a device the answer to an Ack with marks.
func (c *conn) acknowledged(life int, call device.Call, res *deliveryv1.AckResponse, why *device.Failure) {
	w, d := c.w, c.d
	if _, gone := c.control(call.Request); why == nil {
		why = gone
	}
	if w.trouble(w.lossy) {
		why = unavailable
	}
	if why != nil && w.bug.refused {
		why = nil
		for i := range res.GetReadOutcomes() {
			res.ReadOutcomes[i] = &deliveryv1.ReadOutcome{Reason: "FORBIDDEN"}
		}
	}
	if w.bug.answer != nil && why == nil {
		w.bug.answer(w, d.user, res)
	}
	if w.trace != nil {
		w.tracef("%s answers %d of %s: {%v} %v", c.p.name, call.ID, d.name, res, why)
	}
	var answer proto.Message
	if why == nil {
		answer = res
	}
	d.result(life, call.ID, answer, c.p.says(), why)
}

// Mistakes with marks.
func init() {
	bugs = append(bugs,
		bug{name: "a mark is answered and not recorded", unrecorded: true},
		bug{name: "marks whose answer is lost are given up", from: 9997, refused: true},
		bug{name: "outcomes of marks in another order", from: 8069, answer: func(_ *world, _ string, res proto.Message) {
			if r, ok := res.(*deliveryv1.AckResponse); ok {
				slices.Reverse(r.GetReadOutcomes())
			}
		}})
}
