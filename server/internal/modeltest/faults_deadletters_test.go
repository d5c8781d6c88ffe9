package modeltest

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

type (
	bidiQ    = *topicv1.ConsumeBidiRequest
	redriveQ = *opsv1.RedriveDeadLettersRequest
	discardQ = *opsv1.DiscardDeadLettersRequest
)

var hashFaults = []fault{
	{name: "a key has any member", finds: "hash: hashed", only: []string{"counted/hashed"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Selection = topicv1.Selection_SELECTION_ANY })},
	{name: "a change of the selection is not made", finds: "hash: changing", only: []string{"counted/changing"},
		long: true, lie: updates("selection")},
	{name: "a member gets messages in any order", finds: "hash order: hashed", only: []string{"counted/hashed"},
		lie: with(honest), hears: swaps},
}

// swaps gives a stream every second delivery in place of the next but one, which waits for its
// turn.
func swaps() func(proto.Message) {
	var held *topicv1.Delivery
	n := 0
	return func(m proto.Message) {
		s, ok := m.(*topicv1.ConsumeResponse)
		if !ok || s.GetDelivery() == nil {
			return
		}
		if n++; n%2 == 0 {
			return
		}
		if was := held; was == nil {
			held, s.Body = s.GetDelivery(), &topicv1.ConsumeResponse_Alive{Alive: &topicv1.Alive{}}
		} else {
			held, s.Body = s.GetDelivery(), &topicv1.ConsumeResponse_Delivery{Delivery: was}
		}
	}
}

var streamFaults = []fault{
	{name: "an acknowledgement on a stream is not done", finds: "again:", only: []string{"counted/plain"},
		lie: with(asks(func(q bidiQ) {
			if a := q.GetAck(); a != nil {
				q.Body = &topicv1.ConsumeBidiRequest_Extend{Extend: &topicv1.ExtendSet{Positions: a.GetPositions()}}
			}
		}))},
	{name: "a return on a stream is an acknowledgement", finds: "lost:", only: []string{"counted/plain"},
		lie: with(asks(func(q bidiQ) {
			if n := q.GetNack(); n != nil {
				q.Body = &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{Positions: n.GetPositions()}}
			}
		}))},
	{name: "a lease is not extended on a stream", finds: "two members:", only: []string{"counted/plain"},
		lie: with(asks(func(q bidiQ) {
			if q.GetExtend() != nil {
				q.Body = &topicv1.ConsumeBidiRequest_Credits{Credits: &topicv1.Credits{}}
			}
		}))},
	{name: "a stream brings more than it has credits for", finds: "credits:", only: []string{"counted/plain"},
		lie: with(asks(func(q bidiQ) {
			if a := q.GetAttach(); a != nil {
				a.Credits.Messages, a.RenewCredits = 1000, true
			}
		}))},
	{name: "a stream does not say what is refused", finds: "late acknowledgement:", only: []string{"counted/plain"},
		long: true, lie: with(honest), hears: func() func(proto.Message) {
			return func(m proto.Message) {
				if s, ok := m.(*topicv1.ConsumeBidiResponse); ok && s.GetSettled() != nil {
					s.GetSettled().Refusals = nil
				}
			}
		}},
}

// honest is no lie.
func honest(_ *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
	return next(req)
}

var deadLetterFaults = []fault{
	{name: "what is redriven does not come back", finds: "redriven:", only: []string{"counted/buried"},
		lie: with(asks(func(q redriveQ) { q.Execute = false }))},
	{name: "what is redriven comes to another group", finds: "redriven:",
		only: []string{"counted/buried", "counted/filtered"},
		lie: func() lie {
			var back *topicv1.Delivery
			return answers(func(_ *liar, q pullQ, s pullS) {
				for _, d := range s.GetDeliveries() {
					if slices.ContainsFunc(d.GetMessages(), isBack) && q.GetGroup() == "buried" {
						back = proto.CloneOf(d)
					}
				}
				if q.GetGroup() == "filtered" && back != nil {
					s.Deliveries, back = append(s.Deliveries, back), nil
				}
			})
		}},
	{name: "what is redriven does not say so", finds: "redriven:", only: []string{"counted/buried"},
		lie: pulls(func(_ *liar, _ pullQ, s pullS) {
			for _, d := range s.GetDeliveries() {
				for _, m := range d.GetMessages() {
					delete(m.GetHeaders(), redrivenHeader)
				}
			}
		})},
	{name: "a group is passed over what is redriven", finds: "lost:", only: []string{"counted/buried"},
		lie: pulls(func(l *liar, _ pullQ, s pullS) {
			taken := without(s, func(d *topicv1.Delivery, i int) bool { return isBack(d.GetMessages()[i]) })
			if len(taken) > 0 {
				_, _ = l.honest.Consumers.Ack(context.Background(), &topicv1.AckRequest{Session: s.GetSession(),
					Set: &topicv1.AckSet{Positions: taken}})
			}
		})},
	{name: "a discarded letter stays open", finds: "letters:", only: []string{"counted/buried"}, long: true,
		lie: with(asks(func(q discardQ) { q.Execute = false }))},
	{name: "a discarded letter is redriven", finds: "redriven:", only: []string{"counted/buried"}, long: true,
		lie: with(redriven)},
	{name: "what became of letters is not listed", finds: "letters:", only: []string{"counted/buried"},
		lie: with(answers(func(_ *liar, q *opsv1.ListDeadLettersRequest, s *opsv1.ListDeadLettersResponse) {
			for _, l := range s.GetDeadLetters() {
				l.Status = opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_OPEN
			}
		}))},
}

func isBack(m *topicv1.TopicMessage) bool { return m.GetHeaders()[redrivenHeader] != "" }

// redriven redrives what is to be discarded.
func redriven(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
	if q, ok := req.(discardQ); ok {
		_, _ = outcomes(l.operator.Ops.RedriveDeadLetters(context.Background(),
			&opsv1.RedriveDeadLettersRequest{Filter: q.GetFilter(), Execute: true}))
	}
	return next(req)
}

var openFaults = []fault{
	{name: "a backfill has what is complete", finds: "pending:", only: []string{"counted/plain", "counted/late6"},
		lie: with(asks(func(q backfillQ) { q.Scope = topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED }))},
	{name: "a backfill of what is not complete has too little", finds: "lost:",
		only: []string{"counted/paused", "counted/late6"}, lie: with(asks(func(q backfillQ) { q.MaxMessages = 1 }))},
	{name: "a backfill that waits for members is forgotten", finds: "backfill:",
		only: []string{"counted/paused", "counted/late6"}, lie: with(answers(
			func(l *liar, q backfillQ, _ *topicv1.StartBackfillResponse) {
				_, _ = l.honest.Backfills.CancelBackfill(context.Background(),
					&topicv1.CancelBackfillRequest{Topic: q.GetTopic(), Group: q.GetGroup()})
			}))},
}
