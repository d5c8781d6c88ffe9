// Package admit decides which callers may join what the members of a chat share: its queue
// and its plans.
//
// An Admission counts the requests that each user has under way, and refuses what is beyond
// a bound; of those that need a lookup, a few run at a time and the others of the user wait.
// It caches which users are members of which chats: these go to the queue without reading
// anything. It never decides on a command: its cache may be old, so the conditions of the
// plan stay the authority. A user that is not cached is looked up, outside of the queue. A
// user whose command made a plan of several users fail is suspect for a while, and looked up
// first each time.
//
// An Admission is safe for use by many goroutines. Its mutexes, one per shard of the users,
// are held for a few instructions only.
package admit

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"
)

// ErrBusy is the answer to a user who has too many requests under way.
var ErrBusy = errors.New("chat: too many requests of one user under way")

// Config sets up an Admission. Clock is required.
type Config struct {
	Clock func() time.Time
	// PerChat and PerCaller are how many requests a user may have under way for one chat,
	// and in all; by default 128 and 512.
	PerChat, PerCaller int
	// Lookups is how many requests of a user are looked up at a time; by default 4.
	Lookups int
	// Members is the number of memberships that are cached at least; by default
	// 65,536, twice as many at most.
	Members int
}

// suspectFor is how long a user who made a plan fail is looked up first.
const suspectFor = 10 * time.Second

const shards = 32

// Admission is the way into the queues of a process.
type Admission struct {
	cfg    Config
	shards [shards]shard
}

// pair is a user in a chat; without a chat, in all of them.
type pair struct{ user, chat string }

type shard struct {
	mu       sync.Mutex
	underWay map[pair]int
	lookups  map[string]*lookups
	// Memberships used last, and those used before: when the first are many enough they
	// become the latter. The value is until when the pair is suspect: zero if it is not.
	recent, older map[pair]time.Time
}

// lookups are those of one user.
type lookups struct {
	slots chan struct{}
	users int // goroutines that hold a slot or wait for one
}

// New makes an Admission.
func New(cfg Config) *Admission {
	cfg.PerChat = cmp.Or(max(0, cfg.PerChat), 128)
	cfg.PerCaller = cmp.Or(max(0, cfg.PerCaller), 512)
	cfg.Lookups = cmp.Or(max(0, cfg.Lookups), 4)
	cfg.Members = cmp.Or(max(0, cfg.Members), 1<<16)
	a := &Admission{cfg: cfg}
	for i := range a.shards {
		a.shards[i] = shard{underWay: map[pair]int{}, lookups: map[string]*lookups{}, recent: map[pair]time.Time{},
			older: map[pair]time.Time{}}
	}
	return a
}

// shard is the one of a user, the same in every run: it decides what is evicted first.
func (a *Admission) shard(user string) *shard {
	h := uint32(2166136261) // FNV-1a
	for i := range len(user) {
		h = (h ^ uint32(user[i])) * 16777619
	}
	return &a.shards[h%shards]
}

// Begin counts a request of a user for a chat, empty for none; End must follow.
// Errors: ErrBusy, after which End must not be called.
func (a *Admission) Begin(user, chat string) error {
	s := a.shard(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	all, here := pair{user: user}, pair{user, chat}
	if s.underWay[all] >= a.cfg.PerCaller || (chat != "" && s.underWay[here] >= a.cfg.PerChat) {
		return ErrBusy
	}
	s.underWay[all]++
	if chat != "" {
		s.underWay[here]++
	}
	return nil
}

// End ends a request that Begin counted.
func (a *Admission) End(user, chat string) {
	s := a.shard(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decrement(pair{user: user})
	if chat != "" {
		s.decrement(pair{user, chat})
	}
}

func (s *shard) decrement(p pair) {
	if s.underWay[p]--; s.underWay[p] <= 0 {
		delete(s.underWay, p)
	}
}

// AcquireLookup waits until a request of a user may be looked up; ReleaseLookup must
// follow. It returns the context's error if that ends first, after which ReleaseLookup
// must not be called.
func (a *Admission) AcquireLookup(ctx context.Context, user string) error {
	s := a.shard(user)
	s.mu.Lock()
	l := s.lookups[user]
	if l == nil {
		l = &lookups{slots: make(chan struct{}, a.cfg.Lookups)}
		s.lookups[user] = l
	}
	l.users++
	s.mu.Unlock()
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		s.release(user, l)
		return ctx.Err()
	}
}

// ReleaseLookup ends what AcquireLookup began.
func (a *Admission) ReleaseLookup(user string) {
	s := a.shard(user)
	s.mu.Lock()
	l := s.lookups[user]
	s.mu.Unlock()
	<-l.slots
	s.release(user, l)
}

func (s *shard) release(user string, l *lookups) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(s.lookups, user)
	}
}

// Cached reports whether a user is cached as a member of a chat, and not suspect.
func (a *Admission) Cached(user, chat string) bool {
	s, p := a.shard(user), pair{user, chat}
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.recent[p]
	if !ok {
		if until, ok = s.older[p]; !ok {
			return false
		}
		a.use(s, p, until)
	}
	return until.IsZero()
}

// Cache says that a user is a member of a chat.
func (a *Admission) Cache(user, chat string) {
	s, p := a.shard(user), pair{user, chat}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := s.find(p); until.IsZero() || !a.cfg.Clock().Before(until) {
		a.use(s, p, time.Time{})
	}
}

// Suspect says that a command of a user made a plan fail: for a while the user is looked up
// before each command, even if Cache was called.
func (a *Admission) Suspect(user, chat string) {
	s := a.shard(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.use(s, pair{user, chat}, a.cfg.Clock().Add(suspectFor))
}

// Evict says that a user is not a member of a chat any more.
func (a *Admission) Evict(user, chat string) {
	s, p := a.shard(user), pair{user, chat}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(p).IsZero() { // a suspect user stays suspect
		delete(s.recent, p)
		delete(s.older, p)
	}
}

func (s *shard) find(p pair) time.Time {
	if until, ok := s.recent[p]; ok {
		return until
	}
	return s.older[p]
}

// use records a pair as used last. Callers hold the mutex.
func (a *Admission) use(s *shard, p pair, until time.Time) {
	if _, ok := s.recent[p]; !ok && len(s.recent) >= max(1, a.cfg.Members/shards) {
		s.older, s.recent = s.recent, map[pair]time.Time{}
	}
	s.recent[p] = until
}
