package operations

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

const (
	deadLetterFirstPause = 100 * time.Millisecond // pause after a failure
	deadLetterLastPause  = 30 * time.Second
	deadLetterTimeout    = 30 * time.Second // of a try, so that others come to be tried, too
)

// undeliverableJob is messages of a group in a partition that failed too often.
type undeliverableJob struct {
	group       *serving.Group
	topic       *storage.Topic
	part        int
	deadLetters []machine.Undeliverable // that are not stored yet

	tries int
	due   time.Time // of the next try
}

// Undeliverable passes messages of a group to the goroutine that stores them. Each message is in
// one job at most, so the window of the groups bounds them.
func (j *Jobs) Undeliverable(t *storage.Topic, g *serving.Group, part int, deadLetters []machine.Undeliverable) {
	j.queue(&undeliverableJob{group: g, topic: t, part: part, deadLetters: deadLetters})
	select {
	case j.written <- struct{}{}:
	default:
	}
}

// queue puts a job to the back. A job of the same messages' group that was not tried yet
// takes its dead letters.
func (j *Jobs) queue(job *undeliverableJob) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, other := range j.deadLetters {
		if job.tries == 0 && other.tries == 0 && other.group == job.group && other.part == job.part {
			other.deadLetters = append(other.deadLetters, job.deadLetters...)
			return
		}
	}
	j.deadLetters = append(j.deadLetters, job)
}

// takeDeadLetters takes the first job that is due. If none is, it returns in how long one will
// be: at most deadLetterLastPause.
func (j *Jobs) takeDeadLetters() (job *undeliverableJob, in time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	in = deadLetterLastPause
	for i, job := range j.deadLetters {
		d := time.Until(job.due)
		if d <= 0 {
			j.deadLetters = slices.Delete(j.deadLetters, i, i+1)
			return job, 0
		}
		in = min(in, d)
	}
	return nil, in
}

// runDeadLetters stores dead letters. A message is acknowledged for its group once it is
// stored; until then it stays where it is. A message that cannot be stored goes to the back
// of the queue, so that it does not delay those of other groups.
func (j *Jobs) runDeadLetters(ctx context.Context) {
	for {
		job, in := j.takeDeadLetters()
		if job == nil {
			select {
			case <-ctx.Done():
				return
			case <-j.written:
			case <-time.After(in):
			}
			continue
		}
		if err := j.tryDeadLetters(ctx, job); err != nil {
			if ctx.Err() != nil {
				return
			}
			job.due = time.Now().Add(wait.Doubled(deadLetterFirstPause, deadLetterLastPause, job.tries))
			job.tries++
			j.engine.Logger.Error("dead letters cannot be stored, trying again", "topic", job.topic.Name,
				"group", job.group.Name(), "letters", len(job.deadLetters), "error", err)
			j.queue(job)
		}
	}
}

// tryDeadLetters stores the dead letters of a job, unless its group has ended: another one of the
// same names has messages of its own.
func (j *Jobs) tryDeadLetters(ctx context.Context, job *undeliverableJob) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	if job.topic.View().Deleting {
		return nil
	}
	l, err := j.engine.Topics.Open(ctx, job.topic)
	if err != nil {
		return err
	}
	defer l.Release()
	g := l.Group(job.group.Name())
	if g != job.group {
		return nil
	}
	to, err := j.engine.OpenDeadLetters(ctx, l)
	if err != nil {
		return err
	}
	defer to.Release()
	slices.SortFunc(job.deadLetters, func(a, b machine.Undeliverable) int { return cmp.Compare(a.Position, b.Position) })
	b := deadLetterWriter{jobs: j, from: l, to: to, group: g, part: job.part}
	for len(job.deadLetters) > 0 && err == nil {
		var n int
		n, err = b.some(ctx, job.deadLetters)
		b.deadLettered(job.deadLetters[:n])
		job.deadLetters = job.deadLetters[n:]
	}
	job.group.Wake(job.part)
	return err
}
