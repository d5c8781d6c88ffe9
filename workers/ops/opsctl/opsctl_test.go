package opsctl_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/ops/opsctl"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

const (
	chatA = "chat_01ARZ3NDEKTSV4RRFFQ69G5FAA"
	chatB = "chat_01ARZ3NDEKTSV4RRFFQ69G5FAB"
)

type cli struct {
	t   *testing.T
	cfg opsctl.Config
}

func commands(t *testing.T, r *opstest.Fixture) *cli {
	t.Helper()
	return &cli{t, opsctl.Config{Address: r.Addr, Operator: "ada", Key: func() (*auth.Key, error) { return r.Key, nil }}}
}

// unreachable are commands that no server answers.
func unreachable(t *testing.T) *cli {
	t.Helper()
	return &cli{t, opsctl.Config{Address: "127.0.0.1:1", Operator: "ada", Token: "x"}}
}

// program is a program with the commands of operators.
func (c *cli) program() *cmdline.Program {
	p := cmdline.New(config.Workers, &cobra.Command{Use: "workers"}, "workers")
	configure := func() (opsctl.Config, error) { return c.cfg, nil }
	opsctl.AddTo(p.Root, "commands for operators:", configure)
	opsctl.AddTopics(p.Root, configure)
	return p
}

// run runs a command line, and checks its exit code.
func (c *cli) run(want int, line string, more ...string) (stdout, stderr string) {
	c.t.Helper()
	var out, errs bytes.Buffer
	if code := c.program().Run(c.t.Context(), append(strings.Fields(line), more...), &out, &errs); code != want {
		c.t.Fatalf("%s %q: exit code %d, not %d\n%s%s", line, more, code, want, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

func (c *cli) has(text string, parts ...string) {
	c.t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			c.t.Errorf("no %q in\n%s", p, text)
		}
	}
}

// EV41 to EV46, K-149: dead letters are counted, listed, shown, redriven in order and once, and
// discarded; every action is recorded with its operator.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	var ids []string
	for n := range 6 {
		ids = append(ids, r.DeadLetter(opstest.Group, r.Event([]string{chatA, chatB}[n%2], n+1), "permanent: bad"))
	}
	garbage := &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 3, Offset: 90, Key: []byte("k\x1b[31m\xff"),
		Value: []byte("\x01" + opstest.Secret), Headers: []kafka.Header{{Key: "h", Value: []byte("v\n")}}}
	odd := r.DeadLetter("nobody", garbage, "unknown: *errors.errorString")

	out, _ := c.run(0, "deadletters count")
	c.has(out, "6        fanout-workers  messages.persisted", "permanent: bad", "7        in all")
	out, _ = c.run(0, "deadletters list --limit 4")
	if n := strings.Count(out, "permanent: bad"); n > 4 || !strings.Contains(out, "--page-token ") {
		t.Fatalf("%d letters\n%s", n, out)
	}
	_, token, _ := strings.Cut(out, "--page-token ")
	second, _ := c.run(0, "deadletters list --limit 4 --page-token "+token)
	for _, id := range append(ids, odd) {
		if strings.Count(out+second, id+" ") != 1 {
			t.Errorf("%s: not once on two pages\n%s%s", id, out, second)
		}
	}
	_, errs := c.run(1, "deadletters list --group x --page-token "+token)
	c.has(errs, "not a page token of this list")
	for filter, want := range map[string]int{
		"--group nobody": 1, "--key " + chatA: 3, "--topic chats.created": 0, "--class permanent": 6, "--class unknown": 1,
		"--failure bad": 6,
		"--since 1h":    7, "--until 1h": 0, "--since 2030-01-01T00:00:00Z --until 2031-01-01T00:00:00Z": 0,
		"--status discarded,redriven": 0, "--status all": 7,
	} {
		out, _ := c.run(0, "deadletters list --json "+filter)
		var page struct{ DeadLetters []struct{ ID, Key string } }
		if err := json.Unmarshal([]byte(out), &page); err != nil || len(page.DeadLetters) != want {
			t.Errorf("%s: %d letters, not %d: %v", filter, len(page.DeadLetters), want, err)
		}
	}

	// What users wrote is shown only when asked for, and then that is logged (K-141).
	for _, id := range []string{ids[0], odd} {
		for _, form := range []string{"", "--json "} {
			if out, _ := c.run(0, "deadletters show "+form+id); strings.Contains(out, opstest.Secret) ||
				strings.Contains(out, "\x1b") || !utf8.ValidString(out) {
				t.Errorf("too much is shown:\n%s", out)
			}
		}
	}
	out, _ = c.run(0, "deadletters show "+ids[0])
	c.has(out, "MessagePersisted", `"chatId":"`+chatA+`"`, fmt.Sprintf("[%d bytes]", len(opstest.Secret)), "after 3 tries",
		"wrk_1", "SHA-256")
	out, _ = c.run(0, "deadletters show "+odd)
	c.has(out, `"k\x1b[31m`, `"v\n"`, "none: ", "no schema id")
	if strings.Contains(r.Log.String(), "call=GetDeadLetter") {
		t.Error("nobody asked for content")
	}
	out, _ = c.run(0, "deadletters show --content "+ids[0])
	c.has(out, opstest.Secret)
	c.has(r.Log.String(), "msg=\"ops: call started\" call=GetDeadLetter by=ada", ids[0])
	out, _ = c.run(0, "deadletters show --content "+odd)
	c.has(out, fmt.Sprintf("%x", garbage.Value))

	// Nothing is done without --execute.
	r.Handle = func(context.Context, *kafka.Record) error { t.Error("called in a dry run"); return nil }
	out, _ = c.run(0, "deadletters redrive --all")
	c.has(out, "would be redriven", "7 chosen, 6 would be redriven, 1 of groups without a handler here",
		"nothing was changed; add --execute to do it")
	out, _ = c.run(0, "deadletters discard --reason test --all")
	c.has(out, "7 chosen, 7 would be discarded", "nothing was changed")

	var seen []string
	r.Handle = func(ctx context.Context, rec *kafka.Record) error {
		if !consume.Redriven(ctx) {
			t.Error("the context does not say that this is a redrive")
		}
		if string(rec.Key) == chatB && rec.Offset == 4 {
			return consume.Fail(consume.Permanent, "still bad", errors.New(opstest.Secret))
		}
		seen = append(seen, fmt.Sprint(string(rec.Key[len(rec.Key)-1:]), rec.Offset))
		return nil
	}
	out, _ = c.run(3, "deadletters redrive --execute --rate 1000 --group "+opstest.Group)
	c.has(out, "6 chosen, 4 redriven, 1 failed again, 1 left behind", ids[3]+"  failed  permanent: still bad",
		ids[5]+"  behind")
	byKey := slices.SortedStableFunc(slices.Values(seen), func(a, b string) int { return int(a[0]) - int(b[0]) })
	if !slices.Equal(byKey, []string{"A1", "A3", "A5", "B2"}) {
		t.Fatal(seen)
	}
	out, _ = c.run(3, "deadletters redrive --execute --group "+opstest.Group)
	if c.has(out, "2 chosen, 0 redriven"); len(seen) != 4 {
		t.Fatal(seen)
	}
	out, _ = c.run(0, "deadletters show "+ids[3])
	c.has(out, "by ada, redriven 2 times: permanent: still bad")
	out, _ = c.run(0, "deadletters discard --execute --reason", "the chat is gone", ids[3])
	c.has(out, ids[3]+"  discarded", "1 chosen, 1 discarded")
	out, _ = c.run(0, "deadletters list --status discarded")
	c.has(out, ids[3], "the chat is gone (by ada)")
	out, _ = c.run(0, "deadletters redrive --execute --json "+ids[5])
	c.has(out, `"outcome":"DEAD_LETTER_OUTCOME_DONE"`, `"done":"1"`)
	out, _ = c.run(0, "deadletters count")
	c.has(out, "1        in all")
	c.has(r.Log.String(), "msg=\"ops: call started\" call=RedriveDeadLetters by=ada execute=true",
		"msg=\"ops: call ended\" call=DiscardDeadLetters by=ada execute=true")
	if strings.Contains(r.Log.String(), opstest.Secret) {
		t.Error("content is in the log")
	}
}

