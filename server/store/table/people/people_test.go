package people

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const at = 1_700_000_000_123

// Every row with all its fields is read as it was written, and has a key of its own.
func TestProfileRows(t *testing.T) {
	profile := Profile{UserID: "ann", DisplayName: "Ann", Avatar: "a.png", About: "tea", Handle: "teatime", HandleAt: at,
		Version: 3, UpdatedAt: at, Deleted: true}
	testkit.Equal(t, "profile", ProfileFrom("ann", profile.Item()), profile)
	testkit.Equal(t, "no profile", ProfileFrom("ann", nil), Profile{UserID: "ann"})
	handle := Handle{UserID: "ann", HeldSince: at, ExpiresAt: 9}
	testkit.Equal(t, "handle", HandleFrom(handle.Item()), handle)
	block := Block{UserID: "ann", Other: "bob", At: at}
	testkit.Equal(t, "block", BlockFrom(store.Row{Key: BlockKey("ann", "bob"), Item: block.Item()}), block)
	invitation := Invitation{ID: "inv_1", UserID: "ann", ChatID: "chat_1", ChatName: "Tea", By: "bob", At: at,
		ExpiresAt: 9}
	testkit.Equal(t, "invitation",
		InvitationFrom(store.Row{Key: InvitationKey("ann", "chat_1"), Item: invitation.Item()}), invitation)
	change := Change{UserID: "ann", Version: 3, At: at, ExpiresAt: 9}
	testkit.Equal(t, "change", ChangeFrom(store.Row{Key: change.Key(), Item: change.Item()}), change)
	deletion := Deletion{UserID: "ann", At: at, NextAt: at + 1, By: "p", Tries: 2}
	testkit.Equal(t, "deletion", DeletionFrom(store.Row{Key: DeletionKey("ann"), Item: deletion.Item()}), deletion)
	seen := map[store.Key]bool{}
	for _, k := range []store.Key{ProfileKey("ann"), HandleKey("ann"), BlockKey("ann", "bob"), BlockKey("bob", "ann"),
		InvitationKey("ann", "bob"), change.Key(), DeletionKey("ann")} {
		testkit.Must(t, k.Validate())
		if seen[k] {
			t.Errorf("%v is the key of two rows", k)
		}
		seen[k] = true
	}
}

// Changes of one profile within five seconds are one row, which the query from any of their
// times finds; rows of many people stand in several partitions.
func TestChangesShareRows(t *testing.T) {
	const begin = 1_700_000_000_000
	of := func(user string, at int64) store.Key { return Change{UserID: user, Version: 1, At: at}.Key() }
	first := of("ann", begin)
	testkit.Equal(t, "in the slot", of("ann", begin+4_999), first)
	if of("ann", begin+5_000) == first || of("bob", begin) == first {
		t.Error("rows of different slots or people are one")
	}
	partitions := map[string]bool{}
	for _, user := range strings.Fields("ann bob cat dan eve fay gus hal ida jon kim leo") {
		found := 0
		for shard := range ChangeShards {
			q := Changes(shard, begin+4_999)
			if k := of(user, begin); k.PK == q.PK && k.SK >= q.From {
				found++
			}
			if k := of(user, begin-1); k.PK == q.PK && k.SK >= q.From {
				t.Error("an earlier slot is found")
			}
		}
		testkit.Equal(t, user, found, 1)
		partitions[of(user, begin).PK] = true
	}
	testkit.Equal(t, "partitions", len(partitions), 4)
}

// The queries of a person's lists find those rows and no others of the person.
func TestQueriesOfLists(t *testing.T) {
	keys := []store.Key{ProfileKey("ann"), BlockKey("ann", "!"), BlockKey("ann", "\U0010ffff"),
		InvitationKey("ann", "chat_0"), InvitationKey("ann", "chat_z")}
	for name, c := range map[string]struct {
		q    store.Query
		want [2]int
	}{"blocks": {Blocks("ann"), [2]int{1, 2}}, "invitations": {Invitations("ann"), [2]int{3, 4}}} {
		for i, k := range keys {
			in := k.PK == c.q.PK && k.SK >= c.q.From && k.SK <= c.q.To
			if in != (i == c.want[0] || i == c.want[1]) {
				t.Errorf("%s: %v is found: %v", name, k, in)
			}
		}
	}
}

// What a row allows stays what a plan may compare it with.
func TestAccess(t *testing.T) {
	row := func(attrs ...store.Attr) store.Item {
		return store.NewItem(append(attrs, store.Attr{Name: table.AttrStatus, Value: store.String("active")})...)
	}
	everybody := row()
	nobody := row(store.Attr{Name: AttrWhoAdds, Value: store.String(string(Nobody))})
	deleted := row(store.Attr{Name: AttrDeletedAt, Value: store.Int(at)})
	for name, c := range map[string]struct{ read, now store.Item }{
		"asks to be asked": {everybody, nobody}, "lets others in": {nobody, everybody}, "is deleted": {everybody, deleted},
		"is deleted by now": {deleted, deleted},
	} {
		if store.Evaluate(AccessFrom(c.read).Unchanged(store.Exists()), c.now) {
			t.Errorf("%s: the condition holds", name)
		}
	}
	for name, it := range map[string]store.Item{"everybody": everybody, "nobody": nobody} {
		if !store.Evaluate(AccessFrom(it).Unchanged(store.Exists()), it) || !store.Evaluate(NotDeleted(nil), it) {
			t.Errorf("%s: the condition fails on what was read", name)
		}
	}
	if a := AccessFrom(nil); a.Exists || a.Deleted() || a.WhoAdds != Everybody {
		t.Errorf("of nobody: %+v", a)
	}
}
