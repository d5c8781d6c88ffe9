// Package admit decides who may join what the members of a chat share: its queue and
// its plans.
//
// A Door counts the requests that each user has under way, and refuses what is beyond a
// bound; of those that are looked up, a few go at a time and the others of the user wait.
// It remembers which users were found to be members of which chats: these go to
// the queue without reading anything. It never decides on a command: what it remembers
// may be old, so that the conditions of the plan stay the authority, and whoever is not
// remembered is looked up, outside of the queue. Whose command made a plan fail that was
// others' too is in doubt for a while, and looked up first each time.
//
// A Door is safe for use by many goroutines. Its mutexes, one per shard of the users, are
// held for a few instructions only.
package admit

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrBusy is the answer to a user who has too many requests under way.
var ErrBusy = errors.New("chat: too many requests of one user under way")

// Config sets up a Door. Clock is required.
type Config struct {
	Clock func() time.Time
	// PerChat and PerCaller are how many requests a user may have under way for one chat,
	// and in all; by default 128 and 512.
	PerChat, PerCaller int
	// Looks is how many requests of a user are looked up at a time; by default 4.
	Looks int
	// Proven is the number of memberships that are remembered at least; by default
	// 65,536, twice as many at most.
	Proven int
}

// doubt is how long a user is looked up first who made a plan fail.
const doubt = 10 * time.Second

const shards = 32

// Door is the way into the queues of a process.
type Door struct {
	cfg    Config
	shards [shards]shard
}

// pair is a user in a chat; without a chat, in all of them.
type pair struct{ user, chat string }

type shard struct {
	mu       sync.Mutex
	underWay map[pair]int
	looks    map[string]*looks
	// Memberships used last, and those used before: when the first are many enough they
	// become the latter. The value is when doubt about the pair ends: zero for none.
	recent, older map[pair]time.Time
}

// looks are those of one user.
type looks struct {
	slots chan struct{}
	users int // who hold a slot or wait for one
}

// New makes a Door.
func New(cfg Config) *Door {
	if cfg.PerChat <= 0 {
		cfg.PerChat = 128
	}
	if cfg.PerCaller <= 0 {
		cfg.PerCaller = 512
	}
	if cfg.Looks <= 0 {
		cfg.Looks = 4
	}
	if cfg.Proven <= 0 {
		cfg.Proven = 1 << 16
	}
	d := &Door{cfg: cfg}
	for i := range d.shards {
		d.shards[i] = shard{underWay: map[pair]int{}, looks: map[string]*looks{}, recent: map[pair]time.Time{}, older: map[pair]time.Time{}}
	}
	return d
}

// shard is the one of a user, the same in every run: what is forgotten first hangs on it.
func (d *Door) shard(user string) *shard {
	h := uint32(2166136261) // FNV-1a
	for i := range len(user) {
		h = (h ^ uint32(user[i])) * 16777619
	}
	return &d.shards[h%shards]
}

// Enter counts a request of a user for a chat, empty for none; Leave must follow.
// Errors: ErrBusy, after which Leave must not be called.
func (d *Door) Enter(user, chat string) error {
	s := d.shard(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	all, here := pair{user: user}, pair{user, chat}
	if s.underWay[all] >= d.cfg.PerCaller || (chat != "" && s.underWay[here] >= d.cfg.PerChat) {
		return ErrBusy
	}
	s.underWay[all]++
	if chat != "" {
		s.underWay[here]++
	}
	return nil
}

// Leave ends a request that Enter counted.
func (d *Door) Leave(user, chat string) {
	s := d.shard(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.less(pair{user: user})
	if chat != "" {
		s.less(pair{user, chat})
	}
}

func (s *shard) less(p pair) {
	if s.underWay[p]--; s.underWay[p] <= 0 {
		delete(s.underWay, p)
	}
}

// Look waits until a request of a user may be looked up; Looked must follow. It returns
// the context's error if that ends first, after which Looked must not be called.
func (d *Door) Look(ctx context.Context, user string) error {
	s := d.shard(user)
	s.mu.Lock()
	l := s.looks[user]
	if l == nil {
		l = &looks{slots: make(chan struct{}, d.cfg.Looks)}
		s.looks[user] = l
	}
	l.users++
	s.mu.Unlock()
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		s.leave(user, l)
		return ctx.Err()
	}
}

// Looked ends what Look began.
func (d *Door) Looked(user string) {
	s := d.shard(user)
	s.mu.Lock()
	l := s.looks[user]
	s.mu.Unlock()
	<-l.slots
	s.leave(user, l)
}

func (s *shard) leave(user string, l *looks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(s.looks, user)
	}
}

// Proven reports whether a user was found to be a member of a chat, and nothing spoke
// against it since.
func (d *Door) Proven(user, chat string) bool {
	s, p := d.shard(user), pair{user, chat}
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.recent[p]
	if !ok {
		if until, ok = s.older[p]; !ok {
			return false
		}
		d.note(s, p, until)
	}
	return until.IsZero()
}

// Prove says that a user is a member of a chat.
func (d *Door) Prove(user, chat string) {
	s, p := d.shard(user), pair{user, chat}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := s.find(p); until.IsZero() || !d.cfg.Clock().Before(until) {
		d.note(s, p, time.Time{})
	}
}

// Doubt says that a command of a user made a plan fail: for a while the user is looked
// up before each of them, whatever Prove says.
func (d *Door) Doubt(user, chat string) {
	s := d.shard(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.note(s, pair{user, chat}, d.cfg.Clock().Add(doubt))
}

// Forget says that a user is no member of a chat any more.
func (d *Door) Forget(user, chat string) {
	s, p := d.shard(user), pair{user, chat}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(p).IsZero() { // doubts stay
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

// note remembers a pair as used last. Callers hold the mutex.
func (d *Door) note(s *shard, p pair, until time.Time) {
	if _, ok := s.recent[p]; !ok && len(s.recent) >= max(1, d.cfg.Proven/shards) {
		s.older, s.recent = s.recent, map[pair]time.Time{}
	}
	s.recent[p] = until
}
