package explorer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// stops is one process's way to the store: whoever runs as a task stops after
// each call, and calls fail now and then. A dead process gets no more answers.
type stops struct {
	w *world
	p *process
}

var _ store.Store = (*stops)(nil)

// stop pauses the present task, if any, and reports whether the process died.
func (s *stops) stop() error {
	if t := s.w.current; t != nil {
		t.co.pause(struct{}{})
		s.w.current = t
	}
	if s.p.dead || s.w.over {
		return store.ErrClosed
	}
	return nil
}

func (s *stops) begin() error {
	switch {
	case s.p.dead || s.w.over:
		return store.ErrClosed
	case s.w.current != nil && s.w.trouble(s.w.faulty):
		if s.w.trace != nil {
			s.w.tracef("%s: the store is unavailable", s.p.name)
		}
		return store.ErrUnavailable
	}
	return nil
}

// Get implements store.Store.
func (s *stops) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	it, err := s.from(key.Table, c).Get(ctx, key, c)
	if s.w.trace != nil {
		s.w.tracef("%s reads %s", s.p.name, key)
	}
	if s.w.bug.read != nil {
		it = s.w.bug.read(s.w, key, it)
	}
	if stopped := s.stop(); stopped != nil {
		return nil, stopped
	}
	return it, err
}

// BatchGet implements store.Store.
func (s *stops) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	items, err := s.from(keys[0].Table, c).BatchGet(ctx, keys, c)
	if s.w.trace != nil {
		s.w.tracef("%s reads %v", s.p.name, keys)
	}
	if s.w.bug.read != nil {
		for i := range items {
			items[i] = s.w.bug.read(s.w, keys[i], items[i])
		}
	}
	if stopped := s.stop(); stopped != nil {
		return nil, stopped
	}
	return items, err
}

// Query implements store.Store.
func (s *stops) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := s.begin(); err != nil {
		return store.Page{}, err
	}
	page, err := s.from(q.Table, q.Consistency).Query(ctx, q)
	if s.w.trace != nil {
		s.w.tracef("%s queries %s %s %s-%s: %d", s.p.name, q.Table, q.PK, q.From, q.To, len(page.Rows))
	}
	if stopped := s.stop(); stopped != nil {
		return store.Page{}, stopped
	}
	return page, err
}

// Transact implements store.Store. Its answer gets lost now and then, with or
// without the plan.
func (s *stops) Transact(ctx context.Context, p store.Plan) error {
	if err := s.begin(); err != nil {
		return err
	}
	lost := s.w.current != nil && s.w.trouble(s.w.faulty)
	if lost && s.w.choose.chance(300) {
		if s.w.trace != nil {
			s.w.tracef("%s: the plan is lost", s.p.name)
		}
		return store.ErrAmbiguous
	}
	if err := s.underWay(); err != nil {
		return err
	}
	if s.w.bug.plan != nil {
		s.w.bug.plan(s.w, &p)
	}
	err := s.w.store.Transact(ctx, p)
	if s.w.trace != nil {
		s.w.tracef("%s plans %s: %v", s.p.name, planString(p), err)
	}
	if err == nil {
		s.w.record(&p)
		if users := ownChange(p); s.w.current != nil && users != nil {
			s.w.current.owes = users
		}
	}
	made := s.w.moment
	if stopped := s.stop(); stopped != nil {
		return stopped
	}
	s.w.synced = max(s.w.synced, made) // what is answered is on stable storage
	if lost {
		if s.w.trace != nil {
			s.w.tracef("%s: the answer is lost", s.p.name)
		}
		return store.ErrAmbiguous
	}
	return err
}

// ownChange returns the users whose own rows a plan changes without an event that reports
// it; none for other plans.
func ownChange(p store.Plan) (users []string) {
	for _, wr := range p.Writes {
		switch wr.Key.Table {
		case store.Events:
			return nil
		case store.DeliveryState:
			users = append(users, wr.Key.PK)
		}
	}
	return users
}

func planString(p store.Plan) string {
	out := ""
	for _, w := range p.Writes {
		out += fmt.Sprintf(" %d:%s", w.Op, w.Key)
	}
	return out
}

// Scan implements store.Store.
func (s *stops) Scan(ctx context.Context, q store.Scan) (store.Page, error) {
	return s.w.store.Scan(ctx, q)
}

// BatchWrite implements store.Store.
func (s *stops) BatchWrite(ctx context.Context, writes []store.Write) error {
	return s.w.store.BatchWrite(ctx, writes)
}

// Durable implements store.Store: what is read here can be seen before it is on stable
// storage.
func (s *stops) Durable(context.Context) error {
	for made := s.w.moment; s.w.synced < made; {
		if s.w.current == nil {
			s.w.synced = made
		} else if err := s.stop(); err != nil {
			return err
		} else if s.w.choose.chance(500) {
			s.w.synced = max(s.w.synced, made)
		}
	}
	if s.p.dead || s.w.over {
		return store.ErrClosed
	}
	return nil
}

// Close implements store.Store.
func (s *stops) Close() error { return nil }

// Longest waits of a plan: for its next attempt, and in a call.
const (
	longestSleep = time.Second
	longestCall  = 20 * time.Second
)

// sleep is a wait between attempts of a plan: it only stops.
func (s *stops) sleep(context.Context, time.Duration) error { return s.wait(longestSleep) }

func (s *stops) wait(limit time.Duration) error {
	if t := s.w.current; t != nil {
		t.until = s.w.now.Add(limit)
		defer func() { t.until = time.Time{} }()
	}
	return s.stop()
}

// underWay has a plan take its time now and then before it reaches the store. The plan
// of a process that dies meanwhile may still arrive, but not in another generation.
func (s *stops) underWay() error {
	if s.w.current == nil || !s.w.trouble(s.w.tardy) {
		return nil
	}
	generation := s.w.generation
	err := s.wait(longestCall)
	if err != nil && !s.w.over && generation == s.w.generation && s.w.choose.chance(500) {
		return nil
	}
	return err
}

// seenWeak says that somebody reads without consistency; from then on worlds have a
// replica that lags behind.
var seenWeak atomic.Bool

// from is where a read goes: to the store, or to a replica.
func (s *stops) from(t store.Table, c store.Consistency) *storetest.Memory {
	if s.w.bug.weak != nil && s.w.bug.weak(t) {
		c = store.Eventual
	}
	if c == store.Strong {
		return s.w.store
	}
	seenWeak.Store(true)
	if s.w.replica == nil || s.w.calm {
		return s.w.store
	}
	return s.w.replica
}
