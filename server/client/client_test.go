package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/device"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a client at work.
type running struct {
	*client.Client
	s       *server
	changed chan struct{}
	ended   chan error
	renewed int
	streams int // that brought everything
	failed  []*device.SendFailed
	stop    context.CancelFunc
}

func (s *server) run(user string, storage device.Storage) *running {
	s.Helper()
	r := &running{s: s, changed: make(chan struct{}, 1), ended: make(chan error, 1)}
	var err error
	r.Client, err = client.Dial(client.Config{
		BaseURL: s.web.URL, UserID: user, HTTP: s.web.Client(), Storage: storage, Rand: func() float64 { return 0 },
		Token: func(_ context.Context, renew bool) (string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if renew {
				r.renewed++
			}
			return fmt.Sprint(user, "/", s.number[user]), nil
		},
		OnEvent: func(e device.Event) {
			s.mu.Lock()
			if e.SendFailed != nil {
				r.failed = append(r.failed, e.SendFailed)
			}
			if e.Connected {
				r.streams++
			}
			s.mu.Unlock()
			select {
			case r.changed <- struct{}{}:
			default:
			}
		},
	})
	s.must(err)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
	s.Cleanup(func() {
		stop()
		<-r.ended
	})
	return r
}

// until waits for something to become true.
func (r *running) until(what string, ok func() bool) {
	r.s.Helper()
	for !ok() {
		select {
		case <-r.changed:
		case err := <-r.ended:
			r.ended <- err
			r.s.Fatalf("waiting for %s: %v", what, err)
		case <-r.s.Context().Done():
			r.s.Fatalf("waiting for %s", what)
		}
	}
}

func (r *running) texts(chatID string) string {
	v, _ := r.View(chatID)
	out := ""
	for _, m := range v.Messages {
		out += m.GetContent()
	}
	return out
}

func (r *running) group(others ...string) string {
	r.s.Helper()
	made, err := r.Create(r.s.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: others})
	r.s.must(err)
	id := made.GetChat().GetChatId()
	r.Open(id)
	r.until("the new chat", func() bool { v, _ := r.View(id); return v.Loaded && v.MembersLoaded })
	return id
}

func TestConversation(t *testing.T) {
	s := newServer(t)
	ann, bob := s.run("ann", nil), s.run("bob", nil)
	id := ann.group("bob")
	bob.until("the chat", func() bool { return len(bob.List()) == 1 })
	bob.Open(id)
	ann.Send(id, "1")
	ann.Send(id, "2")
	bob.until("both messages", func() bool { return bob.texts(id) == "12" })
	bob.Send(id, "3")
	ann.until("the answer", func() bool { return ann.texts(id) == "123" && len(ann.Outbox()) == 0 })
	ann.MarkRead(id, 3)
	ann.until("all read", func() bool { v, _ := ann.View(id); return v.Unread == 0 && v.ReadTo == 0 })
	bob.until("members", func() bool { v, _ := bob.View(id); return len(v.Present) == 2 })

	_, err := s.chats.Change(t.Context(), chat.OpRemove, chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob"})
	s.must(err)
	bob.until("the removal", func() bool { return len(bob.List()) == 0 })
	bob.Send(id, "4")
	bob.until("the refusal", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(bob.failed) == 1 && bob.failed[0].Why.Reason == "NOT_A_MEMBER"
	})
}

// What one of two reads, the other's device shows: over the stream, and after a time without.
func TestReadByTheOtherPerson(t *testing.T) {
	s := newServer(t)
	ann, bob := s.run("ann", nil), s.run("bob", nil)
	made, err := ann.Create(t.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{"bob"}})
	s.must(err)
	id := made.GetChat().GetChatId()
	read := func() int64 { v, _ := ann.View(id); return v.PeerRead }
	ann.Open(id)
	ann.Send(id, "1")
	ann.Send(id, "2")
	bob.until("both messages", func() bool { v, _ := bob.View(id); return v.Head.GetSequence() == 2 })
	if n := read(); n != 0 {
		t.Errorf("%d is read by nobody", n)
	}
	bob.MarkRead(id, 1)
	ann.until("the first is read", func() bool { return read() == 1 })
	bob.MarkRead(id, 2)
	ann.until("both are read", func() bool { return read() == 2 })
	bob.Send(id, "3")
	ann.until("the answer", func() bool { v, _ := ann.View(id); return v.Head.GetSequence() == 3 })
	if n := read(); n != 2 {
		t.Errorf("%d is read, 2 was marked", n)
	}
}

// A message that was written before its sender has seen those of others marks none of them as read: not on the
// sender's devices, and not for the others.
func TestMessageOfOneWhoWasAway(t *testing.T) {
	s := newServer(t)
	ann, bob := s.run("ann", nil), s.run("bob", nil)
	made, err := ann.Create(t.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{"bob"}})
	s.must(err)
	id := made.GetChat().GetChatId()
	ann.Open(id)
	for n := range 20 {
		ann.Send(id, fmt.Sprint("urgent ", n))
	}
	ann.until("all are stored", func() bool { v, _ := ann.View(id); return v.Head.GetSequence() == 20 })
	bob.Send(id, "written before")
	unread := func(r *running, want int64) func() bool {
		return func() bool { v, _ := r.View(id); return v.Head.GetSequence() == 21 && v.Unread == want }
	}
	bob.until("what bob has not read stays unread", unread(bob, 20))
	ann.until("one message is unread", unread(ann, 1))
	if v, _ := ann.View(id); v.PeerRead != 0 {
		t.Errorf("%d is read by nobody", v.PeerRead)
	}
	other := s.run("bob", nil)
	other.until("on another device", unread(other, 20))
	bob.MarkRead(id, 20)
	bob.until("an own message is not unread", unread(bob, 0))
	ann.until("now they are read", func() bool { v, _ := ann.View(id); return v.PeerRead == 20 })
}

