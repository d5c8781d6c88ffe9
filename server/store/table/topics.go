package table

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/store"
)

// Sort keys of table topics. A topic's name has no "#".
const (
	topicSK         = "topic"
	bindingSK       = "binding#"
	subscriptionSK  = "group#"
	trimSK          = "trim#"
	purgeSK         = "purge"
	topicsPartition = "#topics" // begins the keys of what belongs to no topic
	countersSK      = "counters"
)

// Topic is a topic. Table topics, key name and "topic".
type Topic struct {
	Number    int64  // its own for ever, also if another topic gets its name
	Config    string // JSON, all of it
	Preset    string // that its subscriptions take their defaults from; "" for none
	Version   int64  // counts the changes
	CreatedAt int64  // unix ms
	UpdatedAt int64  // unix ms
	Deleting  bool   // it is being removed
	CreatedBy string // a principal; "" for operators
}

// AttrDeleting is set while a topic is being removed.
const AttrDeleting = "deleting"

// TopicKey is the key of a topic.
func TopicKey(name string) store.Key { return store.Key{Table: store.Topics, PK: name, SK: topicSK} }

// IsTopic reports whether a key of table topics is that of a topic.
func IsTopic(k store.Key) bool { return k.SK == topicSK && !OfNoTopic(k) }

// Item returns the row as an item.
func (t Topic) Item() store.Item {
	a := make(attrs, 0, 8)
	a.str("config", t.Config)
	a.int("created_at", t.CreatedAt)
	a.optStr("created_by", t.CreatedBy)
	a.optBool(AttrDeleting, t.Deleting)
	a.int("number", t.Number)
	a.optStr("preset", t.Preset)
	a.int("updated_at", t.UpdatedAt)
	a.int(AttrVersion, t.Version)
	return a.item()
}

// TopicFrom reads a topic.
func TopicFrom(it store.Item) Topic {
	return Topic{
		Number: num(it, "number"), Config: str(it, "config"), Preset: str(it, "preset"), Version: num(it, AttrVersion),
		CreatedAt: num(it, "created_at"), UpdatedAt: num(it, "updated_at"), Deleting: it.Get(AttrDeleting).True(),
		CreatedBy: str(it, "created_by"),
	}
}

// TopicBinding gives a principal a role in a topic. Table topics, key name and
// "binding#" with the principal.
type TopicBinding struct {
	Role   string
	Groups []string // patterns of the groups that a subscriber may use; empty: all
}

// TopicBindingKey is the key of a principal's role in a topic.
func TopicBindingKey(topic, principal string) store.Key {
	return store.Key{Table: store.Topics, PK: topic, SK: bindingSK + principal}
}

// BoundPrincipal returns the principal of a binding's key.
func BoundPrincipal(k store.Key) (string, bool) { return strings.CutPrefix(k.SK, bindingSK) }

// Item returns the row as an item.
func (b TopicBinding) Item() store.Item {
	a := make(attrs, 0, 2)
	a.list("groups", b.Groups)
	a.str("role", b.Role)
	return a.item()
}

// TopicBindingFrom reads a binding.
func TopicBindingFrom(it store.Item) TopicBinding {
	return TopicBinding{Role: str(it, "role"), Groups: it.Get("groups").Strings()}
}

// TopicTrim is the intended removal of a partition's messages: a plan that lets a group
// start below it has read it. Table topics, key name and "trim#" with the partition.
type TopicTrim struct {
	Before int64 // positions below go
	At     int64 // unix ms
}

// TopicTrimKey is the key of a partition's intent to trim.
func TopicTrimKey(topic string, partition int32) store.Key {
	return store.Key{Table: store.Topics, PK: topic, SK: fmt.Sprintf("%s%03d", trimSK, partition)}
}

// Item returns the row as an item.
func (t TopicTrim) Item() store.Item {
	a := make(attrs, 0, 2)
	a.int(AttrAt, t.At)
	a.int("before", t.Before)
	return a.item()
}

