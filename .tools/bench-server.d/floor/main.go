// Floor measures what a send costs on this machine before a chat server has done anything: a process reads 300 bytes from
// a connection, appends them to a file, syncs it, answers, and hands them to a goroutine for each member, which writes
// them to a connection of its own. No protocol, no store, no second log.
//
//	floor RATE MEMBERS DURATION DIR     prints {"server CPU": µs per send, "delivery p50": ms}
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const size = 300 // bytes of a message

func main() {
	log.SetFlags(0)
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serve(os.Args[2])
		return
	}
	if len(os.Args) != 5 {
		log.Fatal("usage: floor RATE MEMBERS DURATION DIR")
	}
	rate, err := strconv.Atoi(os.Args[1])
	check(err)
	members, err := strconv.Atoi(os.Args[2])
	check(err)
	d, err := time.ParseDuration(os.Args[3])
	check(err)
	server := exec.Command(os.Args[0], "serve", os.Args[4])
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	check(err)
	check(server.Start())
	defer server.Process.Kill()
	addr, err := bufio.NewReader(out).ReadString('\n')
	check(err)
	l := load{addr: addr[:len(addr)-1], got: make(chan time.Time, members)}
	for range members {
		go l.receive(l.dial('r'))
	}
	cpu, sender := l.dial('c'), l.dial('s')
	l.send(sender, rate, members, rate) // a second to warm up
	before := ask(cpu)
	n := int(float64(rate) * d.Seconds())
	took := l.send(sender, rate, members, n)
	used := ask(cpu) - before
	slices.Sort(took)
	check(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"server CPU": used.Seconds() * 1e6 / float64(n), "delivery p50": took[len(took)/2].Seconds() * 1e3,
	}))
}

type load struct {
	addr string
	got  chan time.Time // when each member had the message
}

// dial connects as a receiver, a sender or one who asks for the processor time.
func (l *load) dial(role byte) net.Conn {
	c, err := net.Dial("tcp", l.addr)
	check(err)
	_, err = c.Write([]byte{role})
	check(err)
	_, err = io.ReadFull(c, make([]byte, 1))
	check(err)
	return c
}

func (l *load) receive(c net.Conn) {
	for b := make([]byte, size); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		l.got <- time.Now()
	}
}

// send returns how long each message took to each member. It counts from the write: a plain sleep ends up to a
// millisecond late, which the load test avoids with a clock of its own, and messages never wait for each other here.
func (l *load) send(c net.Conn, rate, members, n int) []time.Duration {
	var took []time.Duration
	start := time.Now()
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		sent := time.Now()
		_, err := c.Write(make([]byte, size))
		check(err)
		for range members {
			took = append(took, (<-l.got).Sub(sent))
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		check(err)
	}
	return took
}

func ask(c net.Conn) time.Duration {
	_, err := c.Write([]byte{0})
	check(err)
	var us int64
	_, err = fmt.Fscanln(c, &us)
	check(err)
	return time.Duration(us) * time.Microsecond
}

// serve is the process that is measured.
func serve(dir string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	file, err := os.CreateTemp(dir, "floor")
	check(err)
	check(os.Remove(file.Name()))
	fmt.Println(listener.Addr())
	var (
		mu      sync.Mutex
		members []chan []byte
	)
	for {
		c, err := listener.Accept()
		check(err)
		role := make([]byte, 1)
		_, err = io.ReadFull(c, role)
		check(err)
		if role[0] == 'r' {
			mailbox := make(chan []byte, 16)
			mu.Lock()
			members = append(members, mailbox)
			mu.Unlock()
			go func() {
				for m := range mailbox {
					_, _ = c.Write(m)
				}
			}()
		}
		_, err = c.Write(role)
		check(err)
		switch role[0] {
		case 's':
			go func() {
				for {
					m := make([]byte, size)
					if _, err := io.ReadFull(c, m); err != nil {
						return
					}
					_, err := file.Write(m)
					check(err)
					check(syscall.Fdatasync(int(file.Fd())))
					_, _ = c.Write(m[:1])
					mu.Lock()
					for _, mailbox := range members {
						mailbox <- m
					}
					mu.Unlock()
				}
			}()
		case 'c':
			go func() {
				for {
					if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
						return
					}
					var r syscall.Rusage
					check(syscall.Getrusage(syscall.RUSAGE_SELF, &r))
					fmt.Fprintln(c, (r.Utime.Nano()+r.Stime.Nano())/1000)
				}
			}()
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
