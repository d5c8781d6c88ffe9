package people

import (
	"fmt"
	"strconv"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Revocation makes access tokens invalid. Table revocations, a partition for each log: what
// one process writes, in the order in which it does. A row expires when the tokens have.
type Revocation struct {
	Log       string
	Number    int64  // from 1 on, without gaps but for rows that have expired
	Kind      int64  // auth.RevokedKind
	Subject   string // session, user or service account
	Before    int64  // tokens issued before are meant, unix ms; 0: all
	Until     int64  // when they have expired, unix ms
	ExpiresAt int64  // unix s
}

// RevocationLog is how far a log goes. It is in the partition of all logs, and is written
// together with the log's rows. It expires with the last of them.
type RevocationLog struct {
	ID        string
	Last      int64 // number of the log's last row
	ExpiresAt int64 // unix s
}

const (
	revocationLogs = "logs"
	revocationLog  = "log/" // begins the partitions of logs
	attrLast       = "last"
)

// RevocationLogs is the query for all logs.
func RevocationLogs() store.Query {
	return store.Query{Table: store.Revocations, PK: revocationLogs, Consistency: store.Strong}
}

// RevocationsAfter is the query for the rows of a log after a number.
func RevocationsAfter(log string, number int64) store.Query {
	return store.Query{Table: store.Revocations, PK: revocationLog + log, From: table.Number(max(0, number) + 1),
		Consistency: store.Strong}
}

// Key is the row's key.
func (l RevocationLog) Key() store.Key {
	return store.Key{Table: store.Revocations, PK: revocationLogs, SK: l.ID}
}

// Item returns the row as an item.
func (l RevocationLog) Item() store.Item {
	return store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(l.ExpiresAt)},
		store.Attr{Name: attrLast, Value: store.Int(l.Last)})
}

// Unchanged is the condition that a log goes as far as it says, none if it has no rows.
func (l RevocationLog) Unchanged() store.Condition {
	if l.Last == 0 {
		return store.Absent()
	}
	return store.Exists().Eq(attrLast, store.Int(l.Last))
}

// RevocationLogFrom reads a row of the partition of logs. Where it does not say how far the
// log goes, Last is 0.
func RevocationLogFrom(id string, it store.Item) RevocationLog {
	return RevocationLog{ID: id, Last: max(0, it.Get(attrLast).Int64()),
		ExpiresAt: it.Get(store.ExpiresAtField).Int64()}
}

// Key is the row's key.
func (r Revocation) Key() store.Key {
	return store.Key{Table: store.Revocations, PK: revocationLog + r.Log, SK: table.Number(r.Number)}
}

// Item returns the row as an item.
func (r Revocation) Item() store.Item {
	list := []store.Attr{
		{Name: store.ExpiresAtField, Value: store.Int(r.ExpiresAt)},
		{Name: "kind", Value: store.Int(r.Kind)},
		{Name: "subject", Value: store.String(r.Subject)},
		{Name: "until", Value: store.Int(r.Until)},
	}
	if r.Before != 0 {
		list = append(list, store.Attr{Name: "before", Value: store.Int(r.Before)})
	}
	return store.NewItem(list...)
}

// RevocationFrom reads a row of a log. On an error it has what could be read.
func RevocationFrom(log string, row store.Row) (Revocation, error) {
	r := Revocation{
		Log: log, Kind: row.Item.Get("kind").Int64(), Subject: row.Item.Get("subject").Str(),
		Before: row.Item.Get("before").Int64(), Until: row.Item.Get("until").Int64(),
		ExpiresAt: row.Item.Get(store.ExpiresAtField).Int64(),
	}
	n, err := strconv.ParseInt(row.Key.SK, 10, 64)
	if err == nil && n > 0 {
		r.Number = n
	}
	if r.Number == 0 || r.Subject == "" || r.Kind < 1 {
		return r, fmt.Errorf("people: %s is no revocation", row.Key)
	}
	return r, nil
}
