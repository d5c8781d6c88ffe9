package port_test

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/testkit"
)

// Beyond the bound, connections without a password make room; if all have shown it, a new one is refused,
// counted and logged. Connected readers stay, and a closed connection makes room.
func TestConnectionsBeyondTheBound(t *testing.T) {
	var said testkit.Log
	b := testkit.Value(kafka.OpenBroker(kafka.BrokerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0",
		Readers: password, Connections: 5, Logger: slog.New(slog.NewTextHandler(&said, nil))}))(t)
	t.Cleanup(b.Close)
	reader := func() *raw {
		c := newRaw(t, b)
		c.authenticate(t)
		testkit.Value(c.send(request(int16(kmsg.Metadata), 8)))(t)
		return c
	}
	var strangers []*raw
	for range 2 {
		strangers = append(strangers, newRaw(t, b))
	}
	var readers []*raw
	for range 5 {
		readers = append(readers, reader())
	}
	for _, c := range strangers {
		closed(t, c, 5*time.Second)
	}
	testkit.Equal(t, "connections", b.PortStats(), port.Stats{Open: 5, Evicted: 2})
	testkit.Equal(t, "lines", said.String(), "")
	for range 3 {
		c := testkit.Value(net.Dial("tcp", b.Addr()))(t)
		closed(t, c, 5*time.Second)
	}
	testkit.Equal(t, "connections beyond", b.PortStats(), port.Stats{Open: 5, Evicted: 2, Refused: 3})
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "kafka-connections") {
		t.Errorf("operators read %q, expected one line", text)
	}
	for _, c := range readers {
		testkit.Value(c.send(request(int16(kmsg.Metadata), 8)))(t)
	}
	_ = readers[0].Close()
	testkit.Eventually(t, "a connection is closed", func() bool { return b.PortStats().Open == 4 })
	reader()
}
