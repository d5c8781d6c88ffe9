package table

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"

	"github.com/parley-chat/parley/server/store"
)

// maxSchema bounds a schema's text, and its descriptor, when they are unpacked.
const maxSchema = 1 << 20

// Schema is a version of a subject of the schema registry. Table schemas, key
// subject and version. Rows of format 1 have a descriptor only.
type Schema struct {
	Subject    string
	Version    int64
	ID         int64
	Format     int64
	Text       string // source, as it was registered
	Descriptor []byte // serialized FileDescriptorProto without source positions
	References []SchemaReference
	Deleted    bool  // softly: still readable by id
	Referred   int64 // +1 with every reference that is made to it
}

// SchemaFormat is that of the rows that are written.
const SchemaFormat = 2

// SchemaReference is an import: the path it is imported by, and the version of a
// subject that it means.
type SchemaReference struct {
	Name, Subject string
	Version       int64
}

// Other partitions of the table. No subject begins with a number sign.
const (
	schemaIDs          = "#ids"
	schemaSubjects     = "#subjects"
	schemaSettings     = "#settings"
	schemaFingerprints = "#fingerprint/"
	schemaUses         = "#id/"
	schemaReferrers    = "#refs/"
	schemaKeepers      = "#keepers/"
)

// SchemaKey is the key of a subject's version.
func SchemaKey(subject string, version int64) store.Key {
	return store.Key{Table: store.Schemas, PK: subject, SK: Number(version)}
}

// SchemaCounterKey is the key of the last id that was given out.
func SchemaCounterKey() store.Key { return store.Key{Table: store.Schemas, PK: schemaIDs, SK: "last"} }

// AttrLastID holds that id.
const AttrLastID = "last_id"

// SchemaSubjectsPartition lists all subjects; the sort key is the subject.
const SchemaSubjectsPartition = schemaSubjects

// SchemaSubjectKey is the key of the row of a subject as a whole.
func SchemaSubjectKey(subject string) store.Key {
	return store.Key{Table: store.Schemas, PK: schemaSubjects, SK: subject}
}

// SchemaFingerprintKey is the key of the id that equal schemas share, regardless of their
// subjects.
func SchemaFingerprintKey(fingerprint string) store.Key {
	return store.Key{Table: store.Schemas, PK: schemaFingerprints + fingerprint, SK: "id"}
}

// SchemaUsePartition lists the versions that have an id.
func SchemaUsePartition(id int64) string { return schemaUses + Number(id) }

// SchemaUseKey is the key of one of them.
func SchemaUseKey(id int64, subject string, version int64) store.Key {
	return store.Key{Table: store.Schemas, PK: SchemaUsePartition(id), SK: Number(version) + "/" + subject}
}

// SchemaUseFrom reads a row of them.
func SchemaUseFrom(r store.Row) (subject string, version int64, err error) {
	number, subject, ok := strings.Cut(r.Key.SK, "/")
	if !ok {
		return "", 0, fmt.Errorf("use of a schema %q: %w", r.Key.SK, store.ErrCorrupt)
	}
	version, err = parseNumber(number)
	return subject, version, err
}

// SchemaReferrersPartition lists the ids of schemas that import a version.
func SchemaReferrersPartition(subject string, version int64) string {
	return schemaReferrers + Number(version) + "/" + subject
}

// SchemaReferrerKey is the key of one of them.
func SchemaReferrerKey(r SchemaReference, id int64) store.Key {
	return store.Key{Table: store.Schemas, PK: SchemaReferrersPartition(r.Subject, r.Version), SK: Number(id)}
}

// SchemaReferrerFrom reads the id of a row of them.
func SchemaReferrerFrom(r store.Row) (int64, error) { return parseNumber(r.Key.SK) }

// SchemaKeepersPartition lists the keepers that prevent the permanent deletion of a schema; the sort key is the keeper.
func SchemaKeepersPartition(id int64) string { return schemaKeepers + Number(id) }

// SchemaKeeperKey is the key of one of them.
func SchemaKeeperKey(id int64, keeper string) store.Key {
	return store.Key{Table: store.Schemas, PK: SchemaKeepersPartition(id), SK: keeper}
}

// SchemaTopic is a topic as a keeper of a schema.
func SchemaTopic(topic string) string { return "topic " + topic }

// SchemaSettingKey is the key of a setting ("level", "mode") of a subject, or with
// an empty subject of all of them.
func SchemaSettingKey(name, subject string) store.Key {
	return store.Key{Table: store.Schemas, PK: schemaSettings, SK: name + "/" + subject}
}

