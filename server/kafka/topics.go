// Package kafka is the one place that speaks Kafka: the declared topics, clients
// with our settings, and the embedded broker.
//
// It owns names and configurations of topics, the settings of producers and
// consumers, and everything that keeps the embedded broker safe to run. What is
// published, and what becomes of it, belongs to the workers.
//
// Concurrency: the types here are safe for use by many goroutines.
package kafka

// Topic is a declared topic: the table below is what code, tests and operators
// go by (K-001…K-015).
type Topic struct {
	Name       string
	Partitions int32
	Configs    map[string]string
}

// Names of the topics.
const (
	MessagesPersisted  = "messages.persisted"
	MembershipsChanged = "memberships.changed"
	ChatsCreated       = "chats.created"
	DeadLetters        = "dead_letters"
)

const (
	days7  = "604800000"
	days30 = "2592000000"

	// MaxEvent is the largest value of an event's record, in bytes. A dead letter
	// holds one in base64, and what is known of it besides (K-028).
	MaxEvent = 256 << 10
)

// Topics returns the declared topics. Partition counts never change: more
// partitions are a new topic (K-048).
func Topics() []Topic {
	event := func(name string, partitions int32, bytes string) Topic {
		return Topic{name, partitions, map[string]string{
			"cleanup.policy": "delete", "retention.ms": days7, "retention.bytes": bytes, "min.insync.replicas": "2",
			"compression.type": "producer", "message.timestamp.type": "CreateTime", "max.message.bytes": "1048588",
			"unclean.leader.election.enable": "false", // a leader that lacks records would lose them (K-031)
		}}
	}
	dead := event(DeadLetters, 8, "53687091200")
	dead.Configs["retention.ms"] = days30
	return []Topic{
		event(MessagesPersisted, 64, "107374182400"),
		event(MembershipsChanged, 16, "10737418240"),
		event(ChatsCreated, 16, "10737418240"),
		dead,
	}
}

// counts are the declared numbers of partitions: each record that is published asks.
var counts = func() map[string]int32 {
	m := map[string]int32{}
	for _, t := range Topics() {
		m[t.Name] = t.Partitions
	}
	return m
}()

// Partitions returns the declared number of partitions of a topic, 0 for one that
// is not declared.
func Partitions(topic string) int32 { return counts[topic] }
