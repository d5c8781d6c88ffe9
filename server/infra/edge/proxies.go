package edge

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are what stands between clients and the server and adds to X-Forwarded-For whom it
// was called by. The zero value is none: then the header means nothing.
type Proxies struct {
	// Count is how many stand one behind the other.
	Count int
	// Networks are where they are, in place of Count.
	Networks []netip.Prefix
}

// Any reports whether there are proxies.
func (p Proxies) Any() bool { return p.Count > 0 || len(p.Networks) > 0 }

// forwarded is the header to which proxies add the address of whom they serve.
const forwarded = "X-Forwarded-For"

// Client is the network of the client: behind proxies the address that the outermost of them
// added, before which the client's own word stands. Where there are none, or none has added an
// address, it is the peer of the connection, which has come past them. It is the zero Prefix
// for this machine.
func (p Proxies) Client(r *http.Request) netip.Prefix {
	list := strings.Split(strings.Join(r.Header.Values(forwarded), ","), ",")
	if len(p.Networks) > 0 {
		return p.beyond(r.RemoteAddr, list)
	}
	if p.Count > 0 && len(list) >= p.Count {
		if ip := parseAddress(list[len(list)-p.Count]); ip.IsValid() {
			return network(ip)
		}
	}
	return direct(parseAddress(r.RemoteAddr))
}

// direct is the network of the peer of a connection; the zero Prefix for this machine.
func direct(ip netip.Addr) netip.Prefix {
	if ip.IsLoopback() {
		return netip.Prefix{}
	}
	return network(ip)
}

// beyond walks from the peer to the client while whom it meets is a proxy. A text that is no
// address was added by none of them.
func (p Proxies) beyond(peer string, list []string) netip.Prefix {
	last := parseAddress(peer)
	through := false
	for _, text := range slices.Backward(list) {
		if !p.trusts(last) {
			break
		}
		next := parseAddress(text)
		if !next.IsValid() {
			break
		}
		last, through = next, true
	}
	if through {
		return network(last)
	}
	return direct(last)
}

func (p Proxies) trusts(ip netip.Addr) bool {
	return slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(ip) })
}

// parseAddress reads an address, with a port as some proxies add one, or without.
func parseAddress(text string) netip.Addr {
	text = strings.TrimSpace(text)
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	ip, _ := netip.ParseAddr(strings.Trim(text, "[]")) // not valid: no address
	return ip.Unmap().WithZone("")
}

type addressKey struct{}

// Address is the network of the client that a request comes from: behind proxies whom they
// name, else the peer of the connection. It is the zero Prefix for this machine.
func Address(ctx context.Context) netip.Prefix {
	if client, ok := ctx.Value(addressKey{}).(netip.Prefix); ok {
		return client
	}
	if c, ok := ctx.Value(connKey{}).(*Conn); ok && c != nil {
		return c.from
	}
	return netip.Prefix{}
}