// AttrSetting holds its value.
const AttrSetting = "value"

// SchemaSubject is the row of a subject as a whole.
type SchemaSubject struct {
	Revision int64 // +1 with every change of the subject: writers compare and set it
	Last     int64 // highest version that was given out
	Live     int64 // versions that are not deleted
	Total    int64 // versions, the softly deleted included
}

// AttrRevision is the attribute of SchemaSubject.Revision and UserChat.Revision, and of
// the versions of topics.
const AttrRevision = "revision"

// Item returns the row as an item.
func (s SchemaSubject) Item() store.Item {
	return store.NewItem(
		store.Attr{Name: AttrRevision, Value: store.Int(s.Revision)},
		store.Attr{Name: "last", Value: store.Int(s.Last)},
		store.Attr{Name: "live", Value: store.Int(s.Live)},
		store.Attr{Name: "total", Value: store.Int(s.Total)},
	)
}

// SchemaSubjectFrom reads an item; nil is a subject that was never there.
func SchemaSubjectFrom(it store.Item) SchemaSubject {
	return SchemaSubject{
		Revision: it.Get(AttrRevision).Int64(), Last: it.Get("last").Int64(), Live: it.Get("live").Int64(),
		Total: it.Get("total").Int64(),
	}
}

// AttrReferred is the attribute of Schema.Referred; 0 is left out.
const AttrReferred = "referred"

// AttrDeleted marks a version that is softly deleted.
const AttrDeleted = "deleted"

// Item returns the row as an item, text and descriptor packed.
func (s Schema) Item() store.Item {
	attrs := []store.Attr{
		{Name: "id", Value: store.Int(s.ID)},
		{Name: "format", Value: store.Int(SchemaFormat)},
		{Name: "text", Value: store.Bytes(pack([]byte(s.Text)))},
		{Name: "descriptor", Value: store.Bytes(pack(s.Descriptor))},
	}
	if len(s.References) > 0 {
		var list []string
		for _, r := range s.References {
			list = append(list, Number(r.Version)+"\n"+r.Name+"\n"+r.Subject)
		}
		attrs = append(attrs, store.Attr{Name: "references", Value: store.List(list)})
	}
	if s.Referred > 0 {
		attrs = append(attrs, store.Attr{Name: AttrReferred, Value: store.Int(s.Referred)})
	}
	if s.Deleted {
		attrs = append(attrs, store.Attr{Name: AttrDeleted, Value: store.Bool(true)})
	}
	return store.NewItem(attrs...)
}

// SchemaFrom reads a row of schemas.
func SchemaFrom(r store.Row) (Schema, error) {
	v, err := parseNumber(r.Key.SK)
	if err != nil {
		return Schema{}, err
	}
	s := Schema{Subject: r.Key.PK, Version: v, ID: r.Item.Get("id").Int64(), Format: r.Item.Get("format").Int64(),
		Deleted: r.Item.Get(AttrDeleted).True(), Referred: r.Item.Get(AttrReferred).Int64()}
	if s.Format < SchemaFormat {
		s.Format, s.Descriptor = 1, r.Item.Get("schema").Blob()
		return s, nil
	}
	text, err := unpack(r.Item.Get("text").Blob())
	if err != nil {
		return Schema{}, fmt.Errorf("text of %s: %w", r.Key, err)
	}
	s.Text = string(text)
	if s.Descriptor, err = unpack(r.Item.Get("descriptor").Blob()); err != nil {
		return Schema{}, fmt.Errorf("descriptor of %s: %w", r.Key, err)
	}
	for _, line := range r.Item.Get("references").Strings() {
		parts := strings.Split(line, "\n")
		if len(parts) != 3 {
			return Schema{}, fmt.Errorf("references of %s: %w", r.Key, store.ErrCorrupt)
		}
		version, err := parseNumber(parts[0])
		if err != nil {
			return Schema{}, err
		}
		s.References = append(s.References, SchemaReference{Name: parts[1], Subject: parts[2], Version: version})
	}
	return s, nil
}

func pack(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b) // a buffer takes everything
	_ = z.Close()
	return out.Bytes()
}

func unpack(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	out, err := io.ReadAll(io.LimitReader(z, maxSchema+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	case len(out) > maxSchema:
		return nil, fmt.Errorf("larger than %d bytes: %w", maxSchema, store.ErrCorrupt)
	}
	return out, nil
}