// EV55, KS20 to KS22: chosen events are put back into the outbox, unpublished ones are left as
// they are, and nothing is done without --execute.
func TestReplay(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	id, other := r.Chat(10), r.Chat(3)
	outbox := func() (rows []table.Outbox) {
		page, err := r.Store.Scan(t.Context(), store.Scan{Table: store.Outbox, Segments: 1})
		testkit.Must(t, err)
		for _, row := range page.Rows {
			o, err := table.OutboxFrom(row)
			testkit.Must(t, err)
			rows = append(rows, o)
		}
		return rows
	}
	out, _ := c.run(0, "replay --execute --all-chats")
	c.has(out, "2 chats, 0 events are published again, 17 still wait")
	for _, o := range outbox() { // as the relay does once they are published
		testkit.Must(t, r.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: o.Key()}}))
	}
	out, _ = c.run(0, "replay --all-chats --since 1h --type MessagePersisted")
	c.has(out, "2 chats, 13 events would be published again", "nothing was changed; add --execute to do it")
	if rows := outbox(); len(rows) != 0 {
		t.Fatalf("%+v", rows)
	}
	out, _ = c.run(0, "replay --execute --chat "+id+" --from-version 4 --to-version 7")
	c.has(out, "1 chats, 4 events are published again")
	if rows := outbox(); len(rows) != 1 || !rows[0].Replay || rows[0].FirstVersion != 4 || rows[0].Count != 4 ||
		rows[0].Shard != event.Shard(id) {
		t.Fatalf("%+v", rows)
	}
	out, _ = c.run(0, "replay --execute --limit 6 --chat "+id+" --chat "+other)
	c.has(out, "6 events are published again", "there may be more")
	c.has(r.Log.String(), "call=ReplayEvents by=ada execute=true")
	out, _ = c.run(0, "replay --json --chat "+other)
	c.has(out, `"events":"5"`, `"done":true`)
	_, errs := c.run(1, "replay --all-chats --type Nothing")
	c.has(errs, `there is no event type "Nothing"`)
	_, errs = c.run(1, "replay --chat nobody")
	c.has(errs, "chat_ids[0]: does not match")
}

