package topic

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/push"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// The types and functions of the parts that other packages use.
type (
	// Slot is the part of all topics that a Service has.
	Slot = storage.Slot
	// Events are the topics with the events of all chats.
	Events = serving.Events
	// Counters count since the start, for metrics.
	Counters = serving.Counters
	// Sessions is the limit of sessions that the services of a process share.
	Sessions = serving.PrincipalLimit
	// GroupMetrics are the metrics of the groups of a process.
	GroupMetrics = serving.GroupMetrics
	// GroupValues are metrics of a group, or of several.
	GroupValues = serving.GroupValues
	// PushSender sends messages to webhooks, for all services of a process.
	PushSender = push.Sender
	// Gauges are what a scan of all topics found, for metrics.
	Gauges = serving.Gauges
	// BackfillCounters count what backfills did since the start, for metrics.
	BackfillCounters = serving.BackfillCounters
	// Admin is what operators do with topics.
	Admin = operations.Admin
	// DeadLetter is a message that a group gave up.
	DeadLetter = operations.DeadLetter
	// DeadLetterPosition is where a dead letter stands.
	DeadLetterPosition = operations.DeadLetterPosition
	// DeadLetterSelection says which dead letters are meant.
	DeadLetterSelection = operations.DeadLetterSelection
	// DeadLetterStore finds dead letters, redrives and discards them.
	DeadLetterStore = operations.DeadLetterStore
)

// Errors of the parts.
var (
	// ErrFenced says that another process has taken the topics over.
	ErrFenced = storage.ErrFenced
	// ErrDeadLetterGone says that a dead letter is gone, or that its group takes no messages.
	ErrDeadLetterGone = operations.ErrDeadLetterGone
	// ErrNoServer says that no server of topics answers.
	ErrNoServer = operations.ErrNoServer
)

const (
	// ShownGroups is how many groups of a process have metrics of their own.
	ShownGroups = serving.ShownGroups
	// AllGroups stands for the groups that have no metrics of their own.
	AllGroups = serving.AllGroups
	// MaxPartitions is how many partitions a topic has at most.
	MaxPartitions = storage.MaxPartitions
	// Broken ends a session whose connection has ended.
	Broken = serving.Broken
	// Actor is the actor of rows that the server's jobs leave in the audit.
	Actor = operations.Actor
)

// SlotOf is the slot of a topic among so many.
func SlotOf(topic string, of int) int { return storage.SlotOf(topic, of) }

// SessionSlot is the slot that the id of a session leads to.
func SessionSlot(session string) (int, bool) { return storage.SessionSlot(session) }

// NewSessions makes the limit of the sessions of a process.
func NewSessions() *Sessions { return serving.NewSessions() }

// NewPushSender makes a PushSender that sends requests by d, for the most the guard of package egress.
func NewPushSender(d push.Doer, clock func() time.Time) *PushSender { return push.NewSender(d, clock) }

// NewGroupMetrics makes the metrics of the groups of a process.
func NewGroupMetrics() *GroupMetrics { return serving.NewGroupMetrics() }

// Installation returns the id of the installation that a store belongs to. The first call
// makes it.
func Installation(ctx context.Context, s store.Store) (string, error) {
	return storage.Installation(ctx, s)
}

// DeadLetterPositionOf is the position in the id of a dead letter; false if the id is none.
func DeadLetterPositionOf(id string) (DeadLetterPosition, bool) {
	return operations.DeadLetterPositionOf(id)
}

// IsOwnHeader reports whether a header is the server's and not the publisher's.
func IsOwnHeader(name string) bool { return operations.IsOwnHeader(name) }
