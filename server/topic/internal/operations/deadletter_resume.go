package operations

import (
	"context"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// resumeDeadLetters opens the topics that have messages which an earlier process was to store as dead
// letters and did not: opening a topic passes them to Undeliverable. It returns when it has checked
// all topics. Without it they would wait until the topic is used, and be dropped with their group
// when its heartbeat timeout is over.
func (j *Jobs) resumeDeadLetters(ctx context.Context) {
	left := j.topics()
	for tries := 0; ; tries++ {
		left = slices.DeleteFunc(left, func(t *storage.Topic) bool {
			err := j.resumeDeadLettersOf(ctx, t)
			if err != nil && ctx.Err() == nil {
				j.engine.Counters.JobsFailed.Add(1)
				j.engine.Logger.Error("dead letters of an earlier process cannot be looked for, trying again", "topic", t.Name,
					"error", err)
			}
			return err == nil
		})
		if len(left) == 0 || wait.For(ctx, wait.Doubled(deadLetterFirstPause, deadLetterLastPause, tries)) != nil {
			return
		}
	}
}

// resumeDeadLettersOf opens a topic if it has such messages. It checks the stored cursors first, as
// most topics have none, and an open topic takes memory.
func (j *Jobs) resumeDeadLettersOf(ctx context.Context, t *storage.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	groups, err := deadLettering(t)
	if err != nil || len(groups) == 0 {
		return err
	}
	for n := range t.View().Config.GetPartitions() {
		if t.View().Deleting || j.engine.Topics.Opened(t.Number) != nil {
			return nil
		}
		has, err := serving.HasUndeliverable(ctx, j.engine.Store, commitlog.Partition{Topic: t.Number, Number: n}, groups)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		l, err := j.engine.Topics.Open(ctx, t)
		if err != nil {
			return err
		}
		l.Release()
		return nil
	}
	return nil
}

// deadLettering returns the groups of a topic whose messages become dead letters.
func deadLettering(t *storage.Topic) (groups []serving.StoredGroup, err error) {
	defer t.Reading().End()
	for _, sub := range t.Subscriptions() {
		if sub.Config.GetExhausted() != topicv1.Exhausted_EXHAUSTED_DEAD_LETTER || !storage.Receives(sub.State) {
			continue
		}
		g, err := serving.StoredGroupOf(sub, t.View().Config.GetPausePins())
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}
