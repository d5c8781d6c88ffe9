package modeltest

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
)

// lie is what a broken server does with a call: next makes the call. Lies of one liar are told one
// at a time, but for what next takes.
type lie func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error)

// liar stands between the clients of a world and a server that keeps the contract.
type liar struct {
	sync.Mutex
	honest Clients // of alice
	lie    lie
}

// through makes a call by way of a liar.
func through[Q, S proto.Message](
	ctx context.Context, l *liar, f func(context.Context, Q) (S, error), req Q,
) (none S, err error) {
	res, err := l.lie(l, req, func(m proto.Message) (proto.Message, error) {
		res, err := f(ctx, m.(Q))
		return res, err
	})
	if err != nil {
		return none, err
	}
	return res.(S), nil
}

// lying returns clients whose calls pass the liar.
func (l *liar) lying(c Clients) Clients {
	return Clients{lyingTopics{c.Topics, l}, lyingSubscriptions{c.Subscriptions, l}, lyingConsumers{c.Consumers, l},
		lyingAdmin{c.Admin, l}}
}

type lyingTopics struct {
	topicv1connect.TopicServiceClient
	l *liar
}

func (c lyingTopics) Publish(ctx context.Context, r *topicv1.PublishRequest) (*topicv1.PublishResponse, error) {
	return through(ctx, c.l, c.TopicServiceClient.Publish, r)
}

func (c lyingTopics) GetTopic(ctx context.Context, r *topicv1.GetTopicRequest) (*topicv1.GetTopicResponse, error) {
	return through(ctx, c.l, c.TopicServiceClient.GetTopic, r)
}

func (c lyingTopics) GetProducer(
	ctx context.Context, r *topicv1.GetProducerRequest,
) (*topicv1.GetProducerResponse, error) {
	return through(ctx, c.l, c.TopicServiceClient.GetProducer, r)
}

func (c lyingTopics) GetMessageStatus(
	ctx context.Context, r *topicv1.GetMessageStatusRequest,
) (*topicv1.GetMessageStatusResponse, error) {
	return through(ctx, c.l, c.TopicServiceClient.GetMessageStatus, r)
}

type lyingSubscriptions struct {
	topicv1connect.SubscriptionServiceClient
	l *liar
}

func (c lyingSubscriptions) CreateSubscription(
	ctx context.Context, r *topicv1.CreateSubscriptionRequest,
) (*topicv1.CreateSubscriptionResponse, error) {
	return through(ctx, c.l, c.SubscriptionServiceClient.CreateSubscription, r)
}

func (c lyingSubscriptions) GetSubscription(
	ctx context.Context, r *topicv1.GetSubscriptionRequest,
) (*topicv1.GetSubscriptionResponse, error) {
	return through(ctx, c.l, c.SubscriptionServiceClient.GetSubscription, r)
}

func (c lyingSubscriptions) PauseSubscription(
	ctx context.Context, r *topicv1.PauseSubscriptionRequest,
) (*topicv1.PauseSubscriptionResponse, error) {
	return through(ctx, c.l, c.SubscriptionServiceClient.PauseSubscription, r)
}

func (c lyingSubscriptions) ResumeSubscription(
	ctx context.Context, r *topicv1.ResumeSubscriptionRequest,
) (*topicv1.ResumeSubscriptionResponse, error) {
	return through(ctx, c.l, c.SubscriptionServiceClient.ResumeSubscription, r)
}

func (c lyingSubscriptions) CancelSubscription(
	ctx context.Context, r *topicv1.CancelSubscriptionRequest,
) (*topicv1.CancelSubscriptionResponse, error) {
	return through(ctx, c.l, c.SubscriptionServiceClient.CancelSubscription, r)
}

func (c lyingSubscriptions) SeekSubscription(
	ctx context.Context, r *topicv1.SeekSubscriptionRequest,
) (*topicv1.SeekSubscriptionResponse, error) {
	return through(ctx, c.l, c.SubscriptionServiceClient.SeekSubscription, r)
}

type lyingConsumers struct {
	topicv1connect.ConsumerServiceClient
	l *liar
}

func (c lyingConsumers) Pull(ctx context.Context, r *topicv1.PullRequest) (*topicv1.PullResponse, error) {
	return through(ctx, c.l, c.ConsumerServiceClient.Pull, r)
}

func (c lyingConsumers) Ack(ctx context.Context, r *topicv1.AckRequest) (*topicv1.AckResponse, error) {
	return through(ctx, c.l, c.ConsumerServiceClient.Ack, r)
}

func (c lyingConsumers) Nack(ctx context.Context, r *topicv1.NackRequest) (*topicv1.NackResponse, error) {
	return through(ctx, c.l, c.ConsumerServiceClient.Nack, r)
}

func (c lyingConsumers) Extend(ctx context.Context, r *topicv1.ExtendRequest) (*topicv1.ExtendResponse, error) {
	return through(ctx, c.l, c.ConsumerServiceClient.Extend, r)
}

type lyingAdmin struct {
	topicv1connect.TopicAdminServiceClient
	l *liar
}

func (c lyingAdmin) GetGroupMetrics(
	ctx context.Context, r *topicv1.GetGroupMetricsRequest,
) (*topicv1.GetGroupMetricsResponse, error) {
	return through(ctx, c.l, c.TopicAdminServiceClient.GetGroupMetrics, r)
}

// asks is a lie about requests of one kind: the server gets another one.
func asks[Q proto.Message](change func(Q)) lie {
	return func(_ *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		if _, ok := req.(Q); ok {
			req = proto.CloneOf(req)
			change(req.(Q))
		}
		return next(req)
	}
}

// answers is a lie about answers of one kind: the client gets another one.
func answers[Q, S proto.Message](change func(l *liar, req Q, res S)) lie {
	return func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		res, err := next(req)
		if q, ok := req.(Q); ok && err == nil {
			l.Lock()
			defer l.Unlock()
			change(l, q, res.(S))
		}
		return res, err
	}
}

// ignores is a lie about some requests of one kind: they are answered and not done.
func ignores[Q, S proto.Message](which func(Q) bool, answer S) lie {
	return func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		q, ok := req.(Q)
		if !ok {
			return next(req)
		}
		l.Lock()
		ignored := which(q)
		l.Unlock()
		if !ignored {
			return next(req)
		}
		return proto.CloneOf(answer), nil
	}
}

// every returns a function that is true each nth time.
func every[Q any](n int) func(Q) bool {
	calls := 0
	return func(Q) bool {
		calls++
		return calls%n == 0
	}
}
