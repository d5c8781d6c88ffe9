package app_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// givesUp takes n messages of a group and gives them back, with a reason that users wrote.
func (c *topicClients) givesUp(t *testing.T, topic, group string, n int) {
	t.Helper()
	session := ""
	for got := 0; got < n; {
		res, err := c.consumers.Pull(t.Context(), &topicv1.PullRequest{Topic: topic, Group: group, Session: session,
			Wait: durationpb.New(1e9)})
		testkit.Must(t, err)
		session = res.GetSession()
		set := &topicv1.NackSet{Reason: "no such customer"}
		for _, d := range res.GetDeliveries() {
			for i := range d.GetMessages() {
				at := d.GetBase() + int64(i)
				if d.GetOffsets() != nil {
					at = d.GetBase() + int64(d.GetOffsets()[i])
				}
				set.Positions = append(set.Positions, &topicv1.Positions{Partition: d.GetPartition(), Base: at})
			}
		}
		if got += len(set.GetPositions()); len(set.GetPositions()) == 0 {
			continue
		}
		_, err = c.consumers.Nack(t.Context(), &topicv1.NackRequest{Session: session, Set: set})
		testkit.Must(t, err)
	}
	_, err := c.consumers.Detach(t.Context(), &topicv1.DetachRequest{Session: session})
	testkit.Must(t, err)
}

// The commands on dead letters know those of topics: an operator finds what a group gave up
// and what it parks, without its content, and brings it back to that group or gives it up.
// A change of a topic is shown before it is made.
func TestTopicDeadLetterCommands(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	greeting, logs, _ := greeted(t, "127.0.0.1:0", dir, "--topic-creators", "alice")
	m := opsAddress.FindStringSubmatch(logs.String())
	c := newTopicClients(t, dir, listening.FindStringSubmatch(greeting)[1])
	command := func(args string) (code int, out string) {
		t.Helper()
		line := append([]string{"--data-dir", dir, "--ops-address", m[1]}, strings.Fields(args)...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		code, stdout, stderr := run(ctx, map[string]string{"PARLEY_OPERATOR": "ada"}, line...)
		return code, stdout + stderr
	}
	for _, topic := range []string{"orders", "parked"} {
		if code, out := command("topics create " + topic + " --semantics pub-sub"); code != 0 {
			t.Fatal(out)
		}
		if code, out := command("topics bindings " + topic + " alice admin"); code != 0 {
			t.Fatal(out)
		}
		cfg := &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}}
		if topic == "parked" {
			cfg.Ordering = topicv1.Ordering_ORDERING_KEY
		}
		for _, group := range []string{"billing", "mail"} {
			_, err := c.subscriptions.CreateSubscription(t.Context(),
				&topicv1.CreateSubscriptionRequest{Topic: topic, Group: group, Config: cfg})
			testkit.Must(t, err)
		}
		for _, text := range []string{"one", "two"} {
			publish := strings.Join([]string{"topics publish", topic, text, "--key", text, "--header mine=secret"}, " ")
			if code, out := command(publish); code != 0 {
				t.Fatal(out)
			}
		}
		c.givesUp(t, topic, "billing", 2)
	}
	testkit.Eventually(t, "the dead letters", func() bool {
		code, out := command("deadletters list --source topics")
		return code == 0 && strings.Count(out, "\n") == 5
	})
	steps := []struct {
		line string
		code int
		says []string
		not  string
	}{
		{"deadletters list --source topics", 0,
			[]string{"orders.dlq/0-0", "parked/0-1/billing", "no such customer", "parked with its key"}, "secret"},
		{"deadletters list --source events", 0, nil, "orders"},
		{"deadletters list --source none", 2, []string{"must be events or topics"}, ""},
		{"deadletters count --source topics", 0, []string{"billing", "orders", "in all"}, ""},
		{"deadletters show orders.dlq/0-1", 0,
			[]string{"orders, 0-1", "no such customer", "header mine", "3 bytes"}, "secret"},
		{"deadletters show --content orders.dlq/0-1", 0, []string{"secret", "74776f"}, ""},
		{"deadletters show parked/0-0/billing", 0, []string{"its key waits"}, "secret"},
		{"deadletters show orders.dlq/0-7", 1, []string{"no such dead letter"}, ""},
		{"deadletters redrive --topic orders --group billing", 0, []string{"2 would be redriven"}, ""},
		{"deadletters redrive --execute orders.dlq/0-1", 0, []string{"1 redriven"}, ""},
		{"deadletters discard --reason test --execute orders.dlq/0-0", 0, []string{"1 discarded"}, ""},
		{"deadletters redrive --topic parked --key one --execute", 0, []string{"1 redriven"}, ""},
		{"deadletters discard --reason test --topic parked --execute", 0, []string{"1 discarded"}, ""},
		{"deadletters list --source topics", 0, nil, "billing"},
		{"deadletters list --source topics --status all", 0, []string{"test (by ada)"}, "parked/"},
		{"audit --call RedriveDeadLetters", 0, []string{"ada", "orders.dlq/0-1"}, ""},
		{"audit --call GetDeadLetter", 0, []string{"content", "orders.dlq/0-1"}, ""},
		{"topics tail orders --group billing -n 1", 0, []string{"two"}, "one"},
		{"topics tail parked --group billing -n 1", 0, []string{"one"}, "two"},
		{"topics tail orders --group mail -n 2", 0, []string{"one", "two"}, "redriven"},
		{"topics create orders --semantics queue --dry-run", 1, []string{"INVALID_TRANSITION"}, ""},
		{"topics create orders --mode offset-watermark --dry-run", 0,
			[]string{"- acknowledgements are answered at once", "nothing was changed: it was a dry run"}, ""},
		{"topics describe orders", 0, []string{"reference-counting"}, ""},
		{"topics create orders --mode offset-watermark", 0,
			[]string{"- acknowledgements are answered at once", "were changed"}, ""},
	}
	for _, s := range steps {
		code, out := command(s.line)
		if code != s.code || (s.not != "" && strings.Contains(out, s.not)) ||
			slices.ContainsFunc(s.says, func(want string) bool { return !strings.Contains(out, want) }) {
			t.Errorf("%s: exit code %d\n%s", s.line, code, out)
		}
	}
}
