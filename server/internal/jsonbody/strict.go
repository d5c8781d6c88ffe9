package jsonbody

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// strict are the requests that must not have a field that the server does not know: those that choose
// settings or rights, and those that say what is removed. A misspelt retention keeps messages for another
// time than its author believes, a misspelt group gives a right to all groups, and a misspelt dry run
// removes messages. An error shows the mistake at once. A newer
// client that uses a setting which an older server does not have gets an error for the same reason.
// All other requests skip unknown fields.
var strict = map[protoreflect.FullName]bool{
	"parley.topic.v1.ConfigureTopicRequest":     true,
	"parley.topic.v1.CreateSubscriptionRequest": true,
	"parley.topic.v1.PurgeMessagesRequest":      true,
	"parley.topic.v1.SetBindingRequest":         true,
	"parley.topic.v1.StartBackfillRequest":      true,
	"parley.topic.v1.UpdateSubscriptionRequest": true,
}

// CheckKnown refuses a message of protobuf with a field, at any depth, that the server does not
// know, if it is a request that must not have one. The text of an error follows "proto: ".
func CheckKnown(m proto.Message) error {
	if r := m.ProtoReflect(); strict[r.Descriptor().FullName()] {
		return known(r)
	}
	return nil
}

func known(m protoreflect.Message) (err error) {
	if b := m.GetUnknown(); len(b) > 0 {
		number, _, _ := protowire.ConsumeTag(b)
		return fmt.Errorf("proto: unknown field %d of %s: the server does not have this setting", number,
			m.Descriptor().Name())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap(): // no request that is strict has a map
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = known(v.List().Get(i).Message())
			}
		default:
			err = known(v.Message())
		}
		return err == nil
	})
	return err
}
