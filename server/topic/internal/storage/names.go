package storage

import (
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// CheckName refuses what no topic and no group may be called.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return refusal.New(refusal.InvalidArgument,
			"a name is 1 to 255 letters, digits, dots, hyphens or underscores and begins with a letter or digit")
	}
	return nil
}

// CheckTopicName is CheckName for a topic, also one of dead letters, which has a longer name.
func CheckTopicName(name string) error { return CheckName(strings.TrimSuffix(name, DeadLetterSuffix)) }

// deadLetterKeep is how long dead letters are kept.
const deadLetterKeep = 30 * 24 * time.Hour

// DeadLetterConfig is the settings of a topic of dead letters.
func DeadLetterConfig(partitions int) (*topicv1.TopicConfig, error) {
	config, _, err := TopicConfig(nil, &topicv1.TopicConfig{
		Semantics: PubSub, Partitions: int32(partitions), MessageRetention: durationpb.New(deadLetterKeep),
		MaxRetention: durationpb.New(deadLetterKeep), ZeroSubscriptionRetention: durationpb.New(deadLetterKeep),
	}, 0)
	return config, err
}
