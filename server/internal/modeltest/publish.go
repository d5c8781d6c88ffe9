package modeltest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	client "github.com/parley-chat/parley/server/client/topic"
)

// publish publishes numbered requests until it is stopped. Each is repeated until it is answered,
// and now and then after that.
func (w *World) publish(t *topicState, name string) {
	// The last request is answered, too: its messages are at a position, or nothing can be checked.
	ctx := context.WithoutCancel(w.publishing.ctx)
	for n := int64(1); sleep(w.publishing.ctx, w.around(w.Pace)); n++ {
		req := w.request(t, name, n)
		if n%3 == 0 && t.remembers() {
			identify(req)
		}
		if !w.send(ctx, t, req) {
			return
		}
		if w.chance(10) == 0 {
			w.send(ctx, t, req)
		}
	}
}

// publishRestarting is a publisher whose program starts again after a few requests. One that
// continues behind the last number of GetProducer loses nothing; one that starts with number 1 is
// refused, because that number was stored with other messages or is forgotten.
func (w *World) publishRestarting(t *topicState) {
	const name = "restarting"
	ctx := context.WithoutCancel(w.publishing.ctx)
	next, previous := int64(1), int64(0)
	for run := 0; ; run++ {
		for range 3 {
			if !sleep(w.publishing.ctx, w.around(2*w.Pace)) {
				return
			}
			if !w.send(ctx, t, w.request(t, name, next)) {
				return
			}
			previous, next = next, next+1
		}
		if run%2 == 0 {
			careless := w.request(t, name, 1)
			_, _, err := until(ctx, w, w.User.Topics.Publish, careless)
			switch client.Reason(err) {
			case "PRODUCER_NUMBER_REUSED", "PRODUCER_NUMBER_TOO_OLD":
			default:
				w.find("reused number: %s published other messages under number 1 and got %v", t.name, err)
			}
			w.forget(t, careless)
		}
		res, _, err := until(ctx, w, w.User.Topics.GetProducer,
			&topicv1.GetProducerRequest{Topic: t.name, Producer: name})
		if err != nil || res.GetLastNumber() != previous {
			w.find("producer: number %d of %s was answered, GetProducer says %d, %v", previous, t.name,
				res.GetLastNumber(), err)
			return
		}
		next = res.GetLastNumber() + 1
	}
}

// request makes a request that has not been published yet.
func (w *World) request(t *topicState, producer string, number int64) *topicv1.PublishRequest {
	req := &topicv1.PublishRequest{Topic: t.name, Producer: &topicv1.Producer{Id: producer, Number: number}}
	now := w.stamp()
	for i := range 1 + w.chance(4) {
		text := fmt.Sprintf("%s/%s/%d/%d/%d", t.name, producer, number, i, now.seq)
		if t.trims() {
			text += strings.Repeat(".", 8<<10)
		}
		m := &topicv1.TopicMessage{Type: []string{"order", "order", "note"}[w.chance(3)], CorrelationId: producer,
			Headers: map[string]string{"color": []string{"red", "blue"}[w.chance(2)]}, Payload: []byte(text)}
		if k := w.chance(6); k > 0 {
			m.Key = fmt.Sprint("k", k)
		}
		if w.chance(12) == 0 {
			m.Type = poisonous
		}
		switch w.chance(30) {
		case 0, 1, 2:
			m.Delay = durationpb.New(w.around(time.Second))
		case 3, 4:
			m.Ttl = durationpb.New(shortest + time.Duration(w.chance(int(2*time.Second))))
		case 5:
			m.Ttl = durationpb.New(time.Hour) // it does not end
		}
		req.Messages = append(req.Messages, m)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range req.GetMessages() {
		t.published[string(m.GetPayload())] = &publication{span: span{call: now}, message: m}
	}
	return req
}

// identify makes the messages of a request repeatable by their ids in place of its number.
func identify(req *topicv1.PublishRequest) {
	req.Producer = nil
	for _, m := range req.GetMessages() {
		m.DeduplicationId = strings.TrimRight(string(m.GetPayload()), ".")
	}
}

// forget takes messages back that were refused: nothing of them is stored.
func (w *World) forget(t *topicState, req *topicv1.PublishRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range req.GetMessages() {
		delete(t.published, string(m.GetPayload()))
	}
}

// send publishes a request until it is answered, and records where its messages stand.
func (w *World) send(ctx context.Context, t *topicState, req *topicv1.PublishRequest) bool {
	res, s, err := until(ctx, w, w.User.Topics.Publish, proto.CloneOf(req))
	// A topic is full while its groups are behind. Once they are not, there must be room again.
	for full := w.stamp(); client.Reason(err) == "TOPIC_FULL" && t.trims() && time.Since(full.at) < w.Patience; {
		sleep(ctx, 50*time.Millisecond)
		res, s, err = until(ctx, w, w.User.Topics.Publish, proto.CloneOf(req))
	}
	if err != nil {
		w.find("publish: %s refuses number %d of %q: %v", t.name, req.GetProducer().GetNumber(),
			req.GetProducer().GetId(), err)
		w.forget(t, req)
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(res.GetResults()) != len(req.GetMessages()) {
		w.report("publish: %d results for %d messages", len(res.GetResults()), len(req.GetMessages()))
		return false
	}
	for i, r := range res.GetResults() {
		p := t.published[string(req.GetMessages()[i].GetPayload())]
		at := position{r.GetPartition(), r.GetPosition()}
		if p.stored && p.position != at {
			w.report("repeated publish: %.60s stands at %v and %v", p.message.GetPayload(), p.position, at)
		}
		if r.GetMessageId() != fmt.Sprintf("%d-%d", at.partition, at.position) {
			w.report("publish: the message at %v has id %s", at, r.GetMessageId())
		}
		if !p.stored {
			p.position, p.stored, p.ret = at, true, s.ret
			t.order = append(t.order, p)
		}
	}
	return true
}
