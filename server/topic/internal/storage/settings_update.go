package storage

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxPaths bounds the paths of an update's mask.
const maxPaths = 32

// fixedSettings say where a subscription began: they cannot be changed.
var fixedSettings = []string{"start", "backfill"}

// changeable are the settings of a subscription that can be changed, by their names in the
// contract, with those in retry one by one.
var changeable = func() (names []string) {
	fields := (&topicv1.SubscriptionConfig{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if slices.Contains(fixedSettings, string(f.Name())) {
			continue
		}
		names = append(names, string(f.Name()))
		if f.Name() == "retry" {
			for j := range f.Message().Fields().Len() {
				names = append(names, "retry."+string(f.Message().Fields().Get(j).Name()))
			}
		}
	}
	return names
}()

// UpdateSubscription returns the settings of a subscription after a change, all of them set. paths
// name the settings that change; those that change does not set get their defaults. Without paths
// the settings that change sets are meant. warnings are for people.
func UpdateSubscription(
	old, change *topicv1.SubscriptionConfig, paths []string, p topicv1.Preset,
) (next *topicv1.SubscriptionConfig, warnings []string, err error) {
	if change == nil {
		change = &topicv1.SubscriptionConfig{}
	}
	if len(paths) == 0 {
		paths = setPaths(change)
	}
	if len(paths) == 0 {
		return nil, nil, refusal.New(refusal.InvalidArgument, "the request changes nothing: set a setting in config")
	}
	if err := CheckPaths(paths); err != nil {
		return nil, nil, err
	}
	next = proto.CloneOf(old)
	for _, path := range paths {
		if in, ok := strings.CutPrefix(path, "retry."); ok {
			if next.Retry == nil {
				next.Retry = &topicv1.RetryPolicy{}
			}
			copyField(next.GetRetry().ProtoReflect(), change.GetRetry().ProtoReflect(), in)
		} else {
			copyField(next.ProtoReflect(), change.ProtoReflect(), path)
		}
	}
	if next.GetPush() != nil && next.GetPush().GetUrl() == "" {
		next.Push.Url = old.GetPush().GetUrl()
	}
	return SubscriptionConfig(next, p)
}

// SetsPush reports whether an update sets the webhook, or removes it.
func SetsPush(change *topicv1.SubscriptionConfig, paths []string) bool {
	return slices.Contains(paths, "push") || len(paths) == 0 && change.GetPush() != nil
}

// CheckPaths refuses the paths of a mask that no update can have.
func CheckPaths(paths []string) error {
	if len(paths) > maxPaths {
		return refusal.New(refusal.InvalidArgument, "update_mask has %d paths, more than %d", len(paths), maxPaths)
	}
	for _, path := range paths {
		if slices.Contains(fixedSettings, path) {
			return refusal.New(refusal.InvalidArgument, "%s cannot be changed, because the subscription has begun: "+
				"move the group with SeekSubscription, or give it older messages with StartBackfill", path)
		}
		if !slices.Contains(changeable, path) {
			return refusal.New(refusal.InvalidArgument, "%.100q cannot be changed: update_mask takes %s", path,
				strings.Join(changeable, ", "))
		}
	}
	return nil
}

// setPaths are the settings that a change sets.
func setPaths(change *topicv1.SubscriptionConfig) (paths []string) {
	change.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() != "retry" {
			paths = append(paths, string(f.Name()))
			return true
		}
		v.Message().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			paths = append(paths, "retry."+string(f.Name()))
			return true
		})
		return true
	})
	slices.Sort(paths)
	return paths
}

// copyField sets a field as it is in another message, or clears it where that does not set it.
func copyField(to, from protoreflect.Message, name string) {
	f := to.Descriptor().Fields().ByName(protoreflect.Name(name))
	if from.IsValid() && from.Has(f) {
		to.Set(f, proto.Clone(from.Interface()).ProtoReflect().Get(f))
	} else {
		to.Clear(f)
	}
}
