package storage

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Each setting that changes is named with what it means, and no other one is.
func TestEffects(t *testing.T) {
	hours := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Hour) }
	old, _, err := TopicConfig(nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change *topicv1.TopicConfig
		queue  bool
		want   []string // a part of each
	}{
		{&topicv1.TopicConfig{}, false, nil},
		{&topicv1.TopicConfig{Semantics: PubSub}, true, []string{"continue as the group $queue"}},
		{&topicv1.TopicConfig{CompletionMode: OffsetWatermark}, false, []string{"answered at once"}},
		{&topicv1.TopicConfig{MessageRetention: hours(1), MaxRetention: hours(24 * 60)}, false,
			[]string{"all groups have acknowledged go after 1h instead of 1 day", "are kept for 60 days instead of 30 days"}},
		{&topicv1.TopicConfig{ZeroSubscriptionRetention: durationpb.New(90 * time.Minute)}, false,
			[]string{"no group is to receive go after 1h30m instead of 1 day"}},
		{&topicv1.TopicConfig{ZombieSubscriptionTtl: hours(24)}, false, []string{"for 1 day instead of 7 days"}},
		{&topicv1.TopicConfig{DeadRetention: hours(12), DeadRetentionBytes: proto.Int64(1 << 20)}, false,
			[]string{"dead groups for 12h instead of 7 days", "1048576 bytes of messages are kept for dead groups"}},
		{&topicv1.TopicConfig{PausePins: proto.Bool(false), BlockWritesOnZeroSubscriptions: proto.Bool(true)}, false,
			[]string{"no longer hold", "are refused while"}},
	} {
		next, _, err := TopicConfig(old, c.change, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := Effects(old, next, c.queue)
		if !slices.EqualFunc(got, c.want, func(got, want string) bool { return strings.Contains(got, want) }) {
			t.Errorf("%v: %q", c.change, got)
		}
		back := Effects(next, old, c.queue)
		if len(back) != len(got) || (len(got) > 0 && slices.Equal(back, got)) {
			t.Errorf("%v, undone: %q", c.change, back)
		}
		for _, s := range append(got, back...) {
			if len(s) > 1024 {
				t.Errorf("%d bytes: %s", len(s), s)
			}
		}
	}
}
