package topicrpc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/topicproxy"
)

// settle acknowledges what was pulled, or gives it back for a reason, and returns how many
// messages that were.
func (w *fixture) settle(through *server, pulled *topicv1.PullResponse, reason string) (n int) {
	w.t.Helper()
	for _, d := range pulled.GetDeliveries() {
		for i := range d.GetMessages() {
			at := d.GetBase() + int64(i)
			if len(d.GetOffsets()) > 0 {
				at = d.GetBase() + int64(d.GetOffsets()[i])
			}
			set := []*topicv1.Positions{{Partition: d.GetPartition(), Base: at}}
			var err error
			if reason == "" {
				_, err = through.consumers("maker").Ack(w.t.Context(),
					&topicv1.AckRequest{Session: pulled.GetSession(), Set: &topicv1.AckSet{Positions: set}})
			} else {
				_, err = through.consumers("maker").Nack(w.t.Context(), &topicv1.NackRequest{Session: pulled.GetSession(),
					Set: &topicv1.NackSet{Positions: set, Reason: reason}})
			}
			testkit.Must(w.t, err)
			n++
		}
	}
	return n
}

// take takes messages of a group, as settle does, and returns their contents.
func (w *fixture) take(through *server, name string, n int, reason string) (payloads []string) {
	w.t.Helper()
	session := ""
	for len(payloads) < n {
		pulled, err := through.consumers("maker").Pull(w.t.Context(), &topicv1.PullRequest{Topic: name, Group: "g",
			Session: session, Wait: durationpb.New(5 * time.Second)})
		testkit.Must(w.t, err)
		session = pulled.GetSession()
		for _, d := range pulled.GetDeliveries() {
			for _, m := range d.GetMessages() {
				payloads = append(payloads, string(m.GetPayload()))
			}
		}
		w.settle(through, pulled, reason)
	}
	_, err := through.consumers("maker").Detach(w.t.Context(), &topicv1.DetachRequest{Session: session})
	testkit.Must(w.t, err)
	return payloads
}

// fail makes a topic whose group gives up what it gets, after one attempt.
func (w *fixture) fail(through *server, name string, exhausted topicv1.Exhausted, n int) {
	w.t.Helper()
	ctx := w.t.Context()
	_, err := through.topics("maker").ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: name,
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	testkit.Must(w.t, err)
	_, err = through.subscriptions("maker").CreateSubscription(ctx, &topicv1.CreateSubscriptionRequest{Topic: name,
		Group: "g", Config: &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY, Exhausted: exhausted,
			Retry: &topicv1.RetryPolicy{MaxAttempts: 1}}})
	testkit.Must(w.t, err)
	req := &topicv1.PublishRequest{Topic: name}
	for i := range n {
		req.Messages = append(req.Messages, &topicv1.TopicMessage{Key: fmt.Sprint(i), Payload: fmt.Append(nil, i)})
	}
	_, err = through.topics("maker").Publish(ctx, req)
	testkit.Must(w.t, err)
	w.take(through, name, n, "bad")
}

// list lists dead letters page by page, as operators do.
func list(ctx context.Context, m *deadletter.Manager, size int, f deadletter.Filter, each func(id string)) error {
	f.Source = deadletter.Topics
	for at := (deadletter.Position{}); ; {
		page, err := m.List(ctx, f, size, at)
		if err != nil {
			return err
		}
		for i := range page.DeadLetters {
			each(page.DeadLetters[i].ID())
		}
		if page.Next == nil {
			return nil
		}
		at = *page.Next
	}
}

