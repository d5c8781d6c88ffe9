package dynamo

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
)

// GenerationKey is where the generation is.
var GenerationKey = generationKey

// MarkKey is where the mark of a table is.
func MarkKey(t store.Table) store.Key {
	for _, d := range markedTables() {
		if d.Name == t {
			return markKey(d)
		}
	}
	panic(t)
}

// Unmark removes all marks, which Scan does not show, and the line.
func (s *Store) Unmark(ctx context.Context) error {
	p := store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: generationKey}}}
	for _, d := range markedTables() {
		p.Writes = append(p.Writes, store.Write{Op: store.OpDelete, Key: markKey(d)})
	}
	return s.Transact(ctx, p)
}

// FormatKey is where the format is.
var FormatKey = formatKey

// EnterFormat records the format of a version.
func (s *Store) EnterFormat(ctx context.Context, known Format) error {
	return s.enterFormat(ctx, known)
}

// NoShort makes plans of one write transactions, too.
func NoShort(o *Options) { o.noShort = true }

// Options are those that the store was opened with.
func (s *Store) Options() Options { return s.opts }

// SizeByTheirRules is the size of an item as DynamoDB's documentation counts it: names
// and values in UTF-8, numbers with a byte for two digits, one more, and one for a sign,
// lists with three bytes and one for each element. It counts what is sent.
func SizeByTheirRules(k store.Key, it store.Item) (n int) {
	for name, v := range schemas("p_")[k.Table].encode(k, it) {
		n += len(name) + sizeOf(v)
	}
	return n
}

func sizeOf(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberB:
		return len(v.Value)
	case *types.AttributeValueMemberN:
		digits := strings.TrimPrefix(v.Value, "-")
		return (len(digits)+1)/2 + 1 + len(v.Value) - len(digits)
	case *types.AttributeValueMemberL:
		n := 3
		for _, e := range v.Value {
			n += 1 + sizeOf(e)
		}
		return n
	}
	return 1
}

// PutRaw puts what no engine writes.
func (s *Store) PutRaw(ctx context.Context, k store.Key, name string, v types.AttributeValue) error {
	sc := s.schemas[k.Table]
	it := sc.key(k)
	it[name] = v
	_, err := s.wire.DB.PutItem(ctx, &dynamodb.PutItemInput{TableName: &sc.name, Item: it})
	return err
}
