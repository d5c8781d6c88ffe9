package limitview

import (
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/ratelimit"
	"github.com/parley-chat/parley/server/limit"
)

// Operators see the limits that there are, and what somebody has left, whom they name as logs
// do; to look takes nothing.
func TestView(t *testing.T) {
	table, err := limit.ParseTable("send=1/h:60,otp_ip=1/h:5,otp_network=1/h:7,otp_global=1/h:9,subscribe=off")
	testkit.Must(t, err)
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := limit.New(limit.Config{Table: table, Clock: func() time.Time { return at }})
	testkit.Must(t, err)
	v := New(l)
	all, away := v.All()
	if len(all) != len(table.Rules())-1 || away {
		t.Errorf("%d limits, %t", len(all), away)
	}
	for _, r := range all {
		want := admin.Limit{Name: "otp_ip", Key: "address", Rate: 1, Period: time.Hour, Burst: 5, FailsClosed: true}
		if r.Name == want.Name && r != want {
			t.Errorf("%+v", r)
		}
		if r.Name == "subscribe" {
			t.Error("a rule that is off is a limit")
		}
	}
	for _, client := range []string{"198.51.100.7/32", "2001:db8:1:2::/64"} {
		for range 3 {
			_, err := ratelimit.SignIn{Limits: l}.AllowCode(t.Context(), client)
			testkit.Must(t, err)
		}
	}
	for _, s := range []struct {
		limit, key string
		left       int64
	}{
		{"otp_ip", "198.51.100.7", 2}, {"otp_ip", "198.51.100.7/32", 2}, {"otp_ip", "::ffff:198.51.100.7", 2},
		{"otp_ip", "198.51.100.8", 5}, {"otp_ip", "2001:db8:1:2::abcd", 2}, {"otp_ip", "2001:db8:1:2::/64", 2},
		{"otp_ip", "2001:db8:1:3::1", 5}, {"otp_ip", "what is that?", 5},
		{"otp_network", "198.51.100.99", 4}, {"otp_network", "198.51.100.0/24", 4}, {"otp_network", "2001:db8:1:9::1", 4},
		{"otp_network", "2001:db8:1::/48", 4}, {"otp_global", "whatever", 3}, {"send", "alice", 60},
	} {
		for range 10 {
			left, after, err := v.State(t.Context(), s.limit, s.key)
			if left != s.left || after != 0 || err != nil {
				t.Fatalf("%s %s: %d, %v, %v; want %d", s.limit, s.key, left, after, err, s.left)
			}
		}
	}
	testkit.Must(t, l.Check(t.Context(), limit.Send, "alice", 60))
	if left, after, err := v.State(t.Context(), "send", "alice"); left != 0 || after != time.Hour || err != nil {
		t.Errorf("%d, %v, %v", left, after, err)
	}
	for _, name := range []string{"made up", "subscribe", ""} {
		if _, _, err := v.State(t.Context(), name, "alice"); !errors.Is(err, admin.ErrNoLimit) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
