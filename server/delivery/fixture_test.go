package delivery_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// fixture is a process on the map engine, without goroutines: store, chats, hub.
type fixture struct {
	t     testing.TB
	ctx   context.Context
	now   time.Time
	ids   atomic.Int64
	store *storetest.Memory
	chats *chat.Service
	view  *view.Reader
	hub   *delivery.Hub

	deliver func(delivery.Delivery) // what becomes of a commit; by default hub.Deliver
	commits []delivery.Delivery
}

func newFixture(t testing.TB, change func(*delivery.Config)) *fixture {
	t.Helper()
	w := &fixture{t: t, ctx: t.Context(), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return w.now }
	id := func(prefix string) string { return fmt.Sprintf("%s%026d", prefix, w.ids.Add(1)) }
	st := storetest.NewMemory(clock)
	w.store = st
	w.view = view.New(view.Config{Store: st, History: store.Line("g1"),
		TokenKey: make([]byte, view.KeySize), Clock: clock})
	var err error
	w.chats, err = chat.New(w.ctx, chat.Config{
		Store: st, Clock: clock, Generation: "g1", Producer: "p1", NewID: id, Members: 1000,
		Committed: func(c chat.Commit) {
			d := delivery.Of(c.Events)
			w.commits = append(w.commits, d)
			w.deliver(d)
		},
	})
	w.must(err)
	cfg := delivery.Config{History: store.Line("g1"), Process: "p1", Source: w.view, Clock: clock, NewID: id,
		Delivered: w.chats.Delivered}
	if change != nil {
		change(&cfg)
	}
	w.hub, err = delivery.New(cfg)
	w.must(err)
	w.deliver = w.hub.Deliver
	for _, u := range []string{"alice", "bob", "carol"} {
		w.must(w.chats.EnsureUser(w.ctx, u))
	}
	return w
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) change(op chat.Operation, c chat.MemberChange) {
	w.t.Helper()
	_, err := w.chats.Change(w.ctx, op, c)
	w.must(err)
}

func (w *fixture) group(history table.History, members ...string) string {
	w.t.Helper()
	c, err := w.chats.CreateGroup(w.ctx,
		chat.CreateGroup{Caller: members[0], Name: "g", Members: members[1:], History: history})
	w.must(err)
	return c.ChatID
}

// put writes the rows of a chat of a user, one of very many.
func (w *fixture) put(i int, user string) {
	w.t.Helper()
	id, at := fmt.Sprintf("chat_%026d", i*7919), w.now.UnixMilli()
	head := table.Head{Version: 100, Sequence: 90, MembershipVersion: 10, ChangedAt: at, LastSender: "ann",
		LastPreview: "The last message."}
	c := table.Chat{Type: table.Group, Name: "A group", Status: table.Active, History: table.All, CreatedBy: "ann",
		MemberCount: 9, Version: 10}
	row := table.UserChat{History: table.All, JoinedVersion: 5, ReadSequence: 80, ChangedAt: at}
	w.must(w.store.BatchWrite(w.ctx, []store.Write{
		{Op: store.OpPut, Key: table.HeadKey(id), Item: head.Item()},
		{Op: store.OpPut, Key: table.ChatKey(id), Item: c.Item()},
		{Op: store.OpPut, Key: table.UserChatKey(user, id), Item: row.Item()},
	}))
}

func (w *fixture) send(user, chatID, text string) {
	w.t.Helper()
	_, err := w.chats.Send(w.ctx, chat.Send{Caller: user, ChatID: chatID, Content: text})
	w.must(err)
}

// performWork performs the hub's work until there is none.
func (w *fixture) performWork() {
	w.t.Helper()
	for range 10_000 {
		work, wait, ok := w.hub.Work(w.now)
		switch {
		case ok:
			w.must(w.hub.Do(w.ctx, work))
		case wait > 0 && wait <= time.Second:
			w.now = w.now.Add(wait)
		default:
			return
		}
	}
	w.t.Fatal("the hub never comes to rest")
}

// device is the simplest client: it applies frames by the rule and keeps texts
// by sequence. Chats are cached from the start, at version 0.
type device struct {
	w       *fixture
	s       *delivery.Stream
	version map[string]int64
	newest  map[string]int64
	shown   map[string]int64 // version of the last frame that carried one
	texts   map[string][]string
	left    map[string]bool
	token   string
	end     deliveryv1.EndCode
	next    int64
	frames  []*deliveryv1.Frame
}

func (w *fixture) open(user, token string, known ...*deliveryv1.KnownChat) *device {
	w.t.Helper()
	d := w.register(user, token, known...)
	for done := false; !done; {
		var err error
		done, err = d.s.Step(w.ctx)
		w.must(err)
		d.take()
	}
	return d
}

