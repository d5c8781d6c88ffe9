// Package limit says how often something may be done: a declared table of rules, each with a
// rate, a burst and what happens when the processes cannot count together.
//
// A rule has a bucket for each key, such as a user or the network of an address. A bucket is
// one time, at which it is full again (the generic cell rate algorithm): what costs n moves
// it n intervals on, and is refused where it would be further away than the bucket is large.
//
// Each process has buckets of its own in memory. Where several processes make an
// installation, they share buckets in Redis: a process lets a small part of a bucket through
// by itself, and charges it together with what goes beyond. A caller far from a limit costs
// Redis next to nothing, one at a limit is refused from memory, and in the long run all
// processes together let through what the rule says.
//
// While Redis is away, an open rule is each process's own, and a closed one refuses.
//
// It owns rules and buckets. The callers own the charge for a request and the identification
// of its caller.
//
// # Concurrency
//
// A Limiter is safe for concurrent use. Its mutexes, one per shard of the keys, are held
// for a few instructions only; no call is made under them.
package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Errors of what is not let through, beside *Refused.
var (
	// ErrUnavailable says that a closed rule cannot be counted now.
	ErrUnavailable = errors.New("limit: limits cannot be counted just now")
	// ErrOverloaded says that the process has more to do than it can.
	ErrOverloaded = errors.New("limit: overloaded")
	// ErrStreams says that an address has as many streams as it may have.
	ErrStreams = errors.New("limit: too many streams of an address")
)

// Refused is the error of what a rule refuses.
type Refused struct {
	Rule       Name
	RetryAfter time.Duration // more than 0, but for what is never let through
	// AtOnce is what the rule lets through at once, where that is less than what was asked for:
	// it never will be. Otherwise 0.
	AtOnce int
}

// Error implements error.
func (r *Refused) Error() string {
	if r.AtOnce > 0 {
		return fmt.Sprintf("limit: %s: no more than %d at once", r.Rule, r.AtOnce)
	}
	return fmt.Sprintf("limit: %s: retry after %v", r.Rule, r.RetryAfter)
}

// Decision is what a rule says.
type Decision struct {
	Allowed bool
	// RetryAfter is when the same cost may be let through, at the earliest; 0 where it is allowed.
	RetryAfter time.Duration
	// Remaining is the cost that may still be let through at once.
	Remaining int
}

// Shared is a store of buckets for all processes of an installation.
type Shared interface {
	// Take charges done, which has been let through already, and cost if there is room for
	// it. A done below 0 is refunded. full is the time from now until the bucket is full again.
	Take(ctx context.Context, key string, b Bucket, done, cost int) (allowed bool, full time.Duration, err error)
}

// Bucket is the form of a bucket.
type Bucket struct {
	Interval time.Duration // in which a unit comes back
	Window   time.Duration // in which an empty bucket fills
}

// Config sets up a Limiter. Clock is required.
type Config struct {
	Table  Table // the zero Table: no rules
	Clock  func() time.Time
	Shared Shared // nil: there is only this process
	Log    *slog.Logger
	// Refused, if given, counts what a rule has refused.
	Refused func(rule Name)
	// Wait is how long a call of the shared buckets may take; by default 250 ms.
	Wait time.Duration
	// Keys is how many keys are in memory at most, in whole shards; by default 262,144.
	Keys int
}

const (
	sharedTime  = 250 * time.Millisecond
	sharedPause = time.Second // after a failure of the shared buckets
	sharedNews  = 5 * time.Minute
)

// Limiter decides by the rules of a table.
type Limiter struct {
	cfg   Config
	rules map[Name]rule
	local local
	// away is the time at which the shared buckets are tried again, in the time of local; 0:
	// they answer. The request that moves away on from a time that has come asks the buckets,
	// and only that request reports that they are back: an answer to a request that asked
	// before is no news.
	away atomic.Int64
}

// rule is a Rule with what follows from it.
type rule struct {
	Rule
	bucket Bucket
	slack  int
	number uint8
}

