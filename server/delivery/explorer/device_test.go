package explorer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/delivery"
)

// phone is one device of a user: the reference client's machine, its storage,
// and its part of the network.
type phone struct {
	w        *world
	user     string
	name     string
	cfg      device.Config
	storage  device.Storage
	m        *conformance.Recorder // nil while it is off
	tape     *conformance.Recorder // of the life before
	scenario *conformance.Scenario // what it goes through; nil: not recorded
	life     int                   // grows with every restart
	ids      int
	conn     *conn
	gaveUp   int64 // the last Subscribe call that the device closed by itself
	buffered bool  // most of its streams bring nothing until they end
	idle     int   // polls in a row since anybody called anything else

	applied map[string]int64    // by chat: the version shown last
	marked  map[string]readMark // by chat: what the user has read
	sent    map[string]sentBy   // by client_message_id: what the app sent
	acked   map[string]ackedAt  // what the server confirmed
	refused map[string]struct{} // what the server refused
	tries   map[string]int      // how often it was sent
}

type sentBy struct{ chat, text string }

type ackedAt struct {
	chat              string
	sequence, version int64
}

func (w *world) newPhone(user string, n int) *phone {
	d := &phone{
		w: w, user: user, name: fmt.Sprintf("%s%d", user, n), storage: &client.Memory{},
		applied: map[string]int64{}, sent: map[string]sentBy{}, acked: map[string]ackedAt{}, refused: map[string]struct{}{},
		tries: map[string]int{}, marked: map[string]readMark{},
	}
	if w.bug.storage != nil {
		d.storage = w.bug.storage(d.storage)
	}
	d.cfg = device.Config{
		UserID: user, Clock: func() time.Time { return w.now },
		Rand:     func() float64 { return float64(1+w.choose.pick(4)) / 5 },
		NewID:    func() string { d.ids++; return fmt.Sprintf("%s-%d", d.name, d.ids) },
		PageSize: []int32{100, 2, 3}[w.choose.pick(3)], SubscribeFirst: w.choose.chance(500),
	}
	if w.choose.chance(500) {
		d.cfg.Silence = time.Hour
	}
	d.behindBuffer()
	w.phones = append(w.phones, d)
	w.recording(d)
	d.start()
	return d
}

func (d *phone) start() {
	snapshot, err := d.storage.Load()
	if err != nil {
		d.w.failf("load %s: %v", d.name, err)
	}
	d.life++
	d.m = d.machine(device.New(d.cfg, snapshot))
	clear(d.applied)
	if d.w.trace != nil {
		d.w.tracef("%s starts with token %q and %d chats", d.name, snapshot.Session.Token, len(snapshot.Chats))
	}
}

// crash loses everything that was not stored.
func (d *phone) crash() {
	if d.w.trace != nil {
		d.w.tracef("%s crashes", d.name)
	}
	d.m, d.tape, d.gaveUp = nil, d.m, 0
	d.life++
	for _, c := range slices.Clone(d.w.conns) {
		if c.d == d {
			c.cut()
		}
	}
	d.conn = nil
}

// drain stores and calls what the machine wants. It reports whether there was
// anything.
func (d *phone) drain() bool {
	if d.m == nil {
		return false
	}
	did := false
	for {
		batch, calls := d.m.Take()
		for _, e := range d.m.Events() {
			switch {
			case e.Changed != "":
				d.w.checkShown(d, e.Changed)
			case e.Removed != "":
				delete(d.applied, e.Removed)
			case e.SendFailed != nil:
				d.refused[e.SendFailed.Entry.ClientMessageID] = struct{}{}
			case e.Stopped != nil && e.Stopped.Reason != "REPLACED":
				d.w.failf("%s stopped: %v", d.name, e.Stopped)
			}
		}
		if !batch.Empty() {
			stored := batch // only what is stored needs a place of its own
			if err := d.storage.Store(&stored); err != nil {
				d.w.failf("store of %s: %v", d.name, err)
			}
			did = true
		}
		if len(calls) == 0 {
			return did
		}
		did = true
		for _, c := range calls {
			d.call(c)
		}
	}
}

