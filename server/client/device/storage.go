package device

import (
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Storage keeps what a device must remember across restarts.
type Storage interface {
	// Load returns what was stored; an empty Snapshot on a new device.
	Load() (*Snapshot, error)
	// Store writes a batch, all or nothing. Batches are written in order, and a
	// batch is written before any call is made that the machine made together
	// with it: so a token is never stored without what came before it, and no
	// message is sent that was not stored.
	Store(*Batch) error
}

// Session is what a device remembers of the server.
type Session struct {
	Token string // of the last synchronisation; empty: list all chats again
	// Generation and Commit are what the device was shown at most, of the store's history.
	Generation string
	Commit     int64
}

// Record is what a device keeps of one chat besides its messages. The values that it points
// to are never changed, only replaced, so that a copy of a Record is a snapshot.
type Record struct {
	ChatID  string
	Chat    *chatv1.Chat        // nil until it was read
	Head    *chatv1.ChatHead    // nil until it was read
	State   *chatv1.MemberState // the user's own; nil until it was read
	Newest  int64               // newest version that is known to exist
	KnownAt int64               // Chat and Head are not older than this version

	Open     bool  // the app needs the messages
	Loaded   bool  // the fields below and the messages mean something
	Version  int64 // every change up to here is applied
	Base     int64 // version that loading began with
	First    int64 // sequence from which on messages are complete
	HasOlder bool  // there are messages before First

	Members       []Member // in order of user id, former ones included
	MembersLoaded bool
	ReadTo        int64 // the app's mark that the server has not confirmed
}

// Member is a present or former member of a chat.
type Member struct {
	UserID   string
	Role     chatv1.MemberRole
	JoinedAt *timestamppb.Timestamp
	Version  int64 // of the change that made it so
	Removed  bool
}

// OutboxEntry is a message on its way. The server remembers ClientMessageID for seven
// days, so that repeating the call stores the message once.
type OutboxEntry struct {
	ClientMessageID string
	ChatID          string
	Content         string
	CreatedAt       time.Time
}

// ChatChange is what changed of a chat.
type ChatChange struct {
	Record   Record
	Clear    bool                 // drop all stored messages of the chat first
	Messages []*messagev1.Message // to be added or replaced, by sequence
}

// Batch is a set of changes to be stored together.
type Batch struct {
	Session *Session // nil: as before
	Removed []string // chats to be dropped with their messages
	Chats   []ChatChange
	Outbox  []OutboxEntry // to be added
	Done    []string      // client_message_ids of unsent messages to be dropped
}

// Empty reports whether there is nothing to store.
func (b *Batch) Empty() bool {
	return b.Session == nil && len(b.Removed)+len(b.Chats)+len(b.Outbox)+len(b.Done) == 0
}

// Snapshot is everything that a device has stored.
type Snapshot struct {
	Session  Session
	Chats    map[string]Record
	Messages map[string]map[int64]*messagev1.Message // by chat and sequence
	Outbox   []OutboxEntry                           // oldest first
}
