package serving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Publisher appends to the log of topics.
type Publisher struct{ engine *Engine }

// BatchIndex is where a message of a request stands.
type BatchIndex struct{ Batch, Index int }

// Distribute puts messages into the batches of their partitions. Those without a key go
// together into one, the same for each repetition of the request. That partition remembers the
// producer's number also if it gets no message: another request under the number meets it there,
// whichever partitions its messages go to.
func Distribute(l *OpenTopic, r *topicv1.PublishRequest) ([]commitlog.Append, []BatchIndex) {
	partitions := int32(len(l.Parts))
	var part commitlog.Append // what the appends have in common
	keyless := int32(0)
	if p := r.GetProducer(); p != nil {
		part.Producer = commitlog.Producer{ID: p.GetId(), Number: p.GetNumber()}
		part.Request = commitlog.HashOf(r.GetMessages())
	}
	if partitions > 1 && r.GetProducer() != nil {
		h := fnv.New32a()
		h.Write([]byte(part.Producer.ID)) // cannot fail
		keyless = int32((uint64(h.Sum32()) + uint64(part.Producer.Number)) % uint64(partitions))
	} else if partitions > 1 {
		keyless = rand.Int32N(partitions)
	}
	index := map[int32]int{}
	var appends []commitlog.Append
	indexes := make([]BatchIndex, len(r.GetMessages()))
	for i, m := range r.GetMessages() {
		n := keyless
		// A message with an id and no key goes where the id says, which is where a repetition is looked for.
		if by := cmp.Or(m.GetKey(), m.GetDeduplicationId()); by != "" && partitions > 1 {
			n = commitlog.PartitionOf(by, partitions)
		}
		b, ok := index[n]
		if !ok {
			b = len(appends)
			index[n] = b
			part.Partition = commitlog.Partition{Topic: l.Number, Number: n}
			appends = append(appends, part)
			if n == keyless { // most messages have no key
				appends[b].Messages = make([]*topicv1.TopicMessage, 0, len(r.GetMessages())-i)
			}
		}
		indexes[i] = BatchIndex{b, len(appends[b].Messages)}
		appends[b].Messages = append(appends[b].Messages, m)
	}
	if _, ok := index[keyless]; !ok && r.GetProducer() != nil {
		part.Partition = commitlog.Partition{Topic: l.Number, Number: keyless}
		appends = append(appends, part)
	}
	return appends, indexes
}

// Terms are what must hold when the messages of a publisher get their positions.
type Terms struct {
	// Schema is that of the topic, by which the messages were checked. If the topic has another one
	// by then, which may be the same again, ErrSchemaChanged says so, and nothing is stored.
	Schema *topicv1.TopicSchema
}

// ErrSchemaChanged says that messages were checked by a schema that the topic no longer has.
var ErrSchemaChanged = errors.New("serving: the topic's schema was changed")

// Append stores batches, and lets the groups have them. With terms the topic takes them only if it has
// an active subscription, or needs none; messages that the server itself stores have no terms.
func (p *Publisher) Append(
	ctx context.Context, l *OpenTopic, appends []commitlog.Append, terms *Terms,
) ([]commitlog.Appended, error) {
	waiting, err := p.waiting(ctx, l, appends)
	if err != nil {
		return nil, err
	}
	pending, began, err := p.begin(ctx, l, appends, waiting, terms)
	if err == nil {
		// An append that has its positions will be durable, whether or not the caller
		// waits.
		if err = pending.Wait(context.WithoutCancel(ctx)); err != nil {
			err = fmt.Errorf("storing messages: %w", err)
		}
	}
	switch {
	case errors.Is(err, commitlog.ErrProducerNumber):
		return nil, refusal.New(refusal.ProducerNumberTooOld,
			"the number is older than the last %d of the producer, or was forgotten in part", commitlog.ProducerWindow)
	case errors.Is(err, commitlog.ErrProducerReuse):
		return nil, errReuse
	case errors.Is(err, commitlog.ErrTooLarge):
		return nil, refusal.New(refusal.TooLarge, "the messages are too large")
	case errors.Is(err, commitlog.ErrInvalid):
		return nil, refusal.New(refusal.InvalidArgument, "a message cannot be stored: its text is not UTF-8")
	case err != nil:
		return nil, err
	}
	p.engine.Backfills.Published(began)
	for i, a := range pending.Appended {
		l.Parts[appends[i].Partition.Number].Durable(a.Base + int64(a.Count))
	}
	for i, a := range pending.Appended {
		if !a.Replayed && a.Count > 0 {
			l.Wake(int(appends[i].Partition.Number))
		}
	}
	for i, a := range pending.Appended {
		if !a.Replayed || a.Same || !appends[i].Hashed() {
			continue
		}
		same, err := p.same(ctx, appends[i], a)
		switch {
		case err != nil:
			return nil, err
		case !same:
			return nil, errReuse
		}
	}
	return pending.Appended, nil
}

var errReuse = refusal.New(refusal.ProducerNumberReused,
	"the producer's number was used for other messages: nothing of this request is stored")

// begin gives messages their positions, if the topic takes them: no subscription begins or
// ends between. Its lock is held so long, and not until they are durable: a change of a
// subscription does not wait for the disk, and comes behind them. A log whose messages have no
// positions before they are durable returns from Begin only then.
func (p *Publisher) begin(
	ctx context.Context, l *OpenTopic, appends []commitlog.Append, waiting []int, terms *Terms,
) (pending *commitlog.Pending, began time.Time, err error) {
	t := l.Topic
	defer t.Reading().End()
	v := t.View()
	if v.Deleting {
		return nil, began, refusal.Forbidden(t.Name)
	}
	if terms != nil && terms.Schema != v.Config.GetSchema() {
		return nil, began, ErrSchemaChanged
	}
	if active := t.Active(); active == 0 && v.Config.GetSemantics() == storage.PubSub {
		if terms != nil && v.Config.GetBlockWritesOnZeroSubscriptions() {
			p.engine.Counters.Blocked.Add(1)
			return nil, began, refusal.New(refusal.NoSubscriptions,
				"Topic '%s' has zero ACTIVE subscriptions and blocks writes", t.Name)
		}
		p.engine.Counters.Unsubscribed.Add(1)
	}
	done, err := p.postpone(ctx, l, appends, waiting)
	defer done()
	if err != nil {
		return nil, began, err
	}
	began = time.Now()
	if pending, err = p.engine.Log.Begin(ctx, appends); err != nil {
		return nil, began, err
	}
	for i, a := range pending.Appended {
		if a.Batch != nil {
			l.Parts[appends[i].Partition.Number].Begun(a.Batch)
		}
	}
	return pending, began, nil
}
