//go:build !windows

package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// traveller is an installation that moves, under devices and a consumer that stay as they are.
type traveller struct {
	*restorer
	ctx      context.Context
	addr     string
	topics   *topic.Client
	consumer *topic.Consumer
	mu       sync.Mutex
	handled  map[string]int
	sent     int64
	tokens   map[string]string
}

// An installation moves from one process to many on DynamoDB, Kafka and Redis, and back: every answer
// is what it was, devices that stay signed in continue without starting over, consumers of durable topics
// continue where they were, publishes are recognised, and the events come on Kafka.
func TestMoveBothWays(t *testing.T) {
	in := prepareEmpty(t)
	w := &traveller{restorer: &restorer{t: t, rng: rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 3)),
		dir: filepath.Join(t.TempDir(), "data")}, handled: map[string]int{}, tokens: map[string]string{}}
	w.p = launch(t, w.dir, "127.0.0.1:0", "--topic-creators", "alice")
	var progress func()
	w.ctx, progress = untilStuck(t, 4*time.Minute)
	w.addr = w.p.addr
	w.begin()
	w.work(true)
	before := w.answers()
	w.p.signaled(t, os.Interrupt)
	moves := t.TempDir()
	first := filepath.Join(moves, "first")
	w.server("--data-dir", w.dir, "export", first)
	progress()
	to, from := manyOnPage(t)
	w.typed(in, strings.ReplaceAll(to, pageExport, first))
	progress()
	in.listen, in.jobs = w.addr, allJobs
	in.launch()
	progress()
	w.same("on DynamoDB", before, w.answers())
	w.work(false)
	for _, id := range w.chats {
		checkLog(w.ctx, t, in.kafka, id, history(w.ctx, t, w.reader, id))
	}
	before = w.answers()
	progress()
	for _, m := range append(in.servers[:], in.workers[:]...) {
		m.leave()
		if strings.Contains(m.log.String(), otherHistory) {
			t.Error("a device started over after the move to DynamoDB")
		}
	}
	second := filepath.Join(moves, "second")
	w.typed(in, strings.ReplaceAll(from, pageExport, second+" --wait 3s"))
	progress()
	refused := exec.Command(in.servers[0].binary, in.servers[0].args...)
	if out, err := refused.CombinedOutput(); err == nil || !strings.Contains(string(out), "were exported") {
		t.Errorf("a server starts on tables that were exported: %s", out)
	}
	w.dir = filepath.Join(t.TempDir(), "back")
	w.server("--data-dir", w.dir, "import", second)
	progress()
	w.p = launch(t, w.dir, w.addr, "--topic-creators", "alice")
	w.same("back", before, w.answers())
	w.work(false)
	if strings.Contains(w.p.log.String(), otherHistory) {
		t.Error("a device started over after the move back")
	}
	for _, id := range w.chats {
		stored := history(w.ctx, t, w.reader, id)
		checkHistory(w.ctx, t, w.reader, id, stored)
		checkLog(w.ctx, t, w.p.kafka, id, stored, asReader(t, w.dir)...)
	}
	w.p.signaled(t, os.Interrupt)
	if code, out, errs := run(t.Context(), nil, "--data-dir", w.dir, "check"); code != 0 {
		t.Errorf("%s%s", out, errs)
	}
}

// pageExport is the export of the page.
const pageExport = "/var/moves/parley.export"

// manyOnPage are the lines that the page on moves has for many processes: to DynamoDB, and from there.
func manyOnPage(t *testing.T) (to, from string) {
	t.Helper()
	_, part, _ := strings.Cut(string(testkit.Value(os.ReadFile("../../docs/move.md"))(t)), "## Many processes")
	part, _, _ = strings.Cut(part, "\n## ")
	blocks := codeBlocks(part, "text")
	if len(blocks) != 2 || !strings.Contains(blocks[0], pageExport) || !strings.Contains(blocks[1], pageExport) {
		t.Fatalf("the page has %q", blocks)
	}
	return blocks[0], blocks[1]
}

// typed runs lines of the page, with the settings of an installation in the environment.
func (w *traveller) typed(in *installation, lines string) {
	w.t.Helper()
	home := w.t.TempDir()
	testkit.Must(w.t, os.Symlink(binary(w.t), filepath.Join(home, "server")))
	testkit.Must(w.t, os.Symlink(workersBinary(w.t), filepath.Join(home, "workers")))
	cmd := exec.CommandContext(w.ctx, "sh", "-euc", lines)
	cmd.Env = append(os.Environ(), "PATH="+home+":"+os.Getenv("PATH"))
	for flag := range slices.Chunk(in.flags, 2) {
		name := strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flag[0], "--"), "-", "_"))
		cmd.Env = append(cmd.Env, "PARLEY_"+name+"="+flag[1])
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v: %s", lines, err, out)
	}
}

