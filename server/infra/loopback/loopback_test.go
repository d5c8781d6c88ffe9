package loopback

import (
	"net"
	"testing"
)

func TestIs(t *testing.T) {
	for addr, want := range map[string]struct{ is, isIP bool }{
		"127.0.0.1": {true, true}, "127.9.9.9": {true, true}, "::1": {true, true}, "[::1]": {true, true},
		"::ffff:127.0.0.1": {true, true},
		"127.0.0.1:80":     {true, false}, "[::1]:80": {true, false}, "localhost": {true, false},
		"localhost:80": {true, false},
		"":             {}, ":80": {}, "0.0.0.0": {}, "[::]:80": {}, "10.0.0.1:80": {}, "localhost.example:80": {},
		"127.0.0.1.example": {},
	} {
		if Is(addr) != want.is || IsIP(addr) != want.isIP {
			t.Errorf("%q: %v, %v", addr, Is(addr), IsIP(addr))
		}
	}
}

// A port that is in use is an error, or stands for a free one of the same host.
func TestListen(t *testing.T) {
	first, err := Listen(t.Context(), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	addr := first.Addr().String()
	if _, err := Listen(t.Context(), addr, false); err == nil || err.Error() != "bind: address already in use" {
		t.Error(err)
	}
	second, err := Listen(t.Context(), addr, true)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if host, _, _ := net.SplitHostPort(second.Addr().String()); host != "127.0.0.1" || second.Addr().String() == addr {
		t.Error(second.Addr())
	}
}
