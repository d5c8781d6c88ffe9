package jsonbody

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// A request with settings names the field that the server does not know; other requests skip it.
func TestUnknownSettings(t *testing.T) {
	for _, tt := range []struct {
		m    proto.Message
		text string
		want string // empty: no error
	}{
		{&topicv1.ConfigureTopicRequest{}, `{"config":{"maxRetension":"60s"}}`, `unknown field "maxRetension"`},
		{&topicv1.ConfigureTopicRequest{}, `{"blockWrites":true}`, `unknown field "blockWrites"`},
		{&topicv1.ConfigureTopicRequest{}, `{"config":{"maxRetention":"60s"},"dryRun":true}`, ""},
		{&topicv1.ConfigureTopicRequest{}, `{"config":{"semantics":"QUEUE"}}`, "semantics must be one of"},
		{&topicv1.CreateSubscriptionRequest{}, `{"config":{"retry":{"leese":"60s"}}}`, `unknown field "leese"`},
		{&topicv1.CreateSubscriptionRequest{}, `{"config":{"filter":{"clauses":[{"head":"x"}]}}}`, `unknown field "head"`},
		{&topicv1.UpdateSubscriptionRequest{}, `{"config":{},"mask":"filter"}`, `unknown field "mask"`},
		{&topicv1.UpdateSubscriptionRequest{}, `{"config":{"retry":{"lease":"60s"}},"updateMask":"retry.lease"}`, ""},
		{&topicv1.SetBindingRequest{}, `{"role":"ROLE_SUBSCRIBER","group":["billing"]}`, `unknown field "group"`},
		{&topicv1.StartBackfillRequest{}, `{"limits":{"rate":1}}`, `unknown field "rate"`},
		{&topicv1.PurgeMessagesRequest{}, `{"before":{"latest":true},"dryrun":true}`, `unknown field "dryrun"`},
		{&topicv1.PurgeMessagesRequest{}, `{"before":{"latest":true},"dryRun":true}`, ""},
		{&topicv1.PublishRequest{}, `{"ttl":"60s"}`, ""},
		{&topicv1.PullRequest{}, `{"later":1}`, ""},
	} {
		err := Unmarshal([]byte(tt.text), tt.m)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
	}
}

// The same holds for protobuf, at any depth.
func TestUnknownNumbers(t *testing.T) {
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
	with := func(m proto.Message) proto.Message {
		m.ProtoReflect().SetUnknown(unknown)
		return m
	}
	clause := with(&topicv1.FilterClause{}).(*topicv1.FilterClause)
	retry := with(&topicv1.RetryPolicy{}).(*topicv1.RetryPolicy)
	for _, tt := range []struct {
		m    proto.Message
		want string
	}{
		{with(&topicv1.ConfigureTopicRequest{}), "1000 of ConfigureTopicRequest"},
		{&topicv1.CreateSubscriptionRequest{Config: &topicv1.SubscriptionConfig{Retry: retry}}, "1000 of RetryPolicy"},
		{&topicv1.CreateSubscriptionRequest{Config: &topicv1.SubscriptionConfig{Filter: &topicv1.Filter{
			Clauses: []*topicv1.FilterClause{{}, clause}}}}, "1000 of FilterClause"},
		{&topicv1.CreateSubscriptionRequest{Config: &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{}}}, ""},
		{with(&topicv1.PublishRequest{}), ""},
	} {
		err := CheckKnown(tt.m)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%T: %v, want %q", tt.m, err, tt.want)
		}
	}
}

// Each request of topics that has settings is strict, and each name is one of a request.
func TestStrictRequests(t *testing.T) {
	named := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("parley.topic.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			if strict[m.FullName()] {
				named++
			}
			for j := range m.Fields().Len() {
				of := m.Fields().Get(j).Message()
				settings := of != nil && (strings.HasSuffix(string(of.Name()), "Config") ||
					strings.HasSuffix(string(of.Name()), "Limits"))
				if settings && strings.HasSuffix(string(m.Name()), "Request") && !strict[m.FullName()] {
					t.Errorf("%s has settings, and skips those that are unknown", m.FullName())
				}
			}
		}
		return true
	})
	if named != len(strict) {
		t.Errorf("%d of %d names are messages", named, len(strict))
	}
}
