package api_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

var files = append(slices.Clone(ownFiles),
	userv1.File_parley_user_v1_user_proto, userv1.File_parley_user_v1_user_service_proto)

// ownFiles have the services of this package; what others serve is tried in the whole program.
var ownFiles = []protoreflect.FileDescriptor{
	chatv1.File_parley_chat_v1_chat_proto, chatv1.File_parley_chat_v1_chat_service_proto,
	messagev1.File_parley_message_v1_message_proto, messagev1.File_parley_message_v1_message_service_proto,
	deliveryv1.File_parley_delivery_v1_frame_proto, deliveryv1.File_parley_delivery_v1_delivery_service_proto,
}

// S-20, S-21: every string, bytes, list and map of every message has a maximum.
func TestEveryFieldHasAMaximum(t *testing.T) {
	var walk func(protoreflect.MessageDescriptors)
	checked := 0
	walk = func(messages protoreflect.MessageDescriptors) {
		for i := range messages.Len() {
			if messages.Get(i).IsMapEntry() {
				continue // the map's rules are those of its keys and values
			}
			fields := messages.Get(i).Fields()
			for j := range fields.Len() {
				checked++
				if why := unbounded(fields.Get(j)); why != "" {
					t.Errorf("%s: %s", fields.Get(j).FullName(), why)
				}
			}
			walk(messages.Get(i).Messages())
		}
	}
	for _, f := range append(files, authv1.File_parley_auth_v1_auth_service_proto,
		topicv1.File_parley_topic_v1_topic_proto,
		topicv1.File_parley_topic_v1_subscription_proto, topicv1.File_parley_topic_v1_topic_service_proto,
		topicv1.File_parley_topic_v1_subscription_service_proto, topicv1.File_parley_topic_v1_consumer_service_proto) {
		walk(f.Messages())
	}
	if checked < 100 {
		t.Fatalf("only %d fields were found", checked)
	}
}

func unbounded(f protoreflect.FieldDescriptor) string {
	rules, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	switch {
	case f.IsMap():
		if !rules.GetMap().HasMaxPairs() {
			return "a map without max_pairs"
		}
		if !rules.GetMap().GetKeys().GetString().HasMaxBytes() || !rules.GetMap().GetValues().GetString().HasMaxBytes() {
			return "a map with keys or values without a maximum"
		}
		return ""
	case f.IsList():
		if !rules.GetRepeated().HasMaxItems() {
			return "a list without max_items"
		}
		rules = rules.GetRepeated().GetItems()
	}
	switch f.Kind() {
	case protoreflect.StringKind:
		s := rules.GetString()
		if !s.HasMaxLen() && !s.HasMaxBytes() && !s.GetUuid() && !bounded(s.GetPattern()) {
			return "a string without a maximum"
		}
	case protoreflect.BytesKind:
		if !rules.GetBytes().HasMaxLen() {
			return "bytes without max_len"
		}
	}
	return ""
}

// bounded reports whether a pattern matches whole strings of limited length only.
func bounded(pattern string) bool {
	open := regexp.MustCompile(`[*+]|\{\d+,\}`)
	return strings.HasPrefix(pattern, "^") && strings.HasSuffix(pattern, "$") && !open.MatchString(pattern)
}

// Only reads have no side effects, and what has some cannot be had by GET, which
// a page of another site could make a browser send.
func TestMutationsRefuseGet(t *testing.T) {
	reads := map[string]bool{
		"GetChat": true, "ListChats": true, "ListMembers": true, "ListMessages": true, "ListChanges": true, "Sync": true,
	}
	s := newServer(t)
	n := 0
	for _, f := range ownFiles {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				level := m.Options().(*descriptorpb.MethodOptions).GetIdempotencyLevel()
				isRead := level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
				if isRead != reads[string(m.Name())] {
					t.Errorf("%s: %s", m.FullName(), level)
				}
				a := s.do(http.MethodGet, get("/"+string(service.FullName())+"/"+string(m.Name()), "{}", "&connect=v1"), "", nil)
				if isRead != (a.status != http.StatusMethodNotAllowed) {
					t.Errorf("GET %s: %d", m.FullName(), a.status)
				}
				n++
			}
		}
	}
	testkit.Equal(t, "RPCs", n, 21)
}

// Every RPC is served: none answers unimplemented.
func TestEveryRPCIsServed(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	for _, f := range ownFiles {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				if m.IsStreamingServer() || m.IsStreamingClient() {
					continue // TestRPCs opens them
				}
				a := s.post("/"+string(service.FullName())+"/"+string(m.Name()), `{"chatId":"`+id+`"}`)
				if code, _, _ := a.error(); code == "unimplemented" || a.status == http.StatusNotFound {
					t.Errorf("%s: %d %s", m.FullName(), a.status, a.body)
				}
			}
		}
	}
	for procedure, body := range map[string]string{
		createChat:                              `{"type":1,"memberIds":["bob"]}`,
		getChat:                                 `{"chatId":"%"}`,
		"/parley.chat.v1.ChatService/ListChats": `{}`,
		"/parley.chat.v1.ChatService/ListMembers": `{"chatId":"%"}`,
		sendMessage:  `{"chatId":"%","content":"x"}`,
		listMessages: `{"chatId":"%"}`,
		"/parley.message.v1.MessageService/ListChanges": `{"chatId":"%"}`,
		"/parley.message.v1.MessageService/MarkRead":    `{"chatId":"%","sequence":"1"}`,
		"/parley.delivery.v1.DeliveryService/Sync":      `{}`,
	} {
		testkit.Equal(t, procedure, s.post(procedure, strings.ReplaceAll(body, "%", id)).status, 200)
	}
	for _, procedure := range []string{"Ack", "Extend"} {
		a := s.post("/parley.delivery.v1.DeliveryService/"+procedure, `{"streamId":"x"}`)
		_, reason, _ := a.error()
		testkit.Equal(t, procedure, reason, "STREAM_GONE")
	}
}
