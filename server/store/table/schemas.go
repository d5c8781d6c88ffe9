package table

import "github.com/parley-chat/parley/server/store"

// Schema is a version of a subject of the schema registry. Table schemas, key
// subject and version.
type Schema struct {
	Subject string
	Version int64
	ID      int64
	Text    []byte // serialized FileDescriptorProto
}

// SchemaKey is the key of a subject's version.
func SchemaKey(subject string, version int64) store.Key {
	return store.Key{Table: store.Schemas, PK: subject, SK: Number(version)}
}

// SchemaCounterKey is the key of the last id that was given out.
func SchemaCounterKey() store.Key { return store.Key{Table: store.Schemas, PK: "#ids", SK: "last"} }

// AttrLastID holds that id.
const AttrLastID = "last_id"

// Item returns the row as an item.
func (s Schema) Item() store.Item {
	return store.NewItem(
		store.Attr{Name: "id", Value: store.Int(s.ID)},
		store.Attr{Name: "schema", Value: store.Bytes(s.Text)},
	)
}

// SchemaFrom reads a row of schemas.
func SchemaFrom(r store.Row) (Schema, error) {
	v, err := parseNumber(r.Key.SK)
	if err != nil {
		return Schema{}, err
	}
	return Schema{Subject: r.Key.PK, Version: v, ID: r.Item.Get("id").Int64(), Text: r.Item.Get("schema").Blob()}, nil
}
