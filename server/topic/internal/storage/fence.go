package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

// ErrFenced says that another process has the topics. It is never a store.ConditionError.
var ErrFenced = errors.New("topic: another process has taken the topics over")

// MaxPlanWrites is how many writes a plan of an owner may have: one is the check.
const MaxPlanWrites = store.MaxPlanWrites - 1

// takeEpoch begins a new epoch in a row, and returns its number. It works on a full disk, too: without
// an owner no client can read the topics or remove unneeded messages.
func takeEpoch(ctx context.Context, s store.Store, key store.Key, attr string) (int64, error) {
	err := s.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: key, Name: "epoch", Frees: true,
		Update: store.Update{Add: []store.Increment{{Name: attr, N: 1}}},
	}}})
	if err != nil {
		return 0, fmt.Errorf("taking the topics over: %w", err)
	}
	it, err := s.Get(ctx, key, store.Strong)
	if err != nil {
		return 0, fmt.Errorf("reading the epoch: %w", err)
	}
	return it.Get(attr).Int64(), nil
}

// fencedStore is the store of an owner. Reads are not fenced.
type fencedStore struct {
	store.Store
	check store.Write
	lost  chan struct{}
	once  sync.Once
}

var _ store.Store = (*fencedStore)(nil)

// checkName is what the condition on the epoch is called.
const checkName = "owner"

// newFencedStore makes the store of the owner with an epoch, which stands in an attribute of a row.
func newFencedStore(s store.Store, key store.Key, attr string, epoch int64) *fencedStore {
	return &fencedStore{
		Store: s, lost: make(chan struct{}),
		check: store.Write{
			Op: store.OpCheck, Key: key, Cond: store.Exists().Eq(attr, store.Int(epoch)), Name: checkName,
		},
	}
}

// Lost is closed when a write was refused, or End was called.
func (s *fencedStore) Lost() <-chan struct{} { return s.lost }

// End says that the owner cannot continue: its copy may differ from the stored state.
// Another owner, in this process or elsewhere, begins with what is.
func (s *fencedStore) End() { s.once.Do(func() { close(s.lost) }) }

// Transact runs a plan of at most MaxPlanWrites writes. One that writes the row of the epoch
// itself must have the condition on it. ErrFenced: the owner is an earlier one, nothing was written.
func (s *fencedStore) Transact(ctx context.Context, p store.Plan) error {
	own := false // the plan has its own condition on the epoch
	for _, w := range p.Writes {
		own = own || w.Key == s.check.Key
	}
	fenced := p
	if !own {
		fenced.Writes = append(p.Writes[:len(p.Writes):len(p.Writes)], s.check)
	}
	err := s.Store.Transact(ctx, fenced)
	var failed *store.ConditionError
	if !errors.As(err, &failed) {
		return err
	}
	for _, f := range failed.Failures {
		if fenced.Writes[f.Index].Key == s.check.Key {
			s.End()
			return fmt.Errorf("%w: %s", ErrFenced, err.Error())
		}
	}
	return err
}

// BatchWrite writes all or nothing, unlike that of other stores.
func (s *fencedStore) BatchWrite(ctx context.Context, writes []store.Write) error {
	if len(writes) == 0 {
		return nil
	}
	return s.Transact(ctx, store.Plan{Writes: writes})
}
