package storage

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Shorter names of what the contract calls at length.
const (
	Queue  = topicv1.Semantics_SEMANTICS_QUEUE
	PubSub = topicv1.Semantics_SEMANTICS_PUB_SUB

	ReferenceCounting = topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING
	OffsetWatermark   = topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK
)

// QueueGroup is the group of a queue. It needs no subscription.
const QueueGroup = "$queue"

// DeadLetterSuffix ends the name of the topic that a topic's dead letters are in.
const DeadLetterSuffix = ".dlq"

// OfChats reports whether a topic's messages are the events of chats.
func OfChats(c *topicv1.TopicConfig) bool { return c.GetSource() == topicv1.Source_SOURCE_CHAT_EVENTS }

// Shared reports whether producers of Kafka write to a topic, too.
func Shared(c *topicv1.TopicConfig) bool { return c.GetSource() == topicv1.Source_SOURCE_SHARED }

const day = 24 * time.Hour

// MaxBytes is how many bytes the messages of the topic may take, 0 for unlimited; usual is that of
// the installation.
func (t *Topic) MaxBytes(usual int64) int64 {
	if n := t.View().Config.GetMaxBytes(); n > 0 {
		return n
	}
	return usual
}

// MaxPartitions is the number of partitions that a topic may have.
const MaxPartitions = 256

func defaults() *topicv1.TopicConfig {
	return &topicv1.TopicConfig{
		Semantics:                      Queue,
		CompletionMode:                 ReferenceCounting,
		MessageRetention:               durationpb.New(day),
		MaxRetention:                   durationpb.New(30 * day),
		ZeroSubscriptionRetention:      durationpb.New(day),
		ZombieSubscriptionTtl:          durationpb.New(7 * day),
		BlockWritesOnZeroSubscriptions: proto.Bool(false),
		PausePins:                      proto.Bool(true),
		Partitions:                     1,
		DeadRetention:                  durationpb.New(defaultDeadRetention),
		DeadRetentionBytes:             proto.Int64(defaultDeadBytes),
	}
}

// Defaults of what is kept for dead groups.
const (
	defaultDeadRetention = 7 * day
	defaultDeadBytes     = 1 << 30
)

// complete sets what topics of earlier releases have not stored.
func complete(c *topicv1.TopicConfig) {
	if OfChats(c) {
		return
	}
	orElse(&c.DeadRetention, defaultDeadRetention)
	if c.DeadRetentionBytes == nil {
		c.DeadRetentionBytes = proto.Int64(defaultDeadBytes)
	}
}

// scalePartitions are those of a topic for many messages a second: the partitions of a topic are read,
// and their acknowledgements stored, side by side.
const scalePartitions = 8

// preset returns the values of a preset.
func preset(p topicv1.Preset) *topicv1.TopicConfig {
	kept := func(d time.Duration, block bool) *topicv1.TopicConfig {
		return &topicv1.TopicConfig{
			Semantics: PubSub, ZeroSubscriptionRetention: durationpb.New(d), BlockWritesOnZeroSubscriptions: &block,
		}
	}
	switch p {
	case topicv1.Preset_PRESET_CRITICAL:
		return kept(7*day, true)
	case topicv1.Preset_PRESET_AUDIT:
		c := kept(90*day, true)
		c.MaxRetention = durationpb.New(365 * day)
		return c
	case topicv1.Preset_PRESET_STANDARD:
		return kept(day, false)
	case topicv1.Preset_PRESET_EPHEMERAL:
		return kept(time.Hour, false)
	case topicv1.Preset_PRESET_QUEUE:
		return &topicv1.TopicConfig{Semantics: Queue, BlockWritesOnZeroSubscriptions: proto.Bool(false)}
	case topicv1.Preset_PRESET_HIGH_SCALE:
		return &topicv1.TopicConfig{Semantics: PubSub, CompletionMode: OffsetWatermark, Partitions: scalePartitions}
	case topicv1.Preset_PRESET_LOW_RATE:
		return &topicv1.TopicConfig{Semantics: PubSub}
	}
	return &topicv1.TopicConfig{}
}

