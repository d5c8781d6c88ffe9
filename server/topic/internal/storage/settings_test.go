package storage

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

func hours(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Hour) }

// HQ-A02, HQ-A12, HQ-A13, HQ-A14, HQ-A15, HQ-A16, HQ-A17, HQ-A19, HQ-A20: defaults and presets.
func TestTopics(t *testing.T) {
	base := func() *topicv1.TopicConfig {
		return &topicv1.TopicConfig{
			Semantics: Queue, CompletionMode: ReferenceCounting, MessageRetention: hours(24), MaxRetention: hours(720),
			ZeroSubscriptionRetention: hours(24), ZombieSubscriptionTtl: hours(168),
			BlockWritesOnZeroSubscriptions: proto.Bool(false), PausePins: proto.Bool(true), Partitions: 1,
			DeadRetention: hours(168), DeadRetentionBytes: proto.Int64(1 << 30),
		}
	}
	for _, x := range []struct {
		preset topicv1.Preset
		edit   func(*topicv1.TopicConfig)
	}{
		{topicv1.Preset_PRESET_UNSPECIFIED, func(*topicv1.TopicConfig) {}},
		{topicv1.Preset_PRESET_CRITICAL, func(c *topicv1.TopicConfig) {
			c.Semantics, c.ZeroSubscriptionRetention, c.BlockWritesOnZeroSubscriptions = PubSub, hours(168), proto.Bool(true)
		}},
		{topicv1.Preset_PRESET_AUDIT, func(c *topicv1.TopicConfig) {
			c.Semantics, c.ZeroSubscriptionRetention, c.BlockWritesOnZeroSubscriptions = PubSub, hours(2160), proto.Bool(true)
			c.MaxRetention = hours(8760)
		}},
		{topicv1.Preset_PRESET_STANDARD, func(c *topicv1.TopicConfig) { c.Semantics = PubSub }},
		{topicv1.Preset_PRESET_EPHEMERAL, func(c *topicv1.TopicConfig) {
			c.Semantics, c.ZeroSubscriptionRetention = PubSub, hours(1)
		}},
		{topicv1.Preset_PRESET_QUEUE, func(*topicv1.TopicConfig) {}},
		{topicv1.Preset_PRESET_HIGH_SCALE, func(c *topicv1.TopicConfig) {
			c.Semantics, c.CompletionMode, c.Partitions = PubSub, OffsetWatermark, 8
		}},
		{topicv1.Preset_PRESET_LOW_RATE, func(c *topicv1.TopicConfig) { c.Semantics = PubSub }},
	} {
		want := base()
		x.edit(want)
		got, warnings, err := TopicConfig(nil, nil, x.preset)
		if err != nil || len(warnings) > 0 || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v, %v", x.preset, got, warnings, err)
		}
	}
}

