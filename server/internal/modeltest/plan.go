package modeltest

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// changes is the short name of a topic that is purged, and whose mode changes.
const changes = "changed"

const (
	lease        = time.Second // the shortest that there is, and that of most groups
	longLease    = 3 * lease   // that of a group that changes, now and then
	maxAttempts  = 12          // more than come together by chance
	moreAttempts = 20
	maxPoison    = 2 // attempts of a group for dead letters
	few          = 6 // messages in hand of a group that changes, now and then
	silence      = 3 * time.Second
	shortest     = time.Second // the least time to live
	atMost       = 7           // messages of a backfill with a bound
)

// plan returns the topics, with the groups that are there from the beginning.
func (w *World) plan() []*topicState {
	pubSub := topicv1.Semantics_SEMANTICS_PUB_SUB
	counted := w.topic("counted", &topicv1.TopicConfig{Semantics: pubSub, Partitions: 2})
	counted.group("plain", 1, nil).steady = true
	counted.group("keyed", 1, byKey).steady = true
	counted.group("filtered", 0, func(c *topicv1.SubscriptionConfig) { c.Filter = filter() }).steady = true
	counted.group("poisoned", 0, func(c *topicv1.SubscriptionConfig) { c.Retry.MaxAttempts = maxPoison })
	counted.group("parked", 0, parks)
	counted.group("buried", 0, func(c *topicv1.SubscriptionConfig) { c.Retry.MaxAttempts = maxPoison }).buried = true
	counted.group("hashed", 1, hashes)
	counted.group("paused", 1, nil).steady = true
	counted.group("seeking", 0, nil)
	counted.group("changing", 1, nil)
	counted.group("cancelled", 0, nil)
	counted.group("mortal", 0, dies).mortal = true
	fast := w.topic("fast", &topicv1.TopicConfig{Semantics: pubSub, Partitions: 2,
		CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK})
	fast.group("plain", 1, bounded).steady = true
	fast.group("keyed", 0, byKey).steady = true
	fast.group("mortal", 0, dies).mortal = true
	work := w.topic("work", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_QUEUE, Partitions: 1})
	work.group("$queue", 1, nil)
	trimmed := w.topic("trimmed", &topicv1.TopicConfig{Semantics: pubSub, Partitions: 2,
		MessageRetention: durationpb.New(0), MaxBytes: new(int64(1 << 20))})
	trimmed.group("plain", 0, nil).steady = true
	trimmed.group("mortal", 0, dies).mortal = true
	changed := w.topic(changes, &topicv1.TopicConfig{Semantics: pubSub, Partitions: 2})
	changed.group("plain", 1, nil).steady = true
	changed.group("keyed", 0, byKey).steady = true
	list := []*topicState{counted, fast, work, trimmed, changed}
	for _, t := range list {
		t.groups = slices.DeleteFunc(t.groups, func(g *group) bool { return !w.has(t.short + "/" + g.name) })
	}
	return slices.DeleteFunc(list, func(t *topicState) bool { return len(t.groups) == 0 })
}

func (w *World) topic(name string, c *topicv1.TopicConfig) *topicState {
	return &topicState{short: name, name: w.Topics + name, config: c, published: map[string]*publication{}}
}

// group adds a group that starts at the end.
func (t *topicState) group(name string, streams int, with func(*topicv1.SubscriptionConfig)) *group {
	c := &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: maxAttempts,
		InitialBackoff: durationpb.New(50 * time.Millisecond), MaxBackoff: durationpb.New(200 * time.Millisecond),
		Lease: durationpb.New(lease)}, Exhausted: topicv1.Exhausted_EXHAUSTED_DEAD_LETTER, MaxBackfillMessages: -1}
	if with != nil {
		with(c)
	}
	g := newGroup(t, name, c)
	g.streams = streams
	t.groups = append(t.groups, g)
	return g
}

func newGroup(t *topicState, name string, c *topicv1.SubscriptionConfig) *group {
	return &group{topic: t, name: name, config: c, delivered: map[position][]*delivery{},
		settled: map[position][]*settlement{}}
}

func dies(c *topicv1.SubscriptionConfig) {
	c.HeartbeatInterval, c.HeartbeatTimeout = durationpb.New(silence/3), durationpb.New(silence)
}

// parks keeps a message that failed, and with it what has its key.
func parks(c *topicv1.SubscriptionConfig) {
	byKey(c)
	c.Exhausted = topicv1.Exhausted_EXHAUSTED_PARK_KEY
	c.Retry.MaxAttempts = maxPoison
}

// hashes gives what has a key to the same member.
func hashes(c *topicv1.SubscriptionConfig) { c.Selection = topicv1.Selection_SELECTION_HASH }

func byKey(c *topicv1.SubscriptionConfig) { c.Ordering = topicv1.Ordering_ORDERING_KEY }

// bounded is reached often, and takes nothing from the group.
func bounded(c *topicv1.SubscriptionConfig) { c.MaxInFlight = 8 }

func earliest() *topicv1.Position {
	return &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}
}

func latest() *topicv1.Position {
	return &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}
}

// filter lets orders pass that are red.
func filter() *topicv1.Filter {
	return &topicv1.Filter{Clauses: []*topicv1.FilterClause{
		{Operator: topicv1.FilterClause_OPERATOR_PREFIX, Values: []string{"ord"}},
		{Header: "color", Operator: topicv1.FilterClause_OPERATOR_IN, Values: []string{"red", "crimson"}},
	}}
}

// passes says what filter lets through, in words of its own.
func passes(c *topicv1.SubscriptionConfig, m *topicv1.TopicMessage) bool {
	return c.GetFilter() == nil || m.GetType() == "order" && m.GetHeaders()["color"] == "red"
}

// keyed reports whether one message of a key is under way at a time.
func keyed(c *topicv1.SubscriptionConfig) bool {
	return c.GetOrdering() == topicv1.Ordering_ORDERING_KEY
}

func (g *group) poisoned() bool { return g.config.GetRetry().GetMaxAttempts() == maxPoison }

func (g *group) parks() bool { return g.config.GetExhausted() == topicv1.Exhausted_EXHAUSTED_PARK_KEY }
