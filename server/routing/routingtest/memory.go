// Package routingtest is the routing table of one process, for tests: package routing's
// contract without Redis, and with failures on demand.
//
// Concurrency: a Memory is safe for concurrent use.
package routingtest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/routing"
)

// Memory keeps servers, rows and lists in maps.
type Memory struct {
	clock func() time.Time

	mu        sync.Mutex
	failure   error // the answer to every call; nil: the table works
	servers   map[string]leased
	rows      map[string]map[rowKey]time.Time // by user; when they expire
	lists     map[string]memberList
	listeners map[int]listener // by number of the subscription
	lastID    int
}

type leased struct {
	server routing.Server
	until  time.Time
}

// rowKey is a server under one of its leases.
type rowKey struct {
	id    string
	epoch uint64
}

type memberList struct {
	version int64
	users   []string
	until   time.Time
}

var (
	_ routing.Table  = (*Memory)(nil)
	_ routing.Lists  = (*Memory)(nil)
	_ routing.Nudges = (*Memory)(nil)
)

// New makes an empty table.
func New(clock func() time.Time) *Memory {
	return &Memory{
		clock: clock, servers: map[string]leased{}, rows: map[string]map[rowKey]time.Time{},
		lists: map[string]memberList{}, listeners: map[int]listener{},
	}
}

// Fail makes every call fail with err; nil makes the table work again.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// Flush removes everything.
func (m *Memory) Flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.servers)
	clear(m.rows)
	clear(m.lists)
}

func (m *Memory) begin(ctx context.Context) (now time.Time, unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return now, nil, err
	}
	m.mu.Lock()
	if m.failure != nil {
		defer m.mu.Unlock()
		return now, nil, m.failure
	}
	return m.clock(), m.mu.Unlock, nil
}

// Claim implements Table.
func (m *Memory) Claim(ctx context.Context, s routing.Server, ttl time.Duration) error {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := m.servers[s.ID]; !ok && len(m.servers) >= routing.MaxServers {
		return routing.ErrLimit
	}
	m.servers[s.ID] = leased{s, now.Add(ttl)}
	return nil
}

// held returns a lease that is held. Callers hold mu.
func (m *Memory) held(id string, now time.Time) (routing.Server, bool) {
	l, ok := m.servers[id]
	if ok && !now.Before(l.until) {
		delete(m.servers, id)
		ok = false
	}
	return l.server, ok
}

// Renew implements Table.
func (m *Memory) Renew(ctx context.Context, s routing.Server, ttl time.Duration) (bool, error) {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if have, ok := m.held(s.ID, now); !ok || have != s {
		return false, nil
	}
	m.servers[s.ID] = leased{s, now.Add(ttl)}
	return true, nil
}

// Release implements Table.
func (m *Memory) Release(ctx context.Context, s routing.Server) error {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if have, ok := m.held(s.ID, now); ok && have == s {
		delete(m.servers, s.ID)
	}
	return nil
}

// Servers implements Table.
func (m *Memory) Servers(ctx context.Context) ([]routing.Server, error) {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var list []routing.Server
	for id := range m.servers {
		if s, ok := m.held(id, now); ok {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b routing.Server) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// Put implements Table.
func (m *Memory) Put(ctx context.Context, s routing.Server, users []string, ttl time.Duration) (int, error) {
	if len(users) > routing.MaxLookup {
		return 0, routing.ErrLimit
	}
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	missing := 0
	for _, u := range users {
		if m.rows[u] == nil {
			m.rows[u] = map[rowKey]time.Time{}
		}
		k := rowKey{s.ID, s.Epoch}
		if until, ok := m.rows[u][k]; !ok || !now.Before(until) {
			missing++
		}
		m.rows[u][k] = now.Add(ttl)
	}
	return missing, nil
}

// Remove implements Table.
func (m *Memory) Remove(ctx context.Context, s routing.Server, users []string) error {
	if len(users) > routing.MaxLookup {
		return routing.ErrLimit
	}
	_, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, u := range users {
		delete(m.rows[u], rowKey{s.ID, s.Epoch})
		if len(m.rows[u]) == 0 {
			delete(m.rows, u)
		}
	}
	return nil
}

// Lookup implements Table.
func (m *Memory) Lookup(ctx context.Context, users []string) (map[string][]routing.Server, error) {
	if len(users) > routing.MaxLookup {
		return nil, routing.ErrLimit
	}
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	out := map[string][]routing.Server{}
	for _, u := range users {
		if out[u] != nil {
			continue
		}
		for k, until := range m.rows[u] {
			s, ok := m.held(k.id, now)
			if !ok || s.Epoch != k.epoch || !now.Before(until) {
				delete(m.rows[u], k)
				continue
			}
			out[u] = append(out[u], s)
		}
		slices.SortFunc(out[u], func(a, b routing.Server) int { return cmp.Compare(a.ID, b.ID) })
	}
	return out, nil
}

// List implements Lists.
func (m *Memory) List(ctx context.Context, chatID string) (int64, []string, error) {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer unlock()
	l, ok := m.lists[chatID]
	if !ok || !now.Before(l.until) {
		return 0, nil, nil
	}
	return l.version, slices.Clone(l.users), nil
}

// SetList implements Lists.
func (m *Memory) SetList(ctx context.Context, chatID string, version int64, users []string) error {
	if len(users) > routing.MaxMembers {
		return routing.ErrLimit
	}
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if l := m.lists[chatID]; version > l.version || !now.Before(l.until) {
		m.lists[chatID] = memberList{version, slices.Clone(users), now.Add(routing.ListTTL)}
	}
	return nil
}

// Nudge implements Nudges.
func (m *Memory) Nudge(ctx context.Context, list []routing.Nudge) error {
	for _, n := range list {
		if len(n.Payload) > routing.MaxNudge || n.Shard < 0 {
			return routing.ErrLimit
		}
	}
	_, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, n := range list {
		for _, l := range m.listeners {
			if slices.Contains(l.shards, n.Shard) {
				l.handle(n)
			}
		}
	}
	return nil
}

// listener is a subscription to the nudges of some shards.
type listener struct {
	shards []int
	handle func(routing.Nudge)
}

// Subscribe implements Nudges.
func (m *Memory) Subscribe(ctx context.Context, shards []int, ready func(), handle func(routing.Nudge)) error {
	if len(shards) == 0 || len(shards) > routing.MaxShards || slices.Min(shards) < 0 {
		return routing.ErrLimit
	}
	_, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	m.lastID++
	id := m.lastID
	m.listeners[id] = listener{slices.Clone(shards), handle}
	unlock()
	if ready != nil {
		ready()
	}
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.listeners, id)
	return ctx.Err()
}
