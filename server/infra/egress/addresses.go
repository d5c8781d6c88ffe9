package egress

import "net/netip"

// special4 are the networks of IPv4 that are not public, by IANA's registry of special-purpose
// addresses, and those of providers' metadata that are not among them.
var special4 = prefixes(
	"0.0.0.0/8",        // this network, and the unspecified address
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // shared by carriers (CGNAT)
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // metadata of Azure
	"169.254.0.0/16",   // link-local, and metadata of most providers
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocols, and metadata of Oracle
	"192.0.2.0/24",     // documentation
	"192.88.99.0/24",   // relays of 6to4
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarks
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and broadcast
)

// global6 is what of IPv6 is public, but for special6. All else is loopback, unspecified, link-local, unique
// local, multicast or reserved, or an IPv4 address in another form.
var global6 = netip.MustParsePrefix("2000::/3")

var special6 = prefixes(
	"2001::/23",     // protocols: Teredo, benchmarks, ORCHID
	"2001:db8::/32", // documentation
	"2002::/16",     // 6to4, which has an IPv4 address within
	"3fff::/20",     // documentation
)

// nat64 is how hosts with IPv6 alone reach IPv4 addresses, which are the last 32 bits.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(list ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(list))
	for i, s := range list {
		all[i] = netip.MustParsePrefix(s)
	}
	return all
}

// public reports whether an address is one of the public internet.
func public(a netip.Addr) bool {
	a = a.Unmap()
	if a.Is4() {
		return !within(a, special4)
	}
	if nat64.Contains(a) {
		b := a.As16()
		return public(netip.AddrFrom4([4]byte(b[12:])))
	}
	return a.Zone() == "" && global6.Contains(a) && !within(a, special6)
}

func within(a netip.Addr, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
