package tail_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/client/tail"
)

// shown is what a Tail showed.
type shown struct {
	mu     sync.Mutex
	frames []*deliveryv1.Frame
	saved  int
	tail   *tail.Tail
}

// count is how many frames there are while the Tail runs.
func (o *shown) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.frames)
}

// texts are the messages of a chat, in the order in which they were shown, and ! for each
// reset.
func (o *shown) texts(chat string) string {
	var list []string
	for _, f := range o.frames {
		switch {
		case f.GetChatId() != chat && f.GetChatId() != "":
		case f.GetReset_() != nil:
			list = append(list, "!")
		case f.GetMessage() != nil:
			list = append(list, f.GetMessage().GetContent())
		}
	}
	return strings.Join(list, " ")
}

// start runs a Tail in the background; end ends it and returns the error of Run.
func start(t *testing.T, s *server, change func(*tail.Config)) (o *shown, end func() error) {
	t.Helper()
	o = &shown{}
	cfg := tail.Config{
		BaseURL: "http://server", HTTP: s.client(),
		Token: func(_ context.Context, renew bool) (string, error) { return fmt.Sprint("renewed: ", renew), nil },
		Emit: func(f *deliveryv1.Frame) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.frames = append(o.frames, f)
			return nil
		},
		Saved: func(tail.Position) error { o.saved++; return nil },
	}
	if change != nil {
		change(&cfg)
	}
	f, err := tail.New(cfg)
	quiet(t, err)
	o.tail = f
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return o, func() error {
		synctest.Wait()
		cancel()
		return <-done
	}
}

func interrupted(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("ended with %v", err)
	}
}

// Streams are cut anywhere, calls fail, frames are left out: each change of each chat is
// shown once, in order.
func TestEveryChangeOnce(t *testing.T) {
	cuts := 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(seed)
			for i := range 10 {
				s.commit(fmt.Sprint("old", i%5), "before")
			}
			s.faults = 3 + int(seed%8)
			o, end := start(t, s, func(c *tail.Config) {
				c.From = &tail.Position{Generation: "g", Token: "10", Chats: map[string]tail.Mark{}}
				for i := range 5 {
					c.From.Chats[fmt.Sprint("old", i)] = tail.Mark{Version: 2, Sequence: 2}
				}
			})
			for i := range 100 {
				if i%3 == 0 {
					time.Sleep(time.Duration(i) * 10 * time.Millisecond) // on the clock of the bubble
				}
				text := fmt.Sprint(i)
				if i%7 == 0 {
					text = ""
				}
				s.commit([]string{"old1", "old2", "new1", "new2"}[i%4], text)
			}
			time.Sleep(2 * time.Hour)
			interrupted(t, end())
			at := map[string]int64{"old1": 2, "old2": 2}
			for _, f := range o.frames {
				if f.GetVersion() != at[f.GetChatId()]+1 {
					t.Fatalf("seed %d: version %d of %s after %d", seed, f.GetVersion(), f.GetChatId(), at[f.GetChatId()])
				}
				at[f.GetChatId()]++
			}
			for id, n := range map[string]int64{"old1": 27, "old2": 27, "new1": 25, "new2": 25} {
				if at[id] != n {
					t.Errorf("seed %d: %s was shown up to %d of %d", seed, id, at[id], n)
				}
			}
			cuts += s.aborts
		})
	}
	if cuts < 400 {
		t.Errorf("%d cuts only", cuts)
	}
}

// Without All the first list is where a Tail begins, with it nothing is left out.
func TestWhereItBegins(t *testing.T) {
	for all, want := range map[bool]string{false: "4", true: "1 2 3 4"} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(1)
			for _, text := range []string{"1", "2", "3"} {
				s.commit("a", text)
			}
			for i := range 7 {
				s.commit(fmt.Sprint("other", i), "x")
			}
			o, end := start(t, s, func(c *tail.Config) { c.All = all })
			synctest.Wait()
			s.commit("a", "4")
			s.commit("b", "new")
			interrupted(t, end())
			if o.texts("a") != want || o.texts("b") != "new" {
				t.Errorf("all %v: %q, %q", all, o.texts("a"), o.texts("b"))
			}
		})
	}
}

// A stored position is where another Tail resumes.
func TestGoesOnFromAPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		o, end := start(t, s, nil)
		synctest.Wait()
		s.commit("a", "1")
		interrupted(t, end())
		if o.texts("a") != "1" || o.saved == 0 {
			t.Fatal(o.texts("a"), o.saved)
		}
		b, err := json.Marshal(o.tail.Position())
		quiet(t, err)
		var from tail.Position
		quiet(t, json.Unmarshal(b, &from))
		s.commit("a", "2")
		again, end := start(t, s, func(c *tail.Config) { c.From = &from })
		interrupted(t, end())
		if again.texts("a") != "2" {
			t.Errorf("%q", again.texts("a"))
		}
	})
}

// What the server has dropped is a reset, after which no message is missing.
func TestChangesThatWereDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		s.commit("a", "0")
		s.keeps = 5
		for i := range 20 {
			s.commit("a", fmt.Sprint(i+1))
			s.commit("a", "")
		}
		o, end := start(t, s, func(c *tail.Config) {
			c.From = &tail.Position{Generation: "g", Token: "1", Chats: map[string]tail.Mark{"a": {Version: 1, Sequence: 1}}}
		})
		synctest.Wait()
		s.commit("a", "live")
		interrupted(t, end())
		if want := "! 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 live"; o.texts("a") != want {
			t.Errorf("%q", o.texts("a"))
		}
	})
}

