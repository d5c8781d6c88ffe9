package operations

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of dead letters.
const (
	maxDeadLetterBatch = 256     // in one write
	maxDeadLetterBytes = 4 << 20 // in one write, about
	maxReason          = 1000    // bytes
)

// deadLetterWriter stores the dead letters of one group and partition.
type deadLetterWriter struct {
	jobs     *Jobs
	from, to *serving.OpenTopic
	group    *serving.Group
	part     int
	batch    *commitlog.Batch // read last: dead letters often come from one
	single   bool             // one dead letter a write
}

// some stores the first of some dead letters in one write, and returns how many are done with.
// Each has the number of its position, so that after a crash it is stored once more at most.
func (b *deadLetterWriter) some(ctx context.Context, list []machine.Undeliverable) (n int, err error) {
	var appends []commitlog.Append
	for size := 0; n < min(len(list), maxDeadLetterBatch) && size < maxDeadLetterBytes && !(b.single && n > 0); n++ {
		m, err := b.message(ctx, list[n].Position)
		if err != nil && n == 0 {
			return 0, err
		}
		if err != nil {
			break // earlier messages are stored first
		}
		if m != nil {
			appends = append(appends, b.letter(list[n], m))
			size += proto.Size(m)
		}
	}
	if len(appends) == 0 {
		return n, nil
	}
	_, err = b.jobs.engine.Publisher.Append(ctx, b.to, appends, nil)
	if r, ok := refusal.Of(err); ok && r.Reason == refusal.ProducerNumberTooOld {
		if len(appends) > 1 {
			b.single = true
			return 0, nil
		}
		appends[0].Producer = commitlog.Producer{} // many positions later: a repetition is not seen any more
		_, err = b.jobs.engine.Publisher.Append(ctx, b.to, appends, nil)
	}
	if err != nil {
		return 0, err
	}
	b.jobs.engine.Counters.DeadLetters.Add(int64(len(appends)))
	return n, nil
}

// message reads one message. It returns nil if the message is gone or unreadable, because
// then there is nothing to keep.
func (b *deadLetterWriter) message(ctx context.Context, position int64) (*topicv1.TopicMessage, error) {
	if b.batch == nil || position < b.batch.Base || position >= b.batch.End() {
		batches, err := b.jobs.engine.Sources.Reader(b.from.Topic).Read(ctx, b.from.Parts[b.part].Address, position, 1)
		var corrupt *commitlog.CorruptError
		switch {
		case errors.As(err, &corrupt):
			b.lost(position, err)
			return nil, nil
		case errors.Is(err, commitlog.ErrTrimmed), errors.Is(err, commitlog.ErrBeyondEnd):
			return nil, nil
		case err != nil:
			return nil, err
		case len(batches) == 0 || batches[0].Base > position:
			return nil, nil
		}
		b.batch = batches[0]
	}
	m, err := b.batch.Message(int(position - b.batch.Base))
	if err != nil {
		b.lost(position, err)
		return nil, nil
	}
	return m, nil
}

func (b *deadLetterWriter) lost(position int64, err error) {
	b.jobs.engine.Logger.Error("a dead letter cannot be read and is passed over", "topic", b.from.Name,
		"partition", b.part, "position", position, "group", b.group.Name(), "error", err)
}

// dead letter is the append of a dead letter. No other topic, partition or generation of the
// group has its producer, even if their names are similar, because all of them may share one
// topic. After a group was moved back, a message that fails again has another producer than its
// earlier dead letter, which an operator may have finished with.
func (b *deadLetterWriter) letter(letter machine.Undeliverable, m *topicv1.TopicMessage) commitlog.Append {
	headers := map[string]string{
		HeaderTopic: b.from.Name, HeaderMessage: fmt.Sprintf("%d-%d", b.part, letter.Position),
		HeaderGroup: b.group.Name(), HeaderAttempts: strconv.Itoa(letter.Attempts),
		HeaderError: cut(letter.Reason),
		HeaderFirst: strconv.FormatInt(b.jobs.engine.Clock().UnixMilli(), 10),
	}
	if b.batch.Address() != "" { // it failed before, and was put back
		headers[HeaderFirst] = m.GetHeaders()[HeaderFirst]
	}
	maps.Copy(headers, without(m.GetHeaders(), headers))
	m.Headers, m.ExpireTime, m.DeliverTime = headers, nil, nil // it waits for an operator only
	part := b.part % len(b.to.Parts)                           // the topic may have been made again with more
	source := b.from.Parts[b.part].Address
	id := fmt.Sprintf("%d/%d/%d/%x", source.Topic, source.Number, b.group.Generation,
		sha256.Sum256([]byte(b.group.Name())))
	if letter.Moves > 0 {
		id += fmt.Sprintf("/%d", letter.Moves)
	}
	return commitlog.Append{
		Partition: b.to.Parts[part].Address, Messages: []*topicv1.TopicMessage{m},
		Producer: commitlog.Producer{ID: id, Number: letter.Position + 1},
	}
}

// cut makes a reason one that can be stored.
func cut(reason string) string {
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}

// without returns the headers that others has not.
func without(headers, others map[string]string) map[string]string {
	rest := map[string]string{}
	for name, value := range headers {
		if _, ok := others[name]; !ok {
			rest[name] = value
		}
	}
	return rest
}

// deadLettered acknowledges dead letters that are stored.
func (b *deadLetterWriter) deadLettered(list []machine.Undeliverable) {
	p := b.from.Parts[b.part]
	p.Do(func(m *machine.Machine) {
		g := m.Group(b.group.Name())
		if g == nil || g.Config().Generation != b.group.Generation {
			return
		}
		for _, deadLetter := range list {
			g.MarkDeadLettered(deadLetter.Position)
		}
	})
	p.Mark(b.group.Name())
}
