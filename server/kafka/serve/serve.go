// Package serve answers Kafka's protocol for the readers of a log: one broker, one replica of each
// partition, and nothing that writes.
//
// The package owns everything between the bytes of a request and the bytes of its answer: frames, headers,
// versions, SASL, fetch sessions and record batches. It does not own connections (package port accepts and
// limits them), consumer groups (Groups) or records (Log).
//
// A reader can fetch records, list offsets, describe topics, and use consumer groups. Every request that
// would change something has an error code as its answer. The server announces exactly the requests that it
// answers; any other request ends its connection.
//
// Concurrency: a Server serves any number of connections at the same time. The answers of one connection are
// sent in the order of its requests, one at a time.
package serve

import (
	"context"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
)

// node is the id of the only broker, which is also the controller and the coordinator of all groups.
const node = 0

// epoch is the leader epoch of all partitions: their leader never changes.
const epoch = 0

// Log is where the records are. Offsets of a partition grow and may have gaps. All methods are safe for
// concurrent use. They are called with partitions of Topics only. An error that they return is an answer
// after which clients try again.
type Log interface {
	// Topics returns all topics, with their ids. The caller does not change what it returns, and neither does the log:
	// after a change Topics returns another slice.
	Topics() []kafka.Topic
	// Bounds returns the offset of the first record, and the offset after the last durable one.
	Bounds(ctx context.Context, p kafka.Partition) (start, end int64, err error)
	// Read returns durable records from an offset on, in order: at least one if there is one, then
	// as many as have about maxBytes of keys, values and headers. Without any it returns none. The records
	// are not changed by the caller or the log.
	Read(ctx context.Context, p kafka.Partition, from int64, maxBytes int) ([]*kafka.Record, error)
	// OffsetAt returns the first record whose time is at or after t. Without one, offset is -1.
	OffsetAt(ctx context.Context, p kafka.Partition, t time.Time) (offset int64, at time.Time, err error)
	// Newest returns the first of the records with the greatest time. Without records, offset is -1.
	Newest(ctx context.Context, p kafka.Partition) (offset int64, at time.Time, err error)
	// Wait returns nil once the end of one of the partitions is greater than its offset here, which may
	// be at once, and the cause of the context's end otherwise.
	Wait(ctx context.Context, beyond []kafka.Position) error
}

// Client is the sender of a request.
type Client struct {
	User string // whose password the client has shown
	ID   string // the client id of the request, chosen by the client
	Host string // the client's address
}

// Groups is the coordinator of consumer groups. It may answer JoinGroup, SyncGroup, Heartbeat, LeaveGroup,
// OffsetCommit, OffsetFetch, OffsetDelete, DescribeGroups, ListGroups and DeleteGroups.
type Groups interface {
	// Versions returns the first and the last version of a request that Handle answers, always the same ones. If it
	// does not answer the request at all, ok is false, and the request is not announced.
	Versions(key kmsg.Key) (first, last int16, ok bool)
	// Handle answers a request, with a response of its kind; the version is set by the caller. Handle may
	// wait, until ctx ends with the client's connection. An error ends the connection. Bytes in the request
	// share one allocation with all of it, so Handle copies what it keeps.
	Handle(ctx context.Context, client Client, req kmsg.Request) (kmsg.Response, error)
}

// Config is what a server needs. All fields without another word are required.
type Config struct {
	Log       Log
	Groups    Groups
	ClusterID string
	Host      string // where clients reach the broker, as Metadata shows it
	Port      int32
	// Configs are what DescribeConfigs shows of the broker; may be nil.
	Configs map[string]string
	// Users are the users with their passwords, by name.
	Users map[string]User
	// Authenticated is called once for each connection, when its client has shown a password; may be nil.
	Authenticated func(conn net.Conn, user string)
	// AnswerMemory bounds the memory, in bytes, of all answers under way whose size grows with records,
	// topics or partitions; 0: DefaultAnswerMemory. Less than 8 MiB counts as 8 MiB.
	AnswerMemory int64
}

// DefaultAnswerMemory allows 16 connections at a time to be sent answers, and some of them large ones.
const DefaultAnswerMemory = 128 << 20

// Server answers requests. New makes it.
type Server struct {
	Config
	apis    map[int16]*api
	decoy   User // stands for users who do not exist
	catalog *Catalog
	memory  *budget
}

// New makes a server.
func New(cfg Config) (*Server, error) {
	decoy, err := NewUser("")
	if err != nil {
		return nil, err
	}
	s := &Server{Config: cfg, decoy: decoy, catalog: NewCatalog(cfg.Log), memory: newBudget(cfg.AnswerMemory)}
	s.apis, err = newAPIs(cfg.Groups)
	return s, err
}