// The dead letters of all topics are listed by who has no topics: page by page, also while
// slots change their owners, each once and those of a topic in order. What is done about one is
// done where it stands: its group gets it again, once.
func TestDeadLettersOfAllSlots(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	one, two := w.start("one"), w.start("two")
	w.spread(one, two)
	ctx := t.Context()
	const each = 3
	var dead []string
	for i, s := range []*server{one, two} {
		dead = append(dead, w.named(s, fmt.Sprintf("dead-%d-", i)))
		w.fail(one, dead[i], topicv1.Exhausted_EXHAUSTED_DEAD_LETTER, each)
	}
	parked := w.named(two, "parked-")
	w.fail(two, parked, topicv1.Exhausted_EXHAUSTED_PARK_KEY, each)
	all := topicproxy.NewDeadLetters(w.any, func(ctx context.Context) (int, error) {
		return topic.DeclaredSlots(ctx, w.Store)
	})
	m, err := deadletter.New(deadletter.Config{Addr: "of no events", Store: w.Store, Topics: all, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	ids := func(size int, f deadletter.Filter) (ids []string) {
		testkit.Must(t, list(ctx, m, size, f, func(id string) { ids = append(ids, id) }))
		return ids
	}
	var want []string
	testkit.Eventually(t, "the letters", func() bool {
		want = ids(100, deadletter.Filter{})
		return len(want) == 3*each
	})
	for _, size := range []int{1, 2, 4} {
		testkit.Equal(t, fmt.Sprintf("pages of %d", size), strings.Join(ids(size, deadletter.Filter{}), " "),
			strings.Join(want, " "))
	}
	for _, name := range append(slices.Clone(dead), parked) {
		var of []string
		for i := range each {
			if name == parked {
				of = append(of, fmt.Sprintf("%s/0-%d/g", name, i))
			} else {
				of = append(of, fmt.Sprintf("%s.dlq/0-%d", name, i))
			}
		}
		testkit.Equal(t, "letters of "+name, strings.Join(ids(2, deadletter.Filter{Topic: name}), " "),
			strings.Join(of, " "))
		testkit.Equal(t, "one of them", fmt.Sprint(ids(2, deadletter.Filter{IDs: of[1:2]})), fmt.Sprint(of[1:2]))
	}
	testkit.Equal(t, "letters of another group", len(ids(2, deadletter.Filter{Group: "h"})), 0)
	w.onlyNews(all, 2*each)
	w.redriven(m, one, dead[1], parked)
	w.moved(m, all, two, append(slices.Clone(dead), parked))
}

// onlyNews reads what has come to topics of dead letters, and then what has come since.
func (w *fixture) onlyNews(all *topicproxy.DeadLetters, n int) {
	w.t.Helper()
	which := topic.DeadLetterSelection{Dead: true, After: map[commitlog.Partition]int64{}}
	for _, want := range []int{n, 0} {
		got := 0
		testkit.Must(w.t, all.Scan(w.t.Context(), which, topic.DeadLetterPosition{}, func(l topic.DeadLetter) error {
			which.After[commitlog.Partition{Topic: l.Number, Number: l.LogPosition.Partition}] = l.LogPosition.Position + 1
			got++
			return nil
		}))
		testkit.Equal(w.t, "letters that have come", got, want)
	}
}

// redriven gives dead letters back to their groups.
func (w *fixture) redriven(m *deadletter.Manager, through *server, dead, parked string) {
	w.t.Helper()
	ctx := w.t.Context()
	for _, name := range []string{dead, parked} {
		f := deadletter.Filter{Source: deadletter.Topics, Topic: name}
		report, err := m.Redrive(ctx, f, deadletter.Redrive{Actor: "ada", Limit: 1, Rate: 1000})
		testkit.Must(w.t, err)
		testkit.Equal(w.t, "redriven of "+name, report.Done, 1)
		testkit.Equal(w.t, "what comes again of "+name, fmt.Sprint(w.take(through, name, 1, "")), "[0]")
		report, err = m.Discard(ctx, f, deadletter.Discard{Actor: "ada", Reason: "of no use", Limit: 1})
		testkit.Must(w.t, err)
		testkit.Equal(w.t, "discarded of "+name, report.Done, 1)
		left := 0
		testkit.Must(w.t, list(ctx, m, 10, deadletter.Filter{Topic: name}, func(string) { left++ }))
		testkit.Equal(w.t, "left of "+name, left, 1)
	}
}

// moved stops a server between two pages of a list.
func (w *fixture) moved(m *deadletter.Manager, all *topicproxy.DeadLetters, down *server, names []string) {
	w.t.Helper()
	ctx := w.t.Context()
	var want, got []string
	open := deadletter.Filter{}
	testkit.Must(w.t, list(ctx, m, 10, open, func(id string) { want = append(want, id) }))
	testkit.Equal(w.t, "letters before", len(want), 3+1+1)
	testkit.Must(w.t, list(ctx, m, 1, open, func(id string) {
		if got = append(got, id); len(got) == 2 {
			down.gone.Store(true)
			down.Stop()
		}
	}))
	testkit.Equal(w.t, "a list while slots change their owners", strings.Join(got, " "), strings.Join(want, " "))
	var l topic.DeadLetter
	first := topic.DeadLetterSelection{Topic: names[0]}
	testkit.Must(w.t, all.Scan(ctx, first, topic.DeadLetterPosition{}, func(x topic.DeadLetter) error {
		l = x
		return nil
	}))
	missing := l
	missing.Number++ // of a topic of the same name that is gone
	if err := all.Redrive(ctx, missing); !errors.Is(err, topic.ErrDeadLetterGone) {
		w.t.Errorf("a letter of a topic that is gone: %v", err)
	}
	_, err := w.servers["one"].subscriptions("maker").CancelSubscription(ctx,
		&topicv1.CancelSubscriptionRequest{Topic: names[0], Group: "g"})
	testkit.Must(w.t, err)
	taken, err := all.Taken(ctx, l)
	if err != nil || taken {
		w.t.Errorf("a cancelled group takes messages: %v", err)
	}
	if err := all.Redrive(ctx, l); !errors.Is(err, topic.ErrDeadLetterGone) {
		w.t.Errorf("redriven to a cancelled group: %v", err)
	}
	there, err := all.There(ctx, []topic.DeadLetter{l, missing, l})
	testkit.Must(w.t, err)
	testkit.Equal(w.t, "there", fmt.Sprint(there), "[true false true]")
}
