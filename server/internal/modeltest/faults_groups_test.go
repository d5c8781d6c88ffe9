package modeltest

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

var answerFaults = []fault{
	{name: "acknowledgements are forgotten", finds: "again:", only: polled,
		lie: func() lie { return ignores(every[*topicv1.AckRequest](10), &topicv1.AckResponse{}) }},
	{name: "an acknowledgement after the lease counts", finds: "late acknowledgement:", only: []string{"counted/plain"},
		lie: with(answers(func(_ *liar, _ *topicv1.AckRequest, s *topicv1.AckResponse) { s.Refusals = nil }))},
	{name: "what is returned is acknowledged", finds: "lost:", only: []string{"counted/plain"},
		lie: with(func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
			q, ok := req.(nackQ)
			if !ok {
				return next(req)
			}
			_, err := l.honest.Consumers.Ack(context.Background(), &topicv1.AckRequest{Session: q.GetSession(),
				Set: &topicv1.AckSet{Positions: q.GetSet().GetPositions()}})
			return &topicv1.NackResponse{}, err
		})},
	{name: "the delay of a retry is ignored", finds: "delay:", only: []string{"counted/plain"},
		lie: with(asks(func(q nackQ) { q.Set.Delay = durationpb.New(0) }))},
	{name: "leases are not extended", finds: "two members:", only: []string{"counted/plain"}, lie: func() lie {
		return ignores(every[*topicv1.ExtendRequest](1), &topicv1.ExtendResponse{})
	}},
	{name: "there are more attempts than asked for", finds: "attempts:", only: []string{"counted/poisoned"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Retry.MaxAttempts = maxPoison + 3 })},
	{name: "a floor is the end", finds: "floor:", only: []string{"counted/plain"},
		lie: with(answers(func(_ *liar, _ *topicv1.GetSubscriptionRequest, s *topicv1.GetSubscriptionResponse) {
			for _, p := range s.GetSubscription().GetPartitions() {
				p.Floor = p.GetEnd()
			}
		}))},
	{name: "the watermark is the end", finds: "watermark:", only: []string{"counted/plain"},
		lie: with(answers(func(_ *liar, _ *topicv1.GetTopicRequest, s *topicv1.GetTopicResponse) {
			for _, p := range s.GetTopic().GetPartitions() {
				p.Watermark = p.GetEnd()
			}
		}))},
	{name: "all messages are complete", finds: "status:", only: []string{"counted/plain"},
		lie: with(answers(func(_ *liar, _ *topicv1.GetMessageStatusRequest, s *topicv1.GetMessageStatusResponse) {
			s.Status = topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED
		}))},
}

var groupFaults = []fault{
	{name: "a filter lets all pass", finds: "filter:", only: []string{"counted/filtered"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Filter = nil })},
	{name: "a filter lets too little pass", finds: "lost:", only: []string{"counted/filtered"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Filter.Clauses[1].Values = []string{"crimson"} })},
	{name: "keys have no order", finds: "key order:", only: []string{"counted/keyed"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Ordering = topicv1.Ordering_ORDERING_NONE })},
	{name: "a late group has no order of keys in history that is removed", finds: "key order: late3 of t.trimmed",
		only: []string{"trimmed/plain", "trimmed/late3", "trim"},
		lie:  creates(func(c *topicv1.SubscriptionConfig) { c.Ordering = topicv1.Ordering_ORDERING_NONE })},
	{name: "the end is the beginning", finds: "start:", only: []string{"counted/filtered", "counted/late0"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Start = earliest() })},
	{name: "the beginning is the end", finds: "lost:", only: []string{"counted/filtered", "counted/late2"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Start = latest() })},
	{name: "the bound of a backfill is that of each partition", finds: "backfill:",
		only: []string{"counted/filtered", "counted/late1"},
		lie:  creates(func(c *topicv1.SubscriptionConfig) { c.MaxBackfillMessages = max(-1, 2*c.GetMaxBackfillMessages()) })},
	{name: "rights to a group are rights to all", finds: "rights:", only: []string{"counted/plain", "stranger"},
		lie: with(trusts)},
	{name: "a pause is ignored", finds: "paused:", only: []string{"counted/paused"}, lie: func() lie {
		return ignores(every[*topicv1.PauseSubscriptionRequest](1), &topicv1.PauseSubscriptionResponse{})
	}},
	{name: "a group is not resumed", finds: "stuck:", only: []string{"counted/paused"}, lie: func() lie {
		return ignores(every[*topicv1.ResumeSubscriptionRequest](1), &topicv1.ResumeSubscriptionResponse{})
	}},
	{name: "a move back is ignored", finds: "lost:", only: []string{"counted/seeking"}, lie: func() lie {
		return ignores(func(q *topicv1.SeekSubscriptionRequest) bool { return q.GetTo().GetEarliest() },
			&topicv1.SeekSubscriptionResponse{})
	}},
	{name: "a move to a message goes to the beginning", finds: "skipped:", only: []string{"counted/seeking"}, long: true,
		lie: with(asks(func(q *topicv1.SeekSubscriptionRequest) {
			if q.GetTo().GetMessageId() != "" {
				q.To = earliest()
			}
		}))},
	{name: "a cancellation is ignored", finds: "cancelled:", only: []string{"counted/cancelled"}, lie: func() lie {
		return ignores(every[*topicv1.CancelSubscriptionRequest](1), &topicv1.CancelSubscriptionResponse{})
	}},
	{name: "a group that was dead starts at the end", finds: "lost:", only: []string{"counted/mortal"}, long: true,
		lie: revives},
	{name: "what was removed while a group was dead is not said", finds: "missed:",
		only: []string{"trimmed/plain", "trimmed/mortal", "trim"}, long: true,
		lie: with(answers(func(_ *liar, _ *topicv1.GetGroupMetricsRequest, s *topicv1.GetGroupMetricsResponse) {
			s.Missed = 0
		}))},
}

