package people

import (
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Parts of keys. No user id contains "#".
const (
	profileRow       = "profile"
	blockPrefix      = "block#"
	blockEnd         = "block$" // above all rows of blocks
	invitationPrefix = "invitation#"
	invitationEnd    = "invitation$"
	handlePartition  = "#handle#"
	handleRow        = "handle"
	changesPartition = "#changes#"
	deletions        = "#deletions"
)

func key(pk, sk string) store.Key { return store.Key{Table: store.People, PK: pk, SK: sk} }

// attrs collects attributes; attributes with the zero value are left out.
type attrs []store.Attr

func (a *attrs) str(name, v string) {
	if v != "" {
		*a = append(*a, store.Attr{Name: name, Value: store.String(v)})
	}
}

func (a *attrs) int(name string, v int64) {
	if v != 0 {
		*a = append(*a, store.Attr{Name: name, Value: store.Int(v)})
	}
}

func (a *attrs) bool(name string, v bool) {
	if v {
		*a = append(*a, store.Attr{Name: name, Value: store.Bool(true)})
	}
}

func (a attrs) item() store.Item { return store.NewItem(a...) }

// AttrVersion is the attribute that plans compare a profile by.
const AttrVersion = "version"

// Profile is what a person shows. Table people, key user_id and "profile".
type Profile struct {
	UserID      string
	DisplayName string
	Avatar      string
	About       string
	Handle      string
	HandleAt    int64 // unix ms at which the handle last changed; 0: never
	Version     int64 // raised by every change; 0 without a row
	UpdatedAt   int64 // unix ms
	Deleted     bool  // of an account that was deleted: nothing else is set but Version and UpdatedAt
}

// ProfileKey is the key of a profile.
func ProfileKey(user string) store.Key { return key(user, profileRow) }

// Item returns the row as an item.
func (p Profile) Item() store.Item {
	a := make(attrs, 0, 8)
	a.str("about", p.About)
	a.str("avatar", p.Avatar)
	a.bool("deleted", p.Deleted)
	a.str("display_name", p.DisplayName)
	a.str("handle", p.Handle)
	a.int("handle_at", p.HandleAt)
	a.int("updated_at", p.UpdatedAt)
	a.int(AttrVersion, p.Version)
	return a.item()
}

// ProfileFrom reads the profile of a person, who may have no row.
func ProfileFrom(user string, it store.Item) Profile {
	return Profile{UserID: user, DisplayName: str(it, "display_name"), Avatar: str(it, "avatar"), About: str(it, "about"),
		Handle: str(it, "handle"), HandleAt: num(it, "handle_at"), Version: num(it, AttrVersion),
		UpdatedAt: num(it, "updated_at"), Deleted: it.Get("deleted").True()}
}

// AttrHeldSince is the attribute of a handle that plans test beside AttrUser.
const AttrHeldSince = "held_since"

// Handle says whose a handle is, and all that look like it. Table people, key "#handle#" with
// the form that those have in common and "handle". One that was given up is held for the
// person until the row expires.
type Handle struct {
	UserID    string
	HeldSince int64 // unix ms at which it was given up; 0 while it is in use
	ExpiresAt int64 // unix s; 0 while it is in use
}

// HandleKey is the key of the handles that have a form in common.
func HandleKey(form string) store.Key { return key(handlePartition+form, handleRow) }

// Item returns the row as an item.
func (h Handle) Item() store.Item {
	a := make(attrs, 0, 3)
	a.int(store.ExpiresAtField, h.ExpiresAt)
	a.int(AttrHeldSince, h.HeldSince)
	a.str(AttrUser, h.UserID)
	return a.item()
}

// HandleFrom reads the row of a handle.
func HandleFrom(it store.Item) Handle {
	return Handle{UserID: str(it, AttrUser), HeldSince: num(it, AttrHeldSince), ExpiresAt: num(it, store.ExpiresAtField)}
}

// Block is an entry of a block list. Table people, key user_id and "block#" with the id of
// the blocked user.
type Block struct {
	UserID string // whose list
	Other  string // the blocked user
	At     int64  // unix ms
}

// BlockKey is the key of an entry of a block list.
func BlockKey(user, other string) store.Key { return key(user, blockPrefix+other) }

// Blocks is the query of a block list.
func Blocks(user string) store.Query {
	return store.Query{Table: store.People, PK: user, From: blockPrefix, To: blockEnd, Consistency: store.Strong}
}

// Item returns the row as an item.
func (b Block) Item() store.Item {
	a := make(attrs, 0, 1)
	a.int("at", b.At)
	return a.item()
}

// BlockFrom reads an entry of a block list.
func BlockFrom(r store.Row) Block {
	return Block{UserID: r.Key.PK, Other: strings.TrimPrefix(r.Key.SK, blockPrefix), At: num(r.Item, "at")}
}

// Invitation asks a person to join a group. Table people, key user_id and "invitation#" with
// the chat's id.
type Invitation struct {
	ID        string // of this invitation, under which it is accepted once
	UserID    string
	ChatID    string
	ChatName  string
	By        string
	At        int64 // unix ms
	ExpiresAt int64 // unix s
}

// InvitationKey is the key of a person's invitation to a chat.
func InvitationKey(user, chatID string) store.Key { return key(user, invitationPrefix+chatID) }

// Invitations is the query of a person's invitations.
func Invitations(user string) store.Query {
	return store.Query{Table: store.People, PK: user, From: invitationPrefix, To: invitationEnd,
		Consistency: store.Strong}
}

// Item returns the row as an item.
func (i Invitation) Item() store.Item {
	a := make(attrs, 0, 5)
	a.int("at", i.At)
	a.str("by", i.By)
	a.str("chat_name", i.ChatName)
	a.int(store.ExpiresAtField, i.ExpiresAt)
	a.str("id", i.ID)
	return a.item()
}

// InvitationFrom reads a row of an invitation.
func InvitationFrom(r store.Row) Invitation {
	return Invitation{ID: str(r.Item, "id"), UserID: r.Key.PK, ChatID: strings.TrimPrefix(r.Key.SK, invitationPrefix),
		ChatName: str(r.Item, "chat_name"), By: str(r.Item, "by"), At: num(r.Item, "at"),
		ExpiresAt: num(r.Item, store.ExpiresAtField)}
}

// Change says that a profile changed, for processes that look now and then. Table people,
// key "#changes#" with the number of a partition, which follows from the person, and the
// beginning of a ChangeSlot with the person's id: changes of one profile in one slot are one
// row, the last. It expires after a while.
type Change struct {
	UserID    string
	Version   int64
	At        int64 // unix ms
	ExpiresAt int64 // unix s
}

// ChangeSlot is how long changes of one profile share a row.
const ChangeSlot = 5 * time.Second

// ChangeShards is the number of partitions of changes.
const ChangeShards = 4

// slot is the beginning of the slot of a time, in unix ms.
func slot(at int64) string {
	at = max(0, at)
	return table.Number(at - at%ChangeSlot.Milliseconds())
}

// Key is the key of a change.
func (c Change) Key() store.Key {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.UserID)) // which never fails
	return key(changesPartition+strconv.Itoa(int(h.Sum32()%ChangeShards)), slot(c.At)+"#"+c.UserID)
}

