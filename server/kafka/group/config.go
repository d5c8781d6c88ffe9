package group

import (
	"context"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Client says where a request comes from.
type Client struct {
	Credential string // that the connection has shown; groups are counted by it
	ID         string // the client id of the request
	Host       string
}

// Topic is a topic whose offsets can be committed.
type Topic struct {
	Name       string
	ID         [16]byte
	Partitions int32
}

// Topics says which topics there are. Its methods are called under the coordinator's lock: they return at once.
type Topics interface {
	ByName(name string) (Topic, bool)
	ByID(id [16]byte) (Topic, bool)
}

// Row is what the store keeps under a key. A row whose value is nil is to be removed.
type Row struct{ Key, Value []byte }

// Store keeps the rows of groups and offsets. Nothing else has its keys.
type Store interface {
	// Load calls each with every row, in any order, and ends with the error that each returns.
	Load(ctx context.Context, each func(Row) error) error
	// Write writes all rows or, if it returns an error, possibly none. They are durable when it returns nil. If a key
	// occurs more than once, the last row of it counts. There is one call at a time.
	Write(ctx context.Context, rows []Row) error
}

// Limits bound what is kept for clients. A limit of 0 is the default.
type Limits struct {
	Groups              int // of all credentials; default 1,000
	GroupsPerCredential int // default 500
	Members             int // of a group, and as many that were given an id and have not joined yet; default 500
	MemberBytes         int // of a member's protocols and names; default 1 MiB
	GroupBytes          int // of the members of a group, and as many of their assignments; default 8 MiB
	Bytes               int // of members and assignments of all groups; default 64 MiB
	Name                int // bytes in the name of a group, an instance, a protocol or a type; default 255
	CommitPartitions    int // of one commit; default 10,000
	Offsets             int // of a group; default 10,000
	MetadataBytes       int // of one offset; default 4,096
	GroupOffsetBytes    int // of the offsets of a group; default 8 MiB
	OffsetBytes         int // of the offsets of all groups; default 128 MiB
}

// Config is what a coordinator is made of.
type Config struct {
	Store  Store
	Topics Topics
	// Forbidden reports whether a client may only read a group: it can list and describe the group and fetch its
	// offsets; everything else is refused with GROUP_AUTHORIZATION_FAILED. It is called under the coordinator's lock.
	// Nil forbids none.
	Forbidden func(c Client, group string) bool
	// Permanent reports whether the offsets of a group never expire. It is called under the coordinator's lock. Nil: none.
	Permanent func(group string) bool
	Limits    Limits
	Retention time.Duration    // of the offsets of empty groups; 0 is 7 days
	Clock     func() time.Time // nil is time.Now, whose times have a monotonic reading
	Logger    *slog.Logger     // nil logs nothing
}

// Times that clients do not choose. Sessions are bounded as Apache Kafka's defaults bound them.
const (
	minSession = 6 * time.Second
	maxSession = 30 * time.Minute
	// A new member cannot send heartbeats before it knows its id; it is removed after this time without a generation.
	newMemberTimeout = 5 * time.Minute
	// An empty group without offsets stays visible for this time.
	emptyGroupKept = 10 * time.Minute
	retention      = 7 * 24 * time.Hour
	// A failed removal of expired rows is tried again after this time.
	expiryRetry = time.Minute

	// initialDelay is how long the first generation of an empty group waits for more members; each new member prolongs
	// it, up to initialMax. A member that comes later costs all others a rebalance that they notice at their next
	// heartbeat, usually within 3 s. A quarter of a second is enough for consumers that start together, and a person who
	// starts a single consumer does not notice it. Apache Kafka waits for 3 s, as its members are spread over machines.
	initialDelay = 250 * time.Millisecond
	initialMax   = 3 * time.Second
)

// Range is the range of versions of a request, both inclusive.
type Range struct{ Min, Max int16 }

// Versions returns the versions of each request, by its key, that Handle answers. They are those of Apache Kafka 4.1.
func Versions() map[kmsg.Key]Range {
	return map[kmsg.Key]Range{
		kmsg.OffsetCommit: {2, 10}, kmsg.OffsetFetch: {1, 10}, kmsg.OffsetDelete: {0, 0},
		kmsg.JoinGroup: {2, 9}, kmsg.SyncGroup: {0, 5}, kmsg.Heartbeat: {0, 4}, kmsg.LeaveGroup: {0, 5},
		kmsg.ListGroups: {0, 5}, kmsg.DescribeGroups: {0, 6}, kmsg.DeleteGroups: {0, 3},
	}
}

func (c Config) withDefaults() Config {
	l := &c.Limits
	for _, d := range []struct {
		limit *int
		usual int
	}{
		{&l.Groups, 1000}, {&l.GroupsPerCredential, 500}, {&l.Members, 500}, {&l.MemberBytes, 1 << 20},
		{&l.GroupBytes, 8 << 20}, {&l.Bytes, 64 << 20}, {&l.Name, 255}, {&l.CommitPartitions, 10_000},
		{&l.Offsets, 10_000}, {&l.MetadataBytes, 4096}, {&l.GroupOffsetBytes, 8 << 20}, {&l.OffsetBytes, 128 << 20},
	} {
		if *d.limit == 0 {
			*d.limit = d.usual
		}
	}
	if c.Retention == 0 {
		c.Retention = retention
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Permanent == nil {
		c.Permanent = func(string) bool { return false }
	}
	if c.Forbidden == nil {
		c.Forbidden = func(Client, string) bool { return false }
	}
	return c
}