// TopicConfig returns the settings of a topic, all of them set: those of change, else those of
// the preset, else the topic's, old, or for a new one, old nil, the defaults. warnings are
// for people.
func TopicConfig(old, change *topicv1.TopicConfig, p topicv1.Preset) (*topicv1.TopicConfig, []string, error) {
	next, from := defaults(), preset(p)
	if old != nil {
		next = proto.CloneOf(old)
		if s := change.GetSource(); s != 0 && s != old.GetSource() {
			return nil, nil, refusal.New(refusal.InvalidArgument, "a topic's source cannot be changed")
		}
	} else if next.Source = change.GetSource(); OfChats(next) {
		next.Semantics = PubSub
		clearKept(next)
	}
	if OfChats(next) {
		if keeps(change) {
			return nil, nil, refusal.New(refusal.InvalidArgument, "partitions, retentions, max_bytes and blocked writes cannot be set "+
				"of a topic of chats: they are Kafka's")
		}
		clearKept(from)
	}
	if old != nil || OfChats(next) {
		from.Partitions = 0
	}
	overlay(next, from)
	overlay(next, change)
	if old != nil && next.GetPartitions() != old.GetPartitions() {
		return nil, nil, refusal.New(refusal.InvalidArgument,
			"the number of partitions, %d, cannot be changed: messages of one key stay in one", old.GetPartitions())
	}
	if n := next.GetPartitions(); n < 1 || n > MaxPartitions {
		return nil, nil, refusal.New(refusal.InvalidArgument, "partitions must be 1 to %d", MaxPartitions)
	}
	if next.GetSchema() != nil && (OfChats(next) || Shared(next)) {
		return nil, nil, refusal.New(refusal.InvalidArgument,
			"a topic with a source has no schema: others write to it, and the server does not check what they write")
	}
	var warnings []string
	limit := next.GetMaxRetention().AsDuration()
	if next.GetMessageRetention().AsDuration() > limit {
		warnings = append(warnings, "max_retention is shorter than message_retention, and ends it")
	}
	if next.GetZeroSubscriptionRetention().AsDuration() > limit {
		warnings = append(warnings, "max_retention is shorter than zero_subscription_retention, and ends it")
	}
	if change.GetDeadRetention().AsDuration() > limit { // its default may be longer: that was not asked for
		warnings = append(warnings, "max_retention is shorter than dead_retention, and ends it")
	}
	if next.GetSemantics() == Queue && next.GetBlockWritesOnZeroSubscriptions() {
		warnings = append(warnings, "a queue never blocks writes")
	}
	return next, warnings, nil
}

// keeps reports whether something is set that is Kafka's where Kafka has the messages.
func keeps(c *topicv1.TopicConfig) bool {
	return c.GetPartitions() != 0 || c.GetMessageRetention() != nil || c.GetMaxRetention() != nil ||
		c.GetZeroSubscriptionRetention() != nil || c.GetMaxBytes() != 0 || c.GetDeadRetention() != nil ||
		(c != nil && (c.BlockWritesOnZeroSubscriptions != nil || c.DeadRetentionBytes != nil))
}

// clearKept leaves open how long messages are kept, and whether some are taken.
func clearKept(c *topicv1.TopicConfig) {
	c.MessageRetention, c.MaxRetention, c.ZeroSubscriptionRetention = nil, nil, nil
	c.BlockWritesOnZeroSubscriptions = nil
	c.DeadRetention, c.DeadRetentionBytes = nil, nil
}

// overlay sets in c what is set in with.
func overlay(c, with *topicv1.TopicConfig) {
	if with == nil {
		return
	}
	if with.GetSemantics() != 0 {
		c.Semantics = with.GetSemantics()
	}
	if with.GetCompletionMode() != 0 {
		c.CompletionMode = with.GetCompletionMode()
	}
	for _, d := range []struct{ to, from **durationpb.Duration }{
		{&c.MessageRetention, &with.MessageRetention},
		{&c.MaxRetention, &with.MaxRetention},
		{&c.ZeroSubscriptionRetention, &with.ZeroSubscriptionRetention},
		{&c.ZombieSubscriptionTtl, &with.ZombieSubscriptionTtl},
		{&c.DeadRetention, &with.DeadRetention},
	} {
		if *d.from != nil {
			*d.to = *d.from
		}
	}
	if with.BlockWritesOnZeroSubscriptions != nil {
		c.BlockWritesOnZeroSubscriptions = proto.Bool(with.GetBlockWritesOnZeroSubscriptions())
	}
	if with.PausePins != nil {
		c.PausePins = proto.Bool(with.GetPausePins())
	}
	if with.GetPartitions() != 0 {
		c.Partitions = with.GetPartitions()
	}
	if with.MaxBytes != nil {
		c.MaxBytes = proto.Int64(with.GetMaxBytes())
	}
	if with.DeadRetentionBytes != nil {
		c.DeadRetentionBytes = proto.Int64(with.GetDeadRetentionBytes())
	}
	if with.GetSchema() != nil {
		c.Schema = with.GetSchema()
	}
	if c.GetSchema().GetId() == 0 { // none, or to be removed
		c.Schema = nil
	}
}

// Limits up to which a mode is the better one.
const (
	fewGroups  = 8
	manyGroups = 16
	highRate   = 10_000 // messages a second
)

// Recommend says which mode suits a load.
func Recommend(groups int32, rate int64, strict bool) (mode topicv1.CompletionMode, required bool, reason string) {
	switch {
	case rate > highRate:
		return OffsetWatermark, true, "more than 10,000 messages a second"
	case groups > manyGroups:
		return OffsetWatermark, true, "more than 16 groups"
	case strict:
		return ReferenceCounting, false, "the state of each message must be known"
	case groups <= fewGroups:
		return ReferenceCounting, false, "8 groups or fewer"
	}
	return ReferenceCounting, false, "9 to 16 groups: either will do"
}