func TestServerGoesAndComes(t *testing.T) {
	s := newServer(t)
	ann, bob := s.run("ann", nil), s.run("bob", nil)
	id := ann.group("bob")
	bob.Open(id)
	bob.until("the chat", func() bool { v, _ := bob.View(id); return v.Loaded })
	s.setDown(true)
	s.web.CloseClientConnections()
	for n := range 5 {
		ann.Send(id, fmt.Sprint(n))
	}
	s.setDown(false)
	bob.until("what was sent meanwhile", func() bool { return bob.texts(id) == "01234" })
	s.expire("bob")
	s.web.CloseClientConnections()
	ann.Send(id, "5")
	bob.until("the message after the refusal", func() bool { return bob.texts(id) == "012345" })
	s.mu.Lock()
	defer s.mu.Unlock()
	if bob.renewed == 0 {
		t.Error("bob has no new token")
	}
}

func TestRestartGoesOn(t *testing.T) {
	s := newServer(t)
	ann := s.run("ann", nil)
	storage := &client.Memory{}
	bob := s.run("bob", storage)
	id := ann.group("bob")
	bob.Open(id)
	ann.Send(id, "1")
	bob.until("the message", func() bool { return bob.texts(id) == "1" })
	bob.stop()
	if err := <-bob.ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("ended with %v", err)
	}
	bob.ended <- nil
	ann.Send(id, "2")
	again := s.run("bob", storage)
	if got := again.texts(id); got != "1" {
		t.Fatalf("remembers %q", got)
	}
	again.until("the rest", func() bool { return again.texts(id) == "12" })
}

func TestRevokedSessionStops(t *testing.T) {
	s := newServer(t)
	ann := s.run("ann", nil)
	ann.until("the stream", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return ann.streams == 1
	})
	s.hub.EndRevoked(func(p auth.Principal) bool { return p.SessionID == "ann" })
	err := <-ann.ended
	ann.ended <- nil
	var stopped *client.StoppedError
	if !errors.As(err, &stopped) || stopped.Why.Reason != "SESSION_REVOKED" {
		t.Fatalf("ended with %v", err)
	}
}

func TestStorageFailureEnds(t *testing.T) {
	s := newServer(t)
	bad := &broken{}
	ann := s.run("ann", bad)
	err := <-ann.ended
	ann.ended <- nil
	if !errors.Is(err, errDisk) {
		t.Fatalf("ended with %v", err)
	}
	if _, err := client.Dial(client.Config{BaseURL: s.web.URL}); err == nil {
		t.Error("a configuration without a user is taken")
	}
	bad.unreadable = true
	_, err = client.Dial(client.Config{BaseURL: s.web.URL, UserID: "ann", Storage: bad,
		Token: func(context.Context, bool) (string, error) {
			return "", connect.NewError(connect.CodeUnauthenticated, errDisk)
		}})
	if !errors.Is(err, errDisk) {
		t.Errorf("dialled with %v", err)
	}
}

var errDisk = errors.New("disk")

type broken struct{ unreadable bool }

func (b *broken) Load() (*device.Snapshot, error) {
	if b.unreadable {
		return nil, errDisk
	}
	return &device.Snapshot{}, nil
}

func (b *broken) Store(*device.Batch) error { return errDisk }

// An error of the token source refuses no message, regardless of its code.
func TestTokenSourceFails(t *testing.T) {
	s := newServer(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	asked, refused := 0, make(chan *device.Failure, 1)
	c, err := client.Dial(client.Config{
		BaseURL: s.web.URL, UserID: "ann", HTTP: s.web.Client(), Rand: func() float64 { return 0 },
		Token: func(context.Context, bool) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if asked++; asked <= 5 {
				return "", connect.NewError(connect.CodeNotFound, errors.New("no such session"))
			}
			return "ann/0", nil
		},
		OnEvent: func(e device.Event) {
			if e.SendFailed != nil {
				refused <- e.SendFailed.Why
			}
		},
	})
	s.must(err)
	c.Send("chat_00000000000000000000000000", "x")
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	if why := <-refused; why.Reason != "NOT_A_MEMBER" {
		t.Errorf("refused by %v, which is not the server", why)
	}
	stop()
	<-ended
}

// A panic of OnEvent reaches the caller of Run, which may go on.
func TestOnEventPanics(t *testing.T) {
	s := newServer(t)
	connected := 0
	c, err := client.Dial(client.Config{
		BaseURL: s.web.URL, UserID: "ann", HTTP: s.web.Client(), Rand: func() float64 { return 0 },
		Token: func(context.Context, bool) (string, error) { return "ann/0", nil },
		OnEvent: func(e device.Event) {
			if e.Connected {
				connected++
				panic("mine")
			}
		},
	})
	s.must(err)
	for range 2 {
		func() {
			defer func() {
				if p := recover(); p != "mine" {
					t.Errorf("recovered %v", p)
				}
			}()
			t.Errorf("ended with %v", c.Run(t.Context()))
		}()
	}
	if connected != 2 {
		t.Errorf("connected %d times", connected)
	}
}
