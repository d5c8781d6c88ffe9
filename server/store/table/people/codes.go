package people

import (
	"encoding/binary"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Code is the last code sent to an identifier for requests from one network, with the
// numbers of codes sent and attempts made in the last 24 hours. Table otp_requests, key a
// keyed hash of identifier and network: the row does not reveal the identifier. The row
// under the identifier alone has the numbers of all networks that are strange to it, and no
// code.
type Code struct {
	Change    string // another one with each change of the row
	Request   string // id of the request that the code belongs to
	Hash      []byte // keyed hash of the code; empty: it was used
	Until     int64  // how long the code is good, unix ms
	Attempts  int64  // to guess it
	Sends     []int64
	Guesses   []int64 // times of both, unix ms, the oldest first
	Known     int64   // until when the network counts as the person's own, unix ms; 0: it does not
	ExpiresAt int64   // unix s
}

// AttrChange is the attribute that another text stands in after each change of a row.
const AttrChange = "change"

// CodeKey is the key of a row by a hash.
func CodeKey(hash string) store.Key { return store.Key{Table: store.OTPRequests, PK: hash} }

// Item returns the row as an item.
func (c Code) Item() store.Item {
	var hash, known store.Value
	if len(c.Hash) > 0 {
		hash = store.Bytes(c.Hash)
	}
	if c.Known != 0 {
		known = store.Int(c.Known)
	}
	return item(
		attr("attempts", store.Int(c.Attempts)),
		attr(AttrChange, store.String(c.Change)),
		attr(store.ExpiresAtField, store.Int(c.ExpiresAt)),
		attr("guesses", store.Bytes(packTimes(c.Guesses))),
		attr("hash", hash),
		attr("known", known),
		attr("request", store.String(c.Request)),
		attr("sends", store.Bytes(packTimes(c.Sends))),
		attr("until", store.Int(c.Until)),
	)
}

// CodeFrom reads the row of a code.
func CodeFrom(it store.Item) Code {
	return Code{
		Change: str(it, AttrChange), Request: str(it, "request"), Hash: it.Get("hash").Blob(), Until: num(it, "until"),
		Attempts: num(it, "attempts"), Known: num(it, "known"), Sends: unpackTimes(it, "sends"),
		Guesses: unpackTimes(it, "guesses"), ExpiresAt: num(it, store.ExpiresAtField),
	}
}

// UsedTicket is a ticket for a stream that was used. Table otp_requests, key "ticket#" and the ticket's nonce.
type UsedTicket struct {
	ExpiresAt int64 // unix s
}

// UsedTicketKey is the key of the row of a used ticket.
func UsedTicketKey(nonce string) store.Key { return CodeKey("ticket#" + nonce) }

// Item returns the row as an item.
func (u UsedTicket) Item() store.Item {
	return item(attr(store.ExpiresAtField, store.Int(u.ExpiresAt)))
}

// UsedTicketFrom reads the row of a used ticket.
func UsedTicketFrom(it store.Item) UsedTicket { return UsedTicket{num(it, store.ExpiresAtField)} }

const timeSize = 8 // bytes of a time in a row

func packTimes(times []int64) []byte {
	b := make([]byte, 0, timeSize*len(times))
	for _, t := range times {
		b = binary.BigEndian.AppendUint64(b, uint64(t))
	}
	return b
}

func unpackTimes(it store.Item, name string) []int64 {
	b := it.Get(name).Blob()
	times := make([]int64, 0, len(b)/timeSize)
	for ; len(b) >= timeSize; b = b[timeSize:] {
		times = append(times, int64(binary.BigEndian.Uint64(b)))
	}
	return times
}

// Since returns the times of a list that are within a duration before now.
func Since(times []int64, now time.Time, within time.Duration) []int64 {
	from := now.Add(-within).UnixMilli()
	for len(times) > 0 && times[0] <= from {
		times = times[1:]
	}
	return times
}