// result gives the machine the end of a call, unless the device was restarted.
func (d *phone) result(life int, id int64, res proto.Message, said string, why *device.Failure) {
	if d.life != life {
		return
	}
	d.m.Result(id, res, said, why)
	d.drain()
}

func (d *phone) call(c device.Call) {
	w, life := d.w, d.life
	if w.trace != nil {
		w.tracef("%s calls %d: %d {%v}", d.name, c.ID, c.Kind, c.Request)
	}
	d.called(c)
	switch c.Kind {
	case device.Subscribe:
		req, _ := c.Request.(*deliveryv1.SubscribeRequest)
		w.later("subscribe", func() bool {
			if d.life == life && d.gaveUp < c.ID {
				d.subscribe(c, req)
			}
			return false
		})
	case device.CloseStream:
		d.gaveUp = c.Stream
		if d.conn != nil && d.conn.call == c.Stream {
			d.conn.closed = true
			d.conn.cut()
			d.conn = nil
		}
	case device.Refresh:
		d.result(life, c.ID, nil, "", nil)
	case device.Ack, device.Extend:
		conn := d.conn
		w.later("ack", func() bool {
			if conn == nil || conn.broken || w.trouble(w.lossy) {
				d.result(life, c.ID, nil, "", unavailable)
				return false
			}
			if r, ok := c.Request.(*deliveryv1.AckRequest); ok && len(r.GetReadMarks()) > 0 && !conn.p.old {
				conn.acknowledge(life, c, r)
				return false
			}
			res, why := conn.control(c.Request)
			if why == nil {
				why = conn.p.compare(c)
			}
			d.result(life, c.ID, res, conn.p.says(), why)
			return false
		})
	default:
		if s, ok := c.Request.(*messagev1.SendMessageRequest); ok {
			d.tries[s.GetClientMessageId()]++
		}
		w.later("request", func() bool {
			p := w.anyProcess()
			if d.life != life {
				return false
			}
			if p == nil || w.trouble(w.lossy) {
				d.result(life, c.ID, nil, "", unavailable)
				return false
			}
			d.request(p, life, c)
			return false
		})
	}
}

// request has a process answer a call; the answer is late, or lost.
func (d *phone) request(p *process, life int, c device.Call) {
	w := d.w
	busy := ""
	switch r := c.Request.(type) {
	case *messagev1.SendMessageRequest:
		busy = r.GetChatId()
	case *messagev1.MarkReadRequest: // a second one of the user would wait for the first
		busy = d.user + " reads " + r.GetChatId()
	}
	w.spawn(p, "request of "+d.name, busy, func(ctx context.Context) {
		began, generation := w.moment, w.generation
		var res proto.Message
		why := p.compare(c)
		if why == nil {
			res, why = p.serve(ctx, d.user, c.Request)
		}
		if (&stops{w: w, p: p}).Durable(ctx) != nil {
			res, why = nil, unavailable
		}
		if w.bug.answer != nil && why == nil {
			w.bug.answer(w, d.user, res)
		}
		if w.trace != nil {
			w.tracef("%s answers %d of %s: {%v} %v", p.name, c.ID, d.name, res, why)
		}
		if why == nil {
			w.checkAnswer(d.user, c.Request, res, began)
		}
		w.later("reply", func() bool {
			if w.trouble(w.lossy) {
				if w.trace != nil {
					w.tracef("the answer to %s's call %d is lost", d.name, c.ID)
				}
				res, why = nil, unavailable
			}
			if generation == w.generation {
				d.confirmed(c.Request, res)
			} else if s, ok := c.Request.(*messagev1.SendMessageRequest); ok && (res != nil || !retried(why)) && d.m != nil &&
				d.m.Session().Generation != w.generation {
				delete(d.sent, s.GetClientMessageId()) // the device takes the promise of a store that is no more
			}
			d.result(life, c.ID, res, p.says(), why)
			if w.bug.notAMember && why != nil && why.Reason == "NOT_A_MEMBER" && c.Kind != device.SendMessage && d.life == life {
				d.believe(c.Request)
			}
			return false
		})
	})
}

