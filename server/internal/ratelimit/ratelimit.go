// Package ratelimit charges calls to the limits of their callers, and refuses calls before
// the process has more to do than it can.
//
// It owns the cost of each procedure (a table; a test finds procedures without a line), the
// subjects that are charged (the user, the session and the network of the address, whose
// addresses of IPv6 are one in a /64; for codes also the /24 or /48 around it), and the
// number of calls under way. Rules and buckets are package limit's, the form of a refusal is
// package api's, and the caller is known when the package is called (package auth, package
// edge).
//
// The cost of one call is charged in two steps, each of which charges all or nothing: the
// request, then its effects on others. A caller that is refused the second has made a
// request all the same.
//
// Callers on the machine of the server have no address, as they have none for connections.
//
// # Concurrency
//
// Everything here is safe for concurrent use. Mutexes are held for a few instructions
// only; no call is made under them.
package ratelimit

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/bounded"
	"github.com/parley-chat/parley/server/limit"
)

// newFor is how long an account is new.
const newFor = 24 * time.Hour

// maxRemembered bounds the accounts whose age is in memory.
const maxRemembered = 1 << 16

// Caller is the caller that is charged for a call.
type Caller struct {
	User, Session string // empty: not known yet; only the address is charged
	// Service says that a program calls, for many people: it has a limit of requests, and none
	// of what people do to each other.
	Service bool
	Address netip.Prefix // not valid: of this machine
}

// Config sets up an Admission. Limits, Clock and Caller are required.
type Config struct {
	Limits *limit.Limiter
	Clock  func() time.Time
	Caller func(ctx context.Context) Caller
	// Created, if given, is when an account was made; the zero time for one without a row.
	Created func(ctx context.Context, user string) (time.Time, error)
	// Direct, if given, reports whether two people have a direct chat: to ask for that one again
	// makes none.
	Direct func(ctx context.Context, user, other string) (bool, error)
	// Unanswered, if given, is the number of people to whom a user has made direct chats and
	// from whom there is no answer; it need not count beyond most. It is asked when the rule
	// of that name refuses, which knows nothing of answers, as often as rule Answered
	// allows.
	Unanswered func(ctx context.Context, user string, most int) (int, error)
	// Streams is how many streams of events an address may have; 0: unbounded.
	Streams int
	// Load, if given, bounds the calls under way.
	Load *Load
}

// Admission lets calls in.
type Admission struct {
	cfg        Config
	unanswered int // direct chats without an answer that a user may have

	mu      sync.Mutex
	streams map[netip.Prefix]int
	making  map[string]int // direct chats that a user is making now

	ages    sync.RWMutex
	created map[string]time.Time
}

// New makes an Admission.
func New(cfg Config) (*Admission, error) {
	if cfg.Limits == nil || cfg.Clock == nil || cfg.Caller == nil {
		return nil, errors.New("ratelimit: limits, clock and caller are required")
	}
	a := &Admission{cfg: cfg, streams: map[netip.Prefix]int{}, making: map[string]int{},
		created: map[string]time.Time{}}
	for _, r := range cfg.Limits.Rules() {
		if r.Name == limit.Unanswered {
			a.unanswered = r.Burst
		}
	}
	return a, nil
}

