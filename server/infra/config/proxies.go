package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of proxies.
const (
	maxProxies       = 8 // one behind the other
	maxProxyNetworks = 100
)

// parseProxies takes a number of proxies, or their networks.
func parseProxies(s *Settings, value string) error {
	n, err := strconv.Atoi(value)
	if err == nil && (n < 0 || n > maxProxies) {
		return fmt.Errorf("must be 0 to %d, or networks, not %d", maxProxies, n)
	}
	if err == nil {
		s.Proxies = n
		return nil
	}
	for item := range strings.SplitSeq(value, ",") {
		network, err := parseNetwork(strings.TrimSpace(item))
		if err != nil {
			return fmt.Errorf("must be a number, or networks such as 10.0.0.0/8 with commas between them, not %.60q", item)
		}
		if network.Bits() == 0 {
			return fmt.Errorf("must not trust everybody, as %s does", network)
		}
		s.ProxyNetworks = append(s.ProxyNetworks, network)
	}
	if len(s.ProxyNetworks) > maxProxyNetworks {
		return fmt.Errorf("must be at most %d networks", maxProxyNetworks)
	}
	return nil
}

// parseNetwork reads a network, or an address as the network of itself.
func parseNetwork(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap().WithZone("")
		return ip.Prefix(ip.BitLen())
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err
}
