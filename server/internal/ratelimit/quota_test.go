package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/limit"
)

// Who has many addresses does not take the codes of everybody else: not with a /48, nor with
// a /24.
func TestOneHolderDoesNotTakeAllCodes(t *testing.T) {
	for name, mine := range map[string]func(i int) netip.Prefix{
		"a /48": func(i int) netip.Prefix { // 65,536 networks of households
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0, byte(i >> 8), byte(i)}), 64)
		},
		"a /24": func(i int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32) },
	} {
		now := begin
		l, err := limit.New(limit.Config{Clock: func() time.Time { return now }, Table: limit.DefaultTable()})
		testkit.Must(t, err)
		s := SignIn{l}
		got, asked, refused := 0, 0, 0
		for i := range 10 * 60 * 100 { // ten minutes, 100 a second
			retry, err := s.AllowCode(t.Context(), mine(i).String())
			testkit.Must(t, err)
			if retry == 0 {
				got++
			}
			now = now.Add(time.Second / 100)
			if i%100 == 50 { // somebody else, once a second
				asked++
				if retry, _ := s.AllowCode(t.Context(), fmt.Sprintf("198.51.%d.%d/32", i>>8&255, i&255)); retry > 0 {
					refused++
				}
			}
		}
		if refused > 0 || got > 200+500 { // the burst and ten minutes
			t.Errorf("%s got %d codes; of %d others %d were refused", name, got, asked, refused)
		}
	}
}

// What the installation refuses costs neither addresses nor networks their codes.
func TestRefusedCodesCostNothing(t *testing.T) {
	table, err := limit.ParseTable("otp_ip=1/h:3,otp_network=1/h:5,otp_global=60/m:2")
	testkit.Must(t, err)
	now := begin
	l, err := limit.New(limit.Config{Clock: func() time.Time { return now }, Table: table})
	testkit.Must(t, err)
	s := SignIn{l}
	ask := func(client string) bool {
		retry, err := s.AllowCode(t.Context(), client)
		testkit.Must(t, err)
		return retry == 0
	}
	for range 2 {
		if !ask("192.0.2.1/32") {
			t.Fatal("refused")
		}
	}
	for range 100 {
		if ask("198.51.100.1/32") {
			t.Fatal("more than the installation sends")
		}
	}
	for range 3 {
		if now = now.Add(time.Second); !ask("198.51.100.1/32") {
			t.Fatal("a code that the installation refused took one of the address")
		}
	}
	for i, want := range []bool{false, true, true, false} { // the address has had 3, the network 5
		if now = now.Add(time.Second); ask(fmt.Sprintf("198.51.100.%d/32", i+1)) != want {
			t.Errorf("address %d: want %t", i+1, want)
		}
	}
}

// Accounts have limits on whom they find by an identifier, whom they invite, and on what they do
// with themselves.
func TestRatesOfAccounts(t *testing.T) {
	h := newFixture(t, "user_requests=off,session_requests=off", nil)
	h.want("identifiers looked up", 100, limit.Lookup, userv1connect.UserServiceLookupByIdentifierProcedure,
		&userv1.LookupByIdentifierRequest{})
	h.want("invitations", 50, limit.Invite, userv1connect.UserServiceInviteToChatProcedure, &userv1.InviteToChatRequest{})
	h.want("changes of the profile", 5, limit.UpdateProfile, userv1connect.UserServiceUpdateProfileProcedure,
		&userv1.UpdateProfileRequest{})
	h.want("handles", 0, limit.UpdateProfile, userv1connect.UserServiceSetHandleProcedure, &userv1.SetHandleRequest{})
	h.want("exports", 2, limit.Export, userv1connect.UserServiceExportDataProcedure, nil)
	h.at = h.at.Add(time.Minute)
	h.want("changes of the profile a minute later", 5, limit.UpdateProfile,
		userv1connect.UserServiceUpdateProfileProcedure, &userv1.UpdateProfileRequest{})
	h.caller.User = "v"
	h.want("exports of another user", 2, limit.Export, userv1connect.UserServiceExportDataProcedure, nil)
}

// Who shows no token, or one that nobody issued, has a limit by the address alone, which neither
// those with a token nor those who sign in there share.
func TestStrangers(t *testing.T) {
	h := newFixture(t, "user_requests=off,session_requests=off", nil)
	h.caller = Caller{Address: netip.MustParsePrefix("198.51.100.7/32")}
	h.want("strangers", 400, limit.Strangers, list, nil)
	h.want("strangers, elsewhere", 0, limit.Strangers, "/no/such/path", nil)
	h.want("strangers with streams", 0, limit.Strangers, subscribe, nil)
	h.want("who signs in", 1_500, limit.AddressRequests, code, &authv1.RequestCodeRequest{})
	h.at = h.at.Add(10 * time.Second)
	h.want("ten seconds later", 200, limit.Strangers, list, nil)
	h.want("who refreshes", 1_500, limit.AddressRequests, authv1connect.AuthServiceRefreshProcedure,
		&authv1.RefreshRequest{})
	h.at = h.at.Add(10 * time.Second)
	for range 400 {
		_, _ = h.count(1, list, nil)
	}
	h.caller.User, h.caller.Session = "u", "s"
	if n, by := h.count(100, list, &messagev1.ListMessagesRequest{}); n != 100 {
		t.Errorf("a neighbour with a token: %d, then %q refused", n, by)
	}
	h.caller = Caller{}
	if n, _ := h.count(10_000, list, nil); n != 10_000 {
		t.Error("this machine is counted")
	}
}

