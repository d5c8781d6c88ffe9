package opsctl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// schemaFlags declares what can be chosen for a topic's schema, and returns what sets it once the command
// line is read.
func schemaFlags(fs *pflag.FlagSet, to *topicv1.TopicConfig) (set func() error) {
	schema := &topicv1.TopicSchema{}
	var none bool
	fs.Func("schema", "messages must be as this schema says: `id` of it in the registry", func(s string) error {
		id, err := strconv.ParseInt(s, 10, 32)
		if err != nil || id < 1 {
			return errors.New("must be the id of a schema, a number from 1")
		}
		schema.Id = int32(id)
		return nil
	})
	fs.StringVar(&schema.Message, "schema-message", "", "full `name` of the message in the schema; default is the first")
	enumFlag(fs, &schema.Encoding, "schema-encoding", "ENCODING_", topicv1.TopicSchema_Encoding_value,
		"how payloads are written, binary by default")
	fs.BoolVar(&none, "no-schema", false, "messages may be anything")
	return func() error {
		switch details := schema.GetMessage() != "" || schema.GetEncoding() != 0; {
		case none && (details || schema.GetId() != 0):
			return cmdline.Usagef("topics create: it takes --no-schema, or --schema and what belongs to it")
		case details && schema.GetId() == 0:
			return cmdline.Usagef("topics create: --schema-message and --schema-encoding belong to --schema")
		case none || schema.GetId() != 0:
			to.Schema = schema
		}
		return nil
	}
}

// schemaText is a topic's schema for people.
func schemaText(s *topicv1.TopicSchema) string {
	if s == nil {
		return "-"
	}
	text := fmt.Sprintf("%d, %s in %s", s.GetId(), safe(s.GetMessage()), flagWord(s.GetEncoding(), "ENCODING_"))
	var earlier []string
	for _, id := range s.GetEarlierIds() {
		earlier = append(earlier, strconv.Itoa(int(id)))
	}
	if len(earlier) > 0 {
		text += " (before: " + strings.Join(earlier, ", ") + ")"
	}
	return text
}
