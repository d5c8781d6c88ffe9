package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Procedures, for short.
const (
	send      = messagev1connect.MessageServiceSendMessageProcedure
	list      = messagev1connect.MessageServiceListMessagesProcedure
	subscribe = deliveryv1connect.DeliveryServiceSubscribeProcedure
	create    = chatv1connect.ChatServiceCreateChatProcedure
	add       = chatv1connect.ChatServiceAddMemberProcedure
	code      = authv1connect.AuthServiceRequestCodeProcedure
	publish   = topicv1connect.TopicServicePublishProcedure
)

// fixture is an Admission with a clock that the test sets.
type fixture struct {
	*Admission
	t      *testing.T
	at     time.Time
	caller Caller
}

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func newFixture(t *testing.T, text string, set func(*Config)) *fixture {
	t.Helper()
	table, err := limit.ParseTable(text)
	testkit.Must(t, err)
	h := &fixture{t: t, at: begin, caller: Caller{User: "u", Session: "s"}}
	clock := func() time.Time { return h.at }
	l, err := limit.New(limit.Config{Clock: clock, Table: table})
	testkit.Must(t, err)
	c := Config{Limits: l, Clock: clock, Caller: func(context.Context) Caller { return h.caller }}
	if set != nil {
		set(&c)
	}
	h.Admission, err = New(c)
	testkit.Must(t, err)
	return h
}

// count makes calls until one is refused, n at most, and returns how many were not, and by
// which rule the last was.
func (h *fixture) count(n int, procedure string, m any) (int, limit.Name) {
	h.t.Helper()
	for i := range n {
		leave, err := h.Admit(h.t.Context(), procedure, m)
		if over := new(limit.Refused); errors.As(err, &over) {
			return i, over.Rule
		}
		testkit.Must(h.t, err)
		leave()
	}
	return n, ""
}

func (h *fixture) want(what string, n int, rule limit.Name, procedure string, m any) {
	h.t.Helper()
	if got, by := h.count(n+1, procedure, m); got != n || by != rule {
		h.t.Errorf("%s: %d were let in, then %q refused; want %d, %q", what, got, by, n, rule)
	}
}

func group(members int) *chatv1.CreateChatRequest {
	r := &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP}
	for i := range members {
		r.MemberIds = append(r.MemberIds, fmt.Sprint("m", i))
	}
	return r
}

func direct() *chatv1.CreateChatRequest {
	return &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{"other"}}
}

// What a user does to others has the limits of the requirements, each by itself and each
// user's own (S-25).
func TestSec_S_25_RatesOfUsers(t *testing.T) {
	h := newFixture(t, "user_requests=off,session_requests=off,unanswered=off", nil)
	h.want("sends", 60, limit.Send, send, &messagev1.SendMessageRequest{})
	h.want("groups", 10, limit.CreateGroup, create, group(1))
	h.want("members", 90, limit.AddMember, add, &chatv1.AddMemberRequest{}) // ten came with groups
	h.want("direct chats", 60, limit.CreateDirect, create, direct())
	h.want("streams", 10, limit.Subscribe, subscribe, nil)
	h.caller.User = "v"
	h.want("another user", 60, limit.Send, send, &messagev1.SendMessageRequest{})
	h.want("the members of a group", 1, limit.AddMember, create, group(99))
	h.at = h.at.Add(5 * time.Second)
	h.want("five seconds later", 5, limit.Send, send, &messagev1.SendMessageRequest{})
}

// Requests are charged by what they cost to the user, the session and the address, all or none:
// what the limit of one refuses costs the others nothing.
func TestRequests(t *testing.T) {
	text := "user_requests=1/d:300,session_requests=1/d:150,address_requests=1/d:900,send=off"
	h := newFixture(t, text, nil)
	h.want("reads of a session", 50, limit.SessionRequests, list, &messagev1.ListMessagesRequest{})
	h.caller.Session = "other"
	h.want("writes of a session", 75, limit.UserRequests, send, &messagev1.SendMessageRequest{})
	h = newFixture(t, text, nil)
	h.caller.Address = netip.MustParsePrefix("198.51.100.7/32")
	for i := range 1_000 { // one user never stops
		h.caller.Session = fmt.Sprint("s", i)
		_, _ = h.count(1, list, &messagev1.ListMessagesRequest{})
	}
	h.caller.User, h.caller.Session = "neighbour", "n"
	h.want("a neighbour", 50, limit.SessionRequests, list, &messagev1.ListMessagesRequest{})
	for i := range 10 {
		h.caller.User, h.caller.Session = fmt.Sprint("n", i), fmt.Sprint("n", i)
		_, _ = h.count(100, list, &messagev1.ListMessagesRequest{})
	}
	h.caller.User, h.caller.Session = "last", "last"
	h.want("more than an address may have", 0, limit.AddressRequests, list, &messagev1.ListMessagesRequest{})
	h.caller.Address = netip.Prefix{}
	h.want("this machine", 50, limit.SessionRequests, list, &messagev1.ListMessagesRequest{})
	h.caller = Caller{Address: netip.MustParsePrefix("2001:db8::/64")}
	h.want("nobody yet", 450, limit.AddressRequests, code, &authv1.RequestCodeRequest{})
}

