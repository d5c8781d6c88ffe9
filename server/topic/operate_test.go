package topic

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

const ada = "ada"

func (x *fixture) health(topic, group string) *topicv1.GroupHealth {
	x.t.Helper()
	r, err := x.Admin().Groups(x.t.Context(), &topicv1.ListGroupsRequest{Topic: topic})
	if err != nil {
		x.t.Fatal(err)
	}
	for _, g := range r.GetGroups() {
		if g.GetGroup() == group {
			return g
		}
	}
	x.t.Fatalf("%s has no group %s: %v", topic, group, r)
	return nil
}

// HQ-O1: a group is removed in four steps: it gets nothing more, members answer for what
// they have, it ends and holds nothing, and it is forgotten, also by a restart.
func TestGroupIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g", "other")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 5)
		had := x.want(s, numbers(0, 5))
		type result struct {
			r   *topicv1.RemoveGroupResponse
			err error
		}
		done := make(chan result, 1)
		go func() {
			r, err := x.Admin().Remove(context.Background(), ada, &topicv1.RemoveGroupRequest{Topic: "t", Group: "g"})
			done <- result{r, err}
		}()
		synctest.Wait()
		x.publish("t", 5, 3)
		x.want(s, "") // first step
		if st := x.state("t", "g"); st != storage.Active {
			t.Error("it ends while members work: ", st)
		}
		if refused := x.ack(s, had[:4]); len(refused) > 0 {
			t.Error(refused) // second step
		}
		select {
		case r := <-done:
			t.Fatal("does not wait: ", r)
		default:
		}
		x.ack(s, had[4:])
		got := <-done
		if got.err != nil || got.r.GetReleased() != 3 || got.r.GetAbandoned() != 0 {
			t.Error(got)
		}
		if _, err := s.Receive(t.Context(), 1); err == nil && s.Ended() != serving.GoneReason {
			t.Error("its member continues")
		}
		x.gone("t", "g")
		if x.audit.count(ada+" RemoveGroup") != 1 || x.audit.count("ok 3 messages released, 0 of them with members") != 1 {
			t.Error(x.audit.text.String())
		}
		other := x.attach("t", "other", "m")
		x.ack(other, x.want(other, numbers(0, 8)))
		x.restart()
		x.gone("t", "g")
		if s := x.subscribe("t", "g", nil); s.GetGeneration() != 1 || s.GetPartitions()[0].GetStart() != 8 {
			t.Error(s)
		}
	})
}

// gone checks that nothing is left of a group.
func (x *fixture) gone(topic, group string) {
	x.t.Helper()
	_, err := x.Subscription(x.t.Context(), op, topic, group)
	refusedAs(x.t, err, refusal.SubscriptionNotFound)
	if n := x.cursors(topic, group); n != 0 {
		x.t.Errorf("%d cursors are left", n)
	}
}

// cursors counts the cursors of a group in the first partition.
func (x *fixture) cursors(topic, group string) (n int) {
	x.t.Helper()
	q := store.Query{
		Table: store.Subscriptions, PK: table.CursorPartition(int64(x.engine.Catalog.Topic(topic).Number), 0),
		Consistency: store.Strong,
	}
	for row, err := range store.QueryAll(x.t.Context(), x.store, q) {
		if err != nil {
			x.t.Fatal(err)
		}
		if of, _, ok := table.CursorOf(row.Key); ok && of == group {
			n++
		}
	}
	return n
}

