package explorer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
)

// acts are what users do and what happens to machines, each as often as it stands
// here; the simplest first. Every world has the first group, and some of the others:
// one kind of trouble hides what another one does.
var acts = [][]func(*world){
	{
		(*world).actSend, (*world).actSend, (*world).actSend, (*world).actSend, (*world).actSend, (*world).actSend,
		(*world).actOpen, (*world).actOpen, (*world).actHeartbeat, (*world).actMarkRead, (*world).actMarkRead,
		(*world).actAdd, (*world).actAdd, (*world).actAdd, (*world).actRemove, (*world).actRemove, (*world).actFlip,
		(*world).actFlip, (*world).actLeave,
		(*world).actCreateGroup, (*world).actCreateDirect, (*world).actLoadOlder, (*world).actEvict,
		(*world).actRename, (*world).actRole, (*world).actOwn, (*world).actOwn,
	},
	{(*world).actCut, (*world).actCut}, {(*world).actTime, (*world).actTime}, {(*world).actSkew},
	{(*world).actCrashPhone, (*world).actCrashPhone},
	{(*world).actCrashProcess}, {(*world).actDrain}, {(*world).actMark},
}

// some takes the first group and each of the others with a chance.
func some[F any](c *chooser, groups [][]F, perMille int) []F {
	list := groups[0]
	for _, g := range groups[1:] {
		if c.chance(perMille) {
			list = append(list[:len(list):len(list)], g...)
		}
	}
	return list
}

// lean has more happen of what a mistake needs.
func (w *world) lean() {
	if w.bug.skewed {
		w.tardy, w.acts = 400, slices.Concat(actsOf(0),
			slices.Repeat([]func(*world){(*world).actTime, (*world).actSkew, (*world).actCut}, 4))
	}
	if w.bug.direct {
		w.acts = slices.Concat(w.acts,
			slices.Repeat([]func(*world){(*world).actSend, (*world).actMarkRead, (*world).actMarkRead}, 6))
	}
}

func (w *world) act() { w.acts[w.choose.pick(len(w.acts))](w) }

// actMark has a hub think that something may be lost.
func (w *world) actMark() {
	if p := w.anyProcess(); p != nil {
		w.tracef("%s marks its streams", p.name)
		p.hub.InvalidateAll()
	}
}

func (w *world) phone() *phone { return w.phones[w.choose.pick(len(w.phones))] }

func (w *world) user() string { return w.users[w.choose.pick(len(w.users))] }

func (w *world) anyChat() string {
	if len(w.chatIDs) == 0 {
		return "chat_00000000000000000000000000"
	}
	return w.chatIDs[w.choose.pick(len(w.chatIDs))]
}

func (w *world) actSend() {
	d, id := w.phone(), w.anyChat()
	if d.m == nil {
		return
	}
	w.ids++
	text := fmt.Sprintf("m%d", w.ids)
	request := d.m.Send(id, text)
	w.tracef("%s sends %s to %s as %s", d.name, text, short(id), request)
	d.sent[request] = sentBy{id, text}
	d.drain()
}

func (w *world) actOpen() {
	d, id := w.phone(), w.anyChat()
	if d.m != nil {
		w.tracef("%s opens %s", d.name, short(id))
		d.m.Open(id)
		d.drain()
	}
}

func (w *world) actLoadOlder() {
	if d, id := w.phone(), w.anyChat(); d.m != nil {
		d.m.LoadOlder(id)
		d.drain()
	}
}

func (w *world) actEvict() {
	if d, id := w.phone(), w.anyChat(); d.m != nil {
		delete(d.applied, id)
		d.m.Evict(id)
		d.drain()
	}
}

// actMarkRead has somebody read some of a chat, or of all chats.
func (w *world) actMarkRead() {
	d, ids := w.phone(), []string{w.anyChat()}
	if d.m == nil {
		return
	}
	if w.choose.chance(300) {
		ids = d.m.Chats()
	}
	for _, id := range ids {
		if v, ok := d.m.View(id); ok && v.Head.GetSequence() > 0 {
			d.mark(v, 1+int64(w.choose.pick(int(v.Head.GetSequence()))))
		}
	}
	d.drain()
}