// Admit lets a call in; leave is to be called when it has ended. m is its message, nil of a
// stream, and of a call that ends because its caller is not known. Errors: *limit.Refused,
// limit.ErrUnavailable, limit.ErrOverloaded, limit.ErrStreams, and those of Created, Direct and
// Unanswered.
func (a *Admission) Admit(ctx context.Context, procedure string, m any) (leave func(), err error) {
	c, caller := costOf(procedure), a.cfg.Caller(ctx)
	leave, err = a.enter(c, m != nil)
	if err != nil {
		return nil, err
	}
	pays := c.more != nil && caller.User != "" && (c.programs || !caller.Service)
	if err = a.charge(ctx, c, caller); err == nil && pays {
		leave, err = a.chargeMore(ctx, c, caller.User, m, leave)
	}
	if err == nil && caller.User != "" && procedure == deliveryv1connect.DeliveryServiceSubscribeProcedure {
		leave, err = a.stream(caller.Address, leave)
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

func nothing() {}

// enter counts a call that is answered as fast as can be.
func (a *Admission) enter(c cost, unary bool) (leave func(), err error) {
	if a.cfg.Load == nil || c.waits || !unary {
		return nothing, nil
	}
	began, ok := a.cfg.Load.Enter(a.cfg.Clock())
	if !ok {
		return nil, limit.ErrOverloaded
	}
	return func() { a.cfg.Load.Leave(began, a.cfg.Clock()) }, nil
}

// charge charges a request. The user pays first: a refusal of the user's limit costs the others
// of an address nothing.
func (a *Admission) charge(ctx context.Context, c cost, caller Caller) error {
	l := a.cfg.Limits
	if caller.Service {
		return l.Check(ctx, limit.ServiceRequests, caller.User, c.requests)
	}
	if caller.User == "" && !c.tokenless {
		if !caller.Address.IsValid() {
			return nil
		}
		return l.Check(ctx, limit.Strangers, caller.Address.String(), 1)
	}
	if c.requests == 0 {
		return nil
	}
	costs := make([]limit.Cost, 0, 3)
	if caller.User != "" {
		costs = append(costs, limit.Cost{Rule: limit.UserRequests, Key: caller.User, Cost: c.requests},
			limit.Cost{Rule: limit.SessionRequests, Key: caller.Session, Cost: c.requests})
	}
	if caller.Address.IsValid() {
		costs = append(costs, limit.Cost{Rule: limit.AddressRequests, Key: caller.Address.String(), Cost: c.requests})
	}
	return l.Charge(ctx, costs...)
}

// other is the other person of a direct chat that a call asks for; empty where it asks for none,
// or for one that is not valid, which is said later.
func other(user string, m any) string {
	req, ok := m.(*chatv1.CreateChatRequest)
	if !ok || req.GetType() != chatv1.ChatType_CHAT_TYPE_DIRECT {
		return ""
	}
	found := ""
	for _, id := range req.GetMemberIds() { // the caller may be in it
		if id == user || id == found {
			continue
		}
		if found != "" || auth.CheckUserID(id) != nil {
			return ""
		}
		found = id
	}
	return found
}

// chargeMore charges a user with what a call does to others: all of it or nothing.
func (a *Admission) chargeMore(
	ctx context.Context, c cost, user string, m any, leave func(),
) (func(), error) {
	if to := other(user, m); to != "" && a.cfg.Direct != nil {
		if made, err := a.cfg.Direct(ctx, user, to); made || err != nil {
			return leave, err
		}
	}
	list := c.more(m)
	var room [4]limit.Cost
	costs, err := a.costs(ctx, user, list, room[:0])
	if err != nil {
		return leave, err
	}
	if err = a.cfg.Limits.Charge(ctx, costs...); err != nil || !isChat(list) {
		return leave, err
	}
	leave, others := a.makes(user, leave)
	if err = a.chargeUnanswered(ctx, user, others); err != nil {
		a.cfg.Limits.Return(costs...)
	}
	return leave, err
}

// costs appends the charges of a user.
func (a *Admission) costs(
	ctx context.Context, user string, list []charge, costs []limit.Cost,
) ([]limit.Cost, error) {
	var young bool
	var err error
	if len(list) > 0 && list[0].young != "" {
		if young, err = a.isNew(ctx, user); err != nil {
			return nil, err
		}
	}
	for _, c := range list {
		if young && c.young != "" {
			costs = append(costs, limit.Cost{Rule: c.young, Key: user, Cost: c.cost})
		}
		costs = append(costs, limit.Cost{Rule: c.rule, Key: user, Cost: c.cost})
	}
	return costs, nil
}

// makes counts a direct chat that a user is making, until the call ends, and returns how many
// others are.
func (a *Admission) makes(user string, leave func()) (func(), int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	others := a.making[user]
	a.making[user]++
	return func() {
		a.mu.Lock()
		if a.making[user]--; a.making[user] == 0 {
			delete(a.making, user)
		}
		a.mu.Unlock()
		leave()
	}, others
}

// chargeUnanswered charges a direct chat that has no answer. Beyond the quota it checks, a
// limited number of times, whether others have answered, and admits a user who has few chats
// without an answer. others is the number of chats that are being made, which the store does not
// have yet. The check reads the store, so it is charged regardless of its result.
func (a *Admission) chargeUnanswered(ctx context.Context, user string, others int) error {
	refused := a.cfg.Limits.Check(ctx, limit.Unanswered, user, 1)
	if a.cfg.Unanswered == nil || !errors.As(refused, new(*limit.Refused)) {
		return refused
	}
	if err := a.cfg.Limits.Check(ctx, limit.Answered, user, 1); err != nil {
		return err
	}
	n, err := a.cfg.Unanswered(ctx, user, a.unanswered)
	if err != nil {
		return err
	}
	if n+others >= a.unanswered {
		return refused
	}
	return nil
}

// isNew reports whether an account is new.
func (a *Admission) isNew(ctx context.Context, user string) (bool, error) {
	if a.cfg.Created == nil {
		return false, nil
	}
	a.ages.RLock()
	at, known := a.created[user]
	a.ages.RUnlock()
	if !known {
		var err error
		if at, err = a.cfg.Created(ctx, user); err != nil {
			return false, err
		}
		if at.IsZero() { // the row comes with the call
			return true, nil
		}
		a.ages.Lock()
		bounded.Put(a.created, user, at, maxRemembered)
		a.ages.Unlock()
	}
	return a.cfg.Clock().Sub(at) < newFor, nil
}

// stream counts a stream of an address.
func (a *Admission) stream(address netip.Prefix, leave func()) (func(), error) {
	if a.cfg.Streams == 0 || !address.IsValid() {
		return leave, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams[address] >= a.cfg.Streams {
		return leave, limit.ErrStreams
	}
	a.streams[address]++
	return func() {
		a.mu.Lock()
		if a.streams[address]--; a.streams[address] == 0 {
			delete(a.streams, address)
		}
		a.mu.Unlock()
		leave()
	}, nil
}