// Programs have a limit of requests and none of what people do; what has bounds of its own has
// no rate.
func TestServices(t *testing.T) {
	h := newFixture(t, "service_requests=1/d:500", nil)
	if n, by := h.count(10_000, publish, &chatv1.AddMemberRequest{}); n != 10_000 {
		t.Errorf("%d publishes of a user were let in, then %q refused", n, by)
	}
	h.caller.Service = true
	h.want("sends of a service", 250, limit.ServiceRequests, send, &messagev1.SendMessageRequest{})
}

// Accounts of today do less to others than older ones, and whose people do not answer makes no
// more chats; who is answered does (S-26).
func TestSec_S_26_NewAccounts(t *testing.T) {
	created := map[string]time.Time{"new": begin.Add(-time.Hour), "old": begin.Add(-25 * time.Hour)}
	answers, asked := 0, 0
	h := newFixture(t, "user_requests=off,session_requests=off", func(c *Config) {
		c.Created = func(_ context.Context, user string) (time.Time, error) {
			asked++
			return created[user], nil
		}
		c.Unanswered = func(context.Context, string, int) (int, error) { return 20 - answers, nil }
	})
	h.caller.User = "new"
	h.want("sends of a new account", 60, limit.NewSend, send, &messagev1.SendMessageRequest{})
	h.want("groups of a new account", 5, limit.NewCreateGroup, create, group(2))
	h.want("members by a new account", 40, limit.NewAddMember, add, &chatv1.AddMemberRequest{})
	h.want("chats of a new account", 20, limit.NewCreateDirect, create, direct())
	if asked != 1 {
		t.Errorf("the age of an account was asked for %d times", asked)
	}
	h.caller.User = "nobody" // whose row comes with the call
	h.want("an account without a row", 60, limit.NewSend, send, &messagev1.SendMessageRequest{})
	h.caller.User = "old"
	h.want("sends of an old account", 60, limit.Send, send, &messagev1.SendMessageRequest{})
	h.want("chats without answers", 20, limit.Unanswered, create, direct())
	answers = 1
	h.want("chats with an answer", 40, limit.CreateDirect, create, direct()) // 20 before
	h.caller.User = "new"
	h.at = h.at.Add(24 * time.Hour)
	h.want("an account that was new", 60, limit.Send, send, &messagev1.SendMessageRequest{})

	failed := newFixture(t, "", func(c *Config) {
		c.Created = func(context.Context, string) (time.Time, error) { return time.Time{}, errors.New("store") }
	})
	if _, err := failed.Admit(t.Context(), send, &messagev1.SendMessageRequest{}); err == nil {
		t.Error("without the age of an account a call is let in")
	}
}

// Who asks for a direct chat that there is makes none, and pays for the request only.
func TestDirectChatThatThereIs(t *testing.T) {
	asked := 0
	h := newFixture(t, "user_requests=1/d:3000,session_requests=off", func(c *Config) {
		c.Direct = func(_ context.Context, user, other string) (bool, error) {
			asked++
			return user == "u" && other == "other", nil
		}
	})
	h.want("the chat that there is", 300, limit.UserRequests, create, direct())
	h = newFixture(t, "unanswered=off", func(c *Config) { c.Direct = h.cfg.Direct })
	asked = 0
	for _, ids := range [][]string{nil, {"a", "b"}, {"a b"}, {strings.Repeat("x", 65)}} { // not valid, which is said later
		_, err := h.Admit(t.Context(), create,
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: ids})
		testkit.Must(t, err)
	}
	if asked != 0 {
		t.Errorf("%d ids that are none were asked for", asked)
	}
}