// command runs a command of a user in a process, and now and then, as after a
// lost answer, in another one too.
func (w *world) command(label, chatID string, run func(ctx context.Context, p *process, request string) error) {
	w.ids++
	request := fmt.Sprintf("r%d", w.ids)
	again := w.choose.chance(200)
	if chatID == "" && again {
		chatID = everyChat // a repetition continues with the chat that the first one made
	}
	for n := 0; n == 0 || (n == 1 && again); n++ {
		p := w.anyProcess()
		if p == nil {
			return
		}
		w.spawn(p, label, chatID, func(ctx context.Context) {
			err := run(ctx, p, request)
			w.tracef("%s %s at %s: %v", label, request, p.name, err)
		})
	}
}

func (w *world) actAdd() { w.add(w.anyChat(), w.owner(), w.target()) }

func (w *world) actRemove() { w.remove(w.anyChat(), w.owner(), w.target()) }

// actFlip ends a membership and begins it again, in whatever order.
func (w *world) actFlip() {
	id, caller, user := w.anyChat(), w.owner(), w.target()
	w.remove(id, caller, user)
	w.add(id, caller, user)
}

func (w *world) add(id, caller, user string) {
	role := table.Member
	if w.choose.chance(300) {
		role = table.Admin
	}
	w.command(fmt.Sprintf("%s adds %s to %s", caller, user, short(id)), id,
		func(ctx context.Context, p *process, request string) error {
			_, err := p.chats.Change(ctx, chat.OpAdd,
				chat.MemberChange{Caller: caller, ChatID: id, UserID: user, Role: role, RequestID: request})
			return err
		})
}

func (w *world) remove(id, caller, user string) {
	w.command(fmt.Sprintf("%s removes %s from %s", caller, user, short(id)), id,
		func(ctx context.Context, p *process, request string) error {
			_, err := p.chats.Change(ctx, chat.OpRemove,
				chat.MemberChange{Caller: caller, ChatID: id, UserID: user, RequestID: request})
			return err
		})
}

func (w *world) actLeave() {
	id, user := w.anyChat(), w.user()
	w.command(fmt.Sprintf("%s leaves %s", user, short(id)), id,
		func(ctx context.Context, p *process, request string) error {
			_, err := p.chats.Change(ctx, chat.OpLeave, chat.MemberChange{Caller: user, ChatID: id, RequestID: request})
			return err
		})
}

// target is mostly somebody whose membership can change.
func (w *world) target() string {
	if len(w.crowd) > 0 && w.choose.chance(300) {
		return w.crowd[w.choose.pick(len(w.crowd))]
	}
	if w.choose.chance(100) {
		return w.user()
	}
	return w.users[1+w.choose.pick(len(w.users)-1)]
}

// owner is mostly the one who made the first chats, who may change members.
func (w *world) owner() string {
	if w.choose.chance(250) {
		return w.user()
	}
	return w.users[0]
}

const maxChats = 4

func (w *world) actCreateGroup() {
	if w.creations >= maxChats {
		return
	}
	w.creations++
	caller, history := w.owner(), w.history()
	n := 1 + w.choose.pick(len(w.users))
	w.command(caller+" creates a group", "", func(ctx context.Context, p *process, request string) error {
		r, err := p.chats.CreateGroup(ctx, chat.CreateGroup{Caller: caller, Name: "g", Members: w.withCrowd(w.users[:n]),
			History:   history,
			RequestID: request})
		if err == nil {
			w.answered(w.chat(r.ChatID))
			w.answerCreation(ctx, p, caller, r.ChatID)
		}
		return err
	})
}

func (w *world) actCreateDirect() {
	if w.creations >= maxChats {
		return
	}
	w.creations++
	caller, other, history := w.user(), w.user(), w.history()
	w.command(caller+" writes to "+other, "", func(ctx context.Context, p *process, request string) error {
		r, err := p.chats.CreateDirect(ctx,
			chat.CreateDirect{Caller: caller, Other: other, History: history, RequestID: request})
		if err == nil {
			w.answerCreation(ctx, p, caller, r.ChatID)
		}
		return err
	})
}

// answerCreation gives a device of the caller the answer to a creation.
func (w *world) answerCreation(ctx context.Context, p *process, user, chatID string) {
	began, generation := w.moment, w.generation
	ov, err := p.view.Overview(ctx, user, chatID)
	if err != nil || (&stops{w: w, p: p}).Durable(ctx) != nil {
		return
	}
	w.checkOverview(w.chat(chatID), user, ov, w.chat(chatID).during(user, began, w.moment))
	for _, d := range w.phones {
		if life := d.life; d.m != nil && d.user == user && w.choose.chance(500) {
			w.later("created", func() bool {
				if d.life == life && generation == w.generation {
					d.m.Learn(ov, p.says())
					d.drain()
				}
				return false
			})
		}
	}
}

