package storage

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Differences returns the settings that a request asked for, in a message that sets nothing else,
// and that have another value in the message of what there is.
func Differences(is, asked proto.Message) ([]*topicv1.SettingDifference, error) {
	a, err := settings(asked)
	if err != nil {
		return nil, err
	}
	b, err := settings(is)
	if err != nil {
		return nil, err
	}
	return differences("", b, a), nil
}

// settings are what a message sets, by the names of its fields.
func settings(m proto.Message) (map[string]any, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	return values, json.Unmarshal(b, &values)
}

// groupedSettings are messages whose fields are settings of their own.
var groupedSettings = []string{"retry", "limits"}

func differences(prefix string, is, asked map[string]any) (list []*topicv1.SettingDifference) {
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if slices.Contains(groupedSettings, name) {
			some, _ := asked[name].(map[string]any)
			have, _ := is[name].(map[string]any)
			list = append(list, differences(name+".", have, some)...)
		} else if !reflect.DeepEqual(asked[name], is[name]) {
			list = append(list, &topicv1.SettingDifference{
				Name: prefix + name, Is: settingText(is[name]), Asked: settingText(asked[name]),
			})
		}
	}
	return list
}

// maxSettingText bounds a value that is shown, in bytes.
const maxSettingText = 1000

// settingText is a value as people read it.
func settingText(v any) string {
	text, ok := v.(string)
	if v == nil {
		return "not set"
	}
	if !ok {
		b, err := json.Marshal(v)
		if err != nil {
			return "unknown"
		}
		text = string(b)
	}
	if len(text) <= maxSettingText {
		return text
	}
	const cut = "..."
	end := maxSettingText - len(cut)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cut
}