// down is a place of buckets that does not answer.
type down struct{}

func (down) Take(context.Context, string, limit.Bucket, int, int) (bool, time.Duration, error) {
	return false, 0, errors.New("down")
}

// Codes are bounded for an address and for the installation, and an address that is refused
// costs the others nothing; without an answer there is no code.
func TestSignIn(t *testing.T) {
	table, err := limit.ParseTable("otp_ip=1/h:5,otp_global=1/h:12,sign_in=1/m:3")
	testkit.Must(t, err)
	clock := func() time.Time { return begin }
	l, err := limit.New(limit.Config{Clock: clock, Table: table})
	testkit.Must(t, err)
	s := SignIn{l}
	until := func(client string, allow func(context.Context, string) (time.Duration, error)) (n int) {
		for ; n < 100; n++ {
			retry, err := allow(t.Context(), client)
			testkit.Must(t, err)
			if retry > 0 {
				return n
			}
		}
		return n
	}
	for _, step := range []struct {
		client string
		want   int
	}{{"a", 5}, {"a", 0}, {"b", 5}, {"c", 2}, {"", 0}} {
		if got := until(step.client, s.AllowCode); got != step.want {
			t.Errorf("%d codes for %q, want %d", got, step.client, step.want)
		}
	}
	if got, own := until("a", s.AllowAttempt), until("", s.AllowAttempt); got != 3 || own != 100 {
		t.Errorf("%d attempts of an address, %d of this machine", got, own)
	}
	l, err = limit.New(limit.Config{Clock: clock, Table: table, Shared: down{}})
	testkit.Must(t, err)
	if _, err := (SignIn{l}).AllowCode(t.Context(), "a"); !errors.Is(err, limit.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
}

// An address has so many streams, whoever has them, and its neighbour is another (S-29).
func TestSec_S_29_StreamsOfAnAddress(t *testing.T) {
	h := newFixture(t, "off", func(c *Config) { c.Streams = 50 })
	h.caller.Address = netip.MustParsePrefix("2001:db8::/64")
	var open []func()
	for i := range 50 {
		h.caller.User = fmt.Sprint("u", i)
		leave, err := h.Admit(t.Context(), subscribe, nil)
		testkit.Must(t, err)
		open = append(open, leave)
	}
	for range 10_000 {
		if _, err := h.Admit(t.Context(), subscribe, nil); !errors.Is(err, limit.ErrStreams) {
			t.Fatalf("one more: %v", err)
		}
	}
	own := h.caller.Address
	for _, other := range []netip.Prefix{netip.MustParsePrefix("2001:db8:0:1::/64"), {}} {
		h.caller.Address = other
		if _, err := h.Admit(t.Context(), subscribe, nil); err != nil {
			t.Errorf("%v: %v", other, err)
		}
	}
	h.caller.Address = own
	open[0]()
	leave, err := h.Admit(t.Context(), subscribe, nil)
	testkit.Must(t, err)
	for _, f := range append(open[1:], leave) {
		f()
	}
	if n := len(h.streams); n != 1 { // the neighbour's
		t.Errorf("%d addresses are remembered", n)
	}
}

// Every procedure that users can call has a line that says what it costs.
func TestEveryProcedureHasACost(t *testing.T) {
	sources, err := filepath.Glob("../../../gen/parley/*/v1/*connect/*.connect.go")
	testkit.Must(t, err)
	declared := regexp.MustCompile(`Procedure = "(/parley\.[^"]+)"`)
	var all []string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		testkit.Must(t, err)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
	}
	users := slices.DeleteFunc(slices.Clone(all), func(p string) bool { // of processes and operators
		return strings.HasPrefix(p, "/parley.link.") || strings.HasPrefix(p, "/parley.ops.") ||
			strings.HasPrefix(p, "/parley.admin.") || strings.HasPrefix(p, "/parley.topic.v1.TopicAdminService/")
	})
	for _, p := range users {
		if _, ok := costs[p]; !ok {
			t.Errorf("%s has no cost", p)
		}
	}
	for p := range costs {
		if !slices.Contains(users, p) {
			t.Errorf("%s has a cost and does not exist", p)
		}
	}
	if len(users) < 50 {
		t.Errorf("%d procedures were found", len(users))
	}
}

// workers is a process that does a number of calls at a time, each in so much time.
type workers struct {
	slots chan struct{}
	time  time.Duration
}

