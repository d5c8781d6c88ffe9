package store

// Table is the name of a table.
type Table string

// The tables. Their rows, keys and limits are declared in package table and below it.
const (
	Users            Table = "users"
	Chats            Table = "chats"
	ChatCounters     Table = "chat_counters"
	ChatMemberships  Table = "chat_memberships"
	DeliveryState    Table = "delivery_state"
	Messages         Table = "messages"
	Events           Table = "events"
	Outbox           Table = "outbox"
	IdempotencyKeys  Table = "idempotency_keys"
	DirectChatIndex  Table = "direct_chat_index"
	PendingMembers   Table = "pending_members"
	Leases           Table = "leases"
	Meta             Table = "meta"
	ConsumerAttempts Table = "consumer_attempts"
	DeadLetters      Table = "dead_letters"
	Schemas          Table = "schemas"
	Sessions         Table = "sessions"
	OTPRequests      Table = "otp_requests"
	Notifications    Table = "notifications"
	Topics           Table = "topics"
	Subscriptions    Table = "subscriptions"
	Audit            Table = "audit"
	SearchEvents     Table = "search_events"
	Projections      Table = "projections"
	Identifiers      Table = "identifiers"
	People           Table = "people"
	Revocations      Table = "revocations"
	Services         Table = "services"
)

// Def declares the shape of a table: whether its key has a sort key and whether
// its items may expire.
type Def struct {
	Name    Table
	SortKey bool
	TTL     bool
}

// Tables lists every table, in a fixed order; the position is part of the
// embedded engine's format and never changes: new tables go to the end.
func Tables() []Def {
	return []Def{
		{Users, false, false},
		{Chats, false, false},
		{ChatCounters, false, false},
		{ChatMemberships, true, false},
		{DeliveryState, true, true},
		{Messages, true, false},
		{Events, true, false},
		{Outbox, true, false},
		{IdempotencyKeys, false, true},
		{DirectChatIndex, false, false},
		{PendingMembers, false, false},
		{Leases, false, true},
		{Meta, false, false},
		{ConsumerAttempts, true, true},
		{DeadLetters, true, true},
		{Schemas, true, false},
		{Sessions, true, true},
		{OTPRequests, false, true},
		{Notifications, true, true},
		{Topics, true, false},
		{Subscriptions, true, false},
		{Audit, true, true},
		{SearchEvents, true, true},
		{Projections, true, false},
		{Identifiers, true, false},
		{People, true, true},
		{Revocations, true, true},
		{Services, true, false},
	}
}
