// Package kafka is the only user of Kafka's protocol as a client: the declared topics, and clients with
// fixed settings.
//
// It owns names and configurations of topics, and the settings of producers and consumers. The workers own the
// published and consumed records.
//
// Concurrency: types are safe for use by many goroutines where they do not say otherwise.
package kafka

import (
	"slices"
	"time"
)

// Topic is a declared topic. The table below is the only declaration: which groups read a
// topic, what may be trimmed from the embedded log, ACLs, Terraform, tests and the lists of
// other packages derive from it.
type Topic struct {
	Name       string
	Partitions int32
	Configs    map[string]string
	Kind       Kind
	// Readers are Parley's own consumer groups that read the topic. Records of [Chats] are
	// trimmed only when all of them have committed offsets beyond them.
	Readers []string
	// ID is Kafka's id of a topic of the event log in the store: never zero there, and never used again for another
	// topic. Elsewhere it is not set.
	ID [16]byte
}

// Kind says what the records of a topic are. The event log in the store has a share for each but events of chats.
type Kind uint8

// The kinds of topics.
const (
	Chats                Kind = iota + 1 // events of chats; only these topics are migrated
	DeadLetterKind                       // records that a consumer could not handle
	Searches                             // search events
	SearchDeadLetterKind                 // search events that their topic refused
)

// Kinds lists all kinds, events of chats first.
func Kinds() []Kind { return []Kind{Chats, DeadLetterKind, Searches, SearchDeadLetterKind} }

// shares is the number of parts that the cap of the event log in the store has.
const shares = 16

// limits is what a kind may use of that log, by kind.
//
// Events of chats are references to what the store has anyway: they wait for their readers without a
// limit. Of the others the oldest records go, read or not: no group of Parley has to read search
// events, and dead letters must not stop consumers. The removed records are still in the store,
// except the dead letters of consumers.
var limits = [...]struct {
	share int64
	// kept is how long a record stays at least, so that a reader which is connected can
	// have it before it is trimmed.
	kept time.Duration
}{
	Chats:                {},
	DeadLetterKind:       {share: 2},
	Searches:             {share: 4, kept: time.Minute},
	SearchDeadLetterKind: {share: 1},
}

// Share is how many bytes of a log with a cap a kind may use.
func (k Kind) Share(maxBytes int64) int64 { return maxBytes / shares * limits[k].share }

// Kept is how long a record of a kind stays at least, also in a log that is full.
func (k Kind) Kept() time.Duration { return limits[k].kept }

// Groups that read topics. The committed offsets of installations have these names.
const (
	FanoutGroup    = "fanout-workers"
	ProjectorGroup = "projector-workers"
)

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
		return Topic{Name: name, Partitions: partitions, Configs: map[string]string{
			"cleanup.policy": "delete", "retention.ms": days7, "retention.bytes": bytes, "min.insync.replicas": "2",
			"compression.type": "producer", "message.timestamp.type": "CreateTime", "max.message.bytes": "1048588",
			"unclean.leader.election.enable": "false", // a leader that lacks records would lose them
		}}
	}
	of := func(kind Kind, t Topic, readers ...string) Topic {
		t.Kind, t.Readers = kind, readers
		if kind == DeadLetterKind || kind == SearchDeadLetterKind {
			t.Configs["retention.ms"] = days30
		}
		return t
	}
	list := []Topic{
		of(Chats, event(MessagesPersisted, 64, "107374182400"), FanoutGroup, ProjectorGroup),
		of(Chats, event(MembershipsChanged, 16, "10737418240"), FanoutGroup),
		of(Chats, event(ChatsCreated, 16, "10737418240"), FanoutGroup),
		of(DeadLetterKind, event(DeadLetters, 8, "53687091200"), ProjectorGroup),
	}
	for _, name := range SearchTopics {
		list = append(list, of(Searches, event(name, SearchPartitions, "26843545600")),
			of(SearchDeadLetterKind, event(name+SearchDeadLetters, 1, "1073741824")))
	}
	return list
}

// Groups lists the consumer groups of Parley that read declared topics.
func Groups() []string { return []string{FanoutGroup, ProjectorGroup} }

// ReadBy lists the declared topics that a consumer group of Parley reads.
func ReadBy(group string) []string {
	var names []string
	for _, t := range Topics() {
		if slices.Contains(t.Readers, group) {
			names = append(names, t.Name)
		}
	}
	return names
}

// OwnPrefix begins the names of the topics and groups that Parley keeps for itself on
// Kafka, beside the declared topics.
const OwnPrefix = "parley."

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
