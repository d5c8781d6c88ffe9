package redact

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/server/event"
)

// Users' content is redacted in events of every type; Parley's own fields stay.
func TestRedact(t *testing.T) {
	const canary = "canary"
	var fill func(m protoreflect.Message) int
	fill = func(m protoreflect.Message) (texts int) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			switch {
			case f.IsMap():
			case f.IsList() && f.Message() != nil:
				texts += fill(m.Mutable(f).List().AppendMutable().Message())
			case f.Message() != nil:
				texts += fill(m.Mutable(f).Message())
			case f.Kind() == protoreflect.StringKind && f.IsList():
				m.Mutable(f).List().Append(protoreflect.ValueOfString(canary))
				texts++
			case f.Kind() == protoreflect.StringKind:
				m.Set(f, protoreflect.ValueOfString(canary))
				texts++
			}
		}
		return texts
	}
	for _, spec := range event.Specs() {
		m := event.Prototype(spec.Type).ProtoReflect()
		before := fill(m)
		Message(m)
		text := protojson.Format(m.Interface())
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
			name = strings.Trim(name, `"`)
			written := strings.HasSuffix(name, "content") || strings.HasSuffix(name, "ame") || strings.HasSuffix(name, "ext") ||
				strings.HasSuffix(name, "escription")
			if ok && written && strings.Contains(value, canary) {
				t.Errorf("%s shows %s", spec.Type, line)
			}
		}
		if after := strings.Count(text, canary); before < 10 || after < 8 {
			t.Errorf("%s: %d of %d texts are left", spec.Type, after, before)
		}
	}
	for name, want := range map[protoreflect.Name]bool{
		"chat_id": true, "member_ids": true, "client_message_id": true, "content": false, "name": false, "content_type": true,
		"id": false, "preview_text": false, "partition_key": true,
	} {
		if isIdentifier(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// What authenticates somebody is removed wherever it stands, and nothing else is.
func TestSecrets(t *testing.T) {
	key := &adminv1.CreateServiceKeyResponse{Key: &adminv1.ServiceKey{KeyId: "key_1"}, Secret: "canary"}
	list := &adminv1.ReadMessagesResponse{Messages: []*adminv1.InspectedMessage{{MessageId: "m", Content: "canary"}}}
	for _, m := range []proto.Message{key, list} {
		Secrets(m.ProtoReflect())
	}
	if key.GetSecret() != "" || key.GetKey().GetKeyId() != "key_1" || list.GetMessages()[0].GetContent() != "" ||
		list.GetMessages()[0].GetMessageId() != "m" {
		t.Errorf("%v, %v", key, list)
	}
}
