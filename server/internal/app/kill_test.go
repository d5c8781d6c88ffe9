package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// TestKill starts the real binary, loads it with sends and streams, kills it with
// no warning again and again, and checks that every acknowledged message is there
// once, at the place that was promised, that sequences and versions have no gaps,
// that the streams, resumed each time, showed every message once and in order, and
// that the event log has each message once, in order.
// PARLEY_KILLS sets the number of kills, or the time for them.
func TestKill(t *testing.T) {
	besides(t)
	const groups, writers = 4, 12
	rng := rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 2))
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	ctx, progress := untilStuck(t, 2*time.Minute)
	addr := p.addr
	tr := newTransport(t, false)
	alice, bob := newUser("alice", token(t, dir, "alice"), addr, tr), newUser("bob", token(t, dir, "bob"), addr, tr)

	var chats []string
	for i := range groups {
		res, err := alice.chats.CreateChat(ctx, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", i), MemberIds: []string{"bob"},
		})
		if err != nil {
			t.Fatal(err)
		}
		chats = append(chats, res.GetOverview().GetChat().GetChatId())
	}

	// Bob follows all chats; his reader survives the kills.
	follow, stopFollowing := context.WithCancel(ctx)
	f := newFollower(bob, chats)
	var following sync.WaitGroup
	following.Go(func() { f.run(follow) })

	var acks acked
	acks.cond = sync.NewCond(&acks.mu)
	write, stopWriting := context.WithCancel(ctx)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			sender := []*user{alice, bob}[w%2]
			for write.Err() == nil {
				req := &messagev1.SendMessageRequest{
					ChatId: chats[rand.N(len(chats))], ClientMessageId: uuid.NewString(),
					Content: fmt.Sprint("from ", w, ": ", rand.Int()),
				}
				// Until it is acknowledged: a writer gives no message up.
				res, err := call(ctx, sender.messages.SendMessage, req)
				if err != nil {
					t.Error(err)
					return
				}
				acks.add(req, res)
			}
		})
	}
	kills := 0
	for range testkit.Rounds(t, "PARLEY_KILLS", 3) {
		kills++
		progress()
		acks.wait(50 + rng.IntN(400))
		p.kill()
		p = launch(t, dir, addr)
	}
	acks.wait(100)
	stopWriting()
	writing.Wait()
	progress()

	for _, id := range chats {
		stored := history(ctx, t, bob, id)
		head := checkHistory(ctx, t, bob, id, stored)
		checkAcks(t, acks.byChat(id), stored)
		if err := f.await(ctx, id, head); err != nil {
			t.Fatalf("bob's stream did not reach version %d of %s: %v", head, id, err)
		}
		f.check(t, id, stored)
		checkLog(ctx, t, p.kafka, id, stored, asReader(t, dir)...)
		checkActivity(t, p, dir, id, stored)
	}
	stopFollowing()
	following.Wait()
	t.Logf("%d kills, %d acknowledged messages, %d streams", kills, len(acks.list), f.streams)
}

// untilStuck returns a context that ends when a test has reported no progress for so long. The number of rounds, and so
// the time that all of them may take, is not known in advance.
func untilStuck(t testing.TB, limit time.Duration) (ctx context.Context, progress func()) {
	ctx, cancel := context.WithCancelCause(t.Context())
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no progress for %s", limit)) })
	t.Cleanup(func() { timer.Stop(); cancel(nil) })
	return ctx, func() { timer.Reset(limit) }
}

type ack struct {
	req *messagev1.SendMessageRequest
	res *messagev1.SendMessageResponse
}

type acked struct {
	mu   sync.Mutex
	cond *sync.Cond
	list []ack
}

func (a *acked) add(req *messagev1.SendMessageRequest, res *messagev1.SendMessageResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, ack{req, res})
	a.cond.Broadcast()
}

// wait returns when n more messages have been acknowledged.
func (a *acked) wait(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for want := len(a.list) + n; len(a.list) < want; {
		a.cond.Wait()
	}
}

func (a *acked) byChat(id string) (list []ack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.list {
		if x.req.GetChatId() == id {
			list = append(list, x)
		}
	}
	return list
}

