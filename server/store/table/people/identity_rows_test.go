package people_test

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

const at = 1_700_000_000_123

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	return testkit.Value(hex.DecodeString(s))(t)
}

// Rows are stored as they are here, and read as what they were: what a release wrote, every later
// one reads. Lines are added, never changed.
func TestRows(t *testing.T) {
	hash := [people.HashSize]byte(bytes.Repeat([]byte{7}, 32))
	timeBytes := "0000018bcfe5687b"
	for name, row := range map[string]struct {
		key, want store.Key
		row       interface{ Item() store.Item }
		read      func(store.Row) any
		item      store.Item
	}{
		"identifier": {
			key: people.IdentifierKey("email:ann@example.com"), want: store.Key{Table: "identifiers",
				PK: "email:ann@example.com", SK: "#"},
			row:  people.Identifier{UserID: "ann", At: at},
			read: func(r store.Row) any { return people.IdentifierFrom(r.Item) },
			item: store.Item{{Name: "at", Value: store.Int(at)}, {Name: "user", Value: store.String("ann")}},
		},
		"used ticket": {
			key: people.UsedTicketKey("ab"), want: store.Key{Table: "otp_requests", PK: "ticket#ab"},
			row:  people.UsedTicket{ExpiresAt: 9},
			read: func(r store.Row) any { return people.UsedTicketFrom(r.Item) },
			item: store.Item{{Name: "expires_at", Value: store.Int(9)}},
		},
		"code": {
			key: people.CodeKey("abc"), want: store.Key{Table: "otp_requests", PK: "abc"},
			row: people.Code{Change: "c", Request: "r", Hash: []byte{1, 2}, Until: at, Attempts: 3, Sends: []int64{at},
				Guesses: []int64{at, at + 1}, Known: at + 2, ExpiresAt: 9},
			read: func(r store.Row) any { return people.CodeFrom(r.Item) },
			item: store.Item{{Name: "attempts", Value: store.Int(3)}, {Name: "change", Value: store.String("c")},
				{Name: "expires_at", Value: store.Int(9)},
				{Name: "guesses", Value: store.Bytes(unhex(t, timeBytes+"0000018bcfe5687c"))},
				{Name: "hash", Value: store.Bytes([]byte{1, 2})}, {Name: "known", Value: store.Int(at + 2)},
				{Name: "request", Value: store.String("r")},
				{Name: "sends", Value: store.Bytes(unhex(t, timeBytes))}, {Name: "until", Value: store.Int(at)}},
		},
		"session": {
			key: people.SessionKey("ann", "ses_1"), want: store.Key{Table: "sessions", PK: "ann", SK: "ses_1"},
			row: people.Session{UserID: "ann", SessionID: "ses_1", Device: "phone", Hash: []byte{1, 2},
				Rotated: []people.Rotated{{Hash: hash, At: at}}, CreatedAt: at, UsedAt: at + 1, ExpiresAt: 9},
			read: func(r store.Row) any { return people.SessionFrom(r) },
			item: store.Item{{Name: "created_at", Value: store.Int(at)}, {Name: "device", Value: store.String("phone")},
				{Name: "expires_at", Value: store.Int(9)}, {Name: "hash", Value: store.Bytes([]byte{1, 2})},
				{Name: "rotated", Value: store.Bytes(append(hash[:], unhex(t, timeBytes)...))},
				{Name: "used_at", Value: store.Int(at + 1)}},
		},
		"ended session": {
			key: people.EndedSessionKey("ses_1"), want: store.Key{Table: "sessions", PK: "#ended", SK: "ses_1"},
			row:  people.EndedSession{SessionID: "ses_1", UserID: "ann", Reason: "revoked", At: at, Until: at + 1, ExpiresAt: 9},
			read: func(r store.Row) any { return people.EndedSessionFrom(r) },
			item: store.Item{{Name: "at", Value: store.Int(at)}, {Name: "expires_at", Value: store.Int(9)},
				{Name: "reason", Value: store.String("revoked")}, {Name: "until", Value: store.Int(at + 1)},
				{Name: "user", Value: store.String("ann")}},
		},
	} {
		testkit.Equal(t, name+"'s key", row.key, row.want)
		testkit.Equal(t, name, row.row.Item(), row.item)
		w := store.Write{Op: store.OpPut, Key: row.key, Item: row.item}
		if err := w.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		read := row.read(store.Row{Key: row.key, Item: row.item})
		if !reflect.DeepEqual(read, any(row.row)) {
			t.Errorf("%s reads as %+v", name, read)
		}
		for i := range reflect.ValueOf(read).NumField() {
			if reflect.ValueOf(read).Field(i).IsZero() {
				t.Errorf("%s: field %d is not in the test", name, i)
			}
		}
	}
}

// What is 24 hours ago does not count, to the millisecond.
func TestSince(t *testing.T) {
	now := time.UnixMilli(at)
	times := []int64{at - 2000, at - 1000, at - 999, at}
	testkit.Equal(t, "within a second", people.Since(times, now, time.Second), []int64{at - 999, at})
	testkit.Equal(t, "nothing", len(people.Since(nil, now, time.Second)), 0)
}
