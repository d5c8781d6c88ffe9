package rig

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
)

// User calls a server over connections of its own, with gRPC.
type User struct {
	Topics        topicv1connect.TopicServiceClient
	Subscriptions topicv1connect.SubscriptionServiceClient
	Backfills     topicv1connect.BackfillServiceClient
	consumers     topicv1connect.ConsumerServiceClient

	token     string
	transport *http.Transport
	mu        sync.Mutex
	conns     []net.Conn
}

// MaxUsers is the number of users that may make topics.
const MaxUsers = 16

// nameOf is the name of one of these users.
func nameOf(n int) string {
	if n == 0 {
		return userName
	}
	return fmt.Sprintf("%s-%d", userName, n)
}

// UserOf makes one of the MaxUsers users, with connections of its own. A user may make 1,000 topics.
func (s *Server) UserOf(ctx context.Context, n int) (*User, error) {
	if s.tokens[n] == "" {
		token, err := s.tokenOf(ctx, nameOf(n))
		if err != nil {
			return nil, err
		}
		s.tokens[n] = token
	}
	return s.userWith(s.tokens[n]), nil
}

// User makes the first user, with connections of its own.
func (s *Server) User() *User { return s.userWith(s.tokens[0]) }

func (s *Server) userWith(token string) *User {
	u := &User{token: token}
	u.transport = &http.Transport{Protocols: new(http.Protocols), DialContext: u.dial}
	u.transport.Protocols.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: u}
	u.Topics = topicv1connect.NewTopicServiceClient(c, s.url, connect.WithGRPC())
	u.Subscriptions = topicv1connect.NewSubscriptionServiceClient(c, s.url, connect.WithGRPC())
	u.Backfills = topicv1connect.NewBackfillServiceClient(c, s.url, connect.WithGRPC())
	u.consumers = topicv1connect.NewConsumerServiceClient(c, s.url, connect.WithGRPC())
	return u
}

// RoundTrip adds the token.
func (u *User) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+u.token)
	return u.transport.RoundTrip(r)
}

func (u *User) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.conns = append(u.conns, c)
	}
	return c, err
}

// Vanish cuts the connections as the system does for a process that is killed: nothing more
// is said on them.
func (u *User) Vanish() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
	}
	u.conns = nil
}

// Configure makes a topic of groups.
func (u *User) Configure(ctx context.Context, topic string, c *topicv1.TopicConfig) error {
	c.Semantics = topicv1.Semantics_SEMANTICS_PUB_SUB
	_, err := u.Topics.ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: topic, Config: c})
	return err
}

// Subscribe makes a subscription.
func (u *User) Subscribe(ctx context.Context, topic, group string, c *topicv1.SubscriptionConfig) error {
	_, err := u.Subscriptions.CreateSubscription(ctx,
		&topicv1.CreateSubscriptionRequest{Topic: topic, Group: group, Config: c})
	return err
}

// Bounds are what the partitions of a topic hold, all together: how many messages they have removed, completed and
// taken, in positions.
type Bounds struct{ Start, Watermark, End int64 }

// Bounds returns those of a topic.
func (u *User) Bounds(ctx context.Context, topic string) (b Bounds, err error) {
	list, err := u.Partitions(ctx, topic)
	for _, p := range list {
		b.Start, b.Watermark, b.End = b.Start+p.GetStart(), b.Watermark+p.GetWatermark(), b.End+p.GetEnd()
	}
	return b, err
}

// Partitions returns the partitions of a topic.
func (u *User) Partitions(ctx context.Context, topic string) ([]*topicv1.PartitionBounds, error) {
	res, err := u.Topics.GetTopic(ctx, &topicv1.GetTopicRequest{Topic: topic})
	return res.GetTopic().GetPartitions(), err
}

// Subscription returns one.
func (u *User) Subscription(ctx context.Context, topic, group string) (*topicv1.Subscription, error) {
	res, err := u.Subscriptions.GetSubscription(ctx, &topicv1.GetSubscriptionRequest{Topic: topic, Group: group})
	return res.GetSubscription(), err
}

// Purge removes what all groups of a topic have acknowledged, and returns the number of positions.
func (u *User) Purge(ctx context.Context, topic string) (n int64, err error) {
	list, err := u.Partitions(ctx, topic)
	if err != nil {
		return 0, err
	}
	for i, p := range list {
		if p.GetWatermark() == p.GetStart() {
			continue
		}
		res, err := u.Topics.PurgeMessages(ctx, &topicv1.PurgeMessagesRequest{Topic: topic, Before: &topicv1.Position{
			At: &topicv1.Position_MessageId{MessageId: fmt.Sprintf("%d-%d", i, p.GetWatermark())}}})
		if err != nil {
			return n, err
		}
		for _, p := range res.GetPurges() {
			n += p.GetTo() - p.GetFrom()
		}
	}
	return n, nil
}
