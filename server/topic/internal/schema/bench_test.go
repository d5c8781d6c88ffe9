package schema

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/registry"
)

// BenchmarkCheck checks a message of about 300 bytes: in both encodings, without and with rules.
func BenchmarkCheck(b *testing.B) {
	rules := strings.NewReplacer(
		`string id = 1;`, `string id = 1 [(buf.validate.field).string.min_len = 3];`,
		`int64 amount = 2;`, `int64 amount = 2 [(buf.validate.field).int64.gte = 0];`,
		"package t.v1;", "package t.v1;\nimport \"buf/validate/validate.proto\";")
	for _, of := range []struct{ name, text string }{{"plain", plainText}, {"rules", rules.Replace(plainText)}} {
		s, _ := schemas(b)
		id := register(b, s, "s", of.text)
		c := compiled(b, of.text, "")
		m := dynamicpb.NewMessage(c.message)
		tags := strings.Repeat("x", 100) + `","` + strings.Repeat("y", 60)
		text := `{"id":"order-17","amount":"1200","tags":["` + tags + `"],
			"lines":{"a":{"text":"first line","n":4},"b":{"text":"second line","n":5}},"parts":[1,2,3,4,5,6],"kind":"KIND_A",
			"at":"2030-01-02T03:04:05Z","first":{"text":"one","n":-7},"d":1.5}`
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			b.Fatal(err)
		}
		binary, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		for _, as := range []struct {
			name     string
			encoding topicv1.TopicSchema_Encoding
			payload  []byte
		}{
			{"binary", topicv1.TopicSchema_ENCODING_BINARY, binary}, {"json", topicv1.TopicSchema_ENCODING_JSON, []byte(text)},
		} {
			schema := &topicv1.TopicSchema{Id: id, Message: "t.v1.Order", Encoding: as.encoding}
			messages := payloads(as.payload)
			b.Run(fmt.Sprintf("%s/%s", of.name, as.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := s.Check(b.Context(), schema, messages); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkChange judges a schema of 100 fields against as many earlier ones.
func BenchmarkChange(b *testing.B) {
	for _, earlier := range []int{1, 8, maxEarlier} {
		s, _ := schemas(b)
		if err := s.registry.SetLevel(b.Context(), "s", registry.None); err != nil {
			b.Fatal(err)
		}
		var ids []int32
		text := "syntax = \"proto3\";\nmessage A {"
		for i := range 100 + earlier {
			text += fmt.Sprintf(" string f%d = %d;", i+1, i+1)
			if i >= 99 {
				ids = append(ids, register(b, s, "s", text+" }\n"))
			}
		}
		is := &topicv1.TopicSchema{Id: ids[earlier-1], Message: "A", EarlierIds: ids[:earlier-1],
			Encoding: topicv1.TopicSchema_ENCODING_BINARY}
		b.Run(fmt.Sprint("earlier=", earlier), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Change(b.Context(), is, &topicv1.TopicSchema{Id: ids[earlier]}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