// TopicTrimFrom reads an intent.
func TopicTrimFrom(it store.Item) TopicTrim {
	return TopicTrim{Before: num(it, "before"), At: num(it, AttrAt)}
}

// TopicPurge is what an administrator has removed of a topic, until the log has removed it: an owner that
// finds the row finishes the removal. Table topics, key name and "purge".
type TopicPurge struct {
	Before map[int32]int64 // by partition: positions below go
	At     int64           // unix ms
}

// TopicPurgeKey is the key of a topic's purge.
func TopicPurgeKey(topic string) store.Key {
	return store.Key{Table: store.Topics, PK: topic, SK: purgeSK}
}

// IsTopicPurge reports whether a key of table topics is that of a purge.
func IsTopicPurge(k store.Key) bool { return k.SK == purgeSK && !OfNoTopic(k) }

// Item returns the row as an item.
func (p TopicPurge) Item() store.Item {
	before := make([]string, 0, len(p.Before))
	for _, n := range slices.Sorted(maps.Keys(p.Before)) {
		before = append(before, fmt.Sprintf("%d-%d", n, p.Before[n]))
	}
	a := make(attrs, 0, 2)
	a.int(AttrAt, p.At)
	a.list("before", before)
	return a.item()
}

// TopicPurgeFrom reads a purge. Error: store.ErrCorrupt.
func TopicPurgeFrom(it store.Item) (TopicPurge, error) {
	p := TopicPurge{Before: map[int32]int64{}, At: num(it, AttrAt)}
	for _, s := range it.Get("before").Strings() {
		partition, before, _ := strings.Cut(s, "-")
		n, err := strconv.ParseInt(partition, 10, 32)
		at, bad := strconv.ParseInt(before, 10, 64)
		if err != nil || bad != nil || n < 0 || at < 0 {
			return p, fmt.Errorf("%w: purge %.64q", store.ErrCorrupt, s)
		}
		p.Before[int32(n)] = at
	}
	return p, nil
}

// TopicCountersKey is the key of the counters that the topics of a slot share: attributes
// AttrTopicNumber, how many topics were made, and AttrEpoch, how often a process took the
// topics over. An installation of one process has slot 0 only.
func TopicCountersKey(slot int) store.Key {
	sk := countersSK
	if slot > 0 {
		sk = fmt.Sprintf("%s#%02d", countersSK, slot)
	}
	return store.Key{Table: store.Topics, PK: topicsPartition, SK: sk}
}

// TopicSlotsKey is the key of the number of slots that the topics are dealt to, attribute
// AttrTopicNumber. It is there where there are many.
func TopicSlotsKey() store.Key {
	return store.Key{Table: store.Topics, PK: topicsPartition, SK: "slots"}
}

// TopicInstallationKey is the key of the installation's id, attribute AttrInstallation. It is
// there where the messages of topics are on a Kafka that another installation might use.
func TopicInstallationKey() store.Key {
	return store.Key{Table: store.Topics, PK: topicsPartition, SK: "installation"}
}

// Attributes of these rows; AttrEpoch of cursors, too.
const (
	AttrTopicNumber  = "number"
	AttrEpoch        = "epoch"
	AttrInstallation = "installation"
)

// TopicListPartition is the partition key of the names of a slot's topics, by which they are
// found without a scan of all topics. Table topics, sort key the topic's name.
func TopicListPartition(slot int) string { return fmt.Sprintf("%s#%02d", topicsPartition, slot) }

// TopicListKey is the key of a topic in the list of its slot; the row has its
// AttrTopicNumber.
func TopicListKey(slot int, name string) store.Key {
	return store.Key{Table: store.Topics, PK: TopicListPartition(slot), SK: name}
}

// OfNoTopic reports whether a key of table topics belongs to all or many of them.
func OfNoTopic(k store.Key) bool { return strings.HasPrefix(k.PK, topicsPartition) }
