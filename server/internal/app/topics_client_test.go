package app_test

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// The README's walk through topics is run as it stands there, but for ports and the place of
// the binary; what follows until Ctrl-C gets it after a while.
func TestReadmeTopics(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	blocks := readmeBlocks(t, "server topics")
	if len(blocks) != 2 {
		t.Fatalf("the README has %d blocks with topics", len(blocks))
	}
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	lines := strings.Split(strings.TrimSpace(blocks[0]), "\n")
	last := len(lines) - 1
	lines[last] = fmt.Sprintf("timeout -s INT 5 bash -c '%s' || true", lines[last])
	script := fmt.Sprintf("ALICE=%s\nBOB=%s\nset -e\n%s\n%s", token(t, dir, "alice"), token(t, dir, "bob"),
		strings.Join(lines, "\n"), blocks[1])
	script = strings.ReplaceAll(script, "127.0.0.1:8080", p.addr)
	script = strings.ReplaceAll(script, "go run ./server",
		fmt.Sprintf("%s --data-dir %s --ops-address %s", binary(t), dir, opsOf(t, p)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bash, "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for what, n := range map[string]int{
		"  tea for two": 2, "  cake for one": 2, `"messageId":"0-2"`: 1, `"bW9yZSB0ZWE="`: 1, `"refusals":[]`: 1,
		"ErrorInfo": 0, "error": 0,
	} {
		if got := strings.Count(string(out), what); got != n {
			t.Errorf("%q comes %d times:\n%s", what, got, out)
		}
	}
}

// The Go client of topics over kills of the server: what Publish answered is handled, each
// message is stored once and in order, and nothing that was acknowledged comes again.
func TestTopicClientOverKills(t *testing.T) {
	dir := t.TempDir()
	listen := func(addr string) *process {
		return launch(t, dir, addr, "--topic-creators", "alice", "--ops-listen", "127.0.0.1:0")
	}
	p := listen("127.0.0.1:0")
	addr, bearer := p.addr, token(t, dir, "alice")
	client, err := topic.Dial(topic.Config{BaseURL: "http://" + addr,
		Token: func(context.Context, bool) (string, error) { return bearer, nil }})
	testkit.Must(t, err)
	_, err = client.Topics().ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "t",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	testkit.Must(t, err)

	var mu sync.Mutex
	handled := map[string]int{}
	last := -1
	consumer, err := client.Consumer("t", "g", topic.ConsumerConfig{
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler: func(_ context.Context, m *topic.Received) error {
			mu.Lock()
			defer mu.Unlock()
			handled[string(m.GetPayload())]++
			var n int
			if _, err := fmt.Sscan(string(m.GetPayload()), &n); err != nil || m.Position != int64(n) {
				t.Errorf("%q at position %d", m.GetPayload(), m.Position)
			}
			last = max(last, n)
			return nil
		}})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	publisher, err := client.Publisher("t", topic.PublisherConfig{})
	testkit.Must(t, err)

	const each = 40
	kills := 0
	for kill := range testkit.Rounds(t, "PARLEY_KILLS", 3) {
		kills++
		for i := range each {
			if i == each/2 {
				p.kill()
				p = listen(addr)
			}
			results, err := publisher.Publish(t.Context(), &topic.Message{Payload: fmt.Append(nil, kill*each+i)})
			testkit.Must(t, err)
			testkit.Equal(t, "position", results[0].GetPosition(), int64(kill*each+i))
		}
	}
	testkit.Must(t, publisher.Close(t.Context()))
	testkit.Eventually(t, "all are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == kills*each
	})
	testkit.Eventually(t, "all are acknowledged", func() bool {
		req := &topicv1.GetSubscriptionRequest{Topic: "t", Group: "g"}
		res, err := client.Subscriptions().GetSubscription(t.Context(), req)
		return err == nil && res.GetSubscription().GetPartitions()[0].GetFloor() == int64(kills*each)
	})
	stop()
	testkit.Must(t, <-ended)
	mu.Lock()
	defer mu.Unlock()
	for what, n := range handled {
		if n != 1 { // the consumer lived on, and acknowledges what comes again
			t.Errorf("%s was handled %d times", what, n)
		}
	}
}