// New makes a Limiter.
func New(cfg Config) (*Limiter, error) {
	if cfg.Clock == nil {
		return nil, errors.New("limit: a clock is required")
	}
	cfg.Wait = cmp.Or(cfg.Wait, sharedTime)
	l := &Limiter{cfg: cfg, rules: map[Name]rule{}}
	for i, r := range cfg.Table.rules {
		l.rules[r.Name] = rule{r, Bucket{r.interval(), r.window()}, r.slack(), uint8(i)}
	}
	l.local.init(cfg.Clock(), cfg.Keys)
	return l, nil
}

// Rules returns the rules.
func (l *Limiter) Rules() []Rule { return l.cfg.Table.Rules() }

// SharedAway reports whether the shared buckets failed when they were last asked, at most
// sharedNews ago. Requests that are far from their limits do not ask the buckets, so an older
// failure does not count.
func (l *Limiter) SharedAway() bool {
	until := l.away.Load()
	return until != 0 && l.local.time(l.cfg.Clock())-until < int64(sharedNews)
}

// Allow charges a cost to the bucket that a rule has for a key; a cost of 0 charges nothing.
// Errors: ErrNoRule; *Refused of what costs more than a bucket holds; ErrUnavailable, of closed
// rules, for what is then not allowed.
func (l *Limiter) Allow(ctx context.Context, name Name, key string, cost int) (Decision, error) {
	r, ok := l.rules[name]
	if !ok {
		return Decision{}, fmt.Errorf("%w: %s", ErrNoRule, name)
	}
	if r.Off {
		return Decision{Allowed: true, Remaining: r.Burst}, nil
	}
	if cost = max(0, cost); cost > r.Burst {
		l.refused(name)
		return Decision{}, &Refused{Rule: name, AtOnce: r.Burst}
	}
	k, now := bucketKey{r.number, key}, l.local.time(l.cfg.Clock())
	d, ask := l.local.take(k, r, now, cost, l.cfg.Shared != nil)
	if ask {
		return l.ask(ctx, r, k, cost, d)
	}
	if !d.Allowed {
		l.refused(name)
	}
	return d, nil
}

// Check is Allow for callers that only need to know the answer. Errors: *Refused,
// ErrUnavailable.
func (l *Limiter) Check(ctx context.Context, name Name, key string, cost int) error {
	d, err := l.Allow(ctx, name, key, cost)
	if err != nil || d.Allowed {
		return err
	}
	return &Refused{Rule: name, RetryAfter: d.RetryAfter}
}

// Cost is what something costs a key by a rule.
type Cost struct {
	Rule Name
	Key  string
	Cost int
}

// Charge charges all of the costs, or none: if the last one refuses, the others charge nothing.
// Errors are those of Check.
func (l *Limiter) Charge(ctx context.Context, costs ...Cost) error {
	for i, c := range costs {
		if err := l.Check(ctx, c.Rule, c.Key, c.Cost); err != nil {
			l.Return(costs[:i]...)
			return err
		}
	}
	return nil
}

// Return refunds what was charged for something that is not done. The bucket that all share
// learns of it with what is charged next.
func (l *Limiter) Return(costs ...Cost) {
	for _, c := range costs {
		if r, ok := l.rules[c.Rule]; ok && !r.Off && c.Cost > 0 {
			l.local.giveBack(bucketKey{r.number, c.Key}, r, c.Cost, c.Cost)
		}
	}
}

// Peek says what a rule has left for a key, and charges nothing: RetryAfter is when one unit
// would be let through. Errors: ErrNoRule; ErrUnavailable, of closed rules.
func (l *Limiter) Peek(ctx context.Context, name Name, key string) (Decision, error) {
	r, ok := l.rules[name]
	if !ok {
		return Decision{}, fmt.Errorf("%w: %s", ErrNoRule, name)
	}
	if r.Off {
		return Decision{Allowed: true, Remaining: r.Burst}, nil
	}
	full, owed := l.local.peek(bucketKey{r.number, key}, r, l.local.time(l.cfg.Clock()))
	if l.cfg.Shared != nil {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.Wait)
		defer cancel()
		_, shared, err := l.cfg.Shared.Take(ctx, string(name)+":"+key, r.bucket, 0, 0)
		if err != nil && r.Closed {
			return Decision{}, fmt.Errorf("%w: %s: %w", ErrUnavailable, name, err)
		}
		full = max(full, shared+time.Duration(owed)*r.bucket.Interval)
	}
	return decide(r, full, 1, full+r.bucket.Interval <= r.bucket.Window), nil
}

