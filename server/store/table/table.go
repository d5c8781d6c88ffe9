// Package table declares the rows of the store: one file per table holds the
// row type, its key, its limits and its conversion to and from an item.
//
// Attribute names are what an operator reads in DynamoDB's console. A reader accepts every row
// that any release wrote; attributes that a newer release adds are missing in older rows and read
// as the zero value; the rows in testdata, which only grow, hold it to that. A row gets an
// attribute "v" with the number of its layout when a layout comes that the reader must know to
// read the row; without it the layout is 1. The package owns layouts only: no rule of chats and
// no engine. Everything in it is pure.
package table

import (
	"fmt"
	"strconv"

	"github.com/parley-chat/parley/server/store"
)

// MaxUserID is the size of a user id in bytes. It holds no "#" and no line break, which
// separate ids in keys and lists.
const MaxUserID = 64

// Type tells direct chats and groups apart.
type Type string

// The types of chats.
const (
	Direct Type = "direct"
	Group  Type = "group"
)

// Status is the lifecycle state of a chat.
type Status string

// Active is the only state so far.
const Active Status = "active"

// History says what a member who joins later can read.
type History string

// The history modes.
const (
	All         History = "all"
	SinceJoined History = "since_joined"
)

// Role is what a member may do.
type Role string

// The roles.
const (
	Owner  Role = "owner"
	Admin  Role = "admin"
	Member Role = "member"
)

// width is the number of digits of a version or sequence in a sort key, enough
// for every int64.
const width = 20

// Number formats a version or sequence for a sort key, so that the order of the
// bytes is the order of the numbers. Negative numbers have no place in a key.
func Number(n int64) string {
	var b [width]byte
	for i := width - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return string(b[:])
}

func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || len(s) != width || n < 0 || s[0] < '0' {
		return 0, fmt.Errorf("table: %q is not a number of a sort key", s)
	}
	return n, nil
}

// attrs collects the attributes of an item; optional ones are left out while
// they have the zero value.
type attrs []store.Attr

func (a *attrs) str(name, v string) { *a = append(*a, store.Attr{Name: name, Value: store.String(v)}) }
func (a *attrs) int(name string, v int64) {
	*a = append(*a, store.Attr{Name: name, Value: store.Int(v)})
}
func (a *attrs) bytes(name string, v []byte) {
	*a = append(*a, store.Attr{Name: name, Value: store.Bytes(v)})
}
func (a *attrs) optStr(name, v string) {
	if v != "" {
		a.str(name, v)
	}
}
func (a *attrs) optInt(name string, v int64) {
	if v != 0 {
		a.int(name, v)
	}
}
func (a *attrs) optBool(name string, v bool) {
	if v {
		*a = append(*a, store.Attr{Name: name, Value: store.Bool(true)})
	}
}
func (a *attrs) list(name string, v []string) {
	if len(v) > 0 {
		*a = append(*a, store.Attr{Name: name, Value: store.List(v)})
	}
}

// item makes the item. Rows add their attributes in order of the names, so that
// nothing has to be copied and sorted.
func (a attrs) item() store.Item {
	for i := 1; i < len(a); i++ {
		if a[i-1].Name >= a[i].Name {
			return store.NewItem(a...)
		}
	}
	return store.Item(a)
}

func str(it store.Item, name string) string { return it.Get(name).Str() }
func num(it store.Item, name string) int64  { return it.Get(name).Int64() }