func (w workers) do() {
	w.slots <- struct{}{}
	time.Sleep(w.time)
	<-w.slots
}

// Under five times what a process can do, what it lets in is answered in time, and no less is
// done than it can do; the rest learns at once. Afterwards all are let in again (S-31).
func TestSec_S_31_Overload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const capacity = 1_000 // a second
		w := workers{make(chan struct{}, 10), 10 * time.Millisecond}
		l := NewLoad(4_096)
		var mu sync.Mutex
		var took []time.Duration
		var wg sync.WaitGroup
		offer := func(perSecond int, d time.Duration) (refused int) {
			for range int(d.Seconds() * float64(perSecond)) {
				began, ok := l.Enter(time.Now())
				if !ok {
					refused++
				} else {
					wg.Go(func() {
						w.do()
						l.Leave(began, time.Now())
						mu.Lock()
						took = append(took, time.Since(began))
						mu.Unlock()
					})
				}
				time.Sleep(time.Second / time.Duration(perSecond))
			}
			return refused
		}
		if n := offer(capacity/2, 5*time.Second); n != 0 {
			t.Errorf("%d calls were refused under half of what can be done", n)
		}
		wg.Wait()
		took = nil
		refused := offer(5*capacity, 20*time.Second)
		wg.Wait()
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		t.Logf("%d answered, %d refused, p99 %v", len(took), refused, p99)
		if p99 > 1500*time.Millisecond {
			t.Errorf("p99 of what was let in is %v", p99)
		}
		if len(took) < 19*capacity {
			t.Errorf("%d calls in 20 s were answered", len(took))
		}
		if n := offer(capacity/2, 5*time.Second); n != 0 {
			t.Errorf("%d calls were refused after it", n)
		}
		wg.Wait()
		if n, _, _ := l.Stats(); n != 0 {
			t.Errorf("%d calls are under way", n)
		}
	})
}

// Where nothing is answered any more, a bounded number waits, and when it is answered again
// all continues.
func TestStall(t *testing.T) {
	l, now := NewLoad(100), begin
	var under []time.Time
	for range 1_000 {
		if began, ok := l.Enter(now); ok {
			under = append(under, began)
		}
		now = now.Add(10 * time.Millisecond)
	}
	if len(under) != 100 {
		t.Errorf("%d wait", len(under))
	}
	for _, began := range under {
		l.Leave(began, now)
	}
	lowest := 100
	for range 100 {
		now = now.Add(period)
		var all []time.Time
		for range 100 {
			if began, ok := l.Enter(now); ok {
				all = append(all, began)
			}
		}
		lowest = min(lowest, len(all))
		for _, began := range all {
			l.Leave(began, now.Add(time.Millisecond))
		}
	}
	free := NewLoad(0)
	for range 10_000 {
		if _, ok := free.Enter(now); !ok {
			t.Fatal("without a bound a call was refused")
		}
	}
	if _, bound, refused := l.Stats(); lowest < 32 || lowest == 100 || bound != 100 || refused == 0 {
		t.Errorf("no fewer than %d, in the end %d; %d refused", lowest, bound, refused)
	}
}

// BenchmarkAdmit is a send that is charged by four rules and refused by none.
func BenchmarkAdmit(b *testing.B) {
	const all = "=1000000/s:1000000"
	table, err := limit.ParseTable("user_requests" + all + ",session_requests" + all + ",address_requests" + all +
		",send" + all)
	testkit.Must(b, err)
	ahead := time.Duration(0) // more calls than the most that a rule allows are made in a second
	clock := func() time.Time { return time.Now().Add(ahead) }
	l, err := limit.New(limit.Config{Clock: clock, Table: table})
	testkit.Must(b, err)
	caller := Caller{User: "user", Session: "ses_0123456789", Address: netip.MustParsePrefix("198.51.100.7/32")}
	a, err := New(Config{Limits: l, Clock: clock, Streams: 50, Load: NewLoad(4_096),
		Caller:  func(context.Context) Caller { return caller },
		Created: func(context.Context, string) (time.Time, error) { return time.Unix(0, 0), nil }})
	testkit.Must(b, err)
	m := &messagev1.SendMessageRequest{}
	b.ReportAllocs()
	for b.Loop() {
		ahead += time.Millisecond
		leave, err := a.Admit(b.Context(), send, m)
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}
