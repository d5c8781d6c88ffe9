package egress

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// maxAllowed bounds the list of what is allowed.
const maxAllowed = 100

// Allowed is what operators allow beyond public addresses: networks, and hosts with all their addresses.
type Allowed struct {
	networks []netip.Prefix
	hosts    map[string]bool // HOST, or HOST:PORT
}

var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_-]{1,63})*$`)

// ParseAllowed reads a list of networks (10.1.0.0/16) and hosts (hooks.internal, hooks.internal:8080,
// 127.0.0.1:9000, [::1]:9000).
func ParseAllowed(list []string) (Allowed, error) {
	a := Allowed{hosts: map[string]bool{}}
	if len(list) > maxAllowed {
		return a, fmt.Errorf("must be at most %d hosts and networks", maxAllowed)
	}
	for _, item := range list {
		item = strings.TrimSpace(item)
		if strings.Contains(item, "/") {
			p, err := netip.ParsePrefix(item)
			if err != nil || p.Addr().Zone() != "" || p.Addr().Is4In6() {
				return a, fmt.Errorf("%.100q is not a network such as 10.1.0.0/16", item)
			}
			a.networks = append(a.networks, p.Masked())
			continue
		}
		host, port := item, ""
		if h, p, err := net.SplitHostPort(item); err == nil {
			host, port = h, p
			if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
				return a, fmt.Errorf("%.100q has a port that is not one", item)
			}
		}
		host = canonical(strings.Trim(host, "[]"))
		if _, err := netip.ParseAddr(host); err != nil && (len(host) > 253 || !hostName.MatchString(host)) {
			return a, fmt.Errorf("%.100q is neither a host, such as hooks.internal:8080, "+
				"nor a network, such as 10.1.0.0/16", item)
		}
		a.hosts[withPort(host, port)] = true
	}
	return a, nil
}

// canonical is the form in which hosts are compared.
func canonical(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

func withPort(host, port string) string {
	if port == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}

// host reports whether a host is named, with this port or with any.
func (a Allowed) host(host, port string) bool { return a.hosts[host] || a.hosts[withPort(host, port)] }
