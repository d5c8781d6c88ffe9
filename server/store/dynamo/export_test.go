package dynamo

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
)

// GenerationKey is where the generation is.
var GenerationKey = generationKey

// NoShort makes plans of one write transactions, too.
func NoShort(o *Options) { o.noShort = true }

// Options are those that the store was opened with.
func (s *Store) Options() Options { return s.opts }

// PutRaw puts what no engine writes.
func (s *Store) PutRaw(ctx context.Context, k store.Key, name string, v types.AttributeValue) error {
	sh := s.shapes[k.Table]
	it := sh.key(k)
	it[name] = v
	_, err := s.wire.DB.PutItem(ctx, &dynamodb.PutItemInput{TableName: &sh.name, Item: it})
	return err
}