// retried reports whether a device sends a message again after a failure.
func retried(why *device.Failure) bool { return why.Code == connect.CodeUnavailable }

// confirmed notes what a send's answer promises, whether or not the device is
// the one that asked.
func (d *phone) confirmed(req, res proto.Message) {
	s, ok := req.(*messagev1.SendMessageRequest)
	r, got := res.(*messagev1.SendMessageResponse)
	if !ok || !got {
		return
	}
	now := ackedAt{s.GetChatId(), r.GetSequence(), r.GetVersion()}
	if old, again := d.acked[s.GetClientMessageId()]; again && old != now {
		d.w.failf("%s was promised %v for %s, and now %v", d.name, old, s.GetClientMessageId(), now)
	}
	d.acked[s.GetClientMessageId()] = now
	l := d.w.chat(s.GetChatId())
	if m := l.message(r.GetSequence()); m == nil || m.GetClientMessageId() != s.GetClientMessageId() ||
		m.GetMetadata().GetVersion() != r.GetVersion() {
		d.w.failf("%s was promised sequence %d version %d for %s, where the log has %v", d.name, r.GetSequence(),
			r.GetVersion(), s.GetClientMessageId(), m)
	}
}

// conn is one stream between a device and a process.
type conn struct {
	w      *world
	d      *phone
	life   int
	call   int64
	p      *process
	s      *delivery.Stream
	opened bool // Step is done
	broken bool // neither side gets anything any more
	held   bool // the device gets everything at the end
	buffer []*deliveryv1.SubscribeResponse
	closed bool // by the device, which need not be notified
	seen   map[string]int64
}

// cut breaks the connection. Each side notices later.
func (c *conn) cut() {
	if c.broken {
		return
	}
	c.broken = true
	w := c.w
	if w.trace != nil {
		w.tracef("the stream of %s breaks", c.d.name)
	}
	w.conns = slices.DeleteFunc(w.conns, func(o *conn) bool { return o == c })
	w.later("hub notices", func() bool {
		if w.trace != nil {
			w.tracef("%s closes the stream of %s", c.p.name, c.d.name)
		}
		c.p.hub.Close(c.s)
		return false
	})
	w.later("device notices", func() bool { c.ended(unavailable); return false })
}

// ended tells the device that the stream is over.
func (c *conn) ended(why *device.Failure) {
	if c.d.life != c.life || c.closed {
		return
	}
	if c.d.conn == c {
		c.d.conn = nil
	}
	c.closed = true
	c.d.m.StreamEnded(c.call, why)
	c.d.drain()
}

// compare refuses a call of a device that was shown what is not there, as the API does.
func (p *process) compare(c device.Call) *device.Failure {
	generation, _, _ := strings.Cut(c.History, "-")
	if p.old || c.History == "" || p.history.Holds(generation, 0) {
		return nil
	}
	return &device.Failure{Code: connect.CodeAborted, Reason: "HISTORY_CHANGED"}
}

// says is what an answer says of the history. Earlier releases say nothing.
func (p *process) says() string {
	if p.old {
		return ""
	}
	return p.history.Generation() + "-1"
}

