package streams

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// held is longer than each of the timers: heartbeats of 15 s, deadlines of writes
// of 10 s and of bodies of 15 s, pings after 20 s, proxies' limits of 30 s,
// each divided as it is.
var (
	held  = 65 * time.Second / divisor
	pause = 11 * time.Second / divisor // between messages
)

// watch is one stream and what it has brought.
type watch struct {
	name, user string

	mu         sync.Mutex
	hellos     int
	heartbeats int
	chats      int // frames about a chat
	messages   []string
	ended      error
}

func (w *watch) take(f *deliveryv1.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.GetChatId() != "" {
		w.chats++
	}
	switch {
	case f.GetHello() != nil:
		w.hellos++
	case f.GetHeartbeat() != nil:
		w.heartbeats++
	case f.GetMessage() != nil:
		w.messages = append(w.messages, f.GetMessage().GetContent())
	}
}

func (w *watch) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = err
}

// check is asked at the end of the time.
func (w *watch) check(t *testing.T, said []string, atLeast int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended != nil {
		t.Errorf("%s: ended with %d heartbeats: %v", w.name, w.heartbeats, w.ended)
		return
	}
	if w.hellos != 1 || w.heartbeats < atLeast || !slices.Equal(w.messages, said) {
		t.Errorf("%s: %d hellos, %d heartbeats, messages %q; want 1, at least %d, %q", w.name, w.hellos, w.heartbeats, w.messages,
			atLeast, said)
	}
}

// TestHeld holds an idle stream and one with a message every eleven seconds by each
// way of reading, directly and through each proxy, all at once: none ends.
func TestHeld(t *testing.T) {
	t.Parallel()
	p := start(t)
	secure := httpProxy(t, p.addr, true, true)
	ways := []struct{ name, base string }{
		{"directly", "http://" + p.addr},
		{"through a TCP proxy", "http://" + tcpProxy(t, p.addr)},
		{"through an HTTP/1.1 proxy", httpProxy(t, p.addr, false, false).URL},
		{"through an HTTP/2 proxy", httpProxy(t, p.addr, true, false).URL},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	var idle, trickling []*watch
	open := func(name string, read func(user string, take func(*deliveryv1.Frame)) error) {
		for _, mode := range []string{"idle", "trickling"} {
			w := &watch{name: mode + " " + name, user: fmt.Sprint(mode, len(idle))}
			reading.Go(func() { w.end(read(w.user, w.take)) })
			if mode == "trickling" {
				trickling = append(trickling, w)
			} else {
				idle = append(idle, w)
			}
		}
	}
	for _, way := range ways {
		for _, r := range readers {
			if way.name == "through an HTTP/1.1 proxy" && strings.Contains(strings.ToLower(r.name), "grpc") &&
				!strings.Contains(r.name, "Web") {
				continue // gRPC needs HTTP/2 all the way
			}
			open(r.name+" "+way.name, func(user string, take func(*deliveryv1.Frame)) error {
				return r.read(ctx, way.base, p.token(user), take)
			})
		}
	}
	open("connect over HTTP/2 with TLS through a proxy", func(user string, take func(*deliveryv1.Frame)) error {
		return follow(ctx, secure.Client().Transport, secure.URL, p.token(user), take)
	})
	began := time.Now()
	for _, w := range append(slices.Clone(idle), trickling...) {
		w.await(t, "its first heartbeat", func() bool { return w.heartbeats > 0 })
	}
	var members []string
	for _, w := range trickling {
		members = append(members, w.user)
	}
	chat := p.group(members)
	for _, w := range trickling { // a message before that comes as the chat's head alone
		w.await(t, "the new chat", func() bool { return w.chats > 0 })
	}
	var said []string
	// Real clients are held for longer than the timers: the time that passes is the test.
	for next := time.Duration(0); next < held-time.Second/divisor; next += pause {
		time.Sleep(time.Until(began.Add(next)))
		said = append(said, fmt.Sprint("after ", next))
		p.say(chat, said[len(said)-1])
	}
	time.Sleep(time.Until(began.Add(held)))
	for _, w := range idle {
		w.check(t, nil, 4) // one when all was sent, and one each 15 s
	}
	for _, w := range trickling {
		w.check(t, said, 1)
	}
	cancel()
	reading.Wait()
}

// await waits for what a stream must bring without a fixed time.
func (w *watch) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	testkit.Eventually(t, w.name+": "+what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended != nil && !done() {
			t.Fatalf("%s ended and waits for %s: %v", w.name, what, w.ended)
		}
		return done()
	})
}