func (w *traveller) server(args ...string) {
	w.t.Helper()
	if out, err := exec.CommandContext(w.ctx, binary(w.t), args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// begin makes chats, a topic, its groups, and what checks them until the test ends.
func (w *traveller) begin() {
	t := w.t
	alice := newUser("alice", token(t, w.dir, "alice"), w.addr, newTransport(t, false))
	w.reader = newUser("bob", token(t, w.dir, "bob"), w.addr, newTransport(t, false))
	h := &benchFixture{b: t, ctx: w.ctx, dir: w.dir}
	w.chats = []string{h.group(alice, "bob"), h.group(alice, "bob")}
	for _, name := range []string{"alice", "alice", "bob"} {
		w.devices = append(w.devices, newGoDevice(t, token(t, w.dir, name), w.addr, name, w.chats))
	}
	for _, name := range []string{"alice", "bob"} {
		w.tokens[name] = token(t, w.dir, name)
	}
	var err error
	w.topics, err = topic.Dial(topic.Config{BaseURL: "http://" + w.addr,
		Token: func(context.Context, bool) (string, error) { return w.tokens["alice"], nil }})
	testkit.Must(t, err)
	testkit.Value(w.topics.Topics().ConfigureTopic(w.ctx, &topicv1.ConfigureTopicRequest{Topic: "orders",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}}))(t)
	w.consumer, err = w.topics.Consumer("orders", "g", topic.ConsumerConfig{
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler: func(_ context.Context, m *topic.Received) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.handled[string(m.GetPayload())]++
			return nil
		}})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.consumer.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

// work has devices send and programs publish, until everything has come everywhere.
func (w *traveller) work(fresh bool) {
	t := w.t
	t.Helper()
	publish := func(number int64) (r *topicv1.PublishResponse) {
		t.Helper()
		var list []*topicv1.TopicMessage
		for i := range 3 {
			list = append(list, &topicv1.TopicMessage{Key: fmt.Sprint(i), Payload: fmt.Append(nil, number, " ", i)})
		}
		testkit.Succeeds(t, "a publish", func() (err error) {
			r, err = w.topics.Topics().Publish(w.ctx, &topicv1.PublishRequest{Topic: "orders", Messages: list,
				Producer: &topicv1.Producer{Id: "p", Number: number}})
			return err
		})
		return r
	}
	if !fresh { // the last publish before the move is recognised
		publish(w.sent)
	}
	for range 4 {
		w.sent++
		publish(w.sent)
	}
	w.burst()
	w.compare(w.ctx, int(w.sent))
	testkit.Eventually(t, "all messages are handled and acknowledged", func() bool {
		w.mu.Lock()
		n := len(w.handled)
		w.mu.Unlock()
		req := &topicv1.GetSubscriptionRequest{Topic: "orders", Group: "g"}
		res, err := w.topics.Subscriptions().GetSubscription(w.ctx, req)
		if err != nil || n != int(3*w.sent) {
			return false
		}
		for _, p := range res.GetSubscription().GetPartitions() {
			if p.GetFloor() < p.GetEnd() {
				return false
			}
		}
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, n := range w.handled {
		if n != 1 {
			t.Errorf("message %s was handled %d times", what, n)
		}
	}
}

// answers are what users are shown, by call.
func (w *traveller) answers() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for user := range w.tokens {
		calls := map[string]string{
			"parley.chat.v1.ChatService/ListChats": `{}`, "parley.delivery.v1.DeliveryService/Sync": `{}`,
			"parley.user.v1.UserService/GetSettings": `{}`, "parley.user.v1.UserService/GetProfile": `{"userId":"alice"}`,
			"parley.user.v1.UserService/ListBlocked": `{}`, "parley.user.v1.UserService/ListInvitations": `{}`,
		}
		for _, id := range w.chats {
			for _, name := range []string{"chat.v1.ChatService/GetChat", "chat.v1.ChatService/ListMembers",
				"message.v1.MessageService/ListMessages", "message.v1.MessageService/ListChanges"} {
				calls["parley."+name+"#"+id] = fmt.Sprintf(`{"chatId":%q}`, id)
			}
		}
		for call, body := range calls {
			path, _, _ := strings.Cut(call, "#")
			all[user+" "+call] = w.post(user, path, body)
		}
	}
	list := testkit.Value(w.topics.Topics().ListTopics(w.ctx, &topicv1.ListTopicsRequest{}))(w.t)
	for _, x := range list.GetTopics() {
		all["topic "+x.GetName()] = x.GetConfig().String()
	}
	return all
}

// moving are fields whose values are of one answer, and what devices acknowledge in the background.
var moving = []string{"syncToken", "generation", "nextPageToken", "token", "commit", "deliveredSequence"}

func (w *traveller) post(user, path, body string) string {
	w.t.Helper()
	var v any
	testkit.Succeeds(w.t, path, func() error {
		url := "http://" + w.addr + "/" + path
		req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+w.tokens[user])
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %w", res.Status, b, err)
		}
		return json.Unmarshal(b, &v)
	})
	b := testkit.Value(json.Marshal(without(v)))(w.t)
	return string(b)
}

func without(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for _, name := range moving {
			delete(x, name)
		}
		for k := range x {
			x[k] = without(x[k])
		}
	case []any:
		for i := range x {
			x[i] = without(x[i])
		}
	}
	return v
}

func (w *traveller) same(where string, before, after map[string]string) {
	w.t.Helper()
	testkit.Equal(w.t, where+": answers", len(after), len(before))
	for call, want := range before {
		if after[call] != want {
			w.t.Errorf("%s, %s:\n%s\nit was\n%s", where, call, after[call], want)
		}
	}
}