// A removal that ends while it waits changes nothing; one whose members do not answer says
// so; one of a group that has ended does the rest. A queue's group stays.
func TestRemovalsThatWait(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 5)
		x.want(s, numbers(0, 5))
		remove := &topicv1.RemoveGroupRequest{Topic: "t", Group: "g", Wait: seconds(5)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := x.Admin().Remove(ctx, ada, remove); err == nil {
			t.Error("it did not wait")
		}
		x.publish("t", 5, 2)
		x.want(s, numbers(5, 2))
		r, err := x.Admin().Remove(t.Context(), ada, remove)
		if err != nil || r.GetAbandoned() != 7 || r.GetReleased() != 7 {
			t.Error(r, err)
		}
		x.gone("t", "g")
		_, err = x.Admin().Remove(t.Context(), ada, remove)
		refusedAs(t, err, refusal.SubscriptionNotFound)

		x.subscribe("t", "ended", nil)
		if _, err := x.Cancel(t.Context(), op, "t", "ended"); err != nil {
			t.Fatal(err)
		}
		x.restart()
		if _, err := x.Admin().Remove(t.Context(), ada, &topicv1.RemoveGroupRequest{Topic: "t", Group: "ended"}); err != nil {
			t.Error(err)
		}
		x.gone("t", "ended")

		x.configure("q", nil)
		_, err = x.Admin().Remove(t.Context(), ada, &topicv1.RemoveGroupRequest{Topic: "q", Group: storage.QueueGroup})
		refusedAs(t, err, refusal.InvalidTransition)
		_, err = x.Admin().Remove(t.Context(), ada, &topicv1.RemoveGroupRequest{Topic: "none", Group: "g"})
		refusedAs(t, err, refusal.TopicNotFound)
	})
}

// HQ-O2, HQ-O6, HQ-Q16: how groups are, and what is wrong with them.
func TestHealthOfGroups(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "alone", "well")
		s := x.attach("t", "well", "m")
		x.publish("t", 0, 10)
		x.ack(s, x.want(s, numbers(0, 10))[:6])
		h := x.health("t", "well")
		if !h.GetHealthy() || len(h.GetProblems()) != 0 || h.GetPending() != 4 || h.GetProcessed() != 6 ||
			h.GetInFlight() != 4 || h.GetMembers() != 1 || h.GetLastHeartbeatAt() == nil ||
			h.GetState() != storage.Active || h.GetTopic() != "t" || h.GetSinceHeartbeat() == nil {
			t.Error(h)
		}
		testkit.Advance(250 * time.Second)
		h = x.health("t", "alone")
		if h.GetHealthy() || len(h.GetProblems()) != 2 || h.GetSinceHeartbeat().AsDuration() < 240*time.Second ||
			h.GetLastHeartbeatAt() != nil || h.GetPending() != 10 {
			t.Error(h)
		}
		testkit.Advance(3 * time.Minute)
		if h = x.health("t", "alone"); h.GetHealthy() || h.GetState() != storage.Dead {
			t.Error(h)
		}
		x.configure("q", nil)
		x.publish("q", 0, 1)
		if h = x.health("q", storage.QueueGroup); h.GetHealthy() || h.GetSinceHeartbeat() != nil {
			t.Error("a queue that nobody consumes: ", h)
		}
		page, err := x.Admin().Groups(t.Context(), &topicv1.ListGroupsRequest{Topic: "t", PageSize: 1})
		if err != nil || page.GetNextPageToken() != "alone" || len(page.GetGroups()) != 1 {
			t.Error(page, err)
		}
		page, err = x.Admin().Groups(t.Context(),
			&topicv1.ListGroupsRequest{Topic: "t", PageSize: 1, PageToken: page.GetNextPageToken()})
		if err != nil || page.GetNextPageToken() != "" || page.GetGroups()[0].GetGroup() != "well" {
			t.Error(page, err)
		}
	})
}

