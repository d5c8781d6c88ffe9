package routing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/parley-chat/parley/server/infra/bounded"
)

// Recipients returns the members of a chat, from a cache in the process, the shared
// cache, or the store.
type Recipients struct {
	lists  Lists
	prefix string
	load   func(ctx context.Context, chatID string) (version int64, users []string, err error)

	mu    sync.RWMutex
	local map[string]memberList

	hits, shared, loads atomic.Int64
}

// RecipientStats counts answers by their source.
type RecipientStats struct{ Local, Shared, Loaded int64 }

// maxLocal bounds the lists cached in the process.
const maxLocal = 1 << 14

type memberList struct {
	version int64
	users   []string
}

// NewRecipients makes an empty cache for a generation of the store: after a restore the
// same version may be of another list. lists may be nil; load reads the store,
// consistently, and returns a list and a version that it is not older than.
func NewRecipients(
	generation string, lists Lists, load func(context.Context, string) (int64, []string, error),
) *Recipients {
	return &Recipients{lists: lists, prefix: generation + ":", load: load, local: map[string]memberList{}}
}

// ErrStale says that the store's own list is older than what was asked for.
var ErrStale = errors.New("routing: the store's member list is older than the event")

// Members returns the members of a chat. A cached list is used only if it is not older
// than the membership version asked for, because an older one may lack a member whom the
// change concerns; it may be newer. The result must not be changed. Errors are those of
// the store: when the shared cache fails the store answers.
func (r *Recipients) Members(ctx context.Context, chatID string, version int64) ([]string, error) {
	r.mu.RLock()
	l, ok := r.local[chatID]
	r.mu.RUnlock()
	if ok && l.version >= version {
		r.hits.Add(1)
		return l.users, nil
	}
	if r.lists != nil {
		if v, users, err := r.lists.List(ctx, r.prefix+chatID); err == nil && v >= version && v > 0 {
			r.shared.Add(1)
			r.remember(chatID, v, users)
			return users, nil
		}
	}
	v, users, err := r.load(ctx, chatID)
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	if v < version {
		return nil, ErrStale
	}
	r.loads.Add(1)
	r.remember(chatID, v, users)
	if r.lists != nil && v > 0 {
		_ = r.lists.SetList(ctx, r.prefix+chatID, v, users) // without it the next caller loads the list, too
	}
	return users, nil
}

func (r *Recipients) remember(chatID string, version int64, users []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.local[chatID].version > version {
		return
	}
	bounded.Put(r.local, chatID, memberList{version: version, users: users}, maxLocal)
}

// Stats returns the counters.
func (r *Recipients) Stats() RecipientStats {
	return RecipientStats{Local: r.hits.Load(), Shared: r.shared.Load(), Loaded: r.loads.Load()}
}
