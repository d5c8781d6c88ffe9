package topic

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A consumer logs what the server says of a group that does not get its messages, once as long as that
// stays the same, and nothing of a group that a request moved.
func TestServersWarningsAreLogged(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	r := newRun(&Consumer{client: &Client{shown: &shown{}}, topic: "t", group: "g",
		cfg: ConsumerConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}})
	s := &session{run: r, watch: time.NewTimer(time.Hour)}
	logged := func(what, text string, n int) {
		t.Helper()
		testkit.Equal(t, what, strings.Count(log.String(), text), n)
	}
	for range 3 {
		r.know(&topicv1.Subscription{Released: &topicv1.ReleasedMessages{Sought: 7}})
	}
	testkit.Equal(t, "of a group that was moved", log.String(), "")
	for range 3 {
		r.know(&topicv1.Subscription{Released: &topicv1.ReleasedMessages{Death: 5, Bound: 2}})
	}
	logged("released", "5 by death, 2 by bound", 1)
	stalled := frame{alive: &topicv1.Alive{Stalls: []*topicv1.Stall{{Partition: 3, Text: "keys wait"}}}}
	for range 3 {
		s.take(stalled)
	}
	logged("stalled", "partition 3: keys wait", 1)
	s.take(frame{alive: &topicv1.Alive{}})
	s.take(stalled)
	logged("stalled again", "partition 3: keys wait", 2)
}
