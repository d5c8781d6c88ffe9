// Package wire is the connection to DynamoDB: its configuration, the classification of its
// errors, and the retries.
//
// It owns the SDK's client with its connections, the retries (the SDK's own are off,
// since they do not know which outcomes are ambiguous), and the translation of errors to
// those of package store. It knows no table, item or plan. A Client is safe for
// concurrent use.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
)

// Config says where DynamoDB is. Region and credentials come from the usual places
// of AWS (environment, shared files, role) where they are not given.
type Config struct {
	Region string
	// Endpoint is that of DynamoDB Local, or a VPC endpoint; by default the region's.
	// One with http is DynamoDB Local and gets made-up credentials.
	Endpoint string
	// Attempt bounds the wait for the answer to one request; by default 5 s.
	Attempt time.Duration

	// Transport wraps the network below the SDK, and Sleep waits between attempts; for
	// tests.
	Transport func(aws.HTTPClient) aws.HTTPClient
	Sleep     func(context.Context, time.Duration) error
}

const (
	defaultAttempt = 5 * time.Second
	connections    = 512 // kept open, so that a burst needs no new handshakes
)

// ErrNoTables says that a table is missing. It comes with store.ErrUnavailable.
var ErrNoTables = errors.New("a table is missing; make them with: workers tables apply")

// Client is a connection to DynamoDB.
type Client struct {
	DB *dynamodb.Client

	cfg       Config
	closeIdle func()
	clocks    *clocks

	requests, conflicts, throttled, lost atomic.Int64
}

// Dial makes a client. It sends nothing yet.
func Dial(ctx context.Context, c Config) (*Client, error) {
	if c.Attempt <= 0 {
		c.Attempt = defaultAttempt
	}
	if c.Sleep == nil {
		c.Sleep = wait.For
	}
	load := []func(*config.LoadOptions) error{config.WithLogger(logging.Nop{})} // what matters comes as an error
	if c.Region != "" {
		load = append(load, config.WithRegion(c.Region))
	}
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("dynamo: endpoint %.100q must be http://HOST or https://HOST", c.Endpoint)
		}
		if u.Scheme == "http" {
			load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("local", "local", "")))
			if c.Region == "" {
				load = append(load, config.WithRegion("local"))
			}
		}
	}
	shared, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("dynamo: configuration of AWS: %w", err)
	}
	if shared.Region == "" {
		return nil, errors.New("dynamo: no region: give one, or set AWS_REGION")
	}
	// AWS's own, with more connections, and such that they can be closed.
	t := awshttp.NewBuildableClient().GetTransport()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = connections, connections
	client := &Client{cfg: c, closeIdle: t.CloseIdleConnections,
		clocks: &clocks{next: ownBody{&http.Client{Transport: t}}, now: time.Now}}
	client.DB = dynamodb.NewFromConfig(shared, func(d *dynamodb.Options) {
		d.Retryer = aws.NopRetryer{}
		d.EndpointResolverV2 = &endpoints{next: d.EndpointResolverV2}
		if c.Endpoint != "" {
			d.BaseEndpoint = aws.String(c.Endpoint)
		}
		d.HTTPClient = client.clocks
		if c.Transport != nil {
			d.HTTPClient = c.Transport(d.HTTPClient)
		}
		d.Logger = logging.Nop{}
		d.APIOptions = append(d.APIOptions, markSent)
	})
	return client, nil
}

// Close closes the connections.
func (c *Client) Close() { c.closeIdle() }

// Stats are counters since Dial.
type Stats struct {
	Requests  int64 // sent, retries included
	Conflicts int64 // requests that met another transaction
	Throttled int64 // requests refused, and items left unprocessed by a batch
	Lost      int64 // requests without an answer, or with a failure of the service

	// Skew is by how much this machine's clock is ahead of the service's at least, by
	// the last answer; negative if it is behind.
	Skew time.Duration
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	return Stats{
		Requests: c.requests.Load(), Conflicts: c.conflicts.Load(), Throttled: c.throttled.Load(), Lost: c.lost.Load(),
		Skew: time.Duration(c.clocks.skew.Load()),
	}
}

type sentKey struct{}

// markSent records that a request is sent: one that fails before (finding credentials,
// signing) cannot have been executed.
func markSent(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("parleySent",
		func(ctx context.Context, in middleware.DeserializeInput,
			next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			if sent, ok := ctx.Value(sentKey{}).(*bool); ok {
				*sent = true
			}
			return next.HandleDeserialize(ctx, in)
		}), middleware.After)
}

// errTime ends a call that took too long.
var errTime = errors.New("dynamo: the time of the call is up")

// WithTimeout bounds a call by the time that the contract allows.
func WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, store.CallTimeout, errTime)
}

// callerErr is the error of the caller's context; nil if only the time of the call is up.
func callerErr(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errTime) {
		return nil
	}
	return ctx.Err()
}
