package topic

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/schema"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// schemaAttempts is how many changes of a topic's schema a call may lose against.
const schemaAttempts = 10

var errSchemaBusy = refusal.New(refusal.Overloaded, "others are changing the topic: nothing of this request is done; repeat it")

// schemaChange is what becomes of a topic's schema.
type schemaChange struct {
	schema.Change
	writes []store.Write
}

// stale reports whether a topic has another schema than the change was judged for.
func (c *schemaChange) stale(is *topicv1.TopicSchema) bool {
	return c != nil && !proto.Equal(is, c.From)
}

// with are the writes of a change, nil: of none.
func (c *schemaChange) with() []store.Write {
	if c == nil {
		return nil
	}
	return c.writes
}

// configureWithSchema is configure of a request that may change the topic's schema. The gate can take
// seconds, so it judges without the topic's lock: publishes go on. Two changes that race are both judged
// against what there was; the lock lets the first store its schema, and the second finds that the topic
// has another one than it was judged for, and is judged again. A deletion in the registry that comes
// between fails the plan in the same way.
func (s *Service) configureWithSchema(
	ctx context.Context, c Caller, r *topicv1.ConfigureTopicRequest,
) (*topicv1.ConfigureTopicResponse, error) {
	asked := r.GetConfig().GetSchema()
	if asked == nil {
		return s.configure(ctx, c, r, nil)
	}
	for range schemaAttempts {
		var is *topicv1.TopicSchema
		if t := s.engine.Catalog.Topic(r.GetTopic()); t != nil {
			is = t.View().Config.GetSchema()
		}
		judged, err := s.schemas.Change(ctx, is, asked)
		if err != nil {
			return nil, err
		}
		change := &schemaChange{Change: judged}
		if change.writes, err = s.schemas.Writes(ctx, judged, r.GetTopic()); err != nil {
			return nil, err
		}
		whole := proto.CloneOf(r)
		if whole.Config.Schema = judged.To; judged.To == nil {
			whole.Config.Schema = &topicv1.TopicSchema{} // removes it
		}
		answer, err := s.configure(ctx, c, whole, change)
		if !errors.Is(err, serving.ErrSchemaChanged) && !lostSchema(err) {
			return answer, err
		}
	}
	return nil, errSchemaBusy
}

// lostSchema reports whether a plan failed because the schema was deleted meanwhile.
func lostSchema(err error) bool {
	var failed *store.ConditionError
	if !errors.As(err, &failed) {
		return false
	}
	_, is := failed.Failed(registry.KeptName)
	return is
}