// K-168: the lag of a group, and the chat that causes it.
func TestGroups(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	_, errs := c.run(1, "groups describe nobody")
	c.has(errs, "no such consumer group")
	producer, err := kafka.NewProducer(r.Kafka)
	testkit.Must(t, err)
	defer producer.Close()
	for n := range 12 {
		key := []byte(chatA)
		if n%4 == 0 {
			key = []byte(chatB)
		}
		if err := kafka.Publish(t.Context(), producer,
			&kafka.Record{Topic: kafka.ChatsCreated, Partition: 5, Key: key, Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := kafka.NewSession(kafka.SessionConfig{
		Addr: r.Kafka, Group: "readers", Topics: []string{kafka.ChatsCreated}, Assigned: func([]kafka.Partition) {},
		Gone: func([]kafka.Partition, bool) {},
	})
	testkit.Must(t, err)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for read := 0; read < 12; s.Done() {
		batch, err := s.Poll(ctx)
		testkit.Must(t, err)
		for _, b := range batch {
			read += len(b.Records)
		}
	}
	testkit.Must(t, s.Commit(ctx, map[kafka.Partition]int64{{Topic: kafka.ChatsCreated, ID: 5}: 4}))
	out, _ := c.run(0, "groups describe readers")
	c.has(out, "readers is Stable, 8 records behind", "chats.created  5          4          12   8",
		"15 partitions are not behind; --all shows them")
	if strings.Count(out, "chats.created") != 1 {
		t.Error(out)
	}
	out, _ = c.run(0, "groups describe --all readers")
	if c.has(out, "chats.created  0          -1         0    0"); strings.Count(out, "chats.created") != 16 {
		t.Error(out)
	}
	out, _ = c.run(0, "groups hot-keys readers chats.created 5")
	c.has(out, "6        "+chatA, "2        "+chatB, "8        unread records")
	out, _ = c.run(0, "groups hot-keys --limit 1 --json readers chats.created 5")
	if c.has(out, `"records":"8"`, chatA); strings.Contains(out, chatB) {
		t.Error(out)
	}
	out, _ = c.run(0, "groups hot-keys readers chats.created 4")
	c.has(out, "0        unread")
	_, errs = c.run(1, "groups hot-keys readers chats.created 16")
	c.has(errs, "there is no partition 16")
	_, errs = c.run(1, "groups hot-keys readers messages.persisted 1")
	c.has(errs, "does not read this partition")
}

// A wrong command line is answered in one line, and no request is sent.
func TestUsage(t *testing.T) {
	t.Parallel()
	c := unreachable(t)
	for line, says := range map[string]string{
		"deadletters":                      "deadletters needs count, discard, list, redrive or show",
		"deadletters dance":                "deadletters needs count, discard, list, redrive or show",
		"deadletters list x":               `deadletters list takes no arguments, not "x"`,
		"deadletters list --limit 0":       "limit must be",
		"deadletters list --status x":      "must be open",
		"deadletters list --class x":       "must be unknown, permanent",
		"deadletters list --since x":       "must be a time",
		"deadletters list --nope":          "-nope",
		"deadletters list --ops-address x": "ops-address must be host:port",
		"deadletters show":                 "needs one id",
		"deadletters show a b":             "needs one id",
		"deadletters redrive --rate 0 x":   "rate must be",
		"deadletters discard x":            "discard needs --reason",
		"replay":                           "either --chat or --all-chats",
		"replay --chat x --all-chats":      "either --chat or --all-chats",
		"replay --all-chats x":             `replay takes no arguments, not "x"`,
		"replay --all-chats --rate 0":      "rate must be",
		"groups describe":                  "needs one group",
		"groups hot-keys a b":              "needs a group, a topic and a partition",
		"groups hot-keys a b c":            `"c" is no partition`,
	} {
		out, errs := c.run(2, line)
		if c.has(errs, says); out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %q %q", line, out, errs)
		}
	}
	out, _ := c.run(0, "deadletters redrive --help")
	c.has(out, "workers [flags] deadletters redrive [ID…]", "--execute", "--ops-address")
}

// With mutual TLS both sides present certificates.
func TestTLS(t *testing.T) {
	t.Parallel()
	own, pool := opstest.Certificates(t)
	r := opstest.New(t, &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, MinVersion: tls.VersionTLS13})
	c := commands(t, r)
	c.cfg.TLS = &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: pool, MinVersion: tls.VersionTLS13}
	id := r.DeadLetter(opstest.Group, r.Event(chatA, 1), "permanent: bad")
	r.Handle = func(context.Context, *kafka.Record) error { return nil }
	out, _ := c.run(0, "deadletters redrive --execute "+id)
	c.has(out, "1 chosen, 1 redriven")
	c.cfg.TLS = nil
	_, errs := c.run(1, "deadletters list")
	if strings.Count(errs, "\n") != 1 {
		t.Error(errs)
	}
}