// A change leaves what it does not name, wins over its preset, and cannot be of partitions.
func TestChange(t *testing.T) {
	old, _, err := TopicConfig(nil, &topicv1.TopicConfig{Partitions: 4, MessageRetention: hours(2)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	change := &topicv1.TopicConfig{ZeroSubscriptionRetention: hours(3)}
	next, _, err := TopicConfig(old, change, topicv1.Preset_PRESET_EPHEMERAL)
	if err != nil || next.GetPartitions() != 4 || next.GetMessageRetention().AsDuration() != 2*time.Hour ||
		next.GetZeroSubscriptionRetention().AsDuration() != 3*time.Hour || next.GetSemantics() != PubSub {
		t.Errorf("%v, %v", next, err)
	}
	next, _, err = TopicConfig(old, nil, topicv1.Preset_PRESET_HIGH_SCALE) // partitions of new topics only
	if err != nil || next.GetPartitions() != 4 || next.GetCompletionMode() != OffsetWatermark {
		t.Errorf("%v, %v", next, err)
	}
	for _, n := range []int32{3, 257, -1} {
		if _, _, err := TopicConfig(old, &topicv1.TopicConfig{Partitions: n}, 0); !errors.Is(err,
			&refusal.Error{Reason: refusal.InvalidArgument}) {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
	_, warnings, err := TopicConfig(nil, &topicv1.TopicConfig{MaxRetention: hours(1)}, 0)
	if err != nil || len(warnings) != 2 {
		t.Errorf("%v, %v", warnings, err)
	}
	dead := &topicv1.TopicConfig{DeadRetention: hours(721), DeadRetentionBytes: proto.Int64(0)}
	next, warnings, err = TopicConfig(next, dead, 0)
	if err != nil || len(warnings) != 1 || next.GetDeadRetention().AsDuration() != 721*time.Hour ||
		next.DeadRetentionBytes == nil || next.GetDeadRetentionBytes() != 0 {
		t.Errorf("%v, %v, %v", next, warnings, err)
	}
}

// HQ-T6: the row of a topic that an earlier release stored gets the defaults of what that did not know.
func TestTopicOfAnEarlierRelease(t *testing.T) {
	for text, want := range map[string]*topicv1.TopicConfig{
		`{"maxRetention":"60s"}`: {
			DeadRetention: hours(168), DeadRetentionBytes: proto.Int64(1 << 30), MaxRetention: durationpb.New(time.Minute),
		},
		`{"deadRetention":"0s","deadRetentionBytes":"0"}`: {DeadRetention: hours(0), DeadRetentionBytes: proto.Int64(0)},
		`{"source":"SOURCE_CHAT_EVENTS"}`:                 {Source: topicv1.Source_SOURCE_CHAT_EVENTS},
	} {
		got, err := newParsed().topic(text)
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// A topic of chats has no retention and no partitions of its own, whatever its preset says,
// and stays one.
func TestChats(t *testing.T) {
	chats := topicv1.Source_SOURCE_CHAT_EVENTS
	want := &topicv1.TopicConfig{
		Semantics: PubSub, CompletionMode: ReferenceCounting, ZombieSubscriptionTtl: hours(168), PausePins: proto.Bool(true),
		Partitions: 1, Source: chats,
	}
	for _, p := range []topicv1.Preset{0, topicv1.Preset_PRESET_AUDIT, topicv1.Preset_PRESET_EPHEMERAL} {
		got, warnings, err := TopicConfig(nil, &topicv1.TopicConfig{Source: chats}, p)
		if err != nil || len(warnings) > 0 || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v, %v", p, got, warnings, err)
		}
	}
	old := proto.CloneOf(want)
	old.Partitions = 64
	next, _, err := TopicConfig(old, &topicv1.TopicConfig{ZombieSubscriptionTtl: hours(1)}, topicv1.Preset_PRESET_CRITICAL)
	if err != nil || next.GetPartitions() != 64 || next.MaxRetention != nil ||
		next.BlockWritesOnZeroSubscriptions != nil ||
		!OfChats(next) || next.GetZombieSubscriptionTtl().AsDuration() != time.Hour {
		t.Errorf("%v, %v", next, err)
	}
	plain, _, err := TopicConfig(nil, nil, 0)
	if err != nil || OfChats(plain) {
		t.Errorf("%v, %v", plain, err)
	}
	for i, x := range []struct{ old, change *topicv1.TopicConfig }{
		{plain, &topicv1.TopicConfig{Source: chats}},
		{old, &topicv1.TopicConfig{MessageRetention: hours(1)}},
		{old, &topicv1.TopicConfig{Partitions: 64}},
		{old, &topicv1.TopicConfig{BlockWritesOnZeroSubscriptions: proto.Bool(false)}},
	} {
		if _, _, err := TopicConfig(x.old, x.change, 0); !errors.Is(err, &refusal.Error{Reason: refusal.InvalidArgument}) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// HQ-A18: the matrix of modes.
func TestRecommend(t *testing.T) {
	for _, x := range []struct {
		groups   int32
		rate     int64
		strict   bool
		mode     topicv1.CompletionMode
		required bool
	}{
		{1, 100, false, ReferenceCounting, false}, {8, 10_000, false, ReferenceCounting, false},
		{9, 100, false, ReferenceCounting, false}, {16, 100, true, ReferenceCounting, false},
		{17, 100, false, OffsetWatermark, true}, {17, 100, true, OffsetWatermark, true},
		{1, 10_001, false, OffsetWatermark, true},
	} {
		mode, required, why := Recommend(x.groups, x.rate, x.strict)
		if mode != x.mode || required != x.required || why == "" {
			t.Errorf("%+v: %s, %v, %q", x, mode, required, why)
		}
	}
}

// HQ-J08, HQ-J09, HQ-L01, HQ-L02, HQ-L03, HQ-L04: defaults of subscriptions.
func TestSubscriptions(t *testing.T) {
	c, warnings, err := SubscriptionConfig(nil, 0)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	if !c.GetStart().GetLatest() || c.GetBackfill() || c.GetMaxBackfillMessages() != 1_000_000 ||
		c.GetHeartbeatInterval().AsDuration() != 60*time.Second || c.GetHeartbeatTimeout().AsDuration() != 300*time.Second ||
		c.GetRetry().GetMaxAttempts() != 5 || c.GetRetry().GetLease().AsDuration() != 30*time.Second ||
		c.GetRetry().GetInitialBackoff().AsDuration() != time.Second ||
		c.GetRetry().GetMaxBackoff().AsDuration() != 5*time.Minute ||
		c.GetExhausted() != topicv1.Exhausted_EXHAUSTED_DEAD_LETTER {
		t.Error(c)
	}
	c, _, err = SubscriptionConfig(nil, topicv1.Preset_PRESET_HIGH_SCALE)
	if err != nil || c.GetHeartbeatInterval().AsDuration() != 30*time.Second ||
		c.GetHeartbeatTimeout().AsDuration() != 120*time.Second {
		t.Error(c, err)
	}
	c, _, err = SubscriptionConfig(&topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY}, 0)
	if err != nil || c.GetExhausted() != topicv1.Exhausted_EXHAUSTED_PARK_KEY {
		t.Error(c, err)
	}
	bad := &topicv1.SubscriptionConfig{
		HeartbeatInterval: durationpb.New(300 * time.Second), HeartbeatTimeout: durationpb.New(600 * time.Second),
	}
	if _, _, err := SubscriptionConfig(bad, 0); !errors.Is(err, &refusal.Error{Reason: refusal.InvalidArgument}) {
		t.Error(err)
	}
	bad = &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{
		InitialBackoff: durationpb.New(time.Minute), MaxBackoff: durationpb.New(time.Second),
	}}
	if _, _, err := SubscriptionConfig(bad, 0); !errors.Is(err, &refusal.Error{Reason: refusal.InvalidArgument}) {
		t.Error(err)
	}
}
