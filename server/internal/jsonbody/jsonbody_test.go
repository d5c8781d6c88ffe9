package jsonbody

import (
	"strings"
	"testing"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"google.golang.org/protobuf/proto"
)

// An enum's error names what may stand there, at any depth, before what did.
func TestEnumErrors(t *testing.T) {
	for _, tt := range []struct {
		m    proto.Message
		text string
		want string // empty: no error
	}{
		{&chatv1.CreateChatRequest{}, `{"type":"GROUP"}`,
			`type must be one of CHAT_TYPE_DIRECT, CHAT_TYPE_GROUP, not "GROUP"`},
		{&chatv1.CreateChatRequest{}, `{"later":1,"type":"GROUP"}`,
			`type must be one of CHAT_TYPE_DIRECT, CHAT_TYPE_GROUP, not "GROUP"`},
		{&chatv1.CreateChatRequest{}, `{"type":true}`, `invalid value for enum field type: true`},
		{&deliveryv1.SubscribeResponse{}, `{"frames":[{"end":{"code":"SLOW"}}]}`,
			`code must be one of END_CODE_DRAIN, END_CODE_SLOW, END_CODE_RESYNC, END_CODE_TOKEN_EXPIRED, END_CODE_SESSION_REVOKED, END_CODE_REPLACED, not "SLOW"`},
		{&chatv1.CreateChatRequest{}, `{"type":"CHAT_TYPE_GROUP","unknown":{"type":"GROUP"}}`, ""},
		{&chatv1.CreateChatRequest{}, `{"type":2}`, ""},
		{&chatv1.CreateChatRequest{}, `{"name":1}`, "invalid value for string field name: 1"},
		{&chatv1.CreateChatRequest{}, `{`, "unexpected"},
	} {
		err := Unmarshal([]byte(tt.text), tt.m)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.text, err)
		case tt.want != "" && (err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "\u00a0", " "), tt.want)):
			t.Errorf("%s: %v, want %s", tt.text, err, tt.want)
		case err != nil && !strings.HasPrefix(err.Error(), "proto:"):
			t.Errorf("%s: %v", tt.text, err)
		}
	}
}
