package config

import (
	"slices"
	"strings"
	"testing"
)

// Names by which a server is called are names, not URLs, and any stands alone.
func TestHosts(t *testing.T) {
	for setting, want := range map[string][]string{
		"": nil, "chat.example.com": {"chat.example.com"}, "Chat.Example.com, parley": {"chat.example.com", "parley"},
		"10.0.0.7,[::1],2001:db8::1": {"10.0.0.7", "::1", "2001:db8::1"}, "a_b.internal": {"a_b.internal"},
	} {
		v, _, err := read(Server, nil, env("PARLEY_ALLOWED_HOSTS="+setting))
		if err != nil {
			t.Errorf("%q: %v", setting, err)
			continue
		}
		if got := v.AllowedHosts; v.AnyHost || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", setting, got, v.AnyHost)
		}
	}
	v, _, err := read(Server, nil, env("PARLEY_ALLOWED_HOSTS=any"))
	if err != nil || !v.AnyHost || v.AllowedHosts != nil {
		t.Errorf("any: %q, %v, %v", v.AllowedHosts, v.AnyHost, err)
	}
	for _, setting := range []string{"https://chat.example.com", "chat.example.com:443", "*.example.com", "a,,b",
		"any,chat.example.com", "a b", strings.Repeat("a,", 100) + "a", strings.Repeat("a", 254), "-a"} {
		if _, _, err := read(Server, nil, env("PARLEY_ALLOWED_HOSTS="+setting)); err == nil ||
			!strings.Contains(err.Error(), "allowed-hosts must be") {
			t.Errorf("%.40q: %v", setting, err)
		}
	}
}
