// Package refusal holds the reasons for which package topic and what it is made of
// refuse a call.
//
// A reason is stable: clients see it. The text is for people. Every other error is one
// of the store or of the context.
package refusal

import "fmt"

// Reason is the stable name of a refusal.
type Reason string

// The reasons.
const (
	TopicNotFound        Reason = "TOPIC_NOT_FOUND"
	TopicForbidden       Reason = "TOPIC_FORBIDDEN"
	TopicReadOnly        Reason = "TOPIC_READ_ONLY"
	LastAdmin            Reason = "LAST_ADMIN"
	TopicExists          Reason = "TOPIC_EXISTS" // the etag is not the topic's
	NoSubscriptions      Reason = "NO_SUBSCRIPTIONS"
	TopicFull            Reason = "TOPIC_FULL"
	StorageLow           Reason = "STORAGE_LOW" // chats still have room
	NotActive            Reason = "NOT_ACTIVE"
	SubscriptionGone     Reason = "SUBSCRIPTION_GONE"
	SubscriptionNotFound Reason = "SUBSCRIPTION_NOT_FOUND"
	InvalidTransition    Reason = "INVALID_TRANSITION"
	MemberExists         Reason = "MEMBER_EXISTS"
	GroupPushed          Reason = "GROUP_PUSHED" // to a webhook: nothing attaches to it
	SessionGone          Reason = "SESSION_GONE"
	ProducerNumberTooOld Reason = "PRODUCER_NUMBER_TOO_OLD"
	ProducerNumberReused Reason = "PRODUCER_NUMBER_REUSED" // for another request
	// DeduplicationIDReused is for another message.
	DeduplicationIDReused Reason = "DEDUPLICATION_ID_REUSED"
	MessageNotFound       Reason = "MESSAGE_NOT_FOUND" // it is no longer kept, or was not published yet
	PositionOutOfRange    Reason = "POSITION_OUT_OF_RANGE"
	TooLarge              Reason = "TOO_LARGE"
	InvalidFilter         Reason = "INVALID_FILTER"
	InvalidArgument       Reason = "INVALID_ARGUMENT"
	JobRunning            Reason = "JOB_RUNNING"
	TooMany               Reason = "TOO_MANY"            // of what has a limit
	Overloaded            Reason = "OVERLOADED"          // try again later
	NoOwner               Reason = "NO_OWNER"            // no server has the topic just now
	SchemaNotFound        Reason = "SCHEMA_NOT_FOUND"    // by the registry, or not in its file
	SchemaIncompatible    Reason = "SCHEMA_INCOMPATIBLE" // with one that the topic had
	SchemaMismatch        Reason = "SCHEMA_MISMATCH"     // a payload is none of the topic's schema
)

// Error is a refusal.
type Error struct {
	Reason Reason
	Text   string
}

// New makes a refusal.
func New(r Reason, format string, args ...any) *Error {
	return &Error{r, fmt.Sprintf(format, args...)}
}

// Forbidden hides from unauthorized callers whether the topic exists.
func Forbidden(topic string) *Error {
	return New(TopicForbidden, "topic %.255q does not exist, or you have no role in it that allows this", topic)
}

// ForbiddenGroup refuses a subscriber whose binding does not name the group.
func ForbiddenGroup(topic, group string) *Error {
	return New(TopicForbidden, "your role in topic %.255q is for other groups than %.255q: "+
		"ask its administrator for a binding that names the group", topic, group)
}

// NoSubscription refuses what needs a subscription.
func NoSubscription(topic, group string) *Error {
	return New(SubscriptionNotFound, "group %.255q has no subscription to %.255q", group, topic)
}

// Error returns the text.
func (e *Error) Error() string { return "topic: " + e.Text }

// Is reports whether target is a refusal for the same reason.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Reason == e.Reason
}
