package limit

import (
	"net/netip"
	"strings"
)

// everybody is the key of what an installation does.
const everybody = "all"

// Lengths of the networks of a client, and of those that one holder has at least.
const (
	client4, client6 = 32, 64
	network4         = 24
	network6         = 48
)

// KeyOf is the key of whom a rule counts by something, named by a text: an address or a network
// of any length stands for the one that is counted. It is empty for what is no address, where
// addresses are counted.
func KeyOf(by By, text string) string {
	switch by {
	case Address:
		return within(text, client4, client6)
	case Network:
		return within(text, network4, network6)
	case Installation:
		return everybody
	}
	return text
}

// within is the network of a length in which an address or a network is; empty for what is
// neither.
func within(text string, bits4, bits6 int) string {
	host, _, _ := strings.Cut(text, "/")
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	ip = ip.Unmap().WithZone("")
	bits := bits6
	if ip.Is4() {
		bits = bits4
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return ""
	}
	return p.String()
}
