package port

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/parley-chat/parley/server/loopback"
)

// Free finds out whether a port on loopback, host:port, can be had, because the broker
// does not say what is wrong with it. Port 0 is a free one; with fallback so is one that
// is in use.
func Free(listen string, fallback bool) (int, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return 0, fmt.Errorf("kafka listen address must be host:port, not %q", listen)
	}
	if !loopback.IsIP(host) {
		return 0, fmt.Errorf("the embedded Kafka endpoint listens on loopback only, not on %q", host)
	}
	if _, err := strconv.Atoi(port); err != nil {
		return 0, fmt.Errorf("kafka listen port %q", port)
	}
	l, err := loopback.Listen(context.Background(), listen, fallback)
	if err != nil {
		return 0, fmt.Errorf("listen for Kafka on %s: %w", listen, err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
