// Package client is the reference client in Go: a [device.Machine] over Connect
// connections.
//
// It owns connections, goroutines and the bearer token. All rules of what is
// applied, requested and stored are the Machine's. Tests, the load tool and
// users' programs use this client; it knows the server by its contracts only.
//
// # Concurrency
//
// A Client is safe for concurrent use. [Client.Run] does the work and must run for anything
// to happen; requests made before it begins are carried out then. The Machine is guarded by
// one mutex, which is held across no call.
package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/client/device"
	commits "github.com/parley-chat/parley/server/history"
)

// callTimeout ends a unary call.
const callTimeout = 30 * time.Second

// Config sets up a Client. BaseURL, UserID and Token are required.
type Config struct {
	BaseURL string
	UserID  string
	// Token returns the bearer token; with renew, another one than before, which
	// was refused or ends soon. An error with connect.CodeUnauthenticated or
	// connect.CodePermissionDenied stops the client; others are retried after a wait. It is
	// called on goroutines of the client, where a panic ends the program. It must
	// return when ctx ends: Run waits for it.
	Token func(ctx context.Context, renew bool) (string, error)

	HTTP    connect.HTTPClient     // http.DefaultClient by default
	Options []connect.ClientOption // protocol, codec and so on
	Storage device.Storage         // memory by default
	// OnEvent receives what happened, in order, on the goroutine of Run. It may call
	// the Client. It must not wait: until it returns, nothing is stored, sent or
	// acknowledged. A panic, here or in Storage, reaches the caller of Run, which may
	// call Run again; the events that followed in the same step are lost.
	OnEvent func(device.Event)

	Rand func() float64 // in [0, 1), for waits
}

// StoppedError is why Run ended by itself: the session was ended, or another stream
// replaced this one. Run may be called again.
type StoppedError struct{ Why *device.Failure }

// Error names the reason.
func (e *StoppedError) Error() string { return "client: stopped: " + e.Why.Error() }

// Client is one device of one user.
type Client struct {
	cfg      Config
	chats    chatv1connect.ChatServiceClient
	messages messagev1connect.MessageServiceClient
	delivery deliveryv1connect.DeliveryServiceClient
	tokens   *bearer.Tokens
	wake     chan struct{} // capacity 1

	mu      sync.Mutex
	machine *device.Machine
	streams map[int64]context.CancelFunc // by Subscribe call
	stopped *device.Failure
}

// Dial makes a Client from what its Storage holds. It connects to nothing yet.
func Dial(cfg Config) (*Client, error) {
	if cfg.BaseURL == "" || cfg.UserID == "" || cfg.Token == nil {
		return nil, errors.New("client: base URL, user id and token source are required")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = http.DefaultClient
	}
	if cfg.Storage == nil {
		cfg.Storage = &Memory{}
	}
	if cfg.OnEvent == nil {
		cfg.OnEvent = func(device.Event) {}
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	snapshot, err := cfg.Storage.Load()
	if err != nil {
		return nil, fmt.Errorf("client: load: %w", err)
	}
	c := &Client{cfg: cfg, tokens: bearer.New(cfg.Token), wake: make(chan struct{}, 1),
		streams: map[int64]context.CancelFunc{}}
	c.machine = device.New(device.Config{UserID: cfg.UserID, Clock: time.Now, Rand: cfg.Rand, NewID: uuid.NewString},
		snapshot)
	options := append([]connect.ClientOption{connect.WithInterceptors(c.tokens)}, cfg.Options...)
	c.chats = chatv1connect.NewChatServiceClient(cfg.HTTP, cfg.BaseURL, options...)
	c.messages = messagev1connect.NewMessageServiceClient(cfg.HTTP, cfg.BaseURL, options...)
	c.delivery = deliveryv1connect.NewDeliveryServiceClient(cfg.HTTP, cfg.BaseURL, options...)
	return c, nil
}

// Chats is the generated client for creating chats and changing their members,
// with the device's bearer token. [Client.Create] creates a chat that the device knows at once.
func (c *Client) Chats() chatv1connect.ChatServiceClient { return c.chats }

// Open has a chat's messages and members loaded and kept up to date.
func (c *Client) Open(chatID string) { c.do(func(m *device.Machine) { m.Open(chatID) }) }

// Evict drops a chat's messages from the device.
func (c *Client) Evict(chatID string) { c.do(func(m *device.Machine) { m.Evict(chatID) }) }

// LoadOlder has the page of messages before those at hand loaded.
func (c *Client) LoadOlder(chatID string) { c.do(func(m *device.Machine) { m.LoadOlder(chatID) }) }

// MarkRead says that the user has read a chat up to a sequence.
func (c *Client) MarkRead(chatID string, sequence int64) {
	c.do(func(m *device.Machine) { m.MarkRead(chatID, sequence) })
}

// Create creates a chat and adds it to those of the device.
func (c *Client) Create(ctx context.Context, req *chatv1.CreateChatRequest) (*chatv1.ChatOverview, error) {
	ctx, info := connect.NewClientContext(ctx)
	res, err := c.chats.CreateChat(ctx, req)
	if err != nil {
		return nil, err
	}
	said := info.ResponseHeader().Get(commits.Header)
	c.do(func(m *device.Machine) { m.Learn(res.GetOverview(), said) })
	return res.GetOverview(), nil
}

// Send queues a message, which is stored and then sent until the server confirms
// or refuses it, and returns its client_message_id.
func (c *Client) Send(chatID, content string) (id string) {
	c.do(func(m *device.Machine) { id = m.Send(chatID, content) })
	return id
}

// View returns a chat as the device knows it.
func (c *Client) View(chatID string) (v device.View, ok bool) {
	c.locked(func(m *device.Machine) { v, ok = m.View(chatID) })
	return v, ok
}

// List returns the ids of the user's chats.
func (c *Client) List() (ids []string) {
	c.locked(func(m *device.Machine) { ids = m.Chats() })
	return ids
}

// Outbox returns the messages that the server has not confirmed.
func (c *Client) Outbox() (out []device.OutboxEntry) {
	c.locked(func(m *device.Machine) { out = m.Outbox() })
	return out
}

func (c *Client) locked(f func(*device.Machine)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.machine)
}