func (w *world) actCut() {
	if len(w.conns) > 0 {
		w.conns[w.choose.pick(len(w.conns))].cut()
	}
}

func (w *world) actHeartbeat() { w.heartbeats() }

// leaps are how much time passes at once, from what a gap waits to more than a
// stream's and a bearer token's life.
var leaps = []time.Duration{
	25 * time.Millisecond, 2 * time.Second, 20 * time.Second, 70 * time.Second, 3 * time.Minute, 40 * time.Minute,
	25 * time.Hour,
}

// actTime lets time pass; while a plan is on its way or waits for its next attempt
// only as much as that may take.
func (w *world) actTime() {
	d := leaps[w.choose.pick(len(leaps))]
	for _, t := range w.tasks {
		if !t.until.IsZero() {
			d = min(d, max(t.until.Sub(w.now), 0))
		}
	}
	w.now = w.now.Add(d)
	if d >= 20*time.Second {
		for _, p := range w.processes {
			p.hub.Tick()
		}
	}
	if w.replica != nil { // it has caught up now
		w.replica = w.store.Clone()
	}
}

// anySkew is how far a clock is off: up to 20 s either way.
func (w *world) anySkew() time.Duration {
	return []time.Duration{0, 20, -20, 4, -4, 13, -13, 1}[w.choose.pick(8)] * time.Second
}

// actSkew sets a process's clock forward or back.
func (w *world) actSkew() {
	if p := w.anyProcess(); p != nil {
		p.skew = w.anySkew()
	}
}

// actRename gives a group another name.
func (w *world) actRename() {
	id, caller := w.anyChat(), w.owner()
	name := fmt.Sprintf("n%d", w.ids)
	w.command(fmt.Sprintf("%s renames %s to %s", caller, short(id), name), id,
		func(ctx context.Context, p *process, request string) error {
			_, _, err := p.chats.UpdateChat(ctx, chat.ChatChange{Caller: caller, ChatID: id, Name: &name, RequestID: request})
			return err
		})
}

func (w *world) actRole() {
	id, caller, user, role := w.anyChat(), w.owner(), w.target(), table.Admin
	if w.choose.chance(500) {
		role = table.Member
	}
	w.command(fmt.Sprintf("%s makes %s %s of %s", caller, user, role, short(id)), id,
		func(ctx context.Context, p *process, request string) error {
			_, err := p.chats.Change(ctx, chat.OpRole,
				chat.MemberChange{Caller: caller, ChatID: id, UserID: user, Role: role, RequestID: request})
			return err
		})
}

// actOwn mutes a chat or puts it away, or takes that back.
func (w *world) actOwn() {
	id, user, mute, on := w.anyChat(), w.user(), w.choose.chance(500), w.choose.chance(600)
	own := chat.MemberSettings{Caller: user, ChatID: id, Procedure: "own"}
	if mute {
		until := int64(0)
		if on {
			until = epoch.AddDate(10, 0, w.ids).UnixMilli()
		}
		own.MutedUntil = &until
	} else {
		own.Archived = &on
	}
	w.command(fmt.Sprintf("%s sets %s: mute %t, on %t", user, short(id), mute, on), id,
		func(ctx context.Context, p *process, request string) error {
			own := own
			own.RequestID = request
			_, err := p.chats.SetMemberSettings(ctx, own)
			return err
		})
}

// actCrashPhone turns a device off, or on again.
func (w *world) actCrashPhone() {
	d := w.phone()
	if d.m != nil {
		d.crash()
		if w.choose.chance(500) {
			return
		}
	}
	d.start()
	d.drain()
}

func (w *world) actCrashProcess() {
	if p := w.anyProcess(); p != nil {
		w.tracef("%s dies", p.name)
		p.die()
		w.newProcess()
	}
}

// actDrain ends a process in good order: its streams are notified, a new one takes
// over.
func (w *world) actDrain() {
	if p := w.anyProcess(); p != nil && !p.draining {
		w.tracef("%s drains", p.name)
		p.draining = true
		p.hub.Drain(0)
		w.newProcess()
		w.later("stop", func() bool {
			if !p.dead && w.trouble(300) {
				p.die()
			}
			return !p.dead && !w.calm
		})
	}
}
