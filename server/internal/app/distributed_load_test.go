//go:build !windows

package app_test

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// The load is bounded, at 30 messages a second, so that what a fault left behind can be
// caught up with while it runs.
const (
	loadChats   = 3
	loadWriters = 6
	loadPause   = 200 * time.Millisecond // of a writer after each message
)

// load is people at both servers who write and read for as long as the test lasts. Bob is
// at the first server, alice at the second; a writer gives no message up.
type load struct {
	t         *testing.T
	ctx       context.Context
	in        *installation
	chats     []string
	followers []*follower
	acks      acked

	stopWriting, stopFollowing func() // both wait until all have stopped

	mu   sync.Mutex
	sent map[string]time.Time // by client_message_id, until the other person has seen it
	live []time.Duration      // from the sending at one server to the showing at the other
}

func newLoad(ctx context.Context, t *testing.T, in *installation) *load {
	t.Helper()
	l := &load{t: t, ctx: ctx, in: in, sent: map[string]time.Time{}}
	l.acks.cond = sync.NewCond(&l.acks.mu)
	bob, alice := in.user("bob", 0), in.user("alice", 1)
	for i := range loadChats {
		res, err := call(ctx, alice.chats.CreateChat, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", i), MemberIds: []string{"bob"},
		})
		if err != nil {
			t.Fatal(err)
		}
		l.chats = append(l.chats, res.GetOverview().GetChat().GetChatId())
	}
	var following, writing sync.WaitGroup
	follow, stopFollowing := context.WithCancel(ctx)
	for _, u := range []*user{bob, alice} {
		f := newFollower(u, l.chats)
		f.shown = func(m *messagev1.Message) { l.note(u, m) }
		l.followers = append(l.followers, f)
		following.Go(func() { f.run(follow) })
	}
	write, stopWriting := context.WithCancel(ctx)
	for w := range loadWriters {
		writing.Go(func() { l.write(write, []*user{alice, bob}[w%2], fmt.Sprint("from ", w)) })
	}
	l.stopWriting = func() { stopWriting(); writing.Wait() }
	l.stopFollowing = func() { stopFollowing(); following.Wait() }
	t.Cleanup(func() { l.stopWriting(); l.stopFollowing() })
	return l
}

func (l *load) write(ctx context.Context, u *user, text string) {
	for ctx.Err() == nil {
		req := &messagev1.SendMessageRequest{ChatId: l.chats[mathrand.N(len(l.chats))], ClientMessageId: uuid.NewString(),
			Content: fmt.Sprint(text, ": ", mathrand.Int())}
		l.mu.Lock()
		l.sent[req.GetClientMessageId()] = time.Now()
		l.mu.Unlock()
		// The test's context, so that the last message is not given up either.
		res, err := call(l.ctx, u.messages.SendMessage, req)
		if err != nil {
			if l.ctx.Err() == nil {
				l.t.Error(err)
			}
			return
		}
		l.acks.add(req, res)
		select {
		case <-ctx.Done():
		case <-time.After(loadPause):
		}
	}
}

// note takes the time at which a message was shown to the other person.
func (l *load) note(u *user, m *messagev1.Message) {
	if m.GetSenderId() == u.name {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.sent[m.GetClientMessageId()]; ok {
		l.live = append(l.live, time.Since(at))
		delete(l.sent, m.GetClientMessageId())
	}
}

// latency tells how long messages took from person to person since it was asked last.
func (l *load) latency() string {
	l.mu.Lock()
	list := l.live
	l.live = nil
	l.mu.Unlock()
	if len(list) == 0 {
		return "none shown"
	}
	slices.Sort(list)
	at := func(p int) time.Duration { return list[len(list)*p/100].Round(100 * time.Microsecond) }
	return fmt.Sprintf("%d shown, p50 %v, p99 %v", len(list), at(50), at(99))
}

// more waits for n more acknowledged messages.
func (l *load) more(n int) {
	l.t.Helper()
	stop := context.AfterFunc(l.ctx, func() { l.acks.mu.Lock(); defer l.acks.mu.Unlock(); l.acks.cond.Broadcast() })
	defer stop()
	l.acks.mu.Lock()
	defer l.acks.mu.Unlock()
	want := len(l.acks.list) + n
	for len(l.acks.list) < want && l.ctx.Err() == nil {
		l.acks.cond.Wait()
	}
	if l.ctx.Err() != nil {
		l.t.Fatalf("%d messages too few were acknowledged", want-len(l.acks.list))
	}
}

// acknowledged counts the messages that were.
func (l *load) acknowledged() int {
	l.acks.mu.Lock()
	defer l.acks.mu.Unlock()
	return len(l.acks.list)
}

// shown returns a function that waits until both people have been shown what is
// acknowledged now.
func (l *load) shown() func(context.Context) error {
	heads := map[string]int64{}
	l.acks.mu.Lock()
	for _, a := range l.acks.list {
		heads[a.req.GetChatId()] = max(heads[a.req.GetChatId()], a.res.GetVersion())
	}
	l.acks.mu.Unlock()
	return func(ctx context.Context) error {
		for id, version := range heads {
			for _, f := range l.followers {
				if err := f.await(ctx, id, version); err != nil {
					return fmt.Errorf("%s was not shown version %d of %s: %w", f.u.name, version, id, err)
				}
			}
		}
		return nil
	}
}

func (l *load) streams() string {
	var list []string
	for _, f := range l.followers {
		f.mu.Lock()
		list = append(list, fmt.Sprintf("%d streams of %s", f.streams, f.u.name))
		f.mu.Unlock()
	}
	return strings.Join(list, ", ")
}

// check ends the load and checks everything: what is stored, what was acknowledged, what
// was shown, what is on Kafka, and that nothing is left on the way there.
func (l *load) check(probe *lagProbe) {
	l.t.Helper()
	l.stopWriting()
	bob := l.followers[0].u
	for _, id := range l.chats {
		stored := history(l.ctx, l.t, bob, id)
		head := checkHistory(l.ctx, l.t, bob, id, stored)
		checkAcks(l.t, l.acks.byChat(id), stored)
		for _, f := range l.followers {
			if err := f.await(l.ctx, id, head); err != nil {
				l.t.Fatalf("%s's stream did not reach version %d of %s: %v", f.u.name, head, id, err)
			}
			f.check(l.t, id, stored)
		}
		checkLog(l.ctx, l.t, l.in.kafka, id, stored)
	}
	if _, err := probe.drain(l.ctx, l.shown()); err != nil {
		l.t.Fatal(err)
	}
	if rows, err := probe.outbox(l.ctx); err != nil || len(rows) > 0 {
		l.t.Fatalf("%d rows in the outbox, %v", len(rows), err)
	}
	l.stopFollowing()
}
