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

// SearchTopics are the declared topics of search events, each of which has one of dead
// letters, with SearchDeadLetters behind its name. Other topics can take their place, see
// package search.
var SearchTopics = []string{"search_impression_v1", "search_result_summary_v1", "search_click_v1", "search_dwell_v1",
	"ac_impression_v1", "ac_select_v1"}

// SearchDeadLetters ends the names of topics of dead letters of search events.
const SearchDeadLetters = ".dlq"

// SearchPartitions is the number of partitions of a topic of search events.
const SearchPartitions = 8

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
	list := []Topic{
		event(MessagesPersisted, 64, "107374182400"),
		event(MembershipsChanged, 16, "10737418240"),
		event(ChatsCreated, 16, "10737418240"),
		dead,
	}
	for _, name := range SearchTopics {
		letters := event(name+SearchDeadLetters, 1, "1073741824")
		letters.Configs["retention.ms"] = days30
		list = append(list, event(name, SearchPartitions, "26843545600"), letters)
	}
	return list
}

// OfChats reports whether a declared topic has the events of chats, which stay in order while
// it is migrated.
func OfChats(topic string) bool {
	return topic == MessagesPersisted || topic == MembershipsChanged || topic == ChatsCreated
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
