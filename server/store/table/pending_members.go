package table

import "github.com/parley-chat/parley/server/store"

// Pending lists the members of a new group that are not members yet. Table
// pending_members, key chat_id.
type Pending struct {
	ChatID      string
	Members     []string
	CreatedBy   string
	CreatedAt   int64  // unix ms
	Correlation string // of the request that created the group
	Causation   string // of the group's first event; in rows of earlier versions its id
	Trace       string // of the group's first event; empty in rows of earlier versions
	ServiceID   string // service account that created the group in the creator's name, if one did
}

// AttrMembers is the attribute that plans compare a pending row by.
const AttrMembers = "members"

// PendingKey is the key of a chat's pending members.
func PendingKey(chatID string) store.Key { return store.Key{Table: store.PendingMembers, PK: chatID} }

// Item returns the row as an item.
func (p Pending) Item() store.Item {
	a := make(attrs, 0, 7)
	a.optStr("causation_id", p.Causation)
	a.optStr("correlation_id", p.Correlation)
	a.int("created_at", p.CreatedAt)
	a.str("created_by", p.CreatedBy)
	a.list(AttrMembers, p.Members)
	a.optStr("service_id", p.ServiceID)
	a.optStr("trace_id", p.Trace)
	return a.item()
}

// PendingFrom reads the row of a chat.
func PendingFrom(chatID string, it store.Item) Pending {
	return Pending{
		ChatID: chatID, Members: it.Get(AttrMembers).Strings(), CreatedBy: str(it, "created_by"),
		CreatedAt: num(it, "created_at"), Correlation: str(it, "correlation_id"), Causation: str(it, "causation_id"),
		ServiceID: str(it, "service_id"), Trace: str(it, "trace_id"),
	}
}
