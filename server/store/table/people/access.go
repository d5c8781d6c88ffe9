package people

import (
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// WhoAdds says which users may make a person a member of groups.
type WhoAdds string

// The values of WhoAdds. Everybody is what a row without the attribute says.
const (
	Everybody  WhoAdds = ""
	SharedChat WhoAdds = "shared_chat"
	Nobody     WhoAdds = "nobody"
)

// The statuses of a user beside table.Active.
const (
	Suspended table.Status = "suspended"
	Deleted   table.Status = "deleted"
)

// Attributes of table users that stand for a person, and of a member's own row of a direct
// chat. All of them are absent in the usual case.
const (
	AttrWhoAdds   = "who_adds"   // users
	AttrFindable  = "findable"   // users
	AttrDeletedAt = "deleted_at" // users; unix ms
	// AttrHasBlocked says that the person has blocked a user, now or before. A person who has
	// not has no block list to read.
	AttrHasBlocked = "has_blocked" // users
	// AttrBlocks says, in a member's row of a direct chat, that the member blocks the other;
	// AttrBlocked that the other blocks the member; AttrClosed, in the rows of both, that one
	// of them has deleted the account.
	AttrBlocks  = "blocks"  // delivery_state
	AttrBlocked = "blocked" // delivery_state
	AttrClosed  = "closed"  // delivery_state
)

// Access is what a user's row says about what others may do.
type Access struct {
	Exists     bool
	WhoAdds    WhoAdds
	Findable   bool // by an identifier
	Status     table.Status
	DeletedAt  int64 // unix ms; 0: it is not
	HasBlocked bool  // the user has blocked another, now or before
}

// AccessFrom reads a row of table users.
func AccessFrom(it store.Item) Access {
	return Access{Exists: it != nil, WhoAdds: WhoAdds(str(it, AttrWhoAdds)), Findable: it.Get(AttrFindable).True(),
		Status: table.Status(str(it, table.AttrStatus)), DeletedAt: num(it, AttrDeletedAt),
		HasBlocked: it.Get(AttrHasBlocked).True()}
}

// Deleted reports whether the account was deleted.
func (a Access) Deleted() bool { return a.DeletedAt != 0 }

// NotDeleted adds to a condition on a user's row that the account is not deleted.
func NotDeleted(c store.Condition) store.Condition { return c.Without(AttrDeletedAt) }

// InUse adds to a condition on a user's row that the account is neither suspended nor deleted.
func InUse(c store.Condition) store.Condition {
	return NotDeleted(c).Ne(table.AttrStatus, store.String(string(Suspended))).
		Ne(table.AttrStatus, store.String(string(Deleted)))
}

// Unchanged adds to a condition on a user's row that it allows what it allowed when it was
// read.
func (a Access) Unchanged(c store.Condition) store.Condition {
	c = NotDeleted(c)
	if a.WhoAdds == Everybody {
		return c.Without(AttrWhoAdds)
	}
	return c.Eq(AttrWhoAdds, store.String(string(a.WhoAdds)))
}

// maySend is the condition on a member's own row of a chat. Rows of groups never have the
// three attributes.
var maySend = Unbarred(table.IsMember())

// Unbarred adds to a condition on a member's row that neither of the two of a direct chat
// bars the other.
func Unbarred(c store.Condition) store.Condition {
	return c.Without(AttrBlocked).Without(AttrBlocks).Without(AttrClosed)
}

// MaySend is the condition on a member's row that lets the member send.
func MaySend() store.Condition { return maySend }

// Barred says which of the two of a direct chat bars a member from sending, by the member's
// row. In a chat that is closed both are barred by the other.
func Barred(it store.Item) (blocks, blocked bool) {
	return it.Get(AttrBlocks).True(), it.Get(AttrBlocked).True() || Closed(it)
}

// Closed reports whether a direct chat is closed, by the row of one of the two.
func Closed(it store.Item) bool { return it.Get(AttrClosed).True() }
