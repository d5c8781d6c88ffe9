package topicrpc_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic"
)

func (w *fixture) slotOf(name string) int { return topic.SlotOf(name, slots) }

// load publishes to a topic, one message after the other, and consumes it.
type load struct {
	server *server
	topic  string

	mu        sync.Mutex
	published int            // messages that are answered: 0 to it
	received  map[string]int // by payload
	stored    map[int64]bool // positions that answers said
}

// publish publishes until ctx ends. Each message is repeated until it is answered.
func (l *load) publish(ctx context.Context) {
	for ctx.Err() == nil {
		one, done := context.WithTimeout(ctx, 15*time.Second)
		res, err := publish(one, l.server, l.topic, fmt.Sprint(l.published), &topicv1.Producer{Id: "p",
			Number: int64(l.published + 1)})
		done()
		if err == nil {
			l.mu.Lock()
			l.published++
			l.stored[res.GetResults()[0].GetPosition()] = true
			l.mu.Unlock()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// consume receives and acknowledges until ctx ends, and attaches again when its stream does.
func (l *load) consume(ctx context.Context) {
	for ctx.Err() == nil {
		l.attend(ctx)
		time.Sleep(50 * time.Millisecond)
	}
}

// drain consumes until all has come that was published.
func (l *load) drain(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.consume(ctx)
	}()
	for ctx.Err() == nil {
		l.mu.Lock()
		missing := 0
		for n := range l.published {
			if l.received[fmt.Sprint(n)] == 0 {
				missing++
			}
		}
		l.mu.Unlock()
		if missing == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	<-done
}

func (l *load) attend(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.server.consumers("maker").Consume(ctx, &topicv1.ConsumeRequest{Attach: &topicv1.Attach{
		Topic: l.topic, Group: "g", RenewCredits: true}})
	if err != nil {
		return
	}
	defer stream.Close()
	session := ""
	for stream.Receive() {
		if a := stream.Msg().GetAttached(); a != nil {
			session = a.GetSession()
		}
		d := stream.Msg().GetDelivery()
		if d == nil {
			continue
		}
		l.mu.Lock()
		for _, m := range d.GetMessages() {
			l.received[string(m.GetPayload())]++
		}
		l.mu.Unlock()
		set := &topicv1.AckSet{Positions: []*topicv1.Positions{{Partition: d.GetPartition(), Base: d.GetBase(),
			Count: int64(len(d.GetMessages()))}}}
		if len(d.GetOffsets()) > 0 {
			set.Positions = nil
			for _, o := range d.GetOffsets() {
				set.Positions = append(set.Positions, &topicv1.Positions{Partition: d.GetPartition(), Base: d.GetBase() + int64(o)})
			}
		}
		_, _ = l.server.consumers("maker").Ack(ctx, &topicv1.AckRequest{Session: session, Set: set})
	}
}