func (w *fixture) register(user, token string, known ...*deliveryv1.KnownChat) *device {
	w.t.Helper()
	s, err := w.hub.Open(w.ctx, delivery.OpenParams{
		Principal: auth.Principal{UserID: user, SessionID: "s", ExpiresAt: w.now.Add(time.Hour)},
		Token:     token, Known: known,
	})
	w.must(err)
	d := &device{w: w, s: s, version: map[string]int64{}, newest: map[string]int64{}, shown: map[string]int64{},
		texts: map[string][]string{}, left: map[string]bool{}, next: 1}
	for _, k := range known {
		d.version[k.ChatId] = k.Version
	}
	return d
}

func (d *device) take() {
	d.w.t.Helper()
	for {
		first, frames, _ := d.s.Take(7)
		if len(frames) == 0 {
			return
		}
		if first != d.next {
			d.w.t.Fatalf("position %d follows %d", first, d.next)
		}
		d.next += int64(len(frames))
		for _, f := range frames {
			d.apply(f.Proto())
		}
	}
}

func (d *device) apply(f *deliveryv1.Frame) {
	d.frames = append(d.frames, f)
	id := f.GetChatId()
	switch {
	case f.GetHeartbeat() != nil:
		d.token = f.GetHeartbeat().GetToken()
	case f.GetEnd() != nil:
		d.end = f.GetEnd().GetCode()
	case f.GetHead() != nil:
		d.newest[id] = max(d.newest[id], f.GetHead().GetVersion())
		d.left[id] = false
	case f.GetReset_() != nil:
		d.version[id], d.texts[id] = f.GetReset_().GetVersion(), nil
	}
	if v := f.GetVersion(); v > 0 {
		if v <= d.shown[id] { // versions of a stream and chat rise
			d.w.t.Fatalf("version %d of %s comes after %d", v, id, d.shown[id])
		}
		d.shown[id] = v
	}
	d.newest[id] = max(d.newest[id], f.GetVersion())
	if m := f.GetMembershipChange(); m.GetUserId() == d.user() && m.GetKind() == messagev1.MembershipChange_KIND_REMOVED {
		d.left[id] = true
	} else if m.GetUserId() == d.user() && m.GetKind() == messagev1.MembershipChange_KIND_ADDED {
		d.left[id] = false
	}
	own := d.version[id]
	if f.GetVersion() == 0 || own < f.GetAfterVersion() || own >= f.GetVersion() {
		return
	}
	d.version[id] = f.GetVersion()
	if m := f.GetMessage(); m != nil {
		d.texts[id] = append(d.texts[id], m.GetContent())
	}
}

func (d *device) user() string { return delivery.UserOf(d.s) }

// fetch does what a client does that knows of something newer.
func (d *device) fetch(chatID string) {
	d.w.t.Helper()
	for d.version[chatID] < d.newest[chatID] {
		r, err := d.w.view.Changes(d.w.ctx, d.user(),
			&messagev1.ListChangesRequest{ChatId: chatID, AfterVersion: d.version[chatID]})
		d.w.must(err)
		for _, c := range r.GetChanges() {
			if m := c.GetMessage(); m != nil {
				d.texts[chatID] = append(d.texts[chatID], m.GetContent())
			}
		}
		if r.GetVersion() <= d.version[chatID] {
			d.w.t.Fatalf("no progress at version %d of %d", d.version[chatID], d.newest[chatID])
		}
		d.version[chatID] = r.GetVersion()
	}
}

// agrees demands that the device shows exactly what the store has for its user.
func (d *device) agrees(chatID string) {
	d.w.t.Helper()
	d.take()
	d.fetch(chatID)
	var want []string
	for more, after := true, int64(0); more; {
		r, err := d.w.view.Messages(d.w.ctx, d.user(),
			&messagev1.ListMessagesRequest{ChatId: chatID, AfterSequence: &after, PageSize: 100})
		d.w.must(err)
		for _, m := range r.GetMessages() {
			want, after = append(want, m.GetContent()), m.GetSequence()
		}
		more = r.GetHasMore()
	}
	if !slices.Equal(d.texts[chatID], want) {
		d.w.t.Fatalf("%s shows %q, the store has %q", d.user(), d.texts[chatID], want)
	}
	ov, err := d.w.view.Overview(d.w.ctx, d.user(), chatID)
	d.w.must(err)
	if d.version[chatID] != ov.GetHead().GetVersion() {
		d.w.t.Fatalf("%s is at version %d, the store at %d", d.user(), d.version[chatID], ov.GetHead().GetVersion())
	}
}

// after puts what another device showed before this one's own.
func (d *device) after(e *device) {
	for id, texts := range e.texts {
		d.texts[id] = append(slices.Clone(texts), d.texts[id]...)
	}
}

func known(chatID string, version int64) *deliveryv1.KnownChat {
	return &deliveryv1.KnownChat{ChatId: chatID, Version: version}
}