// A failure is printed in one line that says what to do.
func TestFailures(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	_, errs := c.run(1, "deadletters show x")
	c.has(errs, "workers: no such dead letter\n")
	_, errs = c.run(1, "deadletters redrive --execute")
	c.has(errs, "an empty filter selects all dead letters: set all if that is meant")
	_, errs = c.run(1, "deadletters redrive --all x")
	c.has(errs, "either a filter or all")
	_, errs = c.run(1, "deadletters redrive --rate 10001 x")
	c.has(errs, "rate: ")

	absent := *c
	absent.cfg.Address = "127.0.0.1:1"
	_, errs = absent.run(1, "deadletters list")
	if c.has(errs, "no server answers operators at 127.0.0.1:1", "--ops-address"); strings.Count(errs, "\n") != 1 {
		t.Error(errs)
	}
	other := *c
	user, err := r.Key.Issue("ada", time.Now(), time.Hour)
	testkit.Must(t, err)
	other.cfg.Token = user
	_, errs = other.run(1, "deadletters list")
	c.has(errs, "not an operator's token of this installation")
	issued, _ := c.run(0, "operators token bob")
	other.cfg.Token = strings.TrimSpace(issued)
	other.run(0, "deadletters list")
	issued, _ = c.run(0, "operators token --role viewer bob")
	other.cfg.Token = strings.TrimSpace(issued)
	other.run(0, "deadletters list")
	_, errs = other.run(1, "deadletters discard --all --reason test --execute")
	c.has(errs, "this call needs the role admin, and the token has viewer")
	_, errs = c.run(2, "operators token --role king bob")
	c.has(errs, "role must be viewer, moderator or admin")
	_, errs = c.run(2, "operators token")
	c.has(errs, "operators token needs a name")
	other.cfg.Token = ""
	other.cfg.Key = func() (*auth.Key, error) { return nil, errors.New("no such file") }
	_, errs = other.run(1, "deadletters list")
	c.has(errs, "no operator's token in PARLEY_OPS_TOKEN, and no key to make one with: no such file")
	c.cfg.Operator = "a b"
	_, errs = c.run(1, "deadletters list")
	c.has(errs, "an operator's name must be")
}

