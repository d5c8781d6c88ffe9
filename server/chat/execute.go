package chat

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Waits between attempts, with full jitter.
const (
	firstWait = 5 * time.Millisecond
	maxWait   = time.Second
)

// transact runs a plan until its outcome is known, or it is too old.
//
// After ErrAmbiguous the very same plan goes again, with the same token. That is
// safe, because every plan of this package can succeed at most once (it compares
// the head or demands that an item be absent), and it finds the truth: if the
// first attempt was committed, the second fails on conditions, with the plan's
// own rows as the current items, which the callers recognise (see ours); if the
// second fails otherwise, the first can never succeed any more; if the second
// succeeds, the first was lost. Only when the plan grows too old without a
// definite answer the outcome stays unknown, and the caller gets ErrAmbiguous.
func (s *Service) transact(ctx context.Context, p store.Plan) error {
	deadline := s.cfg.Clock().Add(planAge)
	ambiguous := false
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		call, cancel := context.WithTimeout(ctx, store.CallTimeout)
		err := s.cfg.Store.Transact(call, p)
		cancel()
		switch {
		case errors.Is(err, store.ErrAmbiguous):
			ambiguous = true
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrThrottled), errors.Is(err, store.ErrUnavailable):
		default:
			return err
		}
		expired := !s.cfg.Clock().Before(deadline)
		if !expired {
			expired = s.cfg.Sleep(ctx, rand.N(wait)) != nil
		}
		if expired && ambiguous {
			return store.ErrAmbiguous
		}
		if expired {
			return err
		}
	}
}

// conditionError returns the failed conditions of err, nil for other errors.
func conditionError(err error) *store.ConditionError {
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}