// A lease that has been over for more than a minute and does not end is seen: the group is not
// healthy, and the metric says for how long. No session has it, so the sweep does not look.
func TestOverdueLeaseIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 1)
		overdue := func() time.Duration { return time.Duration(x.Counters().Gauges.Overdue.Load()) }
		for _, l := range x.engine.Topics.All() {
			l.Parts[0].Do(func(m *machine.Machine) {
				_, err := m.Group("g").Attach("m", nil, machine.NewBudget(1, 1000, false))
				testkit.Must(t, err)
				pieces, _ := m.Group("g").Next(time.Now(), 1, nil)
				testkit.Equal(t, "messages handed out", len(pieces), 1)
			})
		}
		testkit.Advance(80 * time.Second) // a lease lasts for 30 s
		const problem = "leases do not end"
		if h := x.health("t", "g"); strings.Contains(fmt.Sprint(h.GetProblems()), problem) || overdue() > 60*time.Second {
			t.Error("after less than a minute: ", h, overdue())
		}
		testkit.Advance(time.Minute)
		h := x.health("t", "g")
		if h.GetHealthy() || !strings.Contains(fmt.Sprint(h.GetProblems()), problem) {
			t.Error(h)
		}
		if d := overdue(); d < 75*time.Second || d > 2*time.Minute {
			t.Errorf("due for %v", d)
		}
	})
}

// HQ-O5, HQ-O7: what a group has done and how fast it is: 10 messages a second of which each
// takes 2 s, 20 at a time, and what it is behind.
func TestGroupMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		var away [][]got
		for i := range 90 { // the credits are for 1,000
			x.publish("t", 10*i, 10)
			away = append(away, x.receive(s)) // waits for a second
			if i >= 2 {
				x.ack(s, away[i-2])
			}
		}
		r, err := x.Admin().Metrics(t.Context(), "t", "g")
		if err != nil {
			t.Fatal(err)
		}
		if p := r.GetAverageProcessing().AsDuration(); p < 1500*time.Millisecond || p > 3500*time.Millisecond {
			t.Errorf("%s for a message", p)
		}
		if v := r.GetMessagesPerSecond(); v < 8 || v > 12 {
			t.Errorf("%g messages a second", v)
		}
		if r.GetProcessed() != 880 || r.GetPending() != 20 || r.GetLag() != 20 || r.GetFailed() != 0 ||
			time.Since(r.GetOldestPendingAt().AsTime()).Round(time.Second) != 2*time.Second {
			t.Error(r)
		}
		s.End(serving.Broken)
		testkit.Advance(20 * time.Minute)
		if r, err = x.Admin().Metrics(t.Context(), "t", "g"); err != nil || r.GetMessagesPerSecond() > 0.001 ||
			r.GetFailed() != 1 || r.GetOldestPendingAt() != nil || r.GetLag() != 0 {
			t.Error(r, err) // it has died
		}
		_, err = x.Admin().Metrics(t.Context(), "t", "none")
		refusedAs(t, err, refusal.SubscriptionNotFound)
	})
}

// HQ-O4: a dead group is resurrected with what it missed, or continues from now; one that
// lives is not.
func TestGroupIsResurrected(t *testing.T) {
	for _, backfill := range []bool{true, false} {
		bubble(t, func(t *testing.T, x *fixture) {
			x.groups("t")
			x.subscribe("t", "g", heartbeatConfig(1, 5))
			r := &topicv1.ResurrectRequest{Topic: "t", Group: "g", Backfill: backfill}
			_, err := x.Admin().Resurrect(t.Context(), ada, r)
			refusedAs(t, err, refusal.InvalidTransition)
			x.publish("t", 0, 3)
			testkit.Advance(time.Minute)
			if st := x.state("t", "g"); st != storage.Dead {
				t.Fatal(st)
			}
			x.publish("t", 3, 3)
			got, err := x.Admin().Resurrect(t.Context(), ada, r)
			if err != nil || got.GetSubscription().GetState() != storage.Active {
				t.Fatal(got, err)
			}
			x.restart()
			x.publish("t", 6, 2)
			want := numbers(6, 2)
			if backfill {
				want = numbers(0, 8)
			}
			x.want(x.attach("t", "g", "m"), want)
			if x.audit.count(ada+" Resurrect ") != 2 || x.audit.count("failed INVALID_TRANSITION") != 1 {
				t.Error(x.audit.text.String())
			}
			_, err = x.Admin().Resurrect(t.Context(), ada, &topicv1.ResurrectRequest{Topic: "t", Group: "none"})
			refusedAs(t, err, refusal.SubscriptionNotFound)
		})
	}
}

