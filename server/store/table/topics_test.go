package table

import (
	"testing"

	"github.com/parley-chat/parley/server/store"
)

func readTopics(r store.Row) (any, error) {
	if IsTopic(r.Key) {
		return TopicFrom(r.Item), nil
	}
	if _, ok := BoundPrincipal(r.Key); ok {
		return TopicBindingFrom(r.Item), nil
	}
	if _, ok := SubscribedGroup(r.Key); ok {
		return SubscriptionFrom(r.Item), nil
	}
	return TopicTrimFrom(r.Item), nil
}

func topicSamples() []store.Row {
	const at = 1_700_000_000_123
	return []store.Row{
		{Key: TopicKey("orders"), Item: Topic{
			Number: 7, Config: "{}", Preset: "PRESET_CRITICAL", Version: 3, CreatedAt: at, UpdatedAt: at + 1, Deleting: true,
			CreatedBy: "user_01",
		}.Item()},
		{Key: TopicKey("clicks"), Item: Topic{
			Number: 8, Config: "{}", Version: 1, CreatedAt: at, UpdatedAt: at, CreatedBy: "user_02",
		}.Item()},
		{Key: TopicBindingKey("orders", "user_01"), Item: TopicBinding{Role: "ROLE_ADMIN"}.Item()},
		{Key: TopicBindingKey("orders", "user_02"), Item: TopicBinding{
			Role: "ROLE_SUBSCRIBER", Groups: []string{"billing-*", "ledger"},
		}.Item()},
		{Key: TopicTrimKey("orders", 3), Item: TopicTrim{Before: 100, At: at}.Item()},
		{Key: TopicPurgeKey("orders"), Item: TopicPurge{Before: map[int32]int64{11: 7, 2: 100}, At: at}.Item()},
		{Key: SubscriptionKey("orders", "email"), Item: Subscription{
			Generation: 2, State: "active", Version: 9, Config: "{}", SubscribedAt: at, LastActiveAt: at + 2,
			HeartbeatAt: at + 1, Heartbeats: 4, Restarts: 1, Gap: true,
		}.Item()},
		{Key: SubscriptionKey("orders", "sms"), Item: Subscription{
			Generation: 1, State: "cancelled", Version: 2, Config: "{}", SubscribedAt: at, LastActiveAt: at,
		}.Item()},
		{Key: CursorKey(7, 3, "email", 2), Item: Cursor{Epoch: 5, State: []byte{1, 2}, At: at, MovedAt: at - 1}.Item()},
		{Key: MachineKey(7, 3), Item: Cursor{Epoch: 5, State: []byte{3}, At: at}.Item()},
	}
}

// What a key names is read back from it, and names of topics and groups do not run into
// what else stands beside them.
func TestKeysOfTopics(t *testing.T) {
	if p, ok := BoundPrincipal(TopicBindingKey("t", "a#b")); !ok || p != "a#b" {
		t.Error(p, ok)
	}
	if g, ok := SubscribedGroup(SubscriptionKey("t", "$queue")); !ok || g != "$queue" {
		t.Error(g, ok)
	}
	for _, k := range []store.Key{
		TopicBindingKey("t", "topic"), TopicCountersKey(0), TopicCountersKey(3), TopicSlotsKey(),
		TopicInstallationKey(), TopicListKey(3, "topic"), SubscriptionKey("t", "topic"),
	} {
		if IsTopic(k) {
			t.Errorf("%s is a topic", k)
		}
		if got, want := OfNoTopic(k), k.PK != "t"; got != want {
			t.Errorf("%s belongs to no topic: %t", k, got)
		}
	}
	if TopicCountersKey(0) == TopicCountersKey(1) || TopicListPartition(1) == TopicListPartition(11) {
		t.Error("slots share their rows")
	}
	if CursorKey(7, 1, "g", 1).PK == CursorKey(7, 11, "g", 1).PK ||
		CursorKey(1, 1, "g", 1).PK == CursorKey(11, 1, "g", 1).PK {
		t.Error("partitions share their cursors")
	}
}
