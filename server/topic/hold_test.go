package topic

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/operations"
)

// uses are calls that open a topic t with the group g, by what they are: some do what they are
// asked for, some are refused.
func uses(x *fixture) map[string]func(ctx context.Context) error {
	type call func(context.Context, Caller, string, string) (*topicv1.Subscription, error)
	group := func(f call, g string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := f(ctx, op, "t", g); return err }
	}
	job := func(k operations.JobKind) func(context.Context) error {
		return func(ctx context.Context) error { _, err := x.jobs.RunNow(ctx, k); return err }
	}
	a := x.Admin()
	parked := operations.DeadLetter{Topic: "t", Group: "g",
		LogPosition: operations.DeadLetterPosition{Log: "t", Parked: true, Group: "g"}}
	gone := operations.DeadLetter{Topic: "t", Group: "g",
		LogPosition: operations.DeadLetterPosition{Log: "t.dlq"}, Message: &topicv1.TopicMessage{}}
	return map[string]func(ctx context.Context) error{
		"topic": func(ctx context.Context) error { _, err := x.Topic(ctx, op, "t"); return err },
		"configure": func(ctx context.Context) error {
			_, err := x.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t", Config: &topicv1.TopicConfig{}})
			return err
		},
		"configure another version": func(ctx context.Context) error {
			_, err := x.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t", Etag: "99"})
			return err
		},
		"publish": func(ctx context.Context) error {
			_, err := x.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 1)})
			return err
		},
		"publish the impossible": func(ctx context.Context) error {
			list := []*topicv1.TopicMessage{{Type: "\xff"}}
			_, err := x.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t", Messages: list})
			return err
		},
		"status": func(ctx context.Context) error {
			_, err := x.MessageStatus(ctx, op, &topicv1.GetMessageStatusRequest{Topic: "t", MessageId: "0-99999"})
			return err
		},
		"subscribe": func(ctx context.Context) error {
			_, err := x.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
			return err
		},
		"subscription":         group(x.Subscription, "g"),
		"unknown subscription": group(x.Subscription, "h"),
		"pause":                group(x.Pause, "g"),
		"resume":               group(x.Resume, "g"),
		"pause unknown":        group(x.Pause, "h"),
		"subscriptions": func(ctx context.Context) error {
			_, err := x.Subscriptions(ctx, op, &topicv1.ListSubscriptionsRequest{Topic: "t"})
			return err
		},
		"seek": func(ctx context.Context) error {
			_, err := x.Seek(ctx, op, &topicv1.SeekSubscriptionRequest{Topic: "t", Group: "h"})
			return err
		},
		"unpark":    func(ctx context.Context) error { _, err := x.Unpark(ctx, op, "t", "g", nil); return err },
		"heartbeat": func(ctx context.Context) error { _, err := x.Heartbeat(ctx, op, "t", "g"); return err },
		"attach": func(ctx context.Context) error {
			s, err := x.Attach(ctx, op, &topicv1.Attach{Topic: "t", Group: "g"}, false)
			if err == nil {
				err = s.Detach(ctx, false)
			}
			return err
		},
		"attach badly": func(ctx context.Context) error {
			_, err := x.Attach(ctx, op, &topicv1.Attach{Topic: "t", Group: "h"}, false)
			return err
		},
		"backfill": func(ctx context.Context) error { _, err := x.Backfill(ctx, op, "t", "g"); return err },
		"backfill nobody": func(ctx context.Context) error {
			_, err := x.StartBackfill(ctx, op, &topicv1.StartBackfillRequest{Topic: "t", Group: "h"})
			return err
		},
		"backfill nothing": func(ctx context.Context) error {
			_, err := x.StartBackfill(ctx, op, &topicv1.StartBackfillRequest{Topic: "t", Group: "g", Again: true,
				From: &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}})
			return err
		},
		"watch": func(ctx context.Context) error {
			return x.WatchBackfill(ctx, op, "t", "g", time.Second, func(*topicv1.Backfill) error { return nil })
		},
		"cancel a backfill": func(ctx context.Context) error {
			_, err := x.CancelBackfill(ctx, op, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"})
			return err
		},
		"list groups": func(ctx context.Context) error {
			_, err := a.Groups(ctx, &topicv1.ListGroupsRequest{Topic: "t"})
			return err
		},
		"metrics":           func(ctx context.Context) error { _, err := a.Metrics(ctx, "t", "g"); return err },
		"metrics of nobody": func(ctx context.Context) error { _, err := a.Metrics(ctx, "t", "h"); return err },
		"monitors": func(ctx context.Context) error {
			_, err := a.Monitors(ctx, &topicv1.ListMonitorsRequest{})
			return err
		},
		"resurrect the living": func(ctx context.Context) error {
			_, err := a.Resurrect(ctx, ada, &topicv1.ResurrectRequest{Topic: "t", Group: "g"})
			return err
		},
		"remove nobody": func(ctx context.Context) error {
			_, err := a.Remove(ctx, ada, &topicv1.RemoveGroupRequest{Topic: "t", Group: "h"})
			return err
		},
		"complete": func(ctx context.Context) error {
			_, err := a.ForceComplete(ctx, ada, &topicv1.ForceCompleteRequest{Topic: "t", OlderThan: durationpb.New(time.Hour)})
			return err
		},
		"scan letters": func(ctx context.Context) error {
			return x.DeadLetters().Scan(ctx, operations.DeadLetterSelection{}, operations.DeadLetterPosition{},
				func(operations.DeadLetter) error { return nil })
		},
		"redrive":           func(ctx context.Context) error { return x.DeadLetters().Redrive(ctx, gone) },
		"redrive unparked":  func(ctx context.Context) error { return x.DeadLetters().Redrive(ctx, parked) },
		"discard unparked":  func(ctx context.Context) error { return x.DeadLetters().Discard(ctx, parked) },
		"trim":              job(operations.Trim),
		"detect":            job(operations.Detection),
		"clean up":          job(operations.Subscriptions),
		"nothing, and wait": func(context.Context) error { time.Sleep(11 * time.Minute); return nil },
	}
}

