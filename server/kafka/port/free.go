package port

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Free finds out whether a port on loopback, host:port, can be had, because the broker
// does not say what is wrong with it. Port 0 is a free one; with fallback so is one that
// is in use.
func Free(listen string, fallback bool) (int, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return 0, fmt.Errorf("kafka listen address must be host:port, not %q", listen)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return 0, fmt.Errorf("the embedded Kafka endpoint listens on loopback only, not on %q", host)
	}
	if _, err := strconv.Atoi(port); err != nil {
		return 0, fmt.Errorf("kafka listen port %q", port)
	}
	l, err := net.Listen("tcp", listen)
	if errors.Is(err, syscall.EADDRINUSE) && fallback {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return 0, fmt.Errorf("listen for Kafka on %s: %w", listen, err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