func (c *Client) do(f func(*device.Machine)) {
	c.locked(f)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run connects and keeps the device up to date until ctx ends. It returns the
// context's error, a *StoppedError, or an error of the Storage.
func (c *Client) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	c.mu.Lock()
	if c.stopped != nil {
		c.stopped = nil
		c.machine.Resume()
	}
	c.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, err := c.step(ctx, &wg)
		if err != nil {
			return err
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// step stores what the machine has to store, starts its calls, and returns how long
// there will be none without news.
func (c *Client) step(ctx context.Context, wg *sync.WaitGroup) (time.Duration, error) {
	c.mu.Lock()
	batch, calls := c.machine.Take()
	events := c.machine.Events()
	wait := time.Hour
	if at, ok := c.machine.Deadline(); ok {
		wait = max(time.Until(at), time.Millisecond)
	}
	c.mu.Unlock()
	if !batch.Empty() {
		if err := c.cfg.Storage.Store(&batch); err != nil {
			return 0, fmt.Errorf("client: store: %w", err)
		}
	}
	for _, call := range calls {
		switch call.Kind {
		case device.CloseStream:
			c.locked(func(*device.Machine) {
				if end := c.streams[call.Stream]; end != nil {
					end()
				}
			})
		case device.Subscribe:
			ctx, end := context.WithCancel(ctx)
			c.locked(func(*device.Machine) { c.streams[call.ID] = end })
			wg.Go(func() { c.subscribe(ctx, call) })
		default:
			wg.Go(func() {
				ctx, info := withHistory(ctx, call)
				res, err := c.call(ctx, call)
				history := info.ResponseHeader().Get(commits.Header)
				c.do(func(m *device.Machine) { m.Result(call.ID, res, history, failure(err)) })
			})
		}
	}
	var stopped *device.Failure
	for _, e := range events {
		if e.Stopped != nil {
			stopped = e.Stopped
			c.locked(func(*device.Machine) { c.stopped = stopped })
		}
		c.cfg.OnEvent(e)
	}
	if stopped != nil {
		return 0, &StoppedError{stopped}
	}
	return wait, nil
}

func withHistory(ctx context.Context, call device.Call) (context.Context, connect.CallInfo) {
	ctx, info := connect.NewClientContext(ctx)
	if call.History != "" {
		info.RequestHeader().Set(commits.Header, call.History)
	}
	return ctx, info
}

func (c *Client) subscribe(ctx context.Context, call device.Call) {
	err := c.receive(ctx, call)
	c.do(func(m *device.Machine) {
		c.streams[call.ID]()
		delete(c.streams, call.ID)
		m.StreamEnded(call.ID, failure(err))
	})
}

func (c *Client) receive(ctx context.Context, call device.Call) error {
	req, _ := call.Request.(*deliveryv1.SubscribeRequest)
	ctx, _ = withHistory(ctx, call)
	stream, err := c.delivery.Subscribe(ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		// A copy: the stream reuses its message.
		res := proto.CloneOf(stream.Msg())
		c.do(func(m *device.Machine) { m.Frames(call.ID, res) })
	}
	return stream.Err()
}

func (c *Client) call(ctx context.Context, call device.Call) (proto.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch r := call.Request.(type) {
	case *deliveryv1.SyncRequest:
		return answer(c.delivery.Sync(ctx, r))
	case *deliveryv1.AckRequest:
		return answer(c.delivery.Ack(ctx, r))
	case *deliveryv1.ExtendRequest:
		if _, err := c.tokens.Token(ctx, true); err != nil {
			return nil, err
		}
		return answer(c.delivery.Extend(ctx, r))
	case *chatv1.GetChatRequest:
		return answer(c.chats.GetChat(ctx, r))
	case *chatv1.ListMembersRequest:
		return answer(c.chats.ListMembers(ctx, r))
	case *messagev1.ListMessagesRequest:
		return answer(c.messages.ListMessages(ctx, r))
	case *messagev1.ListChangesRequest:
		return answer(c.messages.ListChanges(ctx, r))
	case *messagev1.SendMessageRequest:
		return answer(c.messages.SendMessage(ctx, r))
	case *messagev1.MarkReadRequest:
		return answer(c.messages.MarkRead(ctx, r))
	}
	_, err := c.tokens.Token(ctx, true) // device.Refresh
	return nil, err
}

// answer keeps a nil response from becoming a message.
func answer[M proto.Message](res M, err error) (proto.Message, error) {
	if err != nil {
		return nil, err
	}
	return res, nil
}

// failure is why a call failed, for a Machine.
func failure(err error) *device.Failure {
	if err == nil {
		return nil
	}
	f := &device.Failure{Code: connect.CodeOf(err), Err: err}
	if noToken := new(bearer.SourceError); errors.As(err, &noToken) {
		f.Code = connect.CodeUnauthenticated // the server has not refused what the call does
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		for _, d := range ce.Details() {
			v, err := d.Value()
			if err != nil {
				continue
			}
			switch v := v.(type) {
			case *errdetails.ErrorInfo:
				f.Reason = v.GetReason()
			case *errdetails.RetryInfo:
				f.RetryAfter = v.GetRetryDelay().AsDuration()
			}
		}
	}
	return f
}
