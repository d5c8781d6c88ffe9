// Package jsonbody parses JSON messages as both the RPCs and the REST API accept them, and
// explains errors in terms of the contract.
//
// It is stateless and safe for concurrent use.
package jsonbody

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Unmarshal fills a message. Unknown fields are skipped, because an older server must
// accept a newer client; the requests in strict are refused with them. Unknown
// names of enums are not skipped, unlike protojson's way
// with both: the server would do something else than it was asked to. The text of
// an error follows "proto: ".
func Unmarshal(b []byte, m proto.Message) error {
	err := protojson.Unmarshal(b, m)
	if err == nil {
		return nil
	}
	if lenient := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); lenient != nil {
		return lenient
	}
	var object map[string]any
	if broken := json.Unmarshal(b, &object); broken != nil {
		return fmt.Errorf("proto: %w", broken)
	}
	d := m.ProtoReflect().Descriptor()
	if bad := checkEnums(d, object); bad != nil || !strict[d.FullName()] {
		return bad
	}
	return err
}

// checkEnums looks for names that are no values.
func checkEnums(d protoreflect.MessageDescriptor, object map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(object)) { // sorted: the same request fails alike
		f := d.Fields().ByJSONName(key)
		if f == nil {
			f = d.Fields().ByTextName(key)
		}
		if f == nil || f.IsMap() {
			continue // no request has a map
		}
		values, ok := object[key].([]any)
		if !ok {
			values = []any{object[key]}
		}
		for _, value := range values {
			switch value := value.(type) {
			case string:
				if f.Enum() != nil && f.Enum().Values().ByName(protoreflect.Name(value)) == nil {
					return fmt.Errorf("proto: %s must be one of %s, not %q", f.JSONName(), Values(f.Enum()), value)
				}
			case map[string]any:
				if f.Message() != nil {
					if err := checkEnums(f.Message(), value); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// Values lists the names of an enum's values, but for the one that stands for
// nothing.
func Values(e protoreflect.EnumDescriptor) string {
	var names []string
	for i := range e.Values().Len() {
		if v := e.Values().Get(i); v.Number() != 0 {
			names = append(names, string(v.Name()))
		}
	}
	return strings.Join(names, ", ")
}
