package modeltest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	client "github.com/parley-chat/parley/server/client/topic"
)

// subscribe makes the subscription of a group. A queue has one.
func (w *World) subscribe(ctx context.Context, g *group) error {
	w.mu.Lock()
	w.tenures = append(w.tenures, g)
	w.mu.Unlock()
	if g.topic.config.GetSemantics() == topicv1.Semantics_SEMANTICS_QUEUE {
		_, s, err := until(ctx, w, w.User.Subscriptions.UpdateSubscription,
			&topicv1.UpdateSubscriptionRequest{Topic: g.topic.name, Group: g.name,
				Config: &topicv1.SubscriptionConfig{Retry: g.config.GetRetry()}})
		g.born = s
		return err
	}
	res, s, err := until(ctx, w, w.User.Subscriptions.CreateSubscription,
		&topicv1.CreateSubscriptionRequest{Topic: g.topic.name, Group: g.name, Config: g.config})
	g.born, g.created = s, res.GetSubscription()
	return err
}

// change starts those that change groups, and those that watch or meddle.
func (w *World) change() {
	for _, t := range w.topics {
		for _, g := range t.groups {
			switch {
			case g.mortal:
				w.changing.all.Go(func() { w.leave(g) })
			case g.name == "paused":
				w.changing.all.Go(func() { w.pause(g) })
			case g.name == "seeking":
				w.changing.all.Go(func() { w.seek(g) })
			case g.name == "cancelled":
				w.changing.all.Go(func() { w.cancel(g) })
			case g.buried:
				w.changing.all.Go(func() { w.bury(g) })
			case g.parks():
				w.changing.all.Go(func() { w.unpark(g) })
			case g.name == "changing":
				w.changing.all.Go(func() { w.update(g) })
			}
		}
		if t.config.GetSemantics() != topicv1.Semantics_SEMANTICS_QUEUE {
			w.join(t)
		}
	}
	for _, t := range w.topics {
		if t.short == changes {
			w.changing.all.Go(func() { w.purge(t) })
			w.changing.all.Go(func() { w.flip(t) })
		}
	}
	if w.has("stranger") {
		w.changing.all.Go(w.meddle)
	}
	if w.has("trim") {
		w.changing.all.Go(w.trim)
	}
}

