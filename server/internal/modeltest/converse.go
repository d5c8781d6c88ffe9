package modeltest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// errOver says that a stream ended before the server answered what was said on it.
var errOver = errors.New("the stream has ended")

// conversation is a stream in both directions: what a member says of messages, and its credits, go where the
// messages come from. Requests are numbered from 1, which is the attachment, and answered in their order.
type conversation struct {
	stream *connect.BidiStreamForClientSimple[topicv1.ConsumeBidiRequest, topicv1.ConsumeBidiResponse]
	ended  chan struct{} // closed when the stream is read to its end

	sending sync.Mutex // while a request gets its number and is sent
	mu      sync.Mutex
	sent    int64
	waiting []*spoken // by number
	// renews says that the server takes what is acknowledged as credits. Otherwise it gets new ones: granted is all
	// that it got, and got how many messages came.
	renews       bool
	granted, got int64
}

// spoken is a request that waits for its answer.
type spoken struct {
	number int64
	answer chan []*topicv1.Refusal
}

// send sends a request. A failure is of no interest: the reader finds out why the stream has ended.
func (c *conversation) send(req *topicv1.ConsumeBidiRequest, answer chan []*topicv1.Refusal) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	c.sent++
	if answer != nil {
		c.waiting = append(c.waiting, &spoken{c.sent, answer})
	}
	c.granted += req.GetCredits().GetMessages() + req.GetAttach().GetCredits().GetMessages()
	c.mu.Unlock()
	_ = c.stream.Send(req)
}

// say says something of messages, and waits for the answer.
func (c *conversation) say(
	ctx context.Context, kind settleKind, delay time.Duration, set []*topicv1.Positions,
) ([]*topicv1.Refusal, error) {
	req := &topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{Positions: set}}}
	switch kind {
	case ack:
	case nack:
		req.Body = &topicv1.ConsumeBidiRequest_Nack{
			Nack: &topicv1.NackSet{Positions: set, Delay: durationpb.New(delay), Reason: "no"}}
	case extend:
		req.Body = &topicv1.ConsumeBidiRequest_Extend{Extend: &topicv1.ExtendSet{Positions: set}}
	}
	answer := make(chan []*topicv1.Refusal, 1)
	c.send(req, answer)
	select {
	case refusals := <-answer:
		return refusals, nil
	case <-c.ended:
	case <-ctx.Done():
	}
	select {
	case refusals := <-answer: // it was the last of the stream
		return refusals, nil
	default:
		return nil, errOver
	}
}

// give gives credits to a server that does not take what is acknowledged as such; none for a stream in one direction,
// which has no conversation.
func (c *conversation) give(messages int64) {
	if c != nil && !c.renews {
		c.send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Credits{
			Credits: &topicv1.Credits{Messages: messages, Bytes: messages << 10}}}, nil)
	}
}

// settled passes an answer to all requests that it covers.
func (c *conversation) settled(a *topicv1.Settled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) > 0 && c.waiting[0].number <= a.GetRequests() {
		c.waiting[0].answer <- a.GetRefusals()
		c.waiting = c.waiting[1:]
	}
}

// converse is the life of a session that has one stream for everything.
func (m *member) converse() {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	call := m.stamp()
	stream, err := m.User.Consumers.ConsumeBidi(ctx)
	if err != nil {
		m.fails("ConsumeBidi", err)
		return
	}
	c := &conversation{stream: stream, ended: make(chan struct{}), renews: m.chance(2) == 0}
	c.send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{Attach: &topicv1.Attach{
		Topic: m.of.name, Group: m.group.name, RenewCredits: c.renews,
		Credits: &topicv1.Credits{Messages: int64(1 + m.chance(20))}}}}, nil)
	defer func() { _ = c.stream.CloseResponse() }()
	first, err := c.stream.Receive()
	switch {
	case err != nil:
		m.missed(call, err)
		m.fails("ConsumeBidi", err)
		return
	case first.GetAttached() == nil:
		m.find("stream: %s starts with %v", m.group.name, first)
		return
	}
	s := m.open(first.GetAttached().GetSession(), call)
	s.talk = c
	batches := make(chan []*delivery, 1000) // more than the credits
	go func() {
		defer close(c.ended)
		m.hear(s, batches)
	}()
	if m.handleAll(s, batches, c.ended) {
		m.leave(s, cancel)
	}
}

// leave ends a session that has a stream in both directions: by a call, or by saying nothing more, after which the
// server answers what was said and ends the stream.
func (m *member) leave(s *session, cancel func()) {
	if m.chance(2) == 0 {
		m.detach(s)
		cancel()
		<-s.talk.ended
		return
	}
	m.seen(s)
	m.over(s)
	_ = s.talk.stream.CloseRequest()
	select {
	case <-s.talk.ended:
		m.absent(s, true)
	case <-time.After(timeout):
		m.find("stream: that of a member of %s of %s does not end", m.group.name, m.of.name)
		cancel()
		<-s.talk.ended
	}
}

// hear reads a stream to its end.
func (m *member) hear(s *session, batches chan<- []*delivery) {
	c := s.talk
	var err error
	for {
		var res *topicv1.ConsumeBidiResponse
		if res, err = c.stream.Receive(); err != nil {
			break
		}
		if d := res.GetDelivery(); d != nil {
			batches <- m.receive(s, s.start, 0, []*topicv1.Delivery{d})
			c.mu.Lock()
			c.got += int64(len(d.GetMessages()))
			got, granted := c.got, c.granted
			c.mu.Unlock()
			if !c.renews && got > granted {
				m.find("credits: a member of %s of %s has given %d and got %d messages", m.group.name, m.of.name, granted, got)
			}
		}
		if a := res.GetSettled(); a != nil {
			c.settled(a)
		}
		if res.GetGone() != nil {
			m.absent(s, true)
			break
		}
		m.seen(s)
	}
	m.over(s)
	if err != nil && !errors.Is(err, io.EOF) && m.stop.Err() == nil {
		m.fails("ConsumeBidi", err)
	}
}