// Another store under the same address is a reset of all, after which it continues.
func TestAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		s.commit("a", "1")
		o, end := start(t, s, func(c *tail.Config) {
			c.From = &tail.Position{Generation: "older", Token: "1", Chats: map[string]tail.Mark{"a": {Version: 9, Sequence: 9}}}
		})
		time.Sleep(time.Minute)
		s.commit("a", "2")
		interrupted(t, end())
		if o.texts("a") != "! 2" {
			t.Errorf("%q", o.texts("a"))
		}
	})
}

// The removal of the user is shown although nothing of the chat may be read any more.
func TestRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		s.commit("a", "1")
		s.removed = "a"
		o, end := start(t, s, func(c *tail.Config) {
			c.From = &tail.Position{Generation: "g", Token: "1", Chats: map[string]tail.Mark{}}
		})
		for range 8 { // some come as they are, others only as a sign
			synctest.Wait()
			s.commit("a", "")
		}
		s.commit("b", "goes on")
		interrupted(t, end())
		if len(o.frames) < 2 || o.frames[0].GetMembershipChange() == nil || o.texts("b") != "goes on" {
			t.Errorf("%v", o.frames)
		}
	})
}

// What ends a Tail, and what only ends a stream.
func TestEnds(t *testing.T) {
	code := func(c connect.Code, reason string) *connect.Error {
		err := connect.NewError(c, errors.New("refused"))
		if d, derr := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: reason}); derr == nil {
			err.AddDetail(d)
		}
		return err
	}
	for name, tt := range map[string]struct {
		end     deliveryv1.EndCode
		refuse  *connect.Error
		says    string // empty: it continues
		renewed bool
	}{
		"drain":         {end: deliveryv1.EndCode_END_CODE_DRAIN},
		"slow":          {end: deliveryv1.EndCode_END_CODE_SLOW},
		"resync":        {end: deliveryv1.EndCode_END_CODE_RESYNC},
		"token expired": {end: deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED, renewed: true},
		"session over":  {end: deliveryv1.EndCode_END_CODE_SESSION_REVOKED, says: "the session was ended"},
		"replaced":      {end: deliveryv1.EndCode_END_CODE_REPLACED, says: "took this one's place"},
		"away":          {refuse: code(connect.CodeUnavailable, "")},
		"old token":     {refuse: code(connect.CodeInvalidArgument, "INVALID_TOKEN")},
		"not signed in": {refuse: code(connect.CodeUnauthenticated, "UNAUTHENTICATED"), renewed: true},
		"revoked":       {refuse: code(connect.CodeUnauthenticated, "SESSION_REVOKED"), says: "the session was ended"},
		"refused":       {refuse: code(connect.CodePermissionDenied, ""), says: "permission_denied"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(1)
				if tt.refuse != nil {
					s.refuses = []*connect.Error{tt.refuse}
				} else {
					s.ends = []deliveryv1.EndCode{tt.end}
				}
				o, end := start(t, s, nil)
				time.Sleep(30 * time.Second)
				s.commit("a", "1")
				err := end()
				if tt.says != "" {
					if err == nil || !strings.Contains(err.Error(), tt.says) || s.streams != 1 {
						t.Errorf("%v after %d streams", err, s.streams)
					}
					return
				}
				interrupted(t, err)
				if o.texts("a") != "1" || s.streams != 2 || s.bearers["renewed: true"] != tt.renewed {
					t.Errorf("%q after %d streams, bearers %v", o.texts("a"), s.streams, s.bearers)
				}
			})
		})
	}
}

// Errors of those who take the changes end a Tail, and so do a server that cannot be
// reached in the beginning and a token that nobody renews.
func TestErrors(t *testing.T) {
	full := errors.New("no space")
	for name, tt := range map[string]struct {
		change func(*server, *tail.Config)
		says   string
	}{
		"emit": {func(_ *server, c *tail.Config) { c.Emit = func(*deliveryv1.Frame) error { return full } }, "no space"},
		"no token is good": {func(s *server, _ *tail.Config) {
			err := connect.NewError(connect.CodeUnauthenticated, errors.New("of another key"))
			s.refuses = []*connect.Error{err, err, err}
		}, "of another key"},
		"save": {func(_ *server, c *tail.Config) { c.Saved = func(tail.Position) error { return full } }, "no space"},
		"away": {func(s *server, _ *tail.Config) { s.faults = 1 }, "no luck"},
		"token": {func(s *server, c *tail.Config) {
			s.refuses = []*connect.Error{connect.NewError(connect.CodeUnauthenticated, errors.New("expired"))}
			c.Token = func(_ context.Context, renew bool) (string, error) {
				if renew {
					return "", connect.NewError(connect.CodeUnauthenticated, errors.New("there is no other token"))
				}
				return "t", nil
			}
		}, "there is no other token"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(1)
				s.commit("a", "1")
				_, end := start(t, s, func(c *tail.Config) { c.All = true; tt.change(s, c) })
				time.Sleep(time.Minute)
				if err := end(); err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v", err)
				}
			})
		})
	}
	if _, err := tail.New(tail.Config{}); err == nil {
		t.Error("a Tail of nothing")
	}
}

// A stream that says nothing for 50 s is taken for dead.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		s.hangs = 1
		o, end := start(t, s, nil)
		time.Sleep(49 * time.Second)
		s.commit("a", "1")
		synctest.Wait()
		if o.count() != 0 {
			t.Error("the stream hung")
		}
		time.Sleep(3 * time.Second)
		interrupted(t, end())
		if o.texts("a") != "1" || s.streams != 2 {
			t.Errorf("%q after %d streams", o.texts("a"), s.streams)
		}
	})
}
