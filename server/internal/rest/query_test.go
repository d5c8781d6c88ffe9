package rest

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// A parameter names a field of the request or, with dots, one in a field. One that is no field is ignored;
// what could be meant in two ways is refused.
func TestParameters(t *testing.T) {
	at := &topicv1.Position{At: &topicv1.Position_Time{Time: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}}
	message := &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-7"}}
	for query, want := range map[string]*topicv1.BrowseMessagesRequest{
		"": {}, "maxMessages=3&partition=0": {MaxMessages: 3, Partition: proto.Int32(0)},
		"from.messageId=0-7": {From: message}, "from.message_id=0-7&max_messages=1": {From: message, MaxMessages: 1},
		"from.time=2030-01-02T03:04:05Z": {From: at},
		"from.earliest=true":             {From: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		"none=1&from.none=1&from.=1&.=1&maxMessages.x=1&topic.topic=1&from.messageId.x=1": {},
	} {
		m, r := &topicv1.BrowseMessagesRequest{}, httptest.NewRequest(http.MethodGet, "/?"+query, http.NoBody)
		fault := decodeQuery(httptest.NewRecorder(), r, m.ProtoReflect())
		if fault != nil || !proto.Equal(m, want) {
			t.Errorf("%s: %v, %v", query, m, fault)
		}
	}
	for query, field := range map[string]string{
		"from.messageId=0-7&from.message_id=0-8":            "from.messageId",
		"from.messageId=0-7&from.messageId=0-8":             "from.messageId",
		"from.messageId=0-7&from.time=2030-01-02T03:04:05Z": "from.time",
		"from.time=soon":               "from.time",
		"from.time.seconds=1":          "from.time.seconds",
		"from.earliest=yes":            "from.earliest",
		"from=earliest":                "from",
		"maxMessages=many":             "maxMessages",
		"maxMessages=1&max_messages=1": "maxMessages",
		"from.latest=true&from.earliest=true&from.messageId=1": "from.latest",
	} {
		m, r := &topicv1.BrowseMessagesRequest{}, httptest.NewRequest(http.MethodGet, "/?"+query, http.NoBody)
		fault := decodeQuery(httptest.NewRecorder(), r, m.ProtoReflect())
		if fault == nil || fault.violations[0].GetField() != field {
			t.Errorf("%s: %v", query, fault)
		}
	}
}
