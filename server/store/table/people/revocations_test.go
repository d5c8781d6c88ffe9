package people

import (
	"reflect"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

// A row reads as it was written, and comes in the order of its number; what is no row says so.
func TestRevocationRow(t *testing.T) {
	for _, r := range []Revocation{
		{Log: "a", Number: 17, Kind: 2, Subject: "alice", Before: 1700000000123, Until: 1700000900000, ExpiresAt: 1700000960},
		{Log: "b", Number: 1, Kind: 1, Subject: "ses_1", Until: 1, ExpiresAt: 2},
	} {
		got, err := RevocationFrom(r.Log, store.Row{Key: r.Key(), Item: r.Item()})
		if err != nil || got != r {
			t.Errorf("%+v, %v", got, err)
		}
		if q := RevocationsAfter(r.Log, r.Number-1); q.From > r.Key().SK || q.PK != r.Key().PK ||
			RevocationsAfter(r.Log, r.Number).From <= r.Key().SK {
			t.Errorf("%+v", q)
		}
	}
	for key, r := range map[string]Revocation{
		"": {Subject: "x", Kind: 1}, "x": {Subject: "x", Kind: 1}, "00000000000000000000": {Subject: "x", Kind: 1},
		"00000000000000000005": {Kind: 1}, "00000000000000000006": {Subject: "x"},
	} {
		row := store.Row{Key: store.Key{Table: store.Revocations, PK: "log/a", SK: key}, Item: r.Item()}
		if got, err := RevocationFrom("a", row); err == nil || got.Subject != r.Subject {
			t.Errorf("%q is a row: %+v", key, got)
		}
	}
}

// How far a log goes reads as it was written, and is the condition of what follows.
func TestRevocationLogRow(t *testing.T) {
	l := RevocationLog{ID: "a", Last: 7, ExpiresAt: 1700000960}
	if got := RevocationLogFrom("a", l.Item()); got != l || l.Key().PK != RevocationLogs().PK {
		t.Errorf("%+v", got)
	}
	further := l
	further.Last++
	if !store.Evaluate(l.Unchanged(), l.Item()) || store.Evaluate(l.Unchanged(), further.Item()) ||
		store.Evaluate(l.Unchanged(), nil) || !store.Evaluate(RevocationLog{ID: "a"}.Unchanged(), nil) ||
		store.Evaluate(RevocationLog{ID: "a"}.Unchanged(), l.Item()) {
		t.Error("the condition is another")
	}
}

// Rows of service accounts and of their keys read as they were written.
func TestServiceRows(t *testing.T) {
	for _, a := range []Account{
		{ID: "crm", Description: "the shop", Scopes: []string{"api", "users:shop."}, CreatedAt: 5, CreatedBy: "ada"},
		{ID: "old", Scopes: []string{"api"}, Disabled: true, CreatedBy: "ada"},
	} {
		if got := AccountFrom(a.ID, a.Item()); !reflect.DeepEqual(got, a) {
			t.Errorf("%+v", got)
		}
	}
	for _, k := range []ServiceKey{
		{Account: "crm", ID: "k1", Hash: []byte{1, 2}, CreatedAt: 5, CreatedBy: "ada", ExpiresAt: 7, Revoked: true},
		{Account: "crm", ID: "k2", Hash: []byte{3}, CreatedBy: "ada"},
	} {
		if got := ServiceKeyFrom(k.Account, k.ID, k.Item()); !reflect.DeepEqual(got, k) {
			t.Errorf("%+v", got)
		}
	}
}