// record records what was done to a group.
func (w *World) record(g *group, c control, err error) {
	if err != nil {
		w.find("refused: change %d of group %s: %v", c.kind, g.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g.controls = append(g.controls, &c)
}

// pause pauses and resumes a group. It leaves it active.
func (w *World) pause(g *group) {
	ctx := context.WithoutCancel(w.changing.ctx)
	for sleep(w.changing.ctx, w.around(2*time.Second)) {
		_, s, err := until(ctx, w, w.User.Subscriptions.PauseSubscription,
			&topicv1.PauseSubscriptionRequest{Topic: g.topic.name, Group: g.name})
		w.record(g, control{span: s, kind: pause}, again(err))
		sleep(w.changing.ctx, w.around(time.Second))
		_, s, err = until(ctx, w, w.User.Subscriptions.ResumeSubscription,
			&topicv1.ResumeSubscriptionRequest{Topic: g.topic.name, Group: g.name})
		w.record(g, control{span: s, kind: resume}, again(err))
	}
}

// again takes a transition as done that is refused because an earlier try, whose answer was lost,
// has made it.
func again(err error) error {
	if client.Reason(err) == "INVALID_TRANSITION" {
		return nil
	}
	return err
}

// seek moves a group: to the beginning, to a message, to the end. In the end it moves to the
// beginning, so that all comes again.
func (w *World) seek(g *group) {
	ctx := context.WithoutCancel(w.changing.ctx)
	for more := true; more; {
		more = sleep(w.changing.ctx, w.around(3*time.Second))
		to := earliest()
		switch what := w.chance(3); {
		case !more:
		case what == 0:
			to = latest()
		case what == 1:
			if p := w.some(g.topic); p != nil {
				to = &topicv1.Position{At: &topicv1.Position_MessageId{
					MessageId: p.position.String()}}
			}
		}
		_, s, err := until(ctx, w, w.User.Subscriptions.SeekSubscription,
			&topicv1.SeekSubscriptionRequest{Topic: g.topic.name, Group: g.name, To: to})
		w.record(g, control{span: s, kind: seek, to: to}, err)
	}
}

// some is any message of a topic that is stored.
func (w *World) some(t *topicState) *publication {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(t.order) == 0 {
		return nil
	}
	return t.order[w.rng.IntN(len(t.order))]
}

// leave takes the members of a group away for long enough that it dies, and brings them back.
func (w *World) leave(g *group) {
	for sleep(w.changing.ctx, w.around(4*time.Second)) {
		call := w.stamp()
		g.members.end()
		sleep(w.changing.ctx, w.around(2*silence))
		w.attend(g)
		w.record(g, control{span: span{call, w.stamp()}, kind: absence}, nil)
	}
}

// cancel ends the subscription of a group and makes the next one, with another start.
func (w *World) cancel(g *group) {
	ctx := context.WithoutCancel(w.changing.ctx)
	for n := 0; sleep(w.changing.ctx, w.around(3*time.Second)); n++ {
		g.members.end()
		_, s, err := until(ctx, w, w.User.Subscriptions.CancelSubscription,
			&topicv1.CancelSubscriptionRequest{Topic: g.topic.name, Group: g.name})
		w.record(g, control{span: s, kind: cancel}, again(err))
		g.ended = true
		sleep(ctx, w.around(300*time.Millisecond))
		_, _, err = until(ctx, w, w.User.Consumers.Pull, &topicv1.PullRequest{Topic: g.topic.name, Group: g.name})
		if client.Reason(err) != "SUBSCRIPTION_GONE" {
			w.find("cancelled: a member of %s is attached, with error %v", g.name, err)
		}
		next := newGroup(g.topic, g.name, withStart(g.config, n))
		if err := w.subscribe(ctx, next); err != nil {
			w.find("refused: a subscription of %s after a cancelled one: %v", g.name, err)
			return
		}
		if was, is := g.created.GetGeneration(), next.created.GetGeneration(); is != was+1 {
			w.find("cancelled: generation %d of %s follows %d", is, g.name, was)
		}
		w.attend(next)
		g = next
	}
}

// withStart returns the settings of a subscription with the nth kind of start.
func withStart(c *topicv1.SubscriptionConfig, n int) *topicv1.SubscriptionConfig {
	next := &topicv1.SubscriptionConfig{Retry: c.GetRetry(), Exhausted: c.GetExhausted(), MaxBackfillMessages: -1}
	switch n % 3 {
	case 0:
		next.Start = latest()
	case 1:
		next.Start, next.Backfill, next.MaxBackfillMessages = earliest(), true, atMost
	case 2:
		next.Start, next.Backfill = earliest(), true
	}
	return next
}

// join subscribes groups that come late: to all that is there, to a few of it, to what follows, with
// the order of keys, and to what follows with a backfill of all that is there, of a few of it, or of what is not
// complete.
func (w *World) join(t *topicState) {
	for n := range 7 {
		g := newGroup(t, fmt.Sprint("late", n), withStart(t.groups[0].config, n))
		switch n {
		case 3:
			g.config.Start, g.config.Ordering = earliest(), topicv1.Ordering_ORDERING_KEY
		case 4, 5:
			g.config = withStart(g.config, 0)
			g.asks = true
		case 6:
			g.waits = true
		}
		if !w.has(t.short + "/" + g.name) {
			continue
		}
		w.changing.all.Go(func() {
			if !sleep(w.changing.ctx, w.around(2*time.Second)) {
				return
			}
			if err := w.subscribe(context.WithoutCancel(w.changing.ctx), g); err != nil {
				w.find("refused: a late subscription: %v", err)
				return
			}
			if g.waits {
				w.backfillOpen(g)
			}
			w.attend(g)
			if g.asks {
				w.backfill(g, []int{-1, atMost}[n%2])
			}
		})
	}
}

// meddle is a principal that is bound to other groups, and tries to end, move and drain this one.
func (w *World) meddle() {
	topic, group := w.topics[0].name, "plain"
	for n := 0; sleep(w.changing.ctx, w.around(2*time.Second)); n++ {
		var err error
		switch s, ctx := w.Stranger, context.WithoutCancel(w.changing.ctx); n % 3 {
		case 0:
			_, _, err = until(ctx, w, s.Subscriptions.SeekSubscription,
				&topicv1.SeekSubscriptionRequest{Topic: topic, Group: group, To: latest()})
		case 1:
			_, _, err = until(ctx, w, s.Consumers.Pull, &topicv1.PullRequest{Topic: topic, Group: group})
		case 2:
			_, _, err = until(ctx, w, s.Subscriptions.CancelSubscription,
				&topicv1.CancelSubscriptionRequest{Topic: topic, Group: group})
		}
		if connect.CodeOf(err) != connect.CodePermissionDenied || client.Reason(err) != "TOPIC_FORBIDDEN" {
			w.find("rights: %s may change group %s: %v", w.Name, group, err)
		}
	}
}

// trim has messages removed that all groups have acknowledged.
func (w *World) trim() {
	for sleep(w.changing.ctx, w.around(time.Second)) {
		w.runTrim(w.changing.ctx)
	}
}

func (w *World) runTrim(ctx context.Context) {
	_, _, err := until(ctx, w, w.Operator.Admin.RunJob, &topicv1.RunJobRequest{Job: topicv1.Job_JOB_TRIM})
	if err != nil && client.Reason(err) != "JOB_RUNNING" && ctx.Err() == nil {
		w.find("refused: the trim: %v", err)
	}
}

// watch asks where the groups of a topic are, and how far messages have come.
func (w *World) watch(t *topicState) {
	for sleep(w.changing.ctx, w.around(700*time.Millisecond)) {
		ctx := w.changing.ctx
		if res, s, err := until(ctx, w, w.User.Topics.GetTopic, &topicv1.GetTopicRequest{Topic: t.name}); err == nil {
			p := &probe{span: s, watermarks: map[int32]int64{}}
			for _, b := range res.GetTopic().GetPartitions() {
				p.watermarks[b.GetPartition()] = b.GetWatermark()
			}
			t.watermarks = append(t.watermarks, p)
		}
		for _, g := range t.groups {
			if g.name == "cancelled" {
				continue // its position is that of another subscription at any time
			}
			if res, s, err := until(ctx, w, w.User.Subscriptions.GetSubscription,
				&topicv1.GetSubscriptionRequest{Topic: t.name, Group: g.name}); err == nil {
				p := &probe{span: s, floors: map[int32]int64{}}
				for _, at := range res.GetSubscription().GetPartitions() {
					p.floors[at.GetPartition()] = at.GetFloor()
				}
				g.probes = append(g.probes, p)
			}
		}
		w.askStatus(ctx, t)
	}
}

// askStatus asks how far the newest messages have come.
func (w *World) askStatus(ctx context.Context, t *topicState) {
	if t.trims() || t.short == changes {
		return // the requested messages may be gone
	}
	w.mu.Lock()
	newest := slices.Clone(t.order[max(0, len(t.order)-3):])
	w.mu.Unlock()
	for _, m := range newest {
		if res, s, err := until(ctx, w, w.User.Topics.GetMessageStatus, &topicv1.GetMessageStatusRequest{Topic: t.name,
			MessageId: m.position.String()}); err == nil {
			t.statuses = append(t.statuses, &probe{span: s, message: m, acknowledged: res.GetAcknowledged(),
				completed: res.GetStatus() == topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED})
		} else if ctx.Err() == nil {
			w.find("status: %s has no message at %v: %v", t.name, m.position, err)
		}
	}
}
