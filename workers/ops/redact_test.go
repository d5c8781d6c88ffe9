package ops

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/server/event"
)

// What users wrote is redacted in events of every type; what Parley wrote stays.
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
		redact(m)
		text := protojson.Format(m.Interface())
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
			name = strings.Trim(name, `"`)
			written := strings.HasSuffix(name, "content") || strings.HasSuffix(name, "ame") || strings.HasSuffix(name, "ext") || strings.HasSuffix(name, "escription")
			if ok && written && strings.Contains(value, canary) {
				t.Errorf("%s shows %s", spec.Type, line)
			}
		}
		if after := strings.Count(text, canary); before < 10 || after < 8 {
			t.Errorf("%s: %d of %d texts are left", spec.Type, after, before)
		}
	}
	for name, want := range map[protoreflect.Name]bool{
		"chat_id": true, "member_ids": true, "client_message_id": true, "content": false, "name": false, "content_type": true, "id": false, "preview_text": false, "partition_key": true,
	} {
		if isIdentifier(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