// A new account does not add more people in a day than it may, and is refused for good.
func TestNewAccountMakesNoLargeGroup(t *testing.T) {
	h := newFixture(t, "", func(c *Config) {
		c.Created = func(context.Context, string) (time.Time, error) { return begin, nil }
	})
	over := new(limit.Refused)
	if _, err := h.Admit(t.Context(), create, group(999)); !errors.As(err, &over) || over.Rule != limit.NewAddMember ||
		over.AtOnce != 50 || over.RetryAfter != 0 {
		t.Errorf("999 people by a new account that may add 50 a day: %v", err)
	}
	h.want("groups of those who were refused one", 5, limit.NewCreateGroup, create, group(1))
}

// Who has no room for members loses no group.
func TestRefusedMembersCostNoGroup(t *testing.T) {
	h := newFixture(t, "", func(c *Config) {
		c.Created = func(context.Context, string) (time.Time, error) { return begin, nil }
	})
	for range 50 {
		leave, err := h.Admit(t.Context(), add, &chatv1.AddMemberRequest{})
		testkit.Must(t, err)
		leave()
		h.at = h.at.Add(time.Second)
	}
	for range 5 {
		if _, err := h.Admit(t.Context(), create, group(20)); err == nil {
			t.Fatal("let in")
		}
	}
	h.at = h.at.Add(4 * time.Hour) // of groups nothing has come back, which takes 4.8 hours
	if _, err := h.Admit(t.Context(), create, group(1)); err != nil {
		t.Error("five refusals took the five groups of the day:", err)
	}
}

// Direct chats that are being made count as those without an answer: to make many at once makes
// no more.
func TestUnansweredWhileTheyAreMade(t *testing.T) {
	stored := 0
	h := newFixture(t, "user_requests=off,session_requests=off,unanswered=1/d:5", func(c *Config) {
		c.Unanswered = func(context.Context, string, int) (int, error) { return stored, nil }
	})
	_, _ = h.count(5, create, direct()) // the bucket is empty; all of these were answered
	stored = 2
	var leaves []func()
	for range 50 {
		leave, err := h.Admit(t.Context(), create, direct())
		if err == nil {
			leaves = append(leaves, leave)
		}
	}
	if len(leaves) != 3 {
		t.Errorf("beside 2 of 5 without an answer %d were let in at once", len(leaves))
	}
	h.caller.User = "v"
	if n, _ := h.count(1, create, direct()); n != 1 {
		t.Error("those of one user are another's")
	}
	h.caller.User = "u"
	for _, leave := range leaves {
		leave()
	}
	if len(h.making) != 0 {
		t.Errorf("%d users are remembered", len(h.making))
	}
	stored = 5
	h.want("with as many as there may be", 0, limit.Unanswered, create, direct())
}

// The number of checks a day for answers of others is limited, also if each finds an answer.
func TestAnsweredHasALimit(t *testing.T) {
	h := newFixture(t, "user_requests=off,session_requests=off,create_direct=off", func(c *Config) {
		c.Unanswered = func(context.Context, string, int) (int, error) { return 0, nil }
	})
	h.want("direct chats in a day", 20+100, limit.Answered, create, direct())

	lookups := 0
	h = newFixture(t, "user_requests=off,session_requests=off", func(c *Config) {
		c.Unanswered = func(_ context.Context, _ string, most int) (int, error) { lookups++; return most, nil }
	})
	for range 1_000 {
		_, _ = h.count(1, create, direct())
	}
	if lookups != 100 {
		t.Errorf("of 980 that were refused %d were looked at", lookups)
	}
	h.at = h.at.Add(time.Hour)
	h.want("direct chats that were refused, or not", 0, limit.Unanswered, create, direct())
}

// Who asks for the chat that there is may name himself, as the contract allows.
func TestDirectChatNamesTheCaller(t *testing.T) {
	h := newFixture(t, "create_direct=1/d:1", func(c *Config) {
		c.Direct = func(_ context.Context, user, other string) (bool, error) { return user == "u" && other == "bob", nil }
	})
	for _, ids := range [][]string{{"bob"}, {"u", "bob"}, {"bob", "u"}, {"bob", "bob"}} {
		if n, by := h.count(2, create, &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT,
			MemberIds: ids}); n != 2 {
			t.Errorf("%v: refused by %q", ids, by)
		}
	}
}

// What one request costs at most is what rules of requests hold at least.
func TestCostliestRequest(t *testing.T) {
	most := 0
	for _, c := range costs {
		most = max(most, c.requests)
	}
	found := 0
	published := map[limit.Name]int{limit.TopicMessages: 1000, limit.TopicKilobytes: 4096} // limits of a publish
	for _, r := range limit.DefaultTable().Rules() {
		if r.Least != 0 {
			if found++; r.Least != cmp.Or(published[r.Name], most) {
				t.Errorf("%s holds %d at least, a request costs up to %d", r.Name, r.Least, cmp.Or(published[r.Name], most))
			}
		}
	}
	if found != 6 {
		t.Errorf("%d rules of requests", found)
	}
}