var changeFaults = []fault{
	{name: "a change of the order is not made", finds: "key order:", only: []string{"counted/changing"},
		lie: updates("ordering")},
	{name: "a change of the filter is not made", finds: "filter:", only: []string{"counted/changing"},
		lie: updates("filter")},
	{name: "a change of the lease is not made", finds: "two members:", only: []string{"counted/changing"},
		long: true, lie: updates("retry.lease")},
	{name: "a change of the bound is not made", finds: "bound:", only: []string{"counted/changing"}, long: true,
		lie: updates("max_in_flight")},
	{name: "a change of settings counts what is acknowledged as not", finds: "again:", only: []string{"counted/changing"},
		lie: moves[updateQ]("changing", earliest())},
	{name: "a change of settings loses what members have", finds: "lost:", only: []string{"counted/changing"},
		lie: moves[updateQ]("changing", latest())},
	{name: "a backfill is not made", finds: "lost:", only: []string{"counted/filtered", "counted/late4"}, lie: func() lie {
		return ignores(every[backfillQ](1), &topicv1.StartBackfillResponse{})
	}},
	{name: "a backfill has no bound", finds: "backfill:", only: []string{"counted/filtered", "counted/late5"},
		lie: with(asks(func(q backfillQ) { q.MaxMessages = -1 }))},
	{name: "a backfill has too little", finds: "backfill:", only: []string{"counted/filtered", "counted/late5"},
		lie: with(asks(func(q backfillQ) { q.MaxMessages -= 2 }))},
	{name: "a backfill that was cancelled does not continue", finds: "backfill:",
		only: []string{"counted/filtered", "counted/late4"}, lie: func() lie {
			n := 0
			return ignores(func(backfillQ) bool { n++; return n > 1 }, &topicv1.StartBackfillResponse{})
		}},
	{name: "history comes before it is asked for", finds: "backfill:", only: []string{"counted/filtered", "counted/late5"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Start = earliest() })},
}

var lossFaults = []fault{
	{name: "messages do not end", finds: "expired:", only: polled,
		lie: with(asks(func(q *topicv1.PublishRequest) {
			for _, m := range q.GetMessages() {
				if m.GetTtl() != nil {
					m.Ttl = durationpb.New(time.Hour)
				}
			}
		}))},
	{name: "messages end at once", finds: "lost:", only: []string{"counted/paused"},
		lie: with(asks(func(q *topicv1.PublishRequest) {
			for _, m := range q.GetMessages() {
				if m.GetTtl() != nil {
					m.Ttl = durationpb.New(shortest)
				}
			}
		}))},
	{name: "messages end a minute late", finds: "expire time:", only: polled,
		lie: with(asks(func(q *topicv1.PublishRequest) {
			for _, m := range q.GetMessages() {
				if m.GetTtl() != nil {
					m.Ttl.Seconds += 60
				}
			}
		}))},
	{name: "what ended is not counted", finds: "ledger:", only: []string{"counted/paused"},
		lie: ledgers(func(r *topicv1.ReleasedMessages) { r.Expired = 0 })},
	{name: "what is parked comes again by itself", finds: "parked:", only: []string{"counted/parked"},
		lie: releases},
	{name: "what is parked is lost", finds: "lost:", only: []string{"counted/parked"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Exhausted = topicv1.Exhausted_EXHAUSTED_DISCARD })},
	{name: "what is parked does not hold its key", finds: "key order:", only: []string{"counted/parked"},
		lie: creates(func(c *topicv1.SubscriptionConfig) { c.Ordering = topicv1.Ordering_ORDERING_NONE })},
	{name: "what is parked stays so", finds: "stuck:", only: []string{"counted/parked"}, lie: func() lie {
		return ignores(every[*topicv1.UnparkKeysRequest](1), &topicv1.UnparkKeysResponse{})
	}},
	{name: "a purge is not made", finds: "purged:", only: []string{"changed/keyed"},
		lie: with(asks(func(q purgeQ) { q.DryRun = true }))},
	{name: "a purge takes what is behind its place", finds: "purge:", only: []string{"changed/keyed"},
		lie: with(asks(func(q purgeQ) { q.Before = latest() }))},
	{name: "a purge takes too little", finds: "purge:", only: []string{"changed/keyed"},
		lie: with(asks(func(q purgeQ) { q.Partitions = []int32{0} }))},
	{name: "a purge moves groups beyond its place", finds: "lost:", only: []string{"changed/keyed"},
		lie: moves[purgeQ]("keyed", latest())},
	{name: "what is purged is not counted", finds: "ledger:", only: []string{"changed/keyed"},
		lie: ledgers(func(r *topicv1.ReleasedMessages) { r.Forced = 0 })},
	{name: "a change of the mode forgets what is acknowledged", finds: "again:", only: []string{"changed/keyed"},
		lie: moves[*topicv1.ConfigureTopicRequest]("keyed", earliest())},
	{name: "what ended is counted twice", finds: "ledger:", only: []string{"counted/paused"},
		lie: ledgers(func(r *topicv1.ReleasedMessages) { r.Expired *= 2 })},
}

