package kafka

import (
	"strconv"
	"testing"
)

// K-001…K-015, K-028.
func TestDeclaredTopics(t *testing.T) {
	type declared struct {
		partitions       int32
		retention, bytes string
	}
	want := map[string]declared{
		"messages.persisted":  {64, "604800000", "107374182400"},
		"memberships.changed": {16, "604800000", "10737418240"},
		"chats.created":       {16, "604800000", "10737418240"},
		"dead_letters":        {8, "2592000000", "53687091200"},
	}
	for _, name := range []string{"search_impression_v1", "search_result_summary_v1", "search_click_v1", "search_dwell_v1",
		"ac_impression_v1", "ac_select_v1"} {
		want[name] = declared{8, "604800000", "26843545600"}
		want[name+".dlq"] = declared{1, "2592000000", "1073741824"}
	}
	if len(Topics()) != len(want) {
		t.Fatalf("%d topics", len(Topics()))
	}
	for _, topic := range Topics() {
		w := want[topic.Name]
		if topic.Partitions != w.partitions || Partitions(topic.Name) != w.partitions {
			t.Errorf("%s has %d partitions", topic.Name, topic.Partitions)
		}
		for name, value := range map[string]string{
			"cleanup.policy": "delete", "min.insync.replicas": "2", "retention.ms": w.retention, "retention.bytes": w.bytes,
			"message.timestamp.type": "CreateTime", "compression.type": "producer",
		} {
			if topic.Configs[name] != value {
				t.Errorf("%s: %s is %q, not %q", topic.Name, name, topic.Configs[name], value)
			}
		}
		// An event may be as large as a topic takes; its dead letter holds it in base64.
		least := MaxEvent
		if topic.Name == DeadLetters {
			least = (4*MaxEvent+2)/3 + 64<<10
		}
		if n, err := strconv.Atoi(topic.Configs["max.message.bytes"]); err != nil || n < least {
			t.Errorf("%s takes %q bytes, not %d", topic.Name, topic.Configs["max.message.bytes"], least)
		}
	}
}