// HQ-O3: what waits for nobody living is completed, also in the eyes of a restart; what a
// living group is to receive only with force.
func TestForceComplete(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MessageRetention: seconds(60),
			ZeroSubscriptionRetention: durationpb.New(48 * hour),
		})
		orphan := x.publish("t", 0, 5)[0].GetMessageId() // nobody's
		x.subscribe("t", "live", nil)
		x.subscribe("t", "dead", heartbeatConfig(1, 5))
		s := x.attach("t", "live", "m")
		x.publish("t", 5, 5)
		x.want(s, numbers(5, 5))
		testkit.Advance(2 * hour)
		complete := func(want string, r *topicv1.ForceCompleteRequest) {
			t.Helper()
			r.Topic = "t"
			got, err := x.Admin().ForceComplete(t.Context(), ada, r)
			if text := fmt.Sprint(got.GetOrphaned(), got.GetReleased(), got.GetSkipped()); err != nil || text != want {
				t.Errorf("%s, not %s: %v", text, want, err)
			}
		}
		complete("0 0 0", &topicv1.ForceCompleteRequest{OlderThan: durationpb.New(3 * hour)})
		complete("5 0 0", &topicv1.ForceCompleteRequest{OlderThan: seconds(60), DryRun: true})
		complete("5 0 0", &topicv1.ForceCompleteRequest{OlderThan: seconds(60)})
		complete("0 0 0", &topicv1.ForceCompleteRequest{OlderThan: seconds(60)}) // done before
		if st := x.status("t", orphan).GetStatus(); st != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(st)
		}
		if n := x.subscription("t", "live").GetPartitions()[0].GetPending(); n != 5 {
			t.Errorf("a living group has lost %d of 5 messages", 5-n)
		}
		x.restart()
		if st := x.status("t", orphan).GetStatus(); st != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error("after a restart: ", st)
		}
		x.later(0)
		if n := x.start0("t"); n != 5 {
			t.Errorf("trimmed to %d", n) // as what was acknowledged is
		}
		named := &topicv1.ForceCompleteRequest{Topic: "t", Group: "live", OlderThan: seconds(60)}
		_, err := x.Admin().ForceComplete(t.Context(), ada, named)
		refusedAs(t, err, refusal.InvalidTransition)
		// The dead group gets its five until force takes them from it, too.
		complete("0 0 10", &topicv1.ForceCompleteRequest{OlderThan: seconds(60), Force: true, DryRun: true})
		complete("0 0 0", &topicv1.ForceCompleteRequest{Group: "dead", OlderThan: seconds(60)})
		complete("0 0 5", &topicv1.ForceCompleteRequest{Group: "dead", OlderThan: seconds(60), Force: true})
		if r := x.subscription("t", "dead").GetReleased(); r.GetForced() != 5 || !x.subscription("t", "dead").GetGap() {
			t.Error(r)
		}
		s = x.attach("t", "live", "m")
		had := x.want(s, numbers(5, 5))
		complete("0 0 5", &topicv1.ForceCompleteRequest{Group: "live", OlderThan: seconds(60), Force: true})
		if refused := x.ack(s, had); len(refused) != 5 || refused[0].GetOutcome() != topicv1.Outcome_OUTCOME_LEASE_LOST {
			t.Error(refused)
		}
		x.publish("t", 10, 1)
		x.want(s, numbers(10, 1))
		if x.audit.count(ada+" ForceComplete") != 6 || x.audit.count("ok 5 orphaned, 0 released, 0 skipped") != 1 {
			t.Error(x.audit.text.String()) // a dry run leaves nothing
		}
	})
}