// Changes is the query of the changes of a partition, from the slot of a time on, in unix ms.
// The last ones come first: a follower needs only the last of each profile.
func Changes(shard int, from int64) store.Query {
	return store.Query{Table: store.People, PK: changesPartition + strconv.Itoa(shard), From: slot(from),
		Descending: true, Consistency: store.Strong}
}

// Item returns the row as an item.
func (c Change) Item() store.Item {
	a := make(attrs, 0, 3)
	a.int("at", c.At)
	a.int(store.ExpiresAtField, c.ExpiresAt)
	a.int(AttrVersion, c.Version)
	return a.item()
}

// ChangeFrom reads the row of a change.
func ChangeFrom(r store.Row) Change {
	_, user, _ := strings.Cut(r.Key.SK, "#")
	return Change{UserID: user, Version: num(r.Item, AttrVersion), At: num(r.Item, "at"),
		ExpiresAt: num(r.Item, store.ExpiresAtField)}
}

// Deletion is an account of which something is still to be removed. Table people, key
// "#deletions" and user_id.
type Deletion struct {
	UserID string
	At     int64 // unix ms of the deletion
	// NextAt is when it is worked on next, unix ms: until then it is the process's that works
	// on it, By, or nothing is to be done.
	NextAt int64
	By     string
	Tries  int64 // that failed, in a row
}

// AttrNextAt is the attribute by which processes take a deletion.
const AttrNextAt = "next_at"

// DeletionKey is the key of a deletion.
func DeletionKey(user string) store.Key { return key(deletions, user) }

// Deletions is the query of deletions.
func Deletions() store.Query {
	return store.Query{Table: store.People, PK: deletions, Consistency: store.Strong}
}

// Item returns the row as an item.
func (d Deletion) Item() store.Item {
	a := make(attrs, 0, 4)
	a.int("at", d.At)
	a.str("by", d.By)
	a.int(AttrNextAt, d.NextAt)
	a.int("tries", d.Tries)
	return a.item()
}

// DeletionFrom reads the row of a deletion.
func DeletionFrom(r store.Row) Deletion {
	return Deletion{UserID: r.Key.SK, At: num(r.Item, "at"), NextAt: num(r.Item, AttrNextAt), By: str(r.Item, "by"),
		Tries: num(r.Item, "tries")}
}