func history(ctx context.Context, t *testing.T, u *user, id string) (list []*messagev1.Message) {
	t.Helper()
	for more, after := true, int64(0); more; {
		res, err := call(ctx, u.messages.ListMessages,
			&messagev1.ListMessagesRequest{ChatId: id, AfterSequence: &after, PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range res.GetMessages() {
			list, after = append(list, m), m.GetSequence()
		}
		more = res.GetHasMore()
	}
	return list
}

// checkHistory checks that sequences and versions have no gaps, and returns the
// version of the head.
func checkHistory(ctx context.Context, t *testing.T, u *user, id string, stored []*messagev1.Message) int64 {
	t.Helper()
	var offset int64
	for i, m := range stored {
		if m.GetSequence() != int64(i+1) {
			t.Fatalf("%s: message %d has sequence %d", id, i+1, m.GetSequence())
		}
		if i == 0 {
			offset = m.GetVersion() - m.GetSequence()
		}
		if m.GetVersion()-m.GetSequence() != offset {
			t.Fatalf("%s: sequence %d has version %d after an offset of %d", id, m.GetSequence(), m.GetVersion(), offset)
		}
	}
	res, err := call(ctx, u.chats.GetChat, &chatv1.GetChatRequest{ChatId: id})
	if err != nil {
		t.Fatal(err)
	}
	head := res.GetOverview().GetHead()
	if head.GetSequence() != int64(len(stored)) || head.GetVersion() != head.GetSequence()+offset {
		t.Fatalf("%s: head %v with %d messages", id, head, len(stored))
	}
	return head.GetVersion()
}

func checkAcks(t *testing.T, acks []ack, stored []*messagev1.Message) {
	t.Helper()
	ids := map[string]int{}
	for _, m := range stored {
		ids[m.GetClientMessageId()]++
	}
	for _, a := range acks {
		n := a.res.GetSequence()
		if n < 1 || n > int64(len(stored)) {
			t.Fatalf("acknowledged sequence %d of %d", n, len(stored))
		}
		m := stored[n-1]
		if m.GetMessageId() != a.res.GetMessageId() || m.GetVersion() != a.res.GetVersion() ||
			m.GetContent() != a.req.GetContent() {
			t.Fatalf("acknowledged %v, stored %v", a.res, m)
		}
		if ids[a.req.GetClientMessageId()] != 1 {
			t.Fatalf("message %s is stored %d times", a.req.GetClientMessageId(), ids[a.req.GetClientMessageId()])
		}
	}
}

// follower reads a user's stream, resumes it whenever it breaks, and applies
// frames by the rule that the contract gives clients.
type follower struct {
	u       *user
	mu      sync.Mutex
	moved   *sync.Cond
	token   string
	streams int
	chats   map[string]*followed
	shown   func(*messagev1.Message) // called with each message; may be nil
}

type followed struct {
	version, newest int64
	messages        []*messagev1.Message
	broken          error
}

func newFollower(u *user, chats []string) *follower {
	f := &follower{u: u, chats: map[string]*followed{}}
	f.moved = sync.NewCond(&f.mu)
	for _, id := range chats {
		f.chats[id] = &followed{}
	}
	return f
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		f.mu.Lock()
		req := &deliveryv1.SubscribeRequest{Token: f.token}
		for id, c := range f.chats {
			req.KnownChats = append(req.KnownChats, &deliveryv1.KnownChat{ChatId: id, Version: c.version})
		}
		f.streams++
		f.mu.Unlock()
		stream, err := f.u.delivery.Subscribe(ctx, req)
		if err != nil {
			time.Sleep(5 * time.Millisecond) // a client's pause: the server needs the processor to come back
			continue
		}
		for stream.Receive() {
			for _, frame := range stream.Msg().GetFrames() {
				f.apply(frame)
			}
			f.catchUp(ctx)
		}
		_ = stream.Close()
	}
}

func (f *follower) apply(frame *deliveryv1.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.moved.Broadcast()
	if h := frame.GetHeartbeat(); h.GetToken() != "" {
		f.token = h.GetToken()
	}
	c := f.chats[frame.GetChatId()]
	if c == nil {
		return
	}
	if frame.GetReset_() != nil {
		c.broken = fmt.Errorf("reset at version %d", c.version)
	}
	c.newest = max(c.newest, frame.GetVersion(), frame.GetHead().GetVersion())
	if frame.GetAfterVersion() <= c.version && c.version < frame.GetVersion() {
		c.version = frame.GetVersion()
		f.add(c, frame.GetMessage())
	}
}

func (f *follower) add(c *followed, m *messagev1.Message) {
	if m == nil {
		return
	}
	if f.shown != nil {
		f.shown(m)
	}
	if m.GetSequence() != int64(len(c.messages)+1) && c.broken == nil {
		c.broken = fmt.Errorf("sequence %d follows %d", m.GetSequence(), len(c.messages))
	}
	c.messages = append(c.messages, m)
}

// catchUp asks for what a frame only hinted at.
func (f *follower) catchUp(ctx context.Context) {
	for id, c := range f.chats {
		for c.version < c.newest && ctx.Err() == nil {
			res, err := f.u.messages.ListChanges(ctx, &messagev1.ListChangesRequest{ChatId: id, AfterVersion: c.version})
			if err != nil {
				return // the stream has broken too
			}
			f.mu.Lock()
			for _, change := range res.GetChanges() {
				f.add(c, change.GetMessage())
			}
			c.version = max(c.version, res.GetVersion())
			f.moved.Broadcast()
			f.mu.Unlock()
		}
	}
}

func (f *follower) await(ctx context.Context, id string, version int64) error {
	stop := context.AfterFunc(ctx, func() { f.mu.Lock(); defer f.mu.Unlock(); f.moved.Broadcast() })
	defer stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.chats[id].version < version && ctx.Err() == nil {
		f.moved.Wait()
	}
	return ctx.Err()
}

func (f *follower) check(t *testing.T, id string, stored []*messagev1.Message) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.chats[id]
	if c.broken != nil {
		t.Fatalf("%s: %v", id, c.broken)
	}
	if len(c.messages) != len(stored) {
		t.Fatalf("%s: the stream showed %d messages, %d are stored", id, len(c.messages), len(stored))
	}
	for i, m := range c.messages {
		if m.GetMessageId() != stored[i].GetMessageId() || m.GetContent() != stored[i].GetContent() {
			t.Fatalf("%s: the stream showed %v, stored is %v", id, m, stored[i])
		}
	}
}
