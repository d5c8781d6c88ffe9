package explorer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

var tokenKey = make([]byte, view.KeySize)

// process is one server: its memory is lost when it dies, the store is not.
type process struct {
	w        *world
	name     string
	dead     bool
	draining bool
	old      bool // of an earlier release: takes no marks with Acks
	skew     time.Duration
	chats    *chat.Service
	view     *view.Reader
	hub      *delivery.Hub
	history  store.Line
	busy     map[string]bool // chats, and rows of readers, with a command under way: a second one would wait for it
	working  int
	sender   *linkseq.Sender   // with a spine
	receiver *linkseq.Receiver // with a spine
	leased   bool              // others find its streams
	numbers  map[string]uint64 // of a seeded bug
	repaired int               // commits that the repair has brought to this hub
}

func (w *world) newProcess() *process {
	w.made++
	p := &process{w: w, name: fmt.Sprintf("p%d", w.made), busy: map[string]bool{}, repaired: len(w.commits),
		old: w.made%4 == 0}
	p.skew, p.history = w.anySkew(), store.Line(w.generation)
	clock := func() time.Time { return w.now.Add(p.skew) }
	st := &stops{w: w, p: p}
	stamps := timestamp.New(st, clock)
	// calls never wait for each other
	p.view = view.New(view.Config{Store: st, History: p.history, TokenKey: tokenKey, Clock: clock, Stamps: stamps,
		Lists: -1})
	var err error
	p.chats, err = chat.New(w.ctx, chat.Config{
		Store: st, Clock: clock, Stamps: stamps, Generation: w.generation, Producer: p.name, NewID: w.newID(p),
		Sleep:     st.sleep,
		Committed: p.committed, Receipt: p.receipt, Chunk: w.chunk, Heads: 64, Members: 2 * len(w.crowd),
	})
	if err != nil {
		w.failf("chat service: %v", err)
	}
	durable := st.Durable
	if w.bug.noWait {
		durable = nil
	}
	source := delivery.Source(p.view)
	if w.bug.source != nil {
		source = w.bug.source(w, source)
	}
	p.hub, err = delivery.New(delivery.Config{
		History: p.history, Process: p.name, Source: source, Clock: clock, NewID: w.newID(nil),
		Delivered: p.chats.Delivered,
		MaxReplay: w.maxReplay, MaxRecent: w.maxRecent, Limits: delivery.QueueLimits{Frames: w.maxFrames}, Durable: durable,
	})
	if err != nil {
		w.failf("hub: %v", err)
	}
	w.processes = append(w.processes, p)
	if w.spine != nil {
		w.spine.join(p)
	}
	return p
}

// newID makes ids without chance. The chat that a task creates is busy until the
// task ends.
func (w *world) newID(p *process) func(string) string {
	return func(prefix string) string {
		w.ids++
		b := append(make([]byte, 0, 32), prefix...)
		b = append(b, "01J0000000000000000000000000"[:26]...)
		for i, n := len(b)-1, w.ids; n > 0; i, n = i-1, n/10 {
			b[i] = byte('0' + n%10)
		}
		id := string(b)
		if prefix == "chat_" && p != nil && w.current != nil {
			p.busy[id] = true
			w.current.created = append(w.current.created, id)
		}
		return id
	}
}

// committed sends a commit to all hubs, by an unreliable network.
func (p *process) committed(c chat.Commit) {
	if p.dead {
		return
	}
	if p.w.spine != nil {
		p.w.spine.committed(p, c)
		return
	}
	d := delivery.Of(c.Events)
	for _, q := range p.w.processes {
		p.w.deliver(p, q, d)
	}
}

func (w *world) deliver(from, to *process, d delivery.Delivery) {
	if w.bug.deliver != nil {
		w.bug.deliver(w, &d)
	}
	w.later("deliver", func() bool {
		if to.dead || (from.dead && w.choose.chance(500)) || (!w.calm && w.choose.chance(w.lossy)) {
			return false
		}
		if w.trace != nil {
			w.tracef("%s gets %s@%d with %d events", to.name, short(d.ChatID), d.Version, len(d.Events))
		}
		to.hub.Deliver(d)
		return !w.calm && w.choose.chance(100) // once more, later
	})
}

// receipt notifies all hubs. Nothing repairs a receipt: one that is lost takes the
// user's streams with it, which is what a link does that has a gap.
func (p *process) receipt(row table.UserChat, head table.Head) {
	if p.dead {
		return
	}
	w, state := p.w, p.view.State(head, row)
	if w.current != nil {
		w.current.owes = slices.DeleteFunc(w.current.owes, func(user string) bool { return user == row.UserID })
	}
	if w.spine != nil {
		w.spine.receipt(p, row, state)
		return
	}
	for _, q := range w.processes {
		w.later("receipt", func() bool {
			if q.dead {
				return false
			}
			if p.dead || (!w.calm && w.choose.chance(w.lossy)) {
				if w.choose.chance(500) {
					q.hub.InvalidateAll()
				} else {
					w.cutUser(row.UserID, q)
				}
				return false
			}
			q.hub.Receipt(row.UserID, row.ChatID, state)
			return !w.calm && w.choose.chance(100)
		})
	}
}

// cutUser breaks a user's streams, those of one process or all.
func (w *world) cutUser(user string, p *process) {
	for _, c := range slices.Clone(w.conns) {
		if c.d.user == user && (p == nil || c.p == p) {
			c.cut()
		}
	}
}

// cutUsers breaks all streams of users.
func (w *world) cutUsers(users []string) {
	for _, user := range users {
		w.cutUser(user, nil)
	}
}

