package serving

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of BrowseMessages.
const (
	defaultBrowse = 100
	maxBrowse     = 1000
	browseBytes   = 1 << 20   // of a page, beyond which no message is added
	browseRead    = 256 << 10 // of a read of the log
	browseReads   = 64        // of the log in a call
)

// Message returns a message that the topic has.
func (e *Engine) Message(ctx context.Context, l *OpenTopic, id string) (*topicv1.StoredMessage, error) {
	if err := e.Sources.Follow(ctx, l); err != nil {
		return nil, err
	}
	n, position, err := l.Message(id)
	if err != nil {
		return nil, err
	}
	p := l.Parts[n]
	start, end := p.Bounds()
	if position < start {
		return nil, notKept(n, position, start)
	}
	batches, err := e.Sources.Reader(l.Topic).Read(ctx, p.Address, position, 1)
	switch {
	case errors.Is(err, commitlog.ErrTrimmed): // meanwhile
		return nil, notKept(n, position, position+1)
	case errors.Is(err, commitlog.ErrBeyondEnd) || err == nil && len(batches) == 0:
		return nil, refusal.New(refusal.MessageNotFound, "message %s has not been published: the next of partition %d is %s",
			MessageID(int32(n), position), n, MessageID(int32(n), min(position, end)))
	case err != nil:
		return nil, err
	case batches[0].Base > position:
		return nil, refusal.New(refusal.MessageNotFound, "there is no message %s: the next of partition %d is %s",
			MessageID(int32(n), position), n, MessageID(int32(n), batches[0].Base))
	}
	return stored(int32(n), batches[0], int(position-batches[0].Base))
}

func notKept(n int, position, start int64) *refusal.Error {
	return refusal.New(refusal.MessageNotFound, "message %s is no longer kept: partition %d begins with %s or later",
		MessageID(int32(n), position), n, MessageID(int32(n), start))
}

// stored is message i of a batch.
func stored(n int32, b *commitlog.Batch, i int) (*topicv1.StoredMessage, error) {
	m, err := b.Message(i)
	if err != nil {
		return nil, err
	}
	if m.GetPublishTime() == nil {
		m.PublishTime = timestamppb.New(time.UnixMilli(b.Time))
	}
	position := b.Base + int64(i)
	return &topicv1.StoredMessage{MessageId: MessageID(n, position), Partition: n, Position: position, Message: m}, nil
}

// Browse returns a page of messages. It reads the log as jobs do: it takes nothing from groups, holds up no
// publisher, and keeps nothing from being removed.
func (e *Engine) Browse(
	ctx context.Context, l *OpenTopic, r *topicv1.BrowseMessagesRequest,
) (*topicv1.BrowseMessagesResponse, error) {
	if err := e.Sources.Follow(ctx, l); err != nil {
		return nil, err
	}
	b := browsing{engine: e, l: l, from: r.GetFrom(), left: int(min(r.GetMaxMessages(), maxBrowse)), reads: browseReads,
		bytes: browseBytes, answer: &topicv1.BrowseMessagesResponse{}}
	if b.left == 0 {
		b.left = defaultBrowse
	}
	if b.from.GetAt() == nil {
		b.from = &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}
	}
	if err := b.choose(r); err != nil {
		return nil, err
	}
	return b.answer, b.run(ctx)
}

// browsing is one Browse.
type browsing struct {
	engine *Engine
	l      *OpenTopic
	from   *topicv1.Position

	part, last int   // partitions that are left
	at         int64 // in part; -1: where from is

	left, bytes, reads int // what the page may still have, and cost
	answer             *topicv1.BrowseMessagesResponse
}

// choose finds the partitions of a request, and where its page begins.
func (b *browsing) choose(r *topicv1.BrowseMessagesRequest) error {
	b.at, b.last = -1, len(b.l.Parts)-1
	if r.Partition != nil {
		if b.part, b.last = int(r.GetPartition()), int(r.GetPartition()); b.part >= len(b.l.Parts) {
			return refusal.New(refusal.PositionOutOfRange, "the topic's partitions are 0 to %d", len(b.l.Parts)-1)
		}
	}
	if id := b.from.GetMessageId(); id != "" {
		n, _, err := b.l.Message(id)
		if err != nil {
			return err
		}
		if r.Partition != nil && n != b.part {
			return refusal.New(refusal.InvalidArgument, "message %s is in partition %d: name that partition, or none", id, n)
		}
		b.part, b.last = n, n
	}
	if r.GetPageToken() == "" {
		return nil
	}
	n, at, err := b.l.Message(r.GetPageToken())
	if err != nil || n < b.part || n > b.last {
		return refusal.New(refusal.InvalidArgument, "page_token is not one of this list: begin again without it")
	}
	b.part, b.at = n, at
	return nil
}

// run collects the page.
func (b *browsing) run(ctx context.Context) error {
	for ; b.part <= b.last; b.part, b.at = b.part+1, -1 {
		if b.at < 0 {
			at, err := b.engine.Subscriptions.Resolve(ctx, b.l, b.part, b.from)
			if err != nil {
				return err
			}
			b.at = at
			b.reads-- // for a time the log was searched
		}
		for more := true; more; {
			if b.full() {
				b.answer.NextPageToken = b.next()
				return nil
			}
			var err error
			if more, err = b.read(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *browsing) full() bool { return b.left <= 0 || b.bytes <= 0 || b.reads <= 0 }

// next is the token of the page that follows; empty if there is nothing behind this one.
func (b *browsing) next() string {
	if _, end := b.l.Parts[b.part].Bounds(); b.part == b.last && b.at >= end {
		return ""
	}
	return MessageID(int32(b.part), b.at)
}

// read adds messages of one read of the log. It reports whether the partition may have more.
func (b *browsing) read(ctx context.Context) (more bool, err error) {
	b.reads--
	p := b.l.Parts[b.part]
	start, end := p.Bounds()
	if b.at = max(b.at, start); b.at >= end {
		return false, nil
	}
	reader := b.engine.Sources.Reader(b.l.Topic)
	batches, err := reader.Read(ctx, p.Address, b.at, min(browseRead, b.bytes))
	var corrupt *commitlog.CorruptError
	switch {
	case errors.As(err, &corrupt): // what follows can be read
		b.skip(corrupt.From, corrupt.To, err)
		b.at = max(b.at+1, corrupt.To)
		return true, nil
	case errors.Is(err, commitlog.ErrTrimmed): // meanwhile
		start, _, err := reader.Bounds(ctx, p.Address)
		b.at = max(b.at, start)
		return true, err
	case errors.Is(err, commitlog.ErrBeyondEnd) || err == nil && len(batches) == 0: // messages there are not durable
		return false, nil
	case err != nil:
		return false, err
	}
	for _, batch := range batches {
		for b.at = max(b.at, batch.Base); b.at < batch.End(); b.at++ {
			if b.full() {
				return true, nil
			}
			b.add(batch)
		}
	}
	return true, nil
}

// add adds the message of a batch at the position.
func (b *browsing) add(batch *commitlog.Batch) {
	m, err := stored(int32(b.part), batch, int(b.at-batch.Base))
	if err != nil {
		b.skip(b.at, b.at+1, err)
		return
	}
	b.answer.Messages = append(b.answer.Messages, m)
	b.left--
	b.bytes -= proto.Size(m)
}

// skip logs messages that cannot be read.
func (b *browsing) skip(from, to int64, err error) {
	b.engine.Logger.Error("messages cannot be read and are passed over", "partition",
		b.l.Parts[b.part].Address.String(), "from", from, "to", to, "error", err)
}
