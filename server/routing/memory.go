package routing

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Memory is the engine of one process, and of tests.
type Memory struct {
	clock func() time.Time

	mu      sync.Mutex
	down    error // for tests: what every call answers
	servers map[string]leased
	rows    map[string]map[rowKey]time.Time // by user; when they expire
	lists   map[string]memberList
	heard   map[int]listener
	next    int
}

type leased struct {
	Server
	until time.Time
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
	_ Engine = (*Memory)(nil)
	_ Lists  = (*Memory)(nil)
	_ Nudges = (*Memory)(nil)
)

// NewMemory makes an empty engine.
func NewMemory(clock func() time.Time) *Memory {
	return &Memory{
		clock: clock, servers: map[string]leased{}, rows: map[string]map[rowKey]time.Time{},
		lists: map[string]memberList{}, heard: map[int]listener{},
	}
}

// Fail has every call answer with an error, or nil work again.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
}

// Flush forgets everything.
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
	if m.down != nil {
		defer m.mu.Unlock()
		return now, nil, m.down
	}
	return m.clock(), m.mu.Unlock, nil
}

// Claim implements Table.
func (m *Memory) Claim(ctx context.Context, s Server, ttl time.Duration) error {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := m.servers[s.ID]; !ok && len(m.servers) >= MaxServers {
		return ErrLimit
	}
	m.servers[s.ID] = leased{s, now.Add(ttl)}
	return nil
}

// held returns a lease that is held. Callers hold mu.
func (m *Memory) held(id string, now time.Time) (Server, bool) {
	l, ok := m.servers[id]
	if ok && !now.Before(l.until) {
		delete(m.servers, id)
		ok = false
	}
	return l.Server, ok
}

// Renew implements Table.
func (m *Memory) Renew(ctx context.Context, s Server, ttl time.Duration) (bool, error) {
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
func (m *Memory) Release(ctx context.Context, s Server) error {
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
func (m *Memory) Servers(ctx context.Context) ([]Server, error) {
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var list []Server
	for id := range m.servers {
		if s, ok := m.held(id, now); ok {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Server) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// Put implements Table.
func (m *Memory) Put(ctx context.Context, s Server, users []string, ttl time.Duration) (int, error) {
	if err := checkUsers(users); err != nil {
		return 0, err
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
func (m *Memory) Remove(ctx context.Context, s Server, users []string) error {
	if err := checkUsers(users); err != nil {
		return err
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
func (m *Memory) Lookup(ctx context.Context, users []string) (map[string][]Server, error) {
	if err := checkUsers(users); err != nil {
		return nil, err
	}
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	out := map[string][]Server{}
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
		slices.SortFunc(out[u], func(a, b Server) int { return cmp.Compare(a.ID, b.ID) })
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
	if err := checkList(users); err != nil {
		return err
	}
	now, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if l := m.lists[chatID]; version > l.version || !now.Before(l.until) {
		m.lists[chatID] = memberList{version, slices.Clone(users), now.Add(listTTL)}
	}
	return nil
}

// Nudge implements Nudges.
func (m *Memory) Nudge(ctx context.Context, list []Nudge) error {
	if err := checkNudges(list); err != nil {
		return err
	}
	_, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, n := range list {
		for _, l := range m.heard {
			if slices.Contains(l.shards, n.Shard) {
				l.got(n)
			}
		}
	}
	return nil
}

// listener hears the nudges of some shards.
type listener struct {
	shards []int
	got    func(Nudge)
}

// Nudged implements Nudges.
func (m *Memory) Nudged(ctx context.Context, shards []int, ready func(), got func(Nudge)) error {
	if err := checkShards(shards); err != nil {
		return err
	}
	_, unlock, err := m.begin(ctx)
	if err != nil {
		return err
	}
	m.next++
	id := m.next
	m.heard[id] = listener{slices.Clone(shards), got}
	unlock()
	if ready != nil {
		ready()
	}
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.heard, id)
	return ctx.Err()
}

// Close implements Engine.
func (m *Memory) Close() error { return nil }
