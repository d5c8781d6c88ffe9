package topicrpc

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A setting that the server does not have is an error on the wire, in JSON and in protobuf, and changes
// nothing.
func TestUnknownSettingsOnTheWire(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+w.addr+"/parley.topic.v1.TopicService/ConfigureTopic",
		strings.NewReader(`{"topic":"news","config":{"maxRetension":"60s"}}`))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := alice.client.Do(req)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	testkit.Equal(t, "status", res.StatusCode, http.StatusBadRequest)
	if text := string(body); !strings.Contains(text, "maxRetension") || !strings.Contains(text, "INVALID_ARGUMENT") {
		t.Error(text)
	}
	config := &topicv1.TopicConfig{}
	config.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1))
	_, err = alice.topics.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "news", Config: config})
	testkit.Equal(t, "code", connect.CodeOf(err), connect.CodeInvalidArgument)
	testkit.Equal(t, "reason", reason(err), "INVALID_ARGUMENT")
	_, err = alice.topics.GetTopic(t.Context(), &topicv1.GetTopicRequest{Topic: "news"})
	testkit.Equal(t, "the topic", reason(err), "TOPIC_NOT_FOUND")
}
