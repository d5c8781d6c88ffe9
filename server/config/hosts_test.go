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
		v, _, err := Read(Server, nil, env("PARLEY_ALLOWED_HOSTS="+setting))
		if err != nil {
			t.Errorf("%q: %v", setting, err)
			continue
		}
		if got, all := v.Hosts("PARLEY_ALLOWED_HOSTS"); all || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", setting, got, all)
		}
	}
	v, _, err := Read(Server, nil, env("PARLEY_ALLOWED_HOSTS=any"))
	if got, all := v.Hosts("PARLEY_ALLOWED_HOSTS"); err != nil || !all || got != nil {
		t.Errorf("any: %q, %v, %v", got, all, err)
	}
	for _, setting := range []string{"https://chat.example.com", "chat.example.com:443", "*.example.com", "a,,b", "any,chat.example.com", "a b", strings.Repeat("a,", 100) + "a", strings.Repeat("a", 254), "-a"} {
		if _, _, err := Read(Server, nil, env("PARLEY_ALLOWED_HOSTS="+setting)); err == nil || !strings.Contains(err.Error(), "allowed-hosts must be") {
			t.Errorf("%.40q: %v", setting, err)
		}
	}
}
