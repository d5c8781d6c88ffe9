package storage

import (
	"fmt"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// SchemaIDs are the ids of a topic's schema and of those that it had before, the newest last.
func SchemaIDs(s *topicv1.TopicSchema) []int32 {
	if s == nil {
		return nil
	}
	return append(slices.Clone(s.GetEarlierIds()), s.GetId())
}

// releases are the writes after which the registry may delete the schemas that a topic no longer uses.
func (t *Topic) releases(was, is *topicv1.TopicSchema) (writes []store.Write) {
	used := SchemaIDs(is)
	for _, id := range SchemaIDs(was) {
		if !slices.Contains(used, id) {
			writes = append(writes, store.Write{
				Op: store.OpDelete, Key: table.SchemaKeeperKey(int64(id), table.SchemaTopic(t.Name)), Name: "release",
			})
		}
	}
	return writes
}

// schemaEffect says what a change of schema means; "" if there is none.
func schemaEffect(was, is *topicv1.TopicSchema) string {
	switch {
	case was.GetId() == is.GetId():
		return ""
	case was == nil:
		return fmt.Sprintf("payloads must be %s of schema %d from now on; messages that are there already are not checked",
			is.GetMessage(), is.GetId())
	case is == nil:
		return "payloads are no longer checked, and the schemas that the topic has had are forgotten: another one is not " +
			"judged against them"
	}
	return fmt.Sprintf("payloads must be %s of schema %d instead of %d; messages that are there already stay as they are",
		is.GetMessage(), is.GetId(), was.GetId())
}
