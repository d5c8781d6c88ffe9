package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/wait"
)

// ErrClosed is the error of a publisher that was closed.
var ErrClosed = errors.New("topic: the publisher is closed")

var errShortAnswer = errors.New("topic: the answer has fewer results than the request has messages")

// PublisherConfig holds what can be chosen for a publisher. Everything has a default.
type PublisherConfig struct {
	// Producer is the name under which requests are numbered; a random one by default. Two
	// publishers of a topic must not share it at a time.
	Producer string
	// Number is that of the first request, 1 by default. Who keeps a name over a restart
	// continues with the number of the first request that was not answered, and repeats its
	// messages: what had been stored is not stored again.
	Number int64
	// Messages and bytes that are held until they are stored, 10,000 and 32 MiB by default.
	// Publish waits for room.
	BufferMessages, BufferBytes int
	// OnRestore, if given, is called before the next request when the server was put back to an earlier
	// copy of its data: messages that were stored may be gone. It must not wait for the publisher.
	OnRestore func()

	Log *slog.Logger // of what is tried again; none by default
}

// Publisher sends messages of one topic, in the order in which Publish is called. Messages
// that come while a request is under way go with the next one, up to 1,000 at a time.
type Publisher struct {
	client *Client
	topic  string
	cfg    PublisherConfig
	cancel context.CancelFunc
	done   chan struct{}

	restores int // of the server that run knows of

	mu      sync.Mutex
	buffer  buffer
	changed chan struct{} // closed and made again with each change of what follows
	closed  bool
}

// Publisher makes a publisher of a topic. It works until it is closed.
func (c *Client) Publisher(topic string, cfg PublisherConfig) (*Publisher, error) {
	if topic == "" || cfg.Number < 0 || cfg.BufferMessages < 0 || cfg.BufferBytes < 0 {
		return nil, errors.New("topic: a publisher needs a topic, and no negative numbers")
	}
	if cfg.Number > 1 && cfg.Producer == "" {
		return nil, errors.New("topic: a number continues that of a named producer")
	}
	cfg.Producer = cmp.Or(cfg.Producer, uuid.NewString())
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		client: c, topic: topic, cfg: cfg, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		restores: c.shown.restores(),
		buffer: buffer{maxMessages: cmp.Or(cfg.BufferMessages, 10_000), maxBytes: cmp.Or(cfg.BufferBytes, 32<<20),
			number: cmp.Or(cfg.Number, 1)},
	}
	go p.run(ctx)
	return p, nil
}

// Publish sends messages and returns once each is stored or refused: with a result for each,
// or with the error of the first one that is not stored. It waits while the buffer is full. If
// ctx ends meanwhile, what was taken is still sent. A message that no server takes is refused before
// any is sent.
func (p *Publisher) Publish(ctx context.Context, messages ...*Message) ([]*Result, error) {
	type outcome struct {
		i   int
		r   *Result
		err error
	}
	for _, m := range messages {
		if err := protovalidate.Validate(m); err != nil {
			return nil, fmt.Errorf("topic: %w", err)
		}
	}
	answers := make(chan outcome, len(messages))
	for i, m := range messages {
		if err := p.Enqueue(ctx, m, func(r *Result, err error) { answers <- outcome{i, r, err} }); err != nil {
			return nil, err
		}
	}
	results := make([]*Result, len(messages))
	var refused error
	for range messages { // after an error, too: what is still under way would be stored behind the caller's back
		select {
		case a := <-answers:
			refused = cmp.Or(refused, a.err)
			results[a.i] = a.r
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if refused != nil {
		return nil, refused
	}
	return results, nil
}

// Enqueue takes a message to be sent and calls done, which must not wait, once it is stored
// or refused. It waits while the buffer is full, until ctx ends.
func (p *Publisher) Enqueue(ctx context.Context, m *Message, done func(*Result, error)) error {
	e := newEntry(m, done)
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return ErrClosed
		}
		if p.buffer.hasRoom(e.size) {
			p.buffer.add(e)
			p.announce()
			p.mu.Unlock()
			return nil
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// announce wakes those who wait for a change. The caller holds mu.
func (p *Publisher) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Close refuses further messages and returns once all are stored or refused. If ctx ends
// before, it gives up: those that are left get ErrClosed, and may or may not be stored.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.announce()
	}
	p.mu.Unlock()
	defer p.cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.cancel()
		<-p.done
		return ctx.Err()
	}
}

// run sends one request after the other until the publisher is closed and nothing is left,
// or ctx ends.
func (p *Publisher) run(ctx context.Context) {
	defer close(p.done)
	for {
		p.mu.Lock()
		r, closed, changed := p.buffer.take(), p.closed, p.changed
		p.mu.Unlock()
		if r == nil {
			if closed {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			continue
		}
		r.answer(p.send(ctx, r))
		p.mu.Lock()
		p.buffer.release(r)
		p.announce()
		p.mu.Unlock()
	}
}

// send repeats a request until it is answered.
func (p *Publisher) send(ctx context.Context, r *request) ([]*Result, error) {
	message, again := r.message(p.topic, p.cfg.Producer), newRetry()
	for {
		if n := p.client.shown.restores(); n != p.restores {
			p.restores = n
			p.cfg.Log.Warn("topic: the server was put back to an earlier copy: what was published may be gone")
			if p.cfg.OnRestore != nil {
				p.cfg.OnRestore()
			}
		}
		results, err := p.try(ctx, message)
		if err == nil {
			return results, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w", ErrClosed, err)
		}
		v := again.failed(err)
		if v.final || v.renew && !p.client.renew(ctx) {
			return nil, err
		}
		p.cfg.Log.Warn("topic: not published yet", "error", err, "again_in", v.pause)
		_ = wait.For(ctx, v.pause) // the next try says that ctx has ended
	}
}

func (p *Publisher) try(ctx context.Context, message *topicv1.PublishRequest) ([]*Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := p.client.topics.Publish(ctx, message)
	return res.GetResults(), err
}
