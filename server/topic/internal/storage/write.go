package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxTopicsOf is how many topics of a catalogue one principal may have made.
const maxTopicsOf = 1000

// Settings are those of a topic, to be stored.
type Settings struct {
	Config *topicv1.TopicConfig
	Preset topicv1.Preset
	With   []store.Write // in the same plan, all or nothing
}

// Create makes a topic, with a number that no topic had. admin, if not empty, is its
// first administrator, and counts as its maker. If there is a topic of that name meanwhile it is returned, and
// created is false.
func (c *Catalog) Create(
	ctx context.Context, name string, set Settings, admin string,
) (t *Topic, created bool, err error) {
	c.create.Lock()
	defer c.create.Unlock()
	if t := c.Topic(name); t != nil {
		return t, false, nil
	}
	if admin != "" && c.CountOf(admin) >= maxTopicsOf {
		return nil, false, refusal.New(refusal.TooMany,
			"you have made %d topics, which is as many as one may: delete some, or ask an operator to make it", maxTopicsOf)
	}
	if !c.slot.has(name) {
		return nil, false, fmt.Errorf("storage: topic %q is not one of slot %d", name, c.slot.Number)
	}
	it, err := c.store.Get(ctx, c.counters, store.Strong)
	if err != nil {
		return nil, false, err
	}
	made := it.Get(table.AttrTopicNumber).Int64() + 1
	now := c.clock().Truncate(1e6)
	v := &View{Config: set.Config, Preset: set.Preset, Version: 1, CreatedAt: now, UpdatedAt: now, CreatedBy: admin,
		Bindings: map[string]Binding{}}
	t = &Topic{Name: name, Number: c.slot.TopicNumber(made), subs: map[string]*Subscription{}}
	put, err := t.put(v, store.Absent())
	if err != nil {
		return nil, false, err
	}
	writes := append(slices.Clone(set.With), put, store.Write{
		Op: store.OpUpdate, Key: c.counters, Name: "number",
		Cond:   store.Exists().Eq(table.AttrEpoch, store.Int(c.epoch)),
		Update: store.Update{Set: []store.Attr{{Name: table.AttrTopicNumber, Value: store.Int(made)}}},
	})
	if c.slot.Of > 0 {
		writes = append(writes, c.list(t))
	}
	if admin != "" {
		v.Bindings[admin] = Binding{Role: topicv1.Role_ROLE_ADMIN}
		writes = append(writes, binding(name, admin, v.Bindings[admin]))
	}
	if err := c.transact(ctx, writes...); err != nil {
		return nil, false, err
	}
	t.view.Store(v)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topics[name] = t
	i, _ := slices.BinarySearch(c.names, name)
	c.names = slices.Insert(c.names, i, name)
	return t, true, nil
}

// list is the write by which the topic is found when the slot has another owner.
func (c *Catalog) list(t *Topic) store.Write {
	return store.Write{
		Op: store.OpPut, Key: table.TopicListKey(c.slot.Number, t.Name), Name: "list",
		Item: store.NewItem(store.Attr{Name: table.AttrTopicNumber, Value: store.Int(int64(t.Number))}),
	}
}

// put is the write of a topic's row.
func (t *Topic) put(v *View, cond store.Condition) (store.Write, error) {
	config, err := encode(v.Config)
	row := table.Topic{
		Number: int64(t.Number), Config: config, Version: v.Version, Deleting: v.Deleting,
		CreatedAt: v.CreatedAt.UnixMilli(), UpdatedAt: v.UpdatedAt.UnixMilli(), CreatedBy: v.CreatedBy,
	}
	if v.Preset != 0 {
		row.Preset = v.Preset.String()
	}
	return store.Write{Op: store.OpPut, Key: table.TopicKey(t.Name), Item: row.Item(), Cond: cond, Name: "topic"}, err
}

// Configure changes a topic's settings.
func (c *Catalog) Configure(ctx context.Context, t *Topic, set Settings) error {
	more := append(slices.Clone(set.With), t.releases(t.View().Config.GetSchema(), set.Config.GetSchema())...)
	return c.change(ctx, t, false, func(v *View) {
		v.Config, v.Preset, v.UpdatedAt = set.Config, set.Preset, c.clock().Truncate(1e6)
	}, more...)
}

// Deleting marks a topic as being removed, for good. From then on, also after a crash,
// only Remove follows.
func (c *Catalog) Deleting(ctx context.Context, t *Topic) error {
	return c.change(ctx, t, true, func(v *View) { v.Deleting = true })
}

func (c *Catalog) change(ctx context.Context, t *Topic, frees bool, edit func(*View), more ...store.Write) error {
	old := t.View()
	v := *old
	v.Version++
	edit(&v)
	put, err := t.put(&v, store.Exists().Eq(table.AttrVersion, store.Int(old.Version)))
	if err != nil {
		return err
	}
	put.Frees = frees
	if err := c.transact(ctx, append(more, put)...); err != nil {
		return err
	}
	t.view.Store(&v)
	return nil
}

