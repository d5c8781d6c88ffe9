package identitymodule

import (
	"context"
	"log/slog"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/ratelimit"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// How many of a user's chats are checked for answers, those with the newest messages first: so
// many that a user cannot hide those without an answer behind others.
const (
	pageOfChats  = 100
	pagesOfChats = 10
)

// LimitsConfig is what Limits stand on; all of it is required.
type LimitsConfig struct {
	Backend  *backend.Backend
	Clock    func() time.Time
	Logger   *slog.Logger
	Metrics  *telemetry.Metrics
	Reader   *view.Reader
	Settings config.Settings
	Table    limit.Table
}

// Limits are how often everybody may call.
type Limits struct {
	*limit.Limiter
	// Admit charges a call before it is made. done is called at its end.
	Admit func(ctx context.Context, procedure string, m any) (done func(), err error)
}

// NewLimits makes Limits.
func NewLimits(cfg LimitsConfig) (l Limits, err error) {
	c := limit.Config{Table: cfg.Table, Clock: time.Now, Log: cfg.Logger}
	var names []string
	for _, r := range limit.DefaultTable().Rules() { // all there are: the family is shown with limits off, too
		names = append(names, string(r.Name))
	}
	refused := cfg.Metrics.Counters(telemetry.LimitsRefused, "Calls that a limit of rates refused.", "limit", names...)
	c.Refused = func(rule limit.Name) { refused(string(rule)) }
	if cfg.Backend.Routing != nil {
		c.Shared = limit.Redis{Redis: cfg.Backend.Routing}
	}
	if l.Limiter, err = limit.New(c); err != nil {
		return l, err
	}
	if cfg.Backend.Routing != nil {
		cfg.Metrics.Gauge(telemetry.LimitsAlone, "1 while limits are each process's own, because Redis does not answer.",
			func() float64 {
				if l.SharedAway() {
					return 1
				}
				return 0
			})
	}
	a, err := ratelimit.New(ratelimit.Config{Limits: l.Limiter, Clock: cfg.Clock, Caller: caller, Created: cfg.createdAt,
		Direct: cfg.haveDirect, Unanswered: unanswered(cfg.Reader), Streams: cfg.Settings.MaxStreamsPerAddress,
		Load: cfg.load()})
	if err != nil {
		return l, err
	}
	l.Admit = a.Admit
	return l, nil
}

// load bounds the calls under way.
func (cfg LimitsConfig) load() *ratelimit.Load {
	l := ratelimit.NewLoad(cfg.Settings.MaxRequests)
	for _, m := range []struct {
		add        func(name, help string, value func() float64)
		name, help string
		value      func(underWay, bound int, shed int64) float64
	}{
		{cfg.Metrics.Gauge, telemetry.CallsUnderWay, "Calls under way, those that wait for something aside.",
			func(n, _ int, _ int64) float64 { return float64(n) }},
		{cfg.Metrics.Gauge, telemetry.CallsBound, "Calls that may be under way; fewer while they take too long.",
			func(_, n int, _ int64) float64 { return float64(n) }},
		{cfg.Metrics.Counter, telemetry.CallsShed, "Calls refused because as many were under way as may be.",
			func(_, _ int, n int64) float64 { return float64(n) }},
	} {
		m.add(m.name, m.help, func() float64 { return m.value(l.Stats()) })
	}
	return l
}

// caller is the caller that is charged for a call.
func caller(ctx context.Context) ratelimit.Caller {
	user, _ := auth.PrincipalFrom(ctx) // the zero principal, where there is none yet
	return ratelimit.Caller{User: user.UserID, Session: user.SessionID, Service: user.ByService() != "",
		Address: edge.Address(ctx)}
}

// createdAt is when an account was made.
func (cfg LimitsConfig) createdAt(ctx context.Context, user string) (time.Time, error) {
	it, err := cfg.Backend.Store.Get(ctx, table.UserKey(user), store.Eventual)
	if err != nil || it == nil {
		return time.Time{}, err
	}
	return time.UnixMilli(table.UserFrom(user, it).CreatedAt), nil
}

// haveDirect reports whether two people have a direct chat.
func (cfg LimitsConfig) haveDirect(ctx context.Context, user, other string) (bool, error) {
	it, err := cfg.Backend.Store.Get(ctx, table.DirectIndexKey(user, other), store.Eventual)
	return it != nil, err
}

// unanswered counts the people to whom a user has made direct chats and from whom there is no
// answer, up to most, among the chats with the newest messages.
func unanswered(reader *view.Reader) func(ctx context.Context, user string, most int) (int, error) {
	return func(ctx context.Context, user string, most int) (n int, err error) {
		token := ""
		for range pagesOfChats {
			page, err := reader.ListChats(ctx, user, &chatv1.ListChatsRequest{PageSize: pageOfChats, PageToken: token})
			if err != nil {
				return 0, err
			}
			for _, c := range page.GetOverviews() {
				is, err := isUnanswered(ctx, reader, user, c.GetChat())
				if err != nil {
					return 0, err
				}
				if is {
					n++
				}
				if n >= most {
					return n, nil
				}
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		return n, nil
	}
}

// isUnanswered reports whether a chat is a direct one that a user has made, and in which the
// other person has not written.
func isUnanswered(ctx context.Context, reader *view.Reader, user string, c *chatv1.Chat) (bool, error) {
	if c.GetType() != chatv1.ChatType_CHAT_TYPE_DIRECT || c.GetCreatedBy() != user {
		return false, nil
	}
	beginning := int64(0)
	messages, err := reader.Messages(ctx, user, &messagev1.ListMessagesRequest{ChatId: c.GetChatId(),
		AfterSequence: &beginning, PageSize: 100})
	return byOne(messages.GetMessages(), user), err
}

// byOne reports whether a user has sent all of the messages.
func byOne(messages []*messagev1.Message, user string) bool {
	for _, m := range messages {
		if m.GetSenderId() != user {
			return false
		}
	}
	return true
}