// An outbox row that cannot be published is listed with its reason, and repaired or dropped with
// a reason that the log keeps. Nothing is done without --execute.
func TestFailedOutboxRows(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	failed := func(chatID string, version int64) string {
		o := table.Outbox{Shard: event.Shard(chatID), AggregateID: chatID, FirstVersion: version, Count: 3,
			CreatedAt: 1_700_000_000_000}
		it := append(o.Item(), store.Attr{Name: "attempts", Value: store.Int(2)},
			store.Attr{Name: "last_error", Value: store.String("0 of 3 events are there\x1b[31m")})
		if err := r.Store.BatchWrite(t.Context(),
			[]store.Write{{Op: store.OpPut, Key: o.Key(), Item: store.NewItem(it...)}}); err != nil {
			t.Fatal(err)
		}
		return o.Key().PK + "/" + o.Key().SK
	}
	if out, _ := c.run(0, "outbox failed"); strings.Count(out, "\n") != 1 {
		t.Fatalf("rows of a healthy outbox:\n%s", out)
	}
	chatID := r.Chat(4)
	good, lost := failed(chatID, 2), failed(chatB, 7)
	out, _ := c.run(0, "outbox failed")
	c.has(out, good, lost, "2 to 4", "7 to 9", "2023-11-14T22:13:20Z", `events are there\x1b[31m`)
	first, _ := c.run(0, "outbox failed --limit 1")
	_, token, _ := strings.Cut(first, "--page-token ")
	second, _ := c.run(0, "outbox failed --limit 1 --page-token "+strings.TrimSpace(token))
	if strings.Count(first+second, good+" ") != 1 || strings.Count(first+second, lost+" ") != 1 {
		t.Fatalf("two pages:\n%s%s", first, second)
	}

	out, _ = c.run(0, "outbox repair "+good)
	c.has(out, chatID+": versions 2\n", "nothing was changed; add --execute to do it")
	c.run(0, "outbox repair --execute "+good)
	_, errs := c.run(1, "outbox repair --execute "+good)
	c.has(errs, "no such failed row")
	_, errs = c.run(1, "outbox repair --execute "+lost)
	c.has(errs, "it can only be dropped")
	c.run(2, "outbox drop --execute "+lost)
	out, _ = c.run(0, "outbox drop --reason lost "+lost)
	c.has(out, "7 to 9", "nothing was changed")
	c.run(0, "outbox drop --reason lost --execute "+lost)
	c.has(r.Log.String(), "call=DropFailedOutboxRow by=ada", "lost")

	// Actions are listed, and reads are not.
	out, _ = c.run(0, "audit")
	c.has(out, "DropFailedOutboxRow", "RepairFailedOutboxRow", "ada", "ok", "failed_precondition", `"reason":"lost"`)
	if strings.Count(out, "DropFailedOutboxRow") != 1 || strings.Contains(out, "ListFailed") {
		t.Errorf("the audit:\n%s", out)
	}
	out, _ = c.run(0, "audit --call DropFailedOutboxRow --by ada --since 1h --limit 1")
	if c.has(out, "DropFailedOutboxRow", "--page-token"); strings.Count(out, "\n") != 3 {
		t.Errorf("the audit:\n%s", out)
	}
	c.run(2, "audit --limit 0")
	c.run(2, "audit --since yesterday")
	if out, _ = c.run(0, "outbox failed"); strings.Count(out, "\n") != 1 {
		t.Fatalf("rows are left:\n%s", out)
	}
	_, errs = c.run(1, "outbox repair nonsense")
	c.has(errs, "not the id of a failed row")
}
