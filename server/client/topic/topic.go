// Package topic is the client of durable topics in Go: a [Publisher] that sends each message
// until it is stored, once, and a [Consumer] that has handlers called for the messages of a
// group and acknowledges what they have handled.
//
// client, err := topic.Dial(topic.Config{BaseURL: "https://chat.example.com", Token: token})
// publisher, err := client.Publisher("orders", topic.PublisherConfig{})
// results, err := publisher.Publish(ctx, &topic.Message{Key: "order-1", Payload: payload})
//
// consumer, err := client.Consumer("orders", "billing", topic.ConsumerConfig{Handler: bill})
// err = consumer.Run(ctx) // until ctx ends, then finishes what it has begun
//
// It owns connections, retries and the order of a key's messages within a consumer. It knows the
// server by its contracts only. The server decides what a message is, where a group begins and when a
// message is delivered again.
//
// # Guarantees
//
// Publish returns a message's id once the message is on stable storage. A request whose
// answer was lost is repeated under the same number and stored once.
//
// A message is handled at least once. A handler that returns nil has it acknowledged; after
// an error, a crash or a lost connection it is delivered again, to this consumer or another
// one of the group. A message that comes again while its handler runs is not handled twice.
//
// A server can be put back to an earlier copy of its data. Then what was published or acknowledged
// after the copy was made is gone, and other messages come to stand at the same positions. Publishers
// and consumers notice it, call OnRestore if they have one, and continue with what the server has.
//
// # Concurrency
//
// Client and Publisher are safe for concurrent use. Handlers are called by as many as
// [ConsumerConfig] says, for one message of a key at a time.
package topic

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/history"
)

// Message is what is published and delivered.
type Message = topicv1.TopicMessage

// Queue is the group of a topic that is a queue.
const Queue = "$queue"

// Config says which server to use, and as whom. BaseURL and Token are required.
type Config struct {
	BaseURL string
	// Token returns the bearer token; with renew, another one than before, which was refused
	// or ends soon.
	Token bearer.Source
	// HTTP makes the calls; by default a client of its own that speaks HTTP/2, also without
	// TLS. One that speaks HTTP/1.1 will do, at one more call for each acknowledgement.
	HTTP    connect.HTTPClient
	Options []connect.ClientOption // protocol, codec and so on
	// History is what [Client.History] returned when the positions, ids and numbers were saved that
	// the program has from an earlier run. If the server was put back to a copy from before that, the
	// first call is refused with the reason HISTORY_CHANGED, or OnRestore is called.
	History string
}

// Client is a connection to a server.
type Client struct {
	tokens        *bearer.Tokens
	shown         *shown
	http          *versions
	topics        topicv1connect.TopicServiceClient
	subscriptions topicv1connect.SubscriptionServiceClient
	consumers     topicv1connect.ConsumerServiceClient
	backfills     topicv1connect.BackfillServiceClient
}

// Dial makes a Client. It connects to nothing yet.
func Dial(cfg Config) (*Client, error) {
	if cfg.BaseURL == "" || cfg.Token == nil {
		return nil, errors.New("topic: base URL and token source are required")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = newHTTP(cfg.BaseURL)
	}
	at, ok := history.Parse(cfg.History)
	if !ok && cfg.History != "" {
		return nil, errors.New("topic: the history is not one that a client returned")
	}
	c := &Client{tokens: bearer.New(cfg.Token), shown: &shown{at: at}, http: &versions{HTTPClient: cfg.HTTP}}
	options := append([]connect.ClientOption{connect.WithInterceptors(c.tokens, c.shown)}, cfg.Options...)
	c.topics = topicv1connect.NewTopicServiceClient(c.http, cfg.BaseURL, options...)
	c.subscriptions = topicv1connect.NewSubscriptionServiceClient(c.http, cfg.BaseURL, options...)
	c.consumers = topicv1connect.NewConsumerServiceClient(c.http, cfg.BaseURL, options...)
	c.backfills = topicv1connect.NewBackfillServiceClient(c.http, cfg.BaseURL, options...)
	return c, nil
}

// History returns up to where the server has shown its history to this client, over all calls; empty if
// it was shown nothing. A program that saves positions, ids of messages or numbers of requests saves it
// with them, and gives it to its next Client.
func (c *Client) History() string { return c.shown.position().String() }

// Topics is the generated client for making topics and giving rights in them.
func (c *Client) Topics() topicv1connect.TopicServiceClient { return c.topics }

// Subscriptions is the generated client for the subscriptions of groups.
func (c *Client) Subscriptions() topicv1connect.SubscriptionServiceClient { return c.subscriptions }

// Backfills is the generated client for the backfills of groups.
func (c *Client) Backfills() topicv1connect.BackfillServiceClient { return c.backfills }

// newHTTP makes an HTTP client for long streams: it notices a connection that is dead.
func newHTTP(url string) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	if strings.HasPrefix(url, "https://") {
		protocols.SetHTTP1(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, Protocols: &protocols,
		DialContext:         (&net.Dialer{Timeout: callTimeout}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: callTimeout, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}}
}

// callTimeout ends a call that is answered at once, or not at all.
const callTimeout = 30 * time.Second

// Reason is the stable name that the server gave an error, such as NO_SUBSCRIPTIONS; "" if
// it gave none.
func Reason(err error) string {
	reason, _ := details(err)
	return reason
}

// details has an error's stable name, and when the server wants the next try.
func details(err error) (reason string, pause time.Duration) {
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return "", 0
	}
	for _, d := range remote.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		switch v := v.(type) {
		case *errdetails.ErrorInfo:
			reason = v.GetReason()
		case *errdetails.RetryInfo:
			pause = v.GetRetryDelay().AsDuration()
		}
	}
	return reason, pause
}

// renew gets another token after one was refused. It reports whether there is one.
func (c *Client) renew(ctx context.Context) bool {
	_, err := c.tokens.Token(ctx, true)
	return err == nil
}
