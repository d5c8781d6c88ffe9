package table

import (
	"reflect"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

// A version comes back as it was written, rows of format 1 too, and damage is told
// from content.
func TestSchemaRows(t *testing.T) {
	s := Schema{
		Subject: "s", Version: 3, ID: 7, Format: SchemaFormat, Text: strings.Repeat("syntax = \"proto3\";\n", 1000),
		Descriptor: []byte{1, 2, 3},
		References: []SchemaReference{{Name: "a/b.proto", Subject: "a/b.proto", Version: 2},
			{Name: "c d.proto", Subject: "x/y", Version: 1}},
		Deleted: true, Referred: 4,
	}
	got, err := SchemaFrom(store.Row{Key: SchemaKey("s", 3), Item: s.Item()})
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v, %v", got, err)
	}
	if size := s.Item().Size(); size > 2000 {
		t.Errorf("%d bytes for a text that repeats itself", size)
	}
	old := store.NewItem(store.Attr{Name: "id", Value: store.Int(5)},
		store.Attr{Name: "schema", Value: store.Bytes([]byte{9})})
	got, err = SchemaFrom(store.Row{Key: SchemaKey("s", 1), Item: old})
	if err != nil || got.ID != 5 || got.Format != 1 || string(got.Descriptor) != "\x09" {
		t.Errorf("%+v, %v", got, err)
	}
	for name, it := range map[string]store.Item{
		"not packed": store.NewItem(store.Attr{Name: "format", Value: store.Int(2)},
			store.Attr{Name: "text", Value: store.Bytes([]byte("x"))}),
		"a bomb": store.NewItem(store.Attr{Name: "format", Value: store.Int(2)},
			store.Attr{Name: "text", Value: store.Bytes(pack(make([]byte, maxSchema+1)))}),
		"references": store.NewItem(store.Attr{Name: "format", Value: store.Int(2)},
			store.Attr{Name: "text", Value: store.Bytes(pack(nil))},
			store.Attr{Name: "descriptor", Value: store.Bytes(pack(nil))},
			store.Attr{Name: "references", Value: store.List([]string{"x"})}),
	} {
		if _, err := SchemaFrom(store.Row{Key: SchemaKey("s", 1), Item: it}); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	subject, version, err := SchemaUseFrom(store.Row{Key: SchemaUseKey(7, "a/b/c", 12)})
	if err != nil || subject != "a/b/c" || version != 12 {
		t.Errorf("%q %d %v", subject, version, err)
	}
	whole := SchemaSubject{Revision: 1, Last: 2, Live: 3, Total: 4}
	if got := SchemaSubjectFrom(whole.Item()); got != whole {
		t.Errorf("%+v", got)
	}
	if id, err := SchemaReferrerFrom(store.Row{Key: SchemaReferrerKey(s.References[0], 8)}); err != nil || id != 8 {
		t.Errorf("%d, %v", id, err)
	}
}
