// Package kafka is the only user of Kafka's protocol: the declared topics, clients with
// fixed settings, and the embedded broker.
//
// It owns names and configurations of topics, the settings of producers and consumers,
// and everything that keeps the embedded broker safe to run. What is published and
// consumed belongs to the workers.
//
// Clients and the embedded broker (the files embedded*.go) are one package because the
// broker starts, recovers and reads its log through the same clients, and its tests hold
// both to one contract.
//
// Concurrency: types are safe for use by many goroutines where they do not say otherwise.
package kafka

// Topic is a declared topic. The table below is the only declaration: code, tests, ACLs and
// Terraform derive from it.
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

	// MaxEvent is the largest value of an event's record, in bytes. A dead letter holds
	// one in base64, and the cause of its failure, and must fit into max.message.bytes.
	MaxEvent = 256 << 10
)

// Topics returns the declared topics. Partition counts never change, because a chat's
// events would move to another partition and lose their order: more partitions are a new
// topic.
func Topics() []Topic {
	event := func(name string, partitions int32, bytes string) Topic {
		return Topic{name, partitions, map[string]string{
			"cleanup.policy": "delete", "retention.ms": days7, "retention.bytes": bytes, "min.insync.replicas": "2",
			"compression.type": "producer", "message.timestamp.type": "CreateTime", "max.message.bytes": "1048588",
			"unclean.leader.election.enable": "false", // a leader that lacks records would lose them
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

// counts are the declared numbers of partitions, looked up for each published record.
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
