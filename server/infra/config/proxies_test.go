package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Proxies are a number or their networks; nobody trusts everybody by a slip.
func TestProxies(t *testing.T) {
	for value, want := range map[string]struct {
		count    int
		networks string
	}{
		"": {}, "0": {}, "2": {count: 2}, "10.1.2.3/8": {networks: "10.0.0.0/8"},
		"192.0.2.7, 2001:db8::/32": {networks: "192.0.2.7/32 2001:db8::/32"}, "::ffff:192.0.2.7": {networks: "192.0.2.7/32"},
	} {
		s, _, err := read(Server, nil, env("PARLEY_BEHIND_PROXY="+value))
		var networks []string
		for _, n := range s.ProxyNetworks {
			networks = append(networks, n.String())
		}
		if err != nil || s.Proxies != want.count || strings.Join(networks, " ") != want.networks ||
			s.BehindProxy() != (want.count > 0 || want.networks != "") {
			t.Errorf("%q: %d, %v, %v", value, s.Proxies, networks, err)
		}
	}
	for _, value := range []string{"-1", "9", "x", "10.0.0.0/33", "10.0.0.1,", "0.0.0.0/0", "::/0", "example.com",
		strings.Join(slices.Repeat([]string{"192.0.2.7"}, 101), ",")} {
		s, _, err := read(Server, nil, env("PARLEY_BEHIND_PROXY="+value))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: %v, %v", value, s.ProxyNetworks, err)
		}
	}
	if n, err := parseNetwork("fe80::1%eth0"); err != nil || n != netip.MustParsePrefix("fe80::1/128") {
		t.Errorf("%v, %v", n, err)
	}
}
