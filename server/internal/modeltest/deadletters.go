package modeltest

import (
	"context"
	"fmt"
	"maps"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	client "github.com/parley-chat/parley/server/client/topic"
)

// redrivenHeader is that of a message which was put back: the id of its dead letter.
const redrivenHeader = "parley-redriven"

// deadLetter is a dead letter.
type deadLetter struct {
	topic     *topicState
	position  position // in the topic of dead letters
	group, of string
	message   *topicv1.TopicMessage
	backs     []*publication // what it was put back as
}

// id is the dead letter's id as operators know it.
func (l *deadLetter) id() string { return l.topic.name + ".dlq/" + l.position.String() }

// handling is what an operator did about a dead letter, or tried to: to redrive or to discard it.
type handling struct {
	span
	id      string // of the dead letter
	redrive bool
	outcome outcome // refused: it was left as it was
}

// may reports whether the dead letter may have been put back by it.
func (h *handling) may() bool { return h.redrive && h.outcome != refused }

// bury redrives and discards dead letters of a group, now and then.
func (w *World) bury(g *group) {
	for sleep(w.changing.ctx, w.around(time.Second)) {
		ctx := context.WithoutCancel(w.changing.ctx)
		var ids []string
		for _, l := range w.listDeadLetters(ctx, g, opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_OPEN) {
			if w.chance(4) > 0 {
				ids = append(ids, l.GetId())
			}
		}
		if len(ids) > 0 {
			w.handleDeadLetters(ctx, g, ids, w.chance(3) > 0)
		}
	}
}

// listDeadLetters returns the dead letters of a group with one of some statuses.
func (w *World) listDeadLetters(ctx context.Context, g *group, s ...opsv1.DeadLetterStatus) (all []*opsv1.DeadLetter) {
	req := &opsv1.ListDeadLettersRequest{Filter: deadLetterFilter(g), Statuses: s}
	for {
		res, _, err := until(ctx, w, w.Operator.Ops.ListDeadLetters, req)
		if err != nil {
			w.find("refused: ListDeadLetters of %s: %v", g.name, err)
			return all
		}
		all = append(all, res.GetDeadLetters()...)
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			return all
		}
	}
}

func deadLetterFilter(g *group) *opsv1.DeadLetterFilter {
	return &opsv1.DeadLetterFilter{Topic: g.topic.name, Group: g.name,
		Source: opsv1.DeadLetterSource_DEAD_LETTER_SOURCE_TOPICS}
}

