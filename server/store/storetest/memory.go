// Package storetest holds the storage contract as a suite that every engine
// runs ([Run]), and the map engine: the simplest possible store, which serves
// as oracle in property tests and as the store of schedule exploration.
//
// It owns no production engine. A Memory keeps nothing on disk; everything it
// answers counts as durable.
package storetest

import (
	"context"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Memory is a store in memory: deterministic, without goroutines, safe for use by
// many.
type Memory struct {
	clock func() time.Time

	mu     sync.Mutex
	closed bool
	tables map[store.Table]map[string]*partition // by partition key
}

// partition holds the items of one partition key in order of the sort key.
type partition struct {
	keys  []string
	items []store.Item
}

var _ store.Store = (*Memory)(nil)

// NewMemory makes an empty map engine; clock decides what has expired.
func NewMemory(clock func() time.Time) *Memory {
	return &Memory{clock: clock, tables: map[store.Table]map[string]*partition{}}
}

func (m *Memory) begin(ctx context.Context) error {
	if m.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

func (p *partition) find(sk string) (int, bool) {
	n := len(p.keys)
	if n == 0 || p.keys[n-1] < sk { // appending is the usual case
		return n, false
	}
	i := sort.SearchStrings(p.keys, sk)
	return i, i < n && p.keys[i] == sk
}

func (m *Memory) get(k store.Key, now int64) store.Item {
	p := m.tables[k.Table][k.PK]
	if p == nil {
		return nil
	}
	i, ok := p.find(k.SK)
	if !ok || store.Expired(p.items[i], now) {
		return nil
	}
	return p.items[i]
}

func (m *Memory) set(k store.Key, it store.Item) {
	t := m.tables[k.Table]
	if t == nil {
		t = map[string]*partition{}
		m.tables[k.Table] = t
	}
	p := t[k.PK]
	if p == nil {
		if it == nil {
			return
		}
		p = &partition{}
		t[k.PK] = p
	}
	i, ok := p.find(k.SK)
	switch {
	case it == nil && ok:
		p.keys = append(p.keys[:i], p.keys[i+1:]...)
		p.items = append(p.items[:i], p.items[i+1:]...)
		if len(p.keys) == 0 {
			delete(t, k.PK)
		}
	case it == nil:
	case ok:
		p.items[i] = it
	default:
		p.keys = append(p.keys, "")
		p.items = append(p.items, nil)
		copy(p.keys[i+1:], p.keys[i:])
		copy(p.items[i+1:], p.items[i:])
		p.keys[i], p.items[i] = k.SK, it
	}
}

// Clone returns a store of its own with the same content and clock.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Memory{clock: m.clock, closed: m.closed, tables: make(map[store.Table]map[string]*partition, len(m.tables))}
	for name, t := range m.tables {
		copied := make(map[string]*partition, len(t))
		for pk, p := range t {
			copied[pk] = &partition{keys: slices.Clone(p.keys), items: slices.Clone(p.items)}
		}
		c.tables[name] = copied
	}
	return c
}

// Get implements store.Store.
func (m *Memory) Get(ctx context.Context, key store.Key, _ store.Consistency) (store.Item, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	return m.get(key, m.clock().Unix()), nil
}

// BatchGet implements store.Store.
func (m *Memory) BatchGet(ctx context.Context, keys []store.Key, _ store.Consistency) ([]store.Item, error) {
	if err := store.ValidateKeys(keys); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	now := m.clock().Unix()
	items := make([]store.Item, len(keys))
	for i, k := range keys {
		items[i] = m.get(k, now)
	}
	return items, nil
}

// Query implements store.Store.
func (m *Memory) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return store.Page{}, err
	}
	p := m.tables[q.Table][q.PK]
	if p == nil {
		return store.Page{}, nil
	}
	lo, hi := 0, len(p.keys)
	if q.From != "" {
		lo = sort.SearchStrings(p.keys, q.From)
	}
	if q.To != "" {
		hi = sort.Search(len(p.keys), func(i int) bool { return p.keys[i] > q.To })
	}
	if q.Cursor != "" && q.Descending {
		hi = min(hi, sort.SearchStrings(p.keys, q.Cursor))
	} else if q.Cursor != "" {
		lo = max(lo, sort.Search(len(p.keys), func(i int) bool { return p.keys[i] > q.Cursor }))
	}
	b := store.NewPager(q.Limit, m.clock())
	for n := range hi - lo {
		i := lo + n
		if q.Descending {
			i = hi - 1 - n
		}
		if !b.Add(store.Row{Key: store.Key{Table: q.Table, PK: q.PK, SK: p.keys[i]}, Item: p.items[i]}, p.keys[i]) {
			break
		}
	}
	return b.Page, nil
}

// Scan implements store.Store.
func (m *Memory) Scan(ctx context.Context, s store.Scan) (store.Page, error) {
	if err := s.Validate(); err != nil {
		return store.Page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return store.Page{}, err
	}
	var after store.Key
	if s.Cursor != "" {
		var err error
		if after, err = s.After(); err != nil {
			return store.Page{}, err
		}
	}
	t := m.tables[s.Table]
	pks := make([]string, 0, len(t))
	for pk := range t {
		if store.Segment(pk, s.Segments) == s.Segment {
			pks = append(pks, pk)
		}
	}
	sort.Strings(pks)
	b := store.NewPager(s.Limit, m.clock())
	for _, pk := range pks {
		for i, sk := range t[pk].keys {
			if c := strings.Compare(pk, after.PK); c < 0 || c == 0 && sk <= after.SK {
				continue
			}
			k := store.Key{Table: s.Table, PK: pk, SK: sk}
			if !b.Add(store.Row{Key: k, Item: t[pk].items[i]}, store.ScanCursor(k)) {
				return b.Page, nil
			}
		}
	}
	return b.Page, nil
}

// Transact implements store.Store.
func (m *Memory) Transact(ctx context.Context, p store.Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return err
	}
	now := m.clock().Unix()
	var failures []store.Failure
	items := make([]store.Item, len(p.Writes)) // before, then after
	for i := range p.Writes {
		w := &p.Writes[i]
		if len(w.Cond) == 0 && w.Op != store.OpUpdate {
			continue
		}
		items[i] = m.get(w.Key, now)
		if !store.Evaluate(w.Cond, items[i]) {
			failures = append(failures, store.Failure{Index: i, Name: w.Name, Current: items[i]})
		}
	}
	if len(failures) > 0 {
		return &store.ConditionError{Failures: failures}
	}
	for i := range p.Writes {
		var err error
		if items[i], err = p.Writes[i].Next(items[i]); err != nil {
			return err
		}
	}
	for i := range p.Writes {
		if p.Writes[i].Op != store.OpCheck {
			m.set(p.Writes[i].Key, items[i])
		}
	}
	return nil
}

// BatchWrite implements store.Store.
func (m *Memory) BatchWrite(ctx context.Context, writes []store.Write) error {
	if err := store.ValidateBatch(writes); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return err
	}
	for i := range writes {
		m.set(writes[i].Key, writes[i].Item)
	}
	return nil
}

// Durable implements store.Store.
func (m *Memory) Durable(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.begin(ctx)
}

// Close implements store.Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
