package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// serve runs a server of NATS until it is killed, and prints where it listens.
func serve(dir string, sync bool) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		SyncAlways: sync, NoSigs: true, JetStreamMaxMemory: 1 << 30, JetStreamMaxStore: 64 << 30})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		fmt.Fprintln(os.Stderr, "not ready")
		os.Exit(1)
	}
	fmt.Println(s.ClientURL())
	s.WaitForShutdown()
}

// jetStream is a server of NATS with a stream in files; a group is a durable consumer that acknowledges explicitly.
type jetStream struct {
	process
	sync bool
	url  string
}

func (s *jetStream) start(ctx context.Context, dir string) error {
	mode := "async"
	if s.sync {
		mode = "sync"
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.cmd = exec.CommandContext(ctx, program, "serve", dir, mode)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	s.url = strings.TrimSpace(line)
	return err
}

// connect opens a connection of its own.
func (s *jetStream) connect() (jetstream.JetStream, error) {
	c, err := nats.Connect(s.url)
	if err != nil {
		return nil, err
	}
	return jetstream.New(c, jetstream.WithPublishAsyncMaxPending(2*batch))
}

func (s *jetStream) prepare(ctx context.Context, groups int) error {
	js, err := s.connect()
	if err != nil {
		return err
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "bench", Subjects: []string{"bench"},
		Storage: jetstream.FileStorage})
	for g := 0; g < groups && err == nil; g++ {
		_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: fmt.Sprint("g", g),
			AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 2 * maxAhead})
	}
	return err
}

// publisher has a batch under way at a time, whose messages are acknowledged one by one.
func (s *jetStream) publisher(int) func(context.Context, [][]byte) error {
	js, err := s.connect()
	return func(ctx context.Context, payloads [][]byte) error {
		if err != nil {
			return err
		}
		acks := make([]jetstream.PubAckFuture, len(payloads))
		for i, p := range payloads {
			var err error
			if acks[i], err = js.PublishAsync("bench", p); err != nil {
				return err
			}
		}
		for _, a := range acks {
			select {
			case <-a.Ok():
			case err := <-a.Err():
				return err
			case <-time.After(30 * time.Second):
				return errors.New("no answer to a publish")
			}
		}
		return nil
	}
}

func (s *jetStream) consume(ctx context.Context, group int, handle func([]byte)) error {
	js, err := s.connect()
	if err != nil {
		return err
	}
	c, err := js.Consumer(ctx, "bench", fmt.Sprint("g", group))
	if err != nil {
		return err
	}
	running, err := c.Consume(func(m jetstream.Msg) {
		handle(m.Data())
		_ = m.Ack() // one that is lost has the message come again, which is counted
	}, jetstream.PullMaxMessages(maxAhead))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, running.Stop)
	return nil
}
