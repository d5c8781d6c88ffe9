package dynamo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
)

type attributes = map[string]types.AttributeValue

// schema is a table as DynamoDB knows it.
type schema struct {
	def    store.Def
	name   string // with the prefix
	pk, sk string // attributes of the key; sk is "" without a sort key
}

func schemas(prefix string) map[store.Table]*schema {
	m := map[store.Table]*schema{}
	for _, d := range tables.Definitions(prefix) {
		m[d.Table] = &schema{def: store.Def{Name: d.Table, SortKey: d.SortKey != "", TTL: d.TTL}, name: d.Name,
			pk: d.PartitionKey, sk: d.SortKey}
	}
	return m
}

func (sc *schema) key(k store.Key) attributes {
	m := attributes{sc.pk: &types.AttributeValueMemberS{Value: k.PK}}
	if sc.sk != "" {
		m[sc.sk] = &types.AttributeValueMemberS{Value: k.SK}
	}
	return m
}

func (sc *schema) isKey(name string) bool { return name == sc.pk || (name == sc.sk && sc.sk != "") }

// column is the name under which an attribute is stored. One that is named as a part
// of the key, which the contract allows, gets an underscore, and so does one that
// already has some, so that no two meet.
func (sc *schema) column(name string) string {
	if sc.isKey(strings.TrimLeft(name, "_")) {
		return "_" + name
	}
	return name
}

// attr is the inverse of column.
func (sc *schema) attr(column string) string {
	if strings.HasPrefix(column, "_") && sc.isKey(strings.TrimLeft(column, "_")) {
		return column[1:]
	}
	return column
}

func (sc *schema) encode(k store.Key, it store.Item) attributes {
	m := sc.key(k)
	for _, a := range it {
		m[sc.column(a.Name)] = encode(a.Value)
	}
	return m
}

func encode(v store.Value) types.AttributeValue {
	switch v.Kind() {
	case store.KindInt:
		return number(v.Int64())
	case store.KindBytes:
		return &types.AttributeValueMemberB{Value: v.Blob()}
	case store.KindBool:
		return &types.AttributeValueMemberBOOL{Value: v.True()}
	case store.KindList:
		list := v.Strings()
		l := make([]types.AttributeValue, len(list))
		for i, s := range list {
			l[i] = &types.AttributeValueMemberS{Value: s}
		}
		return &types.AttributeValueMemberL{Value: l}
	}
	return &types.AttributeValueMemberS{Value: v.Str()}
}

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// decode reads an item, nil for none. A row that no engine of ours writes is an error that
// wraps store.ErrCorrupt.
func (sc *schema) decode(m attributes) (store.Row, error) {
	row := store.Row{Key: store.Key{Table: sc.def.Name}}
	if len(m) == 0 {
		return row, nil
	}
	attrs := make([]store.Attr, 0, len(m))
	for column, av := range m {
		v, ok := decode(av)
		switch {
		case !ok:
			return row, fmt.Errorf("%w: table %s: attribute %.100q is %T", store.ErrCorrupt, sc.name, column, av)
		case column == sc.pk:
			row.Key.PK = v.Str()
		case sc.isKey(column):
			row.Key.SK = v.Str()
		default:
			attrs = append(attrs, store.Attr{Name: sc.attr(column), Value: v})
		}
	}
	row.Item = store.NewItem(attrs...)
	return row, nil
}

func decode(av types.AttributeValue) (store.Value, bool) {
	switch av := av.(type) {
	case *types.AttributeValueMemberS:
		return store.String(av.Value), true
	case *types.AttributeValueMemberN:
		n, err := strconv.ParseInt(av.Value, 10, 64)
		return store.Int(n), err == nil
	case *types.AttributeValueMemberB:
		return store.Bytes(av.Value), true
	case *types.AttributeValueMemberBOOL:
		return store.Bool(av.Value), true
	case *types.AttributeValueMemberL:
		var list []string
		for _, e := range av.Value {
			s, ok := e.(*types.AttributeValueMemberS)
			if !ok {
				return store.Value{}, false
			}
			list = append(list, s.Value)
		}
		return store.List(list), true
	}
	return store.Value{}, false
}
