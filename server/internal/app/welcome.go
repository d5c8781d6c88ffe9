package app

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/internal/welcome"
)

// demoUsers are the users that a server in development creates, and whose tokens it prints.
// Elsewhere logs are collected, and anyone who reads the tokens there could sign in as a real
// person who has one of these ids.
func (p *program) demoUsers() []string {
	if !p.cfg.DemoUsers || !p.cfg.developing() {
		return nil
	}
	return []string{"alice", "bob"}
}

// welcome is what the page says of the server.
func (p *program) welcome() welcome.Server {
	return welcome.Server{Alone: !p.cfg.distributed(), Demo: p.demoUsers() != nil, Metrics: p.servesMetrics(),
		TLS: p.certificate != nil}
}

// printWelcome says where everything is, and how to try it.
func (p *program) printWelcome(stdout io.Writer, addr net.Addr) {
	if p.cfg.distributed() {
		fmt.Fprintf(stdout, "Parley is listening on %s%s\n", p.scheme(), addr)
		return
	}
	var b strings.Builder
	base := p.scheme() + localAddr(addr)
	fmt.Fprintf(&b, "Parley is listening on %s%s, data in %s\n", p.scheme(), addr, absolute(p.cfg.DataDir))
	p.printFull(&b)
	fmt.Fprintf(&b, "Open %s/ in a browser to chat, %[1]s/try for what is there, %[1]s/docs for the documents\n", base)
	fmt.Fprintf(&b, "Every change is on Kafka at %s\nIts schemas are in the registry at http://%s\n\n",
		p.backend.KafkaAddr(), p.registry)
	if users := p.demoUsers(); users != nil {
		p.printDemo(&b, base, users)
	}
	_, _ = io.WriteString(stdout, b.String()) // stdout may have no reader
}

// printFull says that writes are refused, if they are, and what helps.
func (p *program) printFull(b *strings.Builder) {
	d := p.backend.Disk()
	if !d.Full {
		return
	}
	fmt.Fprintf(b, "The disk of %s is nearly full: reads work, WRITES ARE REFUSED. %s are free, %s must be.\n"+
		"Free some space there: writes work again within seconds. --disk-reserve sets how much must be free.\n",
		d.Dir, size(d.Free), size(d.Reserve))
}

// size is a number of bytes for people.
func size(bytes uint64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%d MB", bytes>>20)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/(1<<30))
}

// printDemo says how to try it, with users whose tokens are printed.
func (p *program) printDemo(b *strings.Builder, base string, users []string) {
	fmt.Fprint(b, "Two users to try it with, their tokens are valid for a day:\n\n")
	for _, user := range users {
		t, err := p.key.Issue(user, time.Now(), tokenTTL)
		if err != nil {
			t = "(" + err.Error() + ")"
		}
		fmt.Fprintf(b, "  %s=%s\n", strings.ToUpper(user), t)
	}
	welcome.Steps(b, base)
	fmt.Fprintln(b)
}

// absolute returns the full path of a directory, for a reader who does not know where the
// program was started.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// localAddr is an address to reach a listener at from this machine: one that listens
// on all of its addresses has no address of its own.
func localAddr(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}