func (d *phone) subscribe(made device.Call, req *deliveryv1.SubscribeRequest) {
	w, call := d.w, made.ID
	p := w.anyServing()
	fail := func(why *device.Failure) {
		d.m.StreamEnded(call, why)
		d.drain()
	}
	if p == nil || w.trouble(w.lossy) || (w.spine != nil && !p.leased) {
		fail(unavailable)
		return
	}
	if why := p.compare(made); why != nil {
		fail(why)
		return
	}
	s, err := p.hub.Open(w.ctx, delivery.OpenParams{
		Principal: auth.Principal{UserID: d.user, SessionID: d.name, ExpiresAt: w.now.Add(24 * time.Hour)},
		Token:     req.GetToken(), Known: req.GetKnownChats(),
	})
	if err != nil {
		fail(failure(err))
		return
	}
	if w.trace != nil {
		w.tracef("%s opens a stream at %s", d.name, p.name)
	}
	c := &conn{w: w, d: d, life: d.life, call: call, p: p, s: s, seen: map[string]int64{}, held: d.holds()}
	d.conn = c
	w.conns = append(w.conns, c)
	w.spawn(p, "opening of "+d.name, "", func(ctx context.Context) {
		for done := false; !done && !c.broken; {
			var err error
			if done, err = s.Step(ctx); err != nil {
				if w.trace != nil {
					w.tracef("opening of %s fails: %v", d.name, err)
				}
				c.cut()
				return
			}
		}
		c.opened = true
	})
}

// pump carries frames to the device. It reports whether there were any.
func (c *conn) pump() bool {
	if c.broken || c.d.life != c.life {
		return false
	}
	w := c.w
	limit := 1 + w.choose.pick(6)
	select {
	case <-c.s.Ready(): // what nobody is woken for is lost
		if w.bug.deaf && w.choose.chance(50) {
			return false
		}
	default:
		return false
	}
	first, shared, last := c.s.Take(limit)
	if len(shared) == 0 && !last {
		return false
	}
	frames := make([]*deliveryv1.Frame, 0, len(shared))
	for _, f := range shared {
		if w.bug.frame != nil {
			frames = append(frames, w.bug.frame(c, f.Proto())...)
			continue
		}
		frames = append(frames, f.Proto())
	}
	if w.bug.frame != nil { // which may add and drop some
		first = c.seen[""] + 1
		c.seen[""] += int64(len(frames))
	}
	for _, f := range frames {
		if w.trace != nil {
			w.tracef("%s gets {%v}", c.d.name, f)
		}
		w.checkFrame(c.d, f)
	}
	res := &deliveryv1.SubscribeResponse{FirstPosition: first, Frames: frames}
	if !c.p.old {
		res.Commit = c.p.history.Shown()
	}
	if c.buffer = append(c.buffer, res); !c.held || last {
		for _, res := range c.buffer {
			c.d.m.Frames(c.call, res)
			c.d.drain()
		}
		c.buffer = nil
	}
	if last && !c.broken {
		c.broken = true
		w.conns = slices.DeleteFunc(w.conns, func(o *conn) bool { return o == c })
		c.p.hub.Close(c.s)
		c.ended(&device.Failure{Code: connect.CodeUnavailable})
	}
	return true
}

// control performs an Ack or Extend.
func (c *conn) control(req proto.Message) (proto.Message, *device.Failure) {
	switch r := req.(type) {
	case *deliveryv1.AckRequest:
		s, err := c.p.hub.Stream(c.d.user, r.GetStreamId())
		if err != nil {
			return nil, failure(err)
		}
		if err := s.Ack(r.GetPosition()); err != nil && c.w.bug.frame == nil {
			c.w.failf("%s acknowledges %d: %v", c.d.name, r.GetPosition(), err)
		}
		return &deliveryv1.AckResponse{}, nil
	case *deliveryv1.ExtendRequest:
		until := c.w.now.Add(24 * time.Hour)
		if err := c.p.hub.Extend(c.d.user, c.d.name, r.GetStreamId(), until); err != nil {
			return nil, failure(err)
		}
		return &deliveryv1.ExtendResponse{ExpiresAt: timestamppb.New(until)}, nil
	}
	return nil, unavailable
}
