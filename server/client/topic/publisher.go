package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
)

// ErrClosed is the error of a publisher that was closed.
var ErrClosed = errors.New("topic: the publisher is closed")

// ErrReplayed is the error of messages of which the server says that an earlier request had stored
// them, although the publisher had sent none: another process has the publisher's random name. A
// copy of a process that was stopped has it, for example from a snapshot of its machine.
var ErrReplayed = errors.New("topic: another publisher has used the number of this request")

var errShortAnswer = errors.New("topic: the answer has fewer results than the request has messages")

// PublisherConfig holds what can be chosen for a publisher. Everything has a default.
type PublisherConfig struct {
	// Producer begins the name under which requests are numbered, up to 91 bytes. Each publisher
	// adds a random part of its own, so that it never repeats the numbers of another one: of an
	// earlier process, or of one that runs at the same time with the same configuration.
	Producer string
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
	client   *Client
	topic    string
	producer string // its own
	cfg      PublisherConfig
	cancel   context.CancelFunc
	done     chan struct{}

	restores int // of the server that run knows of

	mu      sync.Mutex
	buffer  buffer
	changed chan struct{} // closed and made again with each change of what follows
	closed  bool
}

// maxProducer leaves room for the random part of a name, which has up to 128 bytes.
const maxProducer = 128 - 1 - 36

// Publisher makes a publisher of a topic. It works until it is closed.
func (c *Client) Publisher(topic string, cfg PublisherConfig) (*Publisher, error) {
	if topic == "" || cfg.BufferMessages < 0 || cfg.BufferBytes < 0 {
		return nil, errors.New("topic: a publisher needs a topic, and no negative numbers")
	}
	if len(cfg.Producer) > maxProducer {
		return nil, fmt.Errorf("topic: the producer's name has %d bytes, more than %d", len(cfg.Producer), maxProducer)
	}
	producer := uuid.NewString()
	if cfg.Producer != "" {
		producer = cfg.Producer + "-" + producer
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		client: c, topic: topic, producer: producer, cfg: cfg, cancel: cancel,
		done: make(chan struct{}), changed: make(chan struct{}),
		restores: c.shown.restores(),
		buffer: buffer{maxMessages: cmp.Or(cfg.BufferMessages, 10_000), maxBytes: cmp.Or(cfg.BufferBytes, 32<<20),
			number: 1},
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
	for range messages { // after an error, too: messages still under way would be stored without the caller's knowledge
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

// announce wakes the goroutines that wait for a change. The caller holds mu.
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
		p.deliver(ctx, r)
		p.mu.Lock()
		p.buffer.release(r)
		p.announce()
		p.mu.Unlock()
	}
}

// ErrUncertain says that a message with a deduplication_id was not answered for so long that the server may not know
// its id any more. It is stored, or not: a repetition may store it twice.
var ErrUncertain = errors.New("topic: it is not known whether the message is stored, and its id may be forgotten")

// forOne reports whether a request is refused for one of its messages, which is not as the topic's schema says, or
// whose id another message has. None of them is stored.
func forOne(err error) bool {
	return Reason(err) == "SCHEMA_MISMATCH" || Reason(err) == "DEDUPLICATION_ID_REUSED"
}

// deliver sends a request and answers its messages. They may be of callers that know nothing of each
// other, so of a request that is refused for one of them the halves are sent, one after the other, until
// that message is alone. The first half has the number of the whole: should an earlier try be stored after
// all, it is refused, and not stored twice.
func (p *Publisher) deliver(ctx context.Context, r *request) {
	results, err := p.send(ctx, r)
	if len(r.entries) == 1 || !forOne(err) {
		r.answer(results, err)
		return
	}
	half := len(r.entries) / 2
	p.deliver(ctx, &request{r.number, r.entries[:half]})
	p.mu.Lock()
	rest := p.buffer.numbered(r.entries[half:])
	p.mu.Unlock()
	p.deliver(ctx, rest)
}

// send repeats a request until it is answered.
func (p *Publisher) send(ctx context.Context, r *request) ([]*Result, error) {
	message, again, began := r.message(p.topic, p.producer), newRetry(), time.Now()
	for first := true; ; first = false {
		if n := p.client.shown.restores(); n != p.restores {
			p.restores = n
			p.cfg.Log.Warn("topic: the server was put back to an earlier copy: what was published may be gone")
			if p.cfg.OnRestore != nil {
				p.cfg.OnRestore()
			}
		}
		results, err := p.try(ctx, message)
		if err == nil && first && r.number != 0 && slices.ContainsFunc(results, (*Result).GetReplayed) {
			err = ErrReplayed // final: the messages may be another process's
			p.cfg.Log.Error("topic: not published", "error", err, "producer", p.producer, "number", r.number)
			return nil, err
		}
		if err == nil {
			return results, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w", ErrClosed, err)
		}
		v := again.failed(err)
		if r.uncertain(time.Since(began) + v.pause) {
			return nil, fmt.Errorf("%w: %w", ErrUncertain, err)
		}
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
