package otp

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

// nonceSize is the length of the random part of a request's id. The name of the network that
// asked is behind it, by which the row of the code is found from any other.
const nonceSize = 26

// network is the name of a network, which only this installation can make.
func (s *Service) network(client string) string {
	return base32.StdEncoding.EncodeToString(s.hash("network", client)[:10])
}

// book is what stands about an identifier for those in one network: its own row, with the code,
// and the row of all networks that are strange to the identifier.
type book struct {
	ownKey, strangersKey store.Key
	own, strangers       people.Code
	named                bool // the network is not the empty one, which all requests without a network share
}

// read reads a book. Rows that there are not are empty.
func (s *Service) read(ctx context.Context, id identifier.Identifier, network string) (book, error) {
	key := func(texts ...string) store.Key {
		return people.CodeKey(hex.EncodeToString(s.hash("identifier", texts...)))
	}
	b := book{ownKey: key(id.Key(), network), strangersKey: key(id.Key()), named: network != s.network("")}
	items, err := s.store.BatchGet(ctx, []store.Key{b.ownKey, b.strangersKey})
	if err == nil {
		b.own, b.strangers = people.CodeFrom(items[0]), people.CodeFrom(items[1])
	}
	return b, err
}

// known reports whether the person has used a code in the network.
func (b book) known(now time.Time) bool { return now.UnixMilli() < b.own.Known }

// tooOften returns how long the network must wait for another code.
func (b book) tooOften(now time.Time) time.Duration {
	voided := len(people.Since(b.own.Sends, now, Lifetime))
	if b.known(now) {
		return tooOften(b.own, voided, now)
	}
	retry := tooOften(b.strangers, voided, now)
	if b.named {
		retry = max(retry, over(b.own.Sends, maxShare-1, now), over(b.own.Guesses, maxGuessShare-maxAttempts, now))
	}
	return retry
}

// over returns how long it takes until no more than a number of times are within a day.
func over(times []int64, limit int, now time.Time) time.Duration {
	if times = people.Since(times, now, day); len(times) <= limit {
		return 0
	}
	return time.UnixMilli(times[len(times)-limit-1]).Add(day).Sub(now)
}

// tooOften returns how long those whose codes and attempts stand in a row must wait for another
// code, which voids some of the last five minutes.
func tooOften(row people.Code, voided int, now time.Time) time.Duration {
	if n := len(row.Sends); n > 0 {
		if retry := time.UnixMilli(row.Sends[n-1]).Add(Resend).Sub(now); retry > 0 {
			return retry
		}
	}
	if retry := over(row.Sends, maxSends-1, now); retry > 0 {
		return retry
	}
	// Codes that are good yet may be tried five times each, and so may the next one.
	good := people.Since(row.Sends, now, Lifetime)
	open := max(len(good)-voided, 0)
	left := maxGuesses - maxAttempts*(open+1) // less than 0 by clocks that differ
	retry := over(row.Guesses, max(left, 0), now)
	if open > 0 && (retry > 0 || left < 0) {
		retry = time.UnixMilli(good[0]).Add(Lifetime).Sub(now)
	}
	return retry
}

// Names of the conditions that no other request changed the rows.
const (
	condCode      = "code"
	condStrangers = "codes of strangers"
)

// with returns the network's row with more codes and attempts in it, which are counted among
// those of strangers, too, if the network is one, and the writes that make it so.
func (b book) with(own people.Code, now time.Time, sends, guesses []int64) (people.Code, []store.Write) {
	count := func(row, old people.Code) people.Code {
		row.Change = rand.Text()
		row.Sends = append(people.Since(old.Sends, now, day), sends...)
		row.Guesses = append(people.Since(old.Guesses, now, day), guesses...)
		row.ExpiresAt = max(now.Add(day+time.Minute).Unix(), row.Known/1000+1)
		return row
	}
	own = count(own, b.own)
	writes := []store.Write{replace(b.ownKey, b.own, own, condCode)}
	if !b.known(now) {
		writes = append(writes, replace(b.strangersKey, b.strangers, count(b.strangers, b.strangers), condStrangers))
	}
	return own, writes
}

// replace is the write of a row that is as it was read.
func replace(key store.Key, old, next people.Code, name string) store.Write {
	cond := store.Absent()
	if old.Change != "" {
		cond = store.Condition{}.Eq(people.AttrChange, store.String(old.Change))
	}
	return store.Write{Op: store.OpPut, Key: key, Item: next.Item(), Cond: cond, Name: name}
}
