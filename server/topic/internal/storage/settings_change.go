package storage

import (
	"fmt"
	"strings"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Effects says what a change of settings means for messages and groups, in sentences for
// people. queue: the group of a queue is there, and has not ended. A topic of groups becomes
// a queue only when no other groups are there.
func Effects(was, will *topicv1.TopicConfig, queue bool) (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if from, to := was.GetSemantics(), will.GetSemantics(); from != to {
		list = append(list, conversion(to, queue))
	}
	if from, to := was.GetCompletionMode(), will.GetCompletionMode(); from != to && to == OffsetWatermark {
		say("acknowledgements are answered at once, and written within a second or 1,000 of them: " +
			"after a crash the last ones come again; what is acknowledged already does not")
	} else if from != to {
		say("what has been acknowledged is written before this call is answered; " +
			"from then on an acknowledgement is answered when it is on disk")
	}
	for _, r := range []struct {
		what     string
		was, now time.Duration
	}{
		{"messages that all groups have acknowledged", was.GetMessageRetention().AsDuration(),
			will.GetMessageRetention().AsDuration()},
		{"messages that no group is to receive", was.GetZeroSubscriptionRetention().AsDuration(),
			will.GetZeroSubscriptionRetention().AsDuration()},
		{"all messages, acknowledged or not,", was.GetMaxRetention().AsDuration(), will.GetMaxRetention().AsDuration()},
	} {
		if r.now < r.was {
			say("%s go after %s instead of %s: older ones go within minutes", r.what, span(r.now), span(r.was))
		} else if r.now > r.was {
			say("%s are kept for %s instead of %s", r.what, span(r.now), span(r.was))
		}
	}
	if from, to := was.GetZombieSubscriptionTtl().AsDuration(), will.GetZombieSubscriptionTtl().AsDuration(); from != to {
		say("a group that does not move holds messages for %s instead of %s", span(to), span(from))
	}
	if from, to := was.GetDeadRetention().AsDuration(), will.GetDeadRetention().AsDuration(); from != to {
		say("messages are kept for dead groups for %s instead of %s after their death", span(to), span(from))
	}
	if from, to := was.GetDeadRetentionBytes(), will.GetDeadRetentionBytes(); from != to {
		say("%d bytes of messages are kept for dead groups alone instead of %d", to, from)
	}
	if from, to := was.GetPausePins(), will.GetPausePins(); from && !to {
		say("groups that are paused no longer hold messages: they may miss some")
	} else if from != to {
		say("groups that are paused hold their messages")
	}
	if from, to := was.GetBlockWritesOnZeroSubscriptions(), will.GetBlockWritesOnZeroSubscriptions(); from != to {
		if to {
			say("messages are refused while no subscription is active")
		} else {
			say("messages are taken also while no subscription is active")
		}
	}
	if text := schemaEffect(was.GetSchema(), will.GetSchema()); text != "" {
		say("%s", text)
	}
	return list
}

// conversion says what a change of semantics means.
func conversion(to topicv1.Semantics, queue bool) string {
	switch {
	case to == PubSub && queue:
		return "groups can subscribe; the consumers of the queue continue as the group $queue, with what they have not " +
			"acknowledged, until its subscription is cancelled"
	case to == PubSub:
		return "groups can subscribe"
	case queue:
		return "no group can subscribe; the group $queue continues from its position"
	}
	return "no group can subscribe; the queue begins with what is there and not acknowledged, and nothing that all " +
		"groups acknowledged comes again"
}

// span is a duration in the largest unit in which it is whole.
func span(d time.Duration) string {
	if d > 0 && d%day == 0 {
		if d == day {
			return "1 day"
		}
		return fmt.Sprintf("%d days", d/day)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