// ledgers is a lie about what a group lost.
func ledgers(change func(*topicv1.ReleasedMessages)) func() lie {
	return with(answers(func(_ *liar, _ *topicv1.GetSubscriptionRequest, s *topicv1.GetSubscriptionResponse) {
		if r := s.GetSubscription().GetReleased(); r != nil {
			change(r)
		}
	}))
}

// releases unparks what a group has parked, though it did not ask for that.
func releases() lie {
	var last time.Time
	return func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		q, ok := req.(pullQ)
		l.Lock()
		now := ok && time.Since(last) > 300*time.Millisecond // in simulated time calls take none
		if now {
			last = time.Now()
		}
		l.Unlock()
		if now {
			_, _ = l.honest.Subscriptions.UnparkKeys(context.Background(),
				&topicv1.UnparkKeysRequest{Topic: q.GetTopic(), Group: q.GetGroup()})
		}
		return next(req)
	}
}

// moves is a lie about requests of one kind: they move a group, too.
func moves[Q interface {
	proto.Message
	GetTopic() string
}](group string, to *topicv1.Position) func() lie {
	return with(func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		if q, ok := req.(Q); ok {
			_, _ = l.honest.Subscriptions.SeekSubscription(context.Background(), &topicv1.SeekSubscriptionRequest{
				Topic: q.GetTopic(), Group: group, To: to})
		}
		return next(req)
	})
}

// updates is a lie about a setting that is changed: it stays as it was.
func updates(path string) func() lie {
	return with(asks(func(q updateQ) {
		if paths := q.GetUpdateMask(); paths != nil {
			paths.Paths = slices.DeleteFunc(paths.GetPaths(), func(p string) bool { return p == path })
			if len(paths.GetPaths()) == 0 { // something that is so already
				paths.Paths, q.Config.HeartbeatTimeout = []string{"heartbeat_timeout"}, nil
			}
		}
	}))
}

// trusts lets a principal do to a group what it has no right to.
func trusts(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
	res, err := next(req)
	if q, ok := req.(*topicv1.SeekSubscriptionRequest); ok && err != nil {
		return l.honest.Subscriptions.SeekSubscription(context.Background(), q)
	}
	return res, err
}

// revives moves a group to the end when its members were away.
func revives() lie {
	last := map[string]time.Time{}
	return func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		q, ok := req.(pullQ)
		if !ok || strings.HasSuffix(q.GetTopic(), ".dlq") {
			return next(req)
		}
		l.Lock()
		was := last[q.GetGroup()]
		last[q.GetGroup()] = time.Now()
		l.Unlock()
		if !was.IsZero() && time.Since(was) > silence {
			_, _ = l.honest.Subscriptions.Heartbeat(context.Background(), &topicv1.HeartbeatRequest{Topic: q.GetTopic(),
				Group: q.GetGroup()})
			_, _ = l.honest.Subscriptions.SeekSubscription(context.Background(), &topicv1.SeekSubscriptionRequest{
				Topic: q.GetTopic(), Group: q.GetGroup(), To: latest()})
		}
		res, err := next(req)
		l.Lock()
		defer l.Unlock()
		last[q.GetGroup()] = time.Now()
		return res, err
	}
}