// Remove deletes all rows of a topic that is Deleting, its own last.
func (c *Catalog) Remove(ctx context.Context, t *Topic) error {
	for partition := range t.View().Config.GetPartitions() {
		pk := table.CursorPartition(int64(t.Number), partition)
		if err := c.deleteAll(ctx, store.Query{Table: store.Subscriptions, PK: pk}, nil); err != nil {
			return err
		}
	}
	own := table.TopicKey(t.Name)
	if err := c.deleteAll(ctx, store.Query{Table: store.Topics, PK: t.Name}, &own); err != nil {
		return err
	}
	// Rows that remain after a crash are removed again, from the topic's row: schemas
	// before it.
	if schemas := t.releases(t.View().Config.GetSchema(), nil); len(schemas) > 0 {
		if err := c.store.BatchWrite(ctx, schemas); err != nil {
			return err
		}
	}
	last := []store.Write{{Op: store.OpDelete, Key: own}}
	if c.slot.Of > 0 {
		last = append(last, store.Write{Op: store.OpDelete, Key: table.TopicListKey(c.slot.Number, t.Name)})
	}
	if err := c.store.BatchWrite(ctx, last); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.topics, t.Name)
	c.names = slices.DeleteFunc(c.names, func(n string) bool { return n == t.Name })
	return nil
}

func (c *Catalog) deleteAll(ctx context.Context, q store.Query, but *store.Key) error {
	q.Consistency = store.Strong
	var batch []store.Write
	for row, err := range store.QueryAll(ctx, c.store, q) {
		if err != nil {
			return err
		}
		if but == nil || row.Key != *but {
			batch = append(batch, store.Write{Op: store.OpDelete, Key: row.Key})
		}
	}
	for part := range slices.Chunk(batch, store.MaxBatchWrite) {
		if err := c.store.BatchWrite(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func binding(topic, principal string, b Binding) store.Write {
	return store.Write{
		Op: store.OpPut, Key: table.TopicBindingKey(topic, principal), Name: "binding",
		Item: table.TopicBinding{Role: b.Role.String(), Groups: b.Groups}.Item(),
	}
}

// Bind sets a principal's binding, or removes it if b is nil. The caller holds the topic's lock for
// writing.
func (c *Catalog) Bind(ctx context.Context, t *Topic, principal string, b *Binding) error {
	w := store.Write{Op: store.OpDelete, Key: table.TopicBindingKey(t.Name, principal), Name: "binding"}
	if b != nil {
		w = binding(t.Name, principal, *b)
	}
	if err := c.transact(ctx, w); err != nil {
		return err
	}
	v := *t.View()
	v.Bindings = maps.Clone(v.Bindings)
	if b == nil {
		delete(v.Bindings, principal)
	} else {
		v.Bindings[principal] = *b
	}
	t.view.Store(&v)
	return nil
}

// stateNames of states in rows.
var stateNames = map[State]string{
	Active: "active", Paused: "paused", Dead: "dead", Cancelled: "cancelled",
}

// StateName is what a state is called in rows and logs.
func StateName(s State) string { return stateNames[s] }

// Put writes a subscription in place of the one that the topic has, or as its first, with
// the next version. more are written with it, all or none.
func (c *Catalog) Put(ctx context.Context, t *Topic, s *Subscription, more ...store.Write) error {
	next := *s
	config, err := encode(s.Config)
	if err != nil {
		return err
	}
	next.Row.State, next.Row.Config = stateNames[s.State], config
	if next.Row.Push, err = s.Push.text(); err != nil {
		return err
	}
	cond := store.Absent()
	if old := t.subs[s.Group]; old != nil {
		cond = store.Exists().Eq(table.AttrVersion, store.Int(old.Row.Version))
		next.Row.Version = old.Row.Version
	}
	next.Row.Version++
	writes := append(more, store.Write{
		Op: store.OpPut, Key: table.SubscriptionKey(t.Name, s.Group), Item: next.Row.Item(), Cond: cond,
		Name: "subscription", Frees: s.State == Cancelled || s.State == Dead,
	})
	if err := c.transact(ctx, writes...); err != nil {
		return err
	}
	t.subs[s.Group] = &next
	return nil
}

// Note writes what is known of the backfill of a subscription. Its version stays.
func (c *Catalog) Note(ctx context.Context, t *Topic, group, backfill string) error {
	next := *t.subs[group]
	next.Row.Backfill = backfill
	err := c.transact(ctx, store.Write{
		Op: store.OpUpdate, Key: table.SubscriptionKey(t.Name, group), Name: "backfill",
		Cond:   store.Exists().Eq(table.AttrVersion, store.Int(next.Row.Version)),
		Update: store.Update{Set: []store.Attr{{Name: table.AttrBackfill, Value: store.String(backfill)}}},
	})
	if err != nil {
		return err
	}
	t.subs[group] = &next
	return nil
}

// DropCursors deletes the cursors of a subscription's generation, which another one follows.
func (c *Catalog) DropCursors(ctx context.Context, t *Topic, group string, generation int64) error {
	var batch []store.Write
	for partition := range t.View().Config.GetPartitions() {
		key := table.CursorKey(int64(t.Number), partition, group, generation)
		batch = append(batch, store.Write{Op: store.OpDelete, Key: key})
	}
	for part := range slices.Chunk(batch, store.MaxBatchWrite) {
		if err := c.store.BatchWrite(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// Drop deletes a subscription's row and its cursors.
func (c *Catalog) Drop(ctx context.Context, t *Topic, s *Subscription) error {
	err := c.transact(ctx, store.Write{
		Op: store.OpDelete, Key: table.SubscriptionKey(t.Name, s.Group), Name: "subscription",
		Cond: store.Exists().Eq(table.AttrVersion, store.Int(s.Row.Version)),
	})
	if err != nil {
		return err
	}
	delete(t.subs, s.Group)
	return c.DropCursors(ctx, t, s.Group, s.Row.Generation)
}