// ask asks the shared bucket for a cost, which has been taken here, and charges it with what
// this process has let through by itself.
func (l *Limiter) ask(ctx context.Context, r rule, k bucketKey, cost int, here Decision) (Decision, error) {
	turn, ok := l.turn()
	if !ok {
		return l.alone(r, k, cost, here)
	}
	owed := l.local.settle(k, r)
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Wait)
	defer cancel()
	allowed, full, err := l.cfg.Shared.Take(ctx, string(r.Name)+":"+k.key, r.bucket, owed, cost)
	if err != nil {
		l.local.owe(k, r, owed)
		if errors.Is(context.Cause(ctx), context.Canceled) { // the caller has gone: this says nothing
			l.endTurn(turn, false)
		} else {
			l.pause(turn, err)
		}
		return l.alone(r, k, cost, here)
	}
	l.endTurn(turn, true)
	if !allowed {
		l.local.giveBack(k, r, cost, 0)
		l.refused(r.Name)
	}
	l.local.raise(k, r, l.local.time(l.cfg.Clock())+int64(full))
	return decide(r, full, cost, allowed), nil
}

// decide is what a bucket says that is full after a time: the cost is in it where it was
// allowed.
func decide(r rule, full time.Duration, cost int, allowed bool) Decision {
	d := Decision{Allowed: allowed, Remaining: int(max(0, r.bucket.Window-full) / r.bucket.Interval)}
	if !allowed {
		d.RetryAfter = max(1, full+time.Duration(cost)*r.bucket.Interval-r.bucket.Window)
	}
	return d
}

// alone decides without the others. An open rule charges later for what it lets through; a
// closed rule that refuses charges nothing.
func (l *Limiter) alone(r rule, k bucketKey, cost int, here Decision) (Decision, error) {
	if !r.Closed {
		l.local.owe(k, r, cost)
		return here, nil
	}
	l.local.giveBack(k, r, cost, 0)
	l.refused(r.Name)
	return Decision{RetryAfter: sharedPause}, fmt.Errorf("%w: %s", ErrUnavailable, r.Name)
}

// turn reports whether the shared buckets are to be asked. While they are away one request at
// a time asks whether they are back, which is its turn; it is 0 for others.
func (l *Limiter) turn() (turn int64, ok bool) {
	until := l.away.Load()
	if until == 0 {
		return 0, true
	}
	now := l.local.time(l.cfg.Clock())
	if now < until && until-now <= int64(l.cfg.Wait+2*sharedPause) { // else the clock was set back
		return 0, false
	}
	turn = now + int64(l.cfg.Wait+sharedPause)
	return turn, l.away.CompareAndSwap(until, turn)
}

// endTurn ends a turn: the shared buckets are back, or it is the next request's to ask.
func (l *Limiter) endTurn(turn int64, back bool) {
	if turn == 0 {
		return
	}
	next := int64(0)
	if !back {
		next = l.local.time(l.cfg.Clock())
	}
	l.away.CompareAndSwap(turn, next)
}

// pause ends a turn without an answer, or begins the time in which there is none.
func (l *Limiter) pause(turn int64, err error) {
	began := l.away.CompareAndSwap(turn, l.local.time(l.cfg.Clock())+int64(sharedPause))
	if began && turn == 0 && l.cfg.Log != nil {
		l.cfg.Log.Warn("limits are counted by each process alone, closed ones refuse: Redis does not answer", "error", err)
	}
}

func (l *Limiter) refused(name Name) {
	if l.cfg.Refused != nil {
		l.cfg.Refused(name)
	}
}
