package explorer

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/store"
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
	it, err := s.w.store.Get(ctx, key, c)
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
	items, err := s.w.store.BatchGet(ctx, keys, c)
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
	page, err := s.w.store.Query(ctx, q)
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
	if s.w.bug.plan != nil {
		s.w.bug.plan(s.w, &p)
	}
	err := s.w.store.Transact(ctx, p)
	if s.w.trace != nil {
		s.w.tracef("%s plans %s: %v", s.p.name, planString(p), err)
	}
	if err == nil {
		s.w.record(&p)
		if k := p.Writes[0].Key; s.w.current != nil && len(p.Writes) == 1 && k.Table == store.DeliveryState {
			s.w.current.owes = k.PK
		}
	}
	if stopped := s.stop(); stopped != nil {
		return stopped
	}
	if lost {
		if s.w.trace != nil {
			s.w.tracef("%s: the answer is lost", s.p.name)
		}
		return store.ErrAmbiguous
	}
	return err
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

// Durable implements store.Store.
func (s *stops) Durable(context.Context) error {
	if s.p.dead || s.w.over {
		return store.ErrClosed
	}
	return nil
}

// Close implements store.Store.
func (s *stops) Close() error { return nil }

// sleep is a wait between attempts of a plan: it only stops. Plans do not grow
// old meanwhile, see actTime.
func (s *stops) sleep(context.Context, time.Duration) error {
	s.w.sleeping++
	defer func() { s.w.sleeping-- }()
	return s.stop()
}