// handleDeadLetters redrives or discards dead letters. If the call has no answer, each of them was handled or
// not, but for those of which it said that before.
func (w *World) handleDeadLetters(ctx context.Context, g *group, ids []string, redrive bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	filter := deadLetterFilter(g)
	filter.Ids = ids
	call := w.stamp()
	var said map[string]opsv1.DeadLetterOutcome
	var err error
	if redrive {
		said, err = outcomes(w.Operator.Ops.RedriveDeadLetters(ctx,
			&opsv1.RedriveDeadLettersRequest{Filter: filter, Execute: true, Rate: 1000}))
	} else {
		said, err = outcomes(w.Operator.Ops.DiscardDeadLetters(ctx,
			&opsv1.DiscardDeadLettersRequest{Filter: filter, Execute: true, Reason: "not wanted"}))
	}
	ret := w.stamp()
	if err != nil && (w.Simulated || !transient(err)) {
		w.find("refused: dead letters of %s: %v", g.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		h := &handling{span: span{call, ret}, id: id, redrive: redrive}
		switch o := said[id]; o {
		case opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_DONE:
			h.outcome = done
		case opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_BEHIND, opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_TAKEN:
			h.outcome = refused
		case opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_UNSPECIFIED, opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_FAILED:
			if err == nil && (w.Simulated || o == opsv1.DeadLetterOutcome_DEAD_LETTER_OUTCOME_UNSPECIFIED) {
				w.report("letters: %s is open, and what was done about it is %v", id, o)
			}
		default:
			w.report("letters: %s of %s, which is there, is not handled: %v", id, g.name, o)
		}
		g.handled = append(g.handled, h)
	}
}

// outcomes reads what a call did about dead letters.
func outcomes[T any, P interface {
	*T
	GetResults() []*opsv1.DeadLetterResult
}](stream *connect.ServerStreamForClient[T], err error) (map[string]opsv1.DeadLetterOutcome, error) {
	said := map[string]opsv1.DeadLetterOutcome{}
	if err != nil {
		return said, err
	}
	for stream.Receive() {
		for _, r := range P(stream.Msg()).GetResults() {
			said[r.GetId()] = r.GetOutcome()
		}
	}
	_ = stream.Close()
	return said, stream.Err()
}

// readDeadLetters reads the dead letters of a topic, if it has any.
func (w *World) readDeadLetters(ctx context.Context, t *topicState) {
	dlq := t.name + ".dlq"
	_, _, err := until(ctx, w, w.User.Subscriptions.CreateSubscription, &topicv1.CreateSubscriptionRequest{
		Topic: dlq, Group: "undertaker", Config: &topicv1.SubscriptionConfig{Start: earliest()}})
	if client.Reason(err) == "TOPIC_NOT_FOUND" {
		return
	}
	req := &topicv1.PullRequest{Topic: dlq, Group: "undertaker", MaxMessages: 1000,
		Wait: durationpb.New(300 * time.Millisecond)}
	for err == nil {
		var res *topicv1.PullResponse
		if res, _, err = until(ctx, w, w.User.Consumers.Pull, req); len(res.GetDeliveries()) == 0 {
			break
		}
		req.Session = res.GetSession()
		for _, d := range res.GetDeliveries() {
			for i, m := range d.GetMessages() {
				w.deadLetters = append(w.deadLetters, &deadLetter{topic: t, position: positionIn(d, i),
					group: m.GetHeaders()["parley-group"], of: m.GetHeaders()["parley-message-id"], message: m})
			}
		}
	}
	if err != nil {
		w.find("refused: reading %s: %v", dlq, err)
	}
}

// readBacks finds the messages that were put back into a topic. They stand at positions that no publisher
// got.
func (w *World) readBacks(ctx context.Context, t *topicState) {
	all, taken := map[string]*deadLetter{}, map[position]bool{}
	for _, l := range w.deadLetters {
		all[l.id()] = l
	}
	for _, p := range t.order {
		taken[p.position] = true
	}
	res, _, err := until(ctx, w, w.User.Topics.GetTopic, &topicv1.GetTopicRequest{Topic: t.name})
	if err != nil {
		w.find("refused: GetTopic of %s: %v", t.name, err)
	}
	for _, b := range res.GetTopic().GetPartitions() {
		for at := (position{b.GetPartition(), 0}); at.position < b.GetEnd(); at.position++ {
			if taken[at] {
				continue
			}
			res, _, err := until(ctx, w, w.User.Topics.GetMessage,
				&topicv1.GetMessageRequest{Topic: t.name, MessageId: at.String()})
			l := all[res.GetMessage().GetMessage().GetHeaders()[redrivenHeader]]
			if err != nil || l == nil {
				w.find("redriven: %v of %s is of no letter: %v, %v", at, t.name, res, err)
				continue
			}
			p := &publication{message: proto.CloneOf(l.message), position: at, stored: true, deadLetter: l}
			maps.DeleteFunc(p.message.GetHeaders(), isOwn)
			p.call, p.ret = w.redrives(l)
			l.backs = append(l.backs, p)
			t.order = append(t.order, p)
		}
	}
}

// redrives says when a dead letter may have been put back: between the first call and the last
// answer.
func (w *World) redrives(l *deadLetter) (call, ret stamp) {
	for _, g := range w.tenures {
		for _, h := range g.handled {
			if h.id != l.id() || !h.may() {
				continue
			}
			if call.seq == 0 {
				call = h.call
			}
			ret = h.ret
		}
	}
	return call, ret
}

// readStatuses asks what became of the dead letters of groups that operators look after.
func (w *World) readStatuses(ctx context.Context) {
	for _, g := range w.tenures {
		if !g.buried {
			continue
		}
		g.statuses = w.listDeadLetters(ctx, g, opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_OPEN,
			opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_RUNNING, opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_REDRIVEN,
			opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_DISCARDED)
		w.countDeadLetters(ctx, g)
	}
}

// countDeadLetters holds what is counted against what is listed.
func (w *World) countDeadLetters(ctx context.Context, g *group) {
	open := int64(0)
	for _, l := range g.statuses {
		if l.GetStatus() == opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_OPEN {
			open++
		}
	}
	res, _, err := until(ctx, w, w.Operator.Ops.CountDeadLetters,
		&opsv1.CountDeadLettersRequest{Filter: deadLetterFilter(g)})
	if err != nil || res.GetTotal() != open {
		w.find("letters: %d of %s are open, and %d are counted: %v", open, g.name, res.GetTotal(), err)
	}
}

func (p position) String() string { return fmt.Sprintf("%d-%d", p.partition, p.position) }