// found lists what the monitors find, as "KIND topic/group".
func (x *fixture) found(r *topicv1.ListMonitorsRequest) string {
	x.t.Helper()
	got, err := x.Admin().Monitors(x.t.Context(), r)
	if err != nil || got.GetTruncated() {
		x.t.Fatal(got, err)
	}
	var list []string
	for _, f := range got.GetFindings() {
		name := strings.TrimPrefix(f.GetKind().String(), "MONITOR_KIND_") + " " + f.GetTopic()
		if f.GetGroup() != "" {
			name += "/" + f.GetGroup()
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}

// HQ-Q07, HQ-Q08, HQ-Q09, HQ-Q13, HQ-Q15: each monitor finds what it is for, with since when,
// also in topics that were not in use, and nothing where all is well.
func TestMonitors(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		all := &topicv1.ListMonitorsRequest{}
		x.groups("t", "g")
		g := x.attach("t", "g", "m")
		x.publish("t", 0, 101)
		x.groups("quiet")
		x.subscribe("quiet", "silent", heartbeatConfig(100, 1000))
		if s := x.found(all); s != "" {
			t.Error(s)
		}
		testkit.Advance(799 * time.Second)
		if s := x.found(all); s != "" {
			t.Error(s)
		}
		testkit.Advance(2 * time.Second)
		if s := x.found(all); s != "NEAR_TIMEOUT quiet/silent" {
			t.Error(s)
		}
		if _, err := x.Heartbeat(t.Context(), op, "quiet", "silent"); err != nil {
			t.Fatal(err)
		}
		if s := x.found(all); s != "" {
			t.Error(s)
		}
		if _, err := x.Pause(t.Context(), op, "quiet", "silent"); err != nil {
			t.Fatal(err)
		}
		testkit.Advance(hour - 801*time.Second)
		if s := x.found(all); s != "" {
			t.Error("100 messages an hour old: ", s)
		}
		testkit.Advance(time.Second)
		r, err := x.Admin().Monitors(t.Context(), all)
		if err != nil || len(r.GetFindings()) != 1 {
			t.Fatal(r, err)
		}
		f := r.GetFindings()[0]
		if f.GetKind() != topicv1.MonitorKind_MONITOR_KIND_STUCK || f.GetTopic() != "t" || f.GetCount() != 101 ||
			f.GetAge().AsDuration() < hour || f.GetAge().AsDuration() > hour+time.Minute {
			t.Error(f)
		}
		x.ack(g, x.receive(g)[:1]) // 100 are not many
		if s := x.found(all); s != "" {
			t.Error(s)
		}

		x.groups("none")
		x.publish("none", 0, 1)
		x.groups("none.empty")
		x.restart() // and nothing is in use
		if s := x.found(&topicv1.ListMonitorsRequest{Topic: "none"}); s != "ZERO_SUBSCRIPTIONS none" {
			t.Error(s)
		}
		x.subscribe("none", "now", nil)
		x.engine.Topics.Opened(x.engine.Catalog.Topic("none").Number).Parts[0].Do(func(m *machine.Machine) {
			if err := m.Group("now").Die(); err != nil {
				t.Error(err)
			}
		})
		if s := x.found(&topicv1.ListMonitorsRequest{Topic: "none", Kinds: []topicv1.MonitorKind{
			topicv1.MonitorKind_MONITOR_KIND_INCONSISTENT,
		}}); s != "INCONSISTENT none/now" {
			t.Error(s)
		}
		_, err = x.Admin().Monitors(t.Context(), &topicv1.ListMonitorsRequest{Topic: "nowhere"})
		refusedAs(t, err, refusal.TopicNotFound)

		x.subscribe("none.empty", "idle", &topicv1.SubscriptionConfig{
			HeartbeatInterval: durationpb.New(24 * hour), HeartbeatTimeout: durationpb.New(24 * 24 * hour),
		})
		idle := &topicv1.ListMonitorsRequest{
			Topic: "none.empty", Kinds: []topicv1.MonitorKind{topicv1.MonitorKind_MONITOR_KIND_IDLE},
		}
		x.ahead.Add(int64(7*24*hour - time.Minute))
		if s := x.found(idle); s != "" {
			t.Error(s)
		}
		x.ahead.Add(int64(2 * time.Minute))
		if s := x.found(idle); s != "IDLE none.empty/idle" {
			t.Error(s)
		}
	})
}