// Whatever is called, and whatever comes of it, nobody has the topic afterwards: it is closed
// when its time has come.
func TestNobodyKeepsATopic(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{
			Exhausted: topicv1.Exhausted_EXHAUSTED_PARK_KEY, HeartbeatInterval: seconds(60),
			HeartbeatTimeout: durationpb.New(24 * hour),
		})
		x.publish("t", 0, 3)
		done := 0
		for what, use := range uses(x) {
			if use(t.Context()) == nil {
				done++
			}
			synctest.Wait()
			for _, l := range x.engine.Topics.All() {
				if l.Held() {
					t.Fatalf("%s: %s is held", what, l.Name)
				}
			}
		}
		if done < 20 {
			t.Errorf("only %d calls did something", done)
		}
		testkit.Advance(12 * time.Minute)
		if n := x.Sizes().Open; n != 0 {
			t.Errorf("%d topics are open", n)
		}
	})
}

// A backfill that waits for members keeps its topic open, until it does not run any more.
func TestBackfillKeepsItsTopic(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.publish("t", 0, 100)
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{HeartbeatTimeout: durationpb.New(24 * hour)})
		r := x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Async: true})
		if r.GetBackfill().GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS {
			t.Fatal(r)
		}
		testkit.Advance(12 * time.Minute)
		if x.Sizes().Open != 1 {
			t.Fatal("it is closed, and its backfill would be forgotten")
		}
		_, err := x.CancelBackfill(t.Context(), op, &topicv1.CancelBackfillRequest{Topic: "t", Group: "g"})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Advance(12 * time.Minute)
		if x.Sizes().Open != 0 {
			t.Error("it stays open")
		}
		b, err := x.Backfill(t.Context(), op, "t", "g")
		if err != nil || b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_CANCELLED {
			t.Error(b, err)
		}
	})
}
