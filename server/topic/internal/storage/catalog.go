package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// ErrChanged reports that the store does not hold what the copy shows, because another
// process writes to it.
var ErrChanged = errors.New("storage: another writer changed the row")

// Catalog holds all topics of a slot.
type Catalog struct {
	store    store.Store
	clock    func() time.Time
	slot     Slot
	epoch    int64
	counters store.Key // of the slot

	mu     sync.RWMutex
	topics map[string]*Topic
	names  []string // in order

	create sync.Mutex // one topic is made at a time
}

// Topic is a topic with its subscriptions. It is changed within Changing; Reading keeps it from
// being changed.
type Topic struct {
	Name   string
	Number uint64

	view atomic.Pointer[View]
	lock sync.RWMutex             // see Changing and Reading
	subs map[string]*Subscription // guarded by lock

	purge purge
}

// View is what a topic was at a time. It does not change.
type View struct {
	Config    *topicv1.TopicConfig
	Preset    topicv1.Preset
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
	Deleting  bool
	CreatedBy string             // a principal; "" for operators, and of topics that are older than this field
	Bindings  map[string]Binding // by principal
}

// Binding is what a principal may do with a topic. It does not change.
type Binding struct {
	Role   topicv1.Role
	Groups []string // patterns of the groups that a subscriber may use; empty: all
}

// Covers reports whether a binding is for a group. A pattern is a group's name, or with an
// asterisk at its end the beginning of names.
func (b Binding) Covers(group string) bool {
	if len(b.Groups) == 0 {
		return true
	}
	return slices.ContainsFunc(b.Groups, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return group == pattern || open && strings.HasPrefix(group, prefix)
	})
}

// Subscription is what a subscription was at a time. It does not change.
type Subscription struct {
	Group  string
	State  State
	Config *topicv1.SubscriptionConfig
	Push   *Push // with Config.Push, and until it has ended
	Row    table.Subscription
}

// OpenCatalog reads the rows of a slot's topics, and takes them over: every earlier epoch ends. The
// rows are read after that, so that they hold all that an earlier owner has stored.
func OpenCatalog(ctx context.Context, s store.Store, clock func() time.Time, slot Slot) (*Catalog, error) {
	c := &Catalog{store: s, clock: clock, slot: slot, counters: table.TopicCountersKey(slot.Number),
		topics: map[string]*Topic{}}
	var err error
	if c.epoch, err = takeEpoch(ctx, s, c.counters, table.AttrEpoch); err != nil {
		return nil, err
	}
	if slot.Of > 0 {
		c.store = newFencedStore(s, c.counters, table.AttrEpoch, c.epoch)
	}
	if err := c.load(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// load reads the rows. Those of a topic may come in any order, and its bindings and
// subscriptions before itself.
func (c *Catalog) load(ctx context.Context) error {
	views := map[string]*View{}
	topics := map[string]*Topic{}
	read := newParsed()
	err := c.rows(ctx, func(row store.Row) error {
		name := row.Key.PK
		if topics[name] == nil {
			topics[name] = &Topic{Name: name, subs: map[string]*Subscription{}}
			views[name] = &View{Bindings: map[string]Binding{}}
		}
		if err := topics[name].add(views[name], row, read); err != nil {
			return fmt.Errorf("%s: %w", row.Key, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading topics: %w", err)
	}
	for name, t := range topics {
		if v := views[name]; v.Version > 0 {
			t.view.Store(v)
			c.topics[name] = t
			c.names = append(c.names, name)
		}
	}
	slices.Sort(c.names)
	return nil
}

func (t *Topic) add(v *View, row store.Row, read *parsed) error {
	if table.IsTopic(row.Key) {
		return t.addTopic(v, table.TopicFrom(row.Item), read)
	}
	if principal, ok := table.BoundPrincipal(row.Key); ok {
		b := table.TopicBindingFrom(row.Item)
		v.Bindings[principal] = Binding{Role: topicv1.Role(topicv1.Role_value[b.Role]), Groups: b.Groups}
	}
	if group, ok := table.SubscribedGroup(row.Key); ok {
		sub, err := read.subscription(group, table.SubscriptionFrom(row.Item))
		if err != nil {
			return err
		}
		t.subs[group] = sub
	}
	if table.IsTopicPurge(row.Key) {
		return t.addPurge(row)
	}
	return nil
}

func (t *Topic) addTopic(v *View, r table.Topic, read *parsed) (err error) {
	if v.Config, err = read.topic(r.Config); err != nil {
		return err
	}
	t.Number = uint64(r.Number)
	v.Preset = topicv1.Preset(topicv1.Preset_value[r.Preset])
	v.Version, v.Deleting = r.Version, r.Deleting
	v.CreatedAt, v.UpdatedAt = time.UnixMilli(r.CreatedAt), time.UnixMilli(r.UpdatedAt)
	v.CreatedBy = r.CreatedBy
	return nil
}

func encode(m proto.Message) (string, error) {
	b, err := protojson.Marshal(m)
	return string(b), err
}

// Epoch is the number of this process among those that had the topics.
func (c *Catalog) Epoch() int64 { return c.epoch }

// Topic returns a topic, nil if there is none.
func (c *Catalog) Topic(name string) *Topic {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.topics[name]
}

// Topics returns up to limit topics whose names follow after, in order, for which accept
// holds.
func (c *Catalog) Topics(after string, limit int, accept func(*Topic) bool) []*Topic {
	c.mu.RLock()
	defer c.mu.RUnlock()
	i, found := slices.BinarySearch(c.names, after)
	if found {
		i++
	}
	var list []*Topic
	for ; i < len(c.names) && len(list) < limit; i++ {
		if t := c.topics[c.names[i]]; accept(t) {
			list = append(list, t)
		}
	}
	return list
}

// Count is the number of topics.
func (c *Catalog) Count() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.names)
}

// CountOf is the number of topics that a principal has made.
func (c *Catalog) CountOf(principal string) (n int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, t := range c.topics {
		if t.View().CreatedBy == principal {
			n++
		}
	}
	return n
}

// View returns what the topic is.
func (t *Topic) View() *View { return t.view.Load() }

// Etag shows clients the version of a row.
func Etag(version int64) string { return strconv.FormatInt(version, 10) }

// Subscription returns a group's subscription, nil if there is none. The caller holds the
// topic's lock.
func (t *Topic) Subscription(group string) *Subscription { return t.subs[group] }

// Subscriptions returns all subscriptions by group. The caller holds the topic's lock.
func (t *Topic) Subscriptions() []*Subscription {
	list := make([]*Subscription, 0, len(t.subs))
	for _, s := range t.subs {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *Subscription) int { return strings.Compare(a.Group, b.Group) })
	return list
}

// Each calls f with the state of each subscription, in no order. The caller holds the
// topic's lock.
func (t *Topic) Each(f func(State)) {
	for _, s := range t.subs {
		f(s.State)
	}
}

// EachOf calls f with each subscription, in no order. The caller holds the topic's lock.
func (t *Topic) EachOf(f func(*Subscription)) {
	for _, s := range t.subs {
		f(s)
	}
}

// Observed changes the copy of a subscription's row by what its heartbeats have written to the
// row. The caller holds the topic's lock for writing.
func (t *Topic) Observed(group string, record func(*table.Subscription)) {
	if old := t.subs[group]; old != nil {
		next := *old
		record(&next.Row)
		t.subs[group] = &next
	}
}

// Active is the number of active subscriptions. The caller holds the topic's lock.
func (t *Topic) Active() int {
	n := 0
	for _, s := range t.subs {
		if s.State == Active {
			n++
		}
	}
	return n
}
