package operations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxPurgedGroups is how many groups the answer of a purge names.
const maxPurgedGroups = 1000

// ForecastPurge says what Purge would do.
func (j *Jobs) ForecastPurge(l *serving.OpenTopic, before map[int32]int64) *topicv1.PurgeMessagesResponse {
	answer, _ := purged(purgesOf(l, before), l.PurgeForecast(before))
	return answer
}

// Purge removes what lies before positions, by partition, for good, in three steps. The first stores what is to be
// removed: from then on it is removed, also if the caller is gone or the process ends. The second takes it from the
// groups. The third stores that, and removes it from the log: a failure is tried again. result is for the audit.
func (j *Jobs) Purge(
	ctx context.Context, l *serving.OpenTopic, before map[int32]int64,
) (answer *topicv1.PurgeMessagesResponse, result string, err error) {
	ctx = context.WithoutCancel(ctx)
	fresh := maps.Clone(before)
	maps.DeleteFunc(fresh, func(n int32, at int64) bool {
		start, _ := l.Parts[n].Bounds()
		return at <= start
	})
	if len(fresh) > 0 {
		if err := j.engine.Catalog.Purge(ctx, l.Topic, fresh); err != nil {
			return nil, "", err
		}
	}
	if answer, result, err = j.purgeGroups(l, before); err != nil {
		return nil, "", err
	}
	return answer, result, j.finishPurge(ctx, l)
}

// purgeGroups takes what lies before positions from the groups. Subscriptions do not change meanwhile;
// publishers are not held up.
func (j *Jobs) purgeGroups(
	l *serving.OpenTopic, before map[int32]int64,
) (answer *topicv1.PurgeMessagesResponse, result string, err error) {
	defer l.Reading().End()
	if l.View().Deleting {
		return nil, "", refusal.Forbidden(l.Name)
	}
	purges := purgesOf(l, before)
	answer, lost := purged(purges, l.Purge(before))
	removed := int64(0)
	for _, p := range purges {
		removed += p.GetTo() - p.GetFrom()
	}
	j.engine.Counters.Trimmed.Add(removed)
	return answer, fmt.Sprintf("%d messages removed, %d groups lose %d", removed, answer.GetGroupCount(), lost), nil
}

// purgesOf says where partitions begin before and after a purge.
func purgesOf(l *serving.OpenTopic, before map[int32]int64) (list []*topicv1.Purge) {
	for _, n := range slices.Sorted(maps.Keys(before)) {
		start, _ := l.Parts[n].Bounds()
		list = append(list, &topicv1.Purge{Partition: n, From: start, To: max(start, before[n])})
	}
	return list
}

// purged is the answer of a purge. It names the groups that lose messages, those first that lose the most.
func purged(purges []*topicv1.Purge, of map[string]int64) (answer *topicv1.PurgeMessagesResponse, lost int64) {
	answer = &topicv1.PurgeMessagesResponse{Purges: purges, GroupCount: int32(len(of))}
	for group, n := range of {
		answer.Groups = append(answer.Groups, &topicv1.PurgedGroup{Group: group, Messages: n})
		lost += n
	}
	slices.SortFunc(answer.Groups, func(a, b *topicv1.PurgedGroup) int {
		return cmp.Or(cmp.Compare(b.GetMessages(), a.GetMessages()), cmp.Compare(a.GetGroup(), b.GetGroup()))
	})
	answer.Groups = answer.Groups[:min(len(answer.Groups), maxPurgedGroups)]
	return answer, lost
}

// finishPurge removes from the log what was purged and taken from the groups. The removed positions were stored in the
// groups' ledgers before, unless the disk is full: then the removal is what helps.
//
// A second purge may raise the positions meanwhile, and take its messages from the groups after this call
// has stored the ledgers. So a partition is trimmed to where it began before they were stored: what the
// second purge means is for its own call.
func (j *Jobs) finishPurge(ctx context.Context, l *serving.OpenTopic) (err error) {
	taken := map[int32]int64{}
	for n, before := range l.Purged() {
		start, _ := l.Parts[n].Bounds()
		taken[n] = min(before, start)
	}
	if len(taken) == 0 {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	if failed := j.engine.Flusher.Wait(wait, "", l.Parts...); failed != nil {
		j.engine.Logger.Warn("positions of groups cannot be stored before messages are purged", "topic", l.Name,
			"error", failed)
	}
	removed := map[int32]storage.Removed{}
	for n, before := range taken {
		start, failed := j.trimPurged(ctx, l, n, before)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		removed[n] = storage.Removed{Asked: before, Start: start}
	}
	return errors.Join(err, j.engine.Catalog.PurgeDone(ctx, l.Topic, removed))
}

// trimPurged removes a partition's messages before a position from the log, and returns where the log
// begins. The topic is not deleted meanwhile.
func (j *Jobs) trimPurged(ctx context.Context, l *serving.OpenTopic, n int32, before int64) (int64, error) {
	defer l.Reading().End()
	if l.View().Deleting {
		return before, nil
	}
	return j.engine.Log.Trim(ctx, l.Parts[n].Address, before)
}

// finishPurges removes what an earlier process was to purge, or what the log could not remove then.
func (j *Jobs) finishPurges(ctx context.Context) {
	due := func(t *storage.Topic) bool { return t.PurgeDue() && !t.View().Deleting }
	for _, t := range j.engine.Catalog.Topics("", j.engine.Catalog.Count(), due) {
		l, err := j.engine.Topics.Open(ctx, t)
		if err == nil {
			err = j.finishPurge(ctx, l)
			l.Release()
		}
		if err != nil && ctx.Err() == nil {
			j.engine.Counters.JobsFailed.Add(1)
			j.engine.Logger.Error("what was purged of a topic cannot be removed, trying again", "topic", t.Name, "error", err)
		}
	}
}