// applied asks the hub whether it needs the repair.
func (p *process) applied(d delivery.Delivery) bool {
	if ask := p.w.bug.ask; ask != nil {
		ask(&d)
	}
	return p.hub.Applied(d)
}

// repair brings the next commits to the hub, as the workers do: the head only,
// once per chat.
func (p *process) repair() bool {
	w := p.w
	if p.dead || p.repaired >= len(w.commits) || w.bug.noRepair || w.spine != nil {
		return false
	}
	n := min(1+w.choose.pick(4), len(w.commits)-p.repaired)
	var order []string
	heads := map[string]*delivery.Delivery{}
	for _, c := range w.commits[p.repaired : p.repaired+n] {
		d := heads[c.chat]
		if d == nil {
			d = &delivery.Delivery{Generation: w.generation, ChatID: c.chat}
			heads[c.chat] = d
			order = append(order, c.chat)
		}
		d.Version, d.MembershipVersion = c.version, c.membershipVersion
		d.Targets = append(d.Targets, c.targets...)
	}
	p.repaired += n
	for _, id := range order {
		d := *heads[id]
		if w.bug.deliver != nil {
			w.bug.deliver(w, &d)
		}
		if w.trace != nil {
			w.tracef("%s gets the repair %s@%d targets %v", p.name, short(id), d.Version, d.Targets)
		}
		if !p.applied(d) {
			p.hub.Deliver(d)
		}
	}
	if !w.calm && w.choose.chance(50) { // a consumer that begins again at an older position
		p.repaired = max(p.repaired-w.choose.pick(4), 0)
	}
	return true
}

// work begins a piece of the hub's work that is due.
func (p *process) work() bool {
	if p.dead || p.working >= 3 {
		return false
	}
	work, _, ok := p.hub.Work(p.w.now.Add(p.skew))
	if !ok {
		return false
	}
	p.working++
	p.w.spawn(p, "work", "", func(ctx context.Context) {
		_ = p.hub.Do(ctx, work) // what failed is tried again
		p.working--
	})
	return true
}

// die ends the process. Its streams break, its tasks end at their next stop.
func (p *process) die() {
	p.dead = true
	w := p.w
	for _, c := range slices.Clone(w.conns) {
		if c.p == p {
			c.cut()
		}
	}
	for i, q := range w.processes {
		if q == p {
			w.processes = append(w.processes[:i:i], w.processes[i+1:]...)
			break
		}
	}
	if w.spine != nil {
		w.spine.leave(p)
	}
}

// serve answers a unary call as the handlers do.
func (p *process) serve(ctx context.Context, user string, req proto.Message) (proto.Message, *device.Failure) {
	switch r := req.(type) {
	case *deliveryv1.SyncRequest:
		return reply(p.view.Sync(ctx, user, r))
	case *chatv1.GetChatRequest:
		ov, err := p.view.Overview(ctx, user, r.GetChatId())
		return reply(&chatv1.GetChatResponse{Overview: ov}, err)
	case *chatv1.ListMembersRequest:
		return reply(p.view.Members(ctx, user, r.GetChatId(), int(r.GetPageSize()), r.GetPageToken()))
	case *messagev1.ListMessagesRequest:
		return reply(p.view.Messages(ctx, user, r))
	case *messagev1.ListChangesRequest:
		return reply(p.view.Changes(ctx, user, r))
	case *messagev1.SendMessageRequest:
		s, err := p.chats.Send(ctx, chat.Send{
			Caller: user, ChatID: r.GetChatId(), ClientMessageID: r.GetClientMessageId(), Content: r.GetContent(),
			ContentType: int64(r.GetContentType()),
		})
		return reply(&messagev1.SendMessageResponse{
			MessageId: s.MessageID, Sequence: s.Sequence, Version: s.Version,
			CreatedAt: timestamppb.New(time.UnixMilli(s.CreatedAt)), ClientMessageId: s.ClientMessageID,
		}, err)
	case *messagev1.MarkReadRequest:
		out, err := p.chats.MarkRead(ctx, chat.MarkRead{Caller: user, ChatID: r.GetChatId(), Sequence: r.GetSequence()})
		return reply(&messagev1.MarkReadResponse{State: p.view.State(out.Head, out.Row)}, err)
	}
	p.w.failf("a device asks for %T", req)
	return nil, unavailable
}

var unavailable = &device.Failure{Code: connect.CodeUnavailable}

func reply[M proto.Message](res M, err error) (proto.Message, *device.Failure) {
	if err != nil {
		return nil, failure(err)
	}
	return res, nil
}

func failure(err error) *device.Failure {
	f := &device.Failure{Code: connect.CodeFailedPrecondition, Err: err}
	switch {
	case errors.Is(err, chat.ErrNotAMember):
		f.Code, f.Reason = connect.CodePermissionDenied, "NOT_A_MEMBER"
	case errors.Is(err, view.ErrInvalidToken):
		f.Code, f.Reason = connect.CodeInvalidArgument, "INVALID_TOKEN"
	case errors.Is(err, view.ErrInvalidPageToken):
		f.Code = connect.CodeInvalidArgument
	case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrAmbiguous), errors.Is(err, store.ErrConflict),
		errors.Is(err, store.ErrThrottled), errors.Is(err, store.ErrUnavailable), errors.Is(err, delivery.ErrDraining):
		f.Code = connect.CodeUnavailable
	}
	return f
}

// reconcile completes groups whose creator died, as the workers do.
func (w *world) reconcile() (did bool) {
	for _, id := range w.chatIDs {
		if len(w.chat(id).pending) > 0 {
			p := w.anyProcess()
			w.spawn(p, "finish", id, func(ctx context.Context) { _ = p.chats.FinishPending(ctx, id) })
			did = true
		}
	}
	return did
}
