// Package loopback knows which addresses reach this machine only, and listens on them.
//
// It owns the one meaning of "this machine" in Parley; the packages that listen own the
// trust in such an address. Concurrency: its functions may be called by many goroutines.
package loopback

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// Is reports whether an address, with or without a port, is one of this machine only:
// localhost or an IP address of loopback.
func Is(addr string) bool {
	host := addr
	if h, _, err := net.SplitHostPort(addr); err == nil {
		host = h
	}
	return host == "localhost" || IsIP(host)
}

// IsIP reports whether a host is an IP address of loopback. A name is none: where it leads
// to is for others to say.
func IsIP(host string) bool {
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// Listen listens on a TCP address; with fallback, if its port is in use, on a free port of
// the same host. Errors say what is wrong with the address and do not repeat it.
func Listen(ctx context.Context, addr string, fallback bool) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && fallback {
		if host, _, splitErr := net.SplitHostPort(addr); splitErr == nil {
			l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
		}
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return l, err
}
