package operations

import (
	"context"
	"errors"

	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// lapseReads bounds the reads of the log for one check of what is over, of 1 MiB at most. A front that is
// known takes none, so the next check continues with what is left.
const lapseReads = 200

// lapseAll settles what is over in the topics in use, at the front of each group: an expired message behind others is
// found when it is due for delivery.
func (j *Jobs) lapseAll(ctx context.Context) {
	reads := lapseReads
	j.each(func(l *serving.OpenTopic) {
		if err := j.lapse(ctx, l, &reads); err != nil && ctx.Err() == nil {
			j.engine.Counters.JobsFailed.Add(1)
			j.engine.Logger.Error("messages whose time is over cannot be read, trying again", "topic", l.Name, "error", err)
		}
	})
}

// lapse settles what is over in a topic. Events of chats have no time to live.
func (j *Jobs) lapse(ctx context.Context, l *serving.OpenTopic, reads *int) (err error) {
	if storage.OfChats(l.View().Config) {
		return nil
	}
	for _, g := range l.Groups() {
		for n, p := range l.Parts {
			if start, end := p.Bounds(); start < end {
				err = errors.Join(err, g.Lapse(ctx, n, reads))
			}
		}
	}
	return err
}
