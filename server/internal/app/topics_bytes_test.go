package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// The setting topic-max-bytes bounds the topics of a server that have no bound: what is beyond is refused with its
// reason, a repetition of what is stored is answered, and when messages are gone, others are taken.
func TestBoundOfBytes(t *testing.T) {
	t.Parallel()
	boundOfBytes(t, alone(t, "--topic-max-bytes", "24MB"))
}

func boundOfBytes(t *testing.T, w *topicHarness) {
	const most, each = 24 << 20, 1 << 20 / 16 * 15
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	configure := func(n int64) error {
		_, err := call(ctx, w.client().Topics().ConfigureTopic, &topicv1.ConfigureTopicRequest{Topic: "large",
			Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MaxBytes: proto.Int64(n)}})
		return err
	}
	for range w.servers {
		testkit.Equal(t, "a bound beyond the server's is refused with", topic.Reason(configure(most+1)), "INVALID_ARGUMENT")
	}
	testkit.Must(t, configure(0))
	payload := make([]byte, each) // which does not compress
	_, _ = rand.NewChaCha8([32]byte{}).Read(payload)
	publish := func(number int64) (*topicv1.PublishResponse, error) {
		return call(ctx, w.client().Topics().Publish, &topicv1.PublishRequest{Topic: "large",
			Producer: &topicv1.Producer{Id: "p", Number: number}, Messages: []*topicv1.TopicMessage{{Payload: payload}}})
	}
	var ids []string // of what is stored
	number := int64(0)
	fill := func() (refusal error) {
		for {
			number++
			r, err := publish(number)
			if err != nil {
				return err
			}
			if ids = append(ids, r.GetResults()[0].GetMessageId()); len(ids) > 2*most/each {
				t.Fatalf("a topic of %d bytes has taken %d messages of %d", most, len(ids), each)
			}
		}
	}
	err := fill()
	testkit.Equal(t, "beyond the bound a publish is refused with", topic.Reason(err), "TOPIC_FULL")
	if !strings.Contains(fmt.Sprint(err), fmt.Sprint(most)) || len(ids) != most/each {
		t.Errorf("%d messages of %d bytes are stored: %v", len(ids), each, err)
	}
	for range w.servers {
		again, err := publish(1)
		if err != nil || !again.GetResults()[0].GetReplayed() || again.GetResults()[0].GetMessageId() != ids[0] {
			t.Errorf("a repetition of what is stored: %v, %v", again, err)
		}
	}
	purge := func(before *topicv1.Position) {
		t.Helper()
		_, err := w.client().Topics().PurgeMessages(ctx, &topicv1.PurgeMessagesRequest{Topic: "large", Before: before})
		testkit.Must(t, err)
	}
	// Brokers remove a part of a log some time after it was trimmed.
	purge(&topicv1.Position{At: &topicv1.Position_MessageId{MessageId: ids[len(ids)*3/4]}})
	testkit.Succeeds(t, "a publish after three quarters are gone", func() error { _, err := publish(number); return err })
	testkit.Equal(t, "beyond the bound again", topic.Reason(fill()), "TOPIC_FULL")
	purge(&topicv1.Position{At: &topicv1.Position_Latest{Latest: true}})
	testkit.Succeeds(t, "a publish after all is gone", func() error { _, err := publish(number); return err })
}
