package table

import (
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Audit is one half of the record of an operator's call: that it began, or how it ended.
// Table audit, key month (UTC) and time, id and half: both halves stand beside each other,
// and a month's calls in the order of their begin. A security event has one row, of both
// halves, with its own partitions. Copies of rows that are about a user have their own
// partitions, too. Rows are written once, never changed, and expire.
type Audit struct {
	At        int64  // of this half, unix ms
	By        string // the operator; in both halves, like Call
	Call      string // name of the RPC, or of the event
	Target    string // to whom; empty if there is no single one
	Request   string // what was asked for, JSON; of the first half
	Code      string // "ok" or the code of the error; of the second half
	Result    string // JSON, or the reason of the error; of the second half
	ExpiresAt int64  // unix s
}

// The halves of a call, and an event. The second half sorts behind the first.
const (
	AuditEvent = "0"
	AuditBegun = "1"
	AuditEnded = "2"
)

// AuditKey is the key of a half of a call that began at a time; id tells calls of one
// millisecond apart, and has no "#".
func AuditKey(began time.Time, id, half string) store.Key {
	return store.Key{Table: store.Audit, PK: AuditMonth(began), SK: Number(began.UnixMilli()) + "#" + id + "#" + half}
}

// AuditMonth is the partition of calls that began at a time.
func AuditMonth(t time.Time) string { return t.UTC().Format("2006-01") }

// AuditFrom reads a row of audit.
func AuditFrom(it store.Item) Audit {
	return Audit{
		At: num(it, AttrAt), By: str(it, "by"), Call: str(it, "call"), Request: str(it, "request"), Target: str(it, "target"),
		Code: str(it, "code"), Result: str(it, "result"), ExpiresAt: num(it, store.ExpiresAtField),
	}
}

// Item returns the row as an item.
func (r Audit) Item() store.Item {
	a := make(attrs, 0, 8)
	a.int(AttrAt, r.At)
	a.str("by", r.By)
	a.str("call", r.Call)
	a.optStr("code", r.Code)
	a.optInt(store.ExpiresAtField, r.ExpiresAt)
	a.optStr("request", r.Request)
	a.optStr("result", r.Result)
	a.optStr("target", r.Target)
	return a.item()
}
