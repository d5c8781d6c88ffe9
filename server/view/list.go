package view

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// list is a user's chats as one load found them. It is never changed, so that any
// number of requests may use it.
type list struct {
	id    uint64           // names the list in page tokens
	chats []listed         // that the user is a member of, in order of chat id
	left  []table.UserChat // that the user left under an earlier release, which kept the rows in place

	sorted [2]order
}

// listed is a chat of a list.
type listed struct {
	head          table.Head
	changedAt     int64 // of the user's row
	notUnread     int64 // messages that were read, and the user's own after them
	ownLast       int64 // the last of these
	joinedVersion int64
	archived      bool
}

// listedBytes is about what a chat of a list takes, with a preview of middle length.
const listedBytes = 512

func (l *list) bytes() int { return listedBytes * (len(l.chats) + len(l.left) + 1) }

// find returns a chat of the list, nil if it is not there.
func (l *list) find(chatID string) *listed {
	i, ok := slices.BinarySearchFunc(l.chats, chatID, func(c listed, id string) int {
		return strings.Compare(c.head.ChatID, id)
	})
	if !ok {
		return nil
	}
	return &l.chats[i]
}

// rowsPerTurn is the number of heads that are read in one turn at the processor.
const rowsPerTurn = 5 * store.MaxBatchGet

// load reads the user's chats: the rows, then the heads of those that the user is a
// member of. It takes turns with other loads.
func (r *Reader) load(ctx context.Context, user string) (*list, error) {
	l := &list{id: newListID()}
	q := store.Query{Table: store.DeliveryState, PK: user, Consistency: store.Strong}
	for more := true; more; {
		err := r.turn(ctx, func() error {
			page, err := r.store.Query(ctx, q)
			if err != nil {
				return fmt.Errorf("query %s: %w", q.Table, err)
			}
			l.add(user, page.Rows)
			q.Cursor, more = page.Cursor, page.Cursor != ""
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	found := 0
	for rest := l.chats; len(rest) > 0; {
		n := min(rowsPerTurn, len(rest))
		err := r.turn(ctx, func() error { return r.addHeads(ctx, rest[:n]) })
		if err != nil {
			return nil, err
		}
		for _, c := range rest[:n] {
			if c.head.Version != 0 { // else its first plan is not visible as a whole yet
				l.chats[found] = c
				found++
			}
		}
		rest = rest[n:]
	}
	clear(l.chats[found:])
	l.chats = l.chats[:found]
	return l, nil
}

func (l *list) add(user string, rows []store.Row) {
	l.chats = slices.Grow(l.chats, len(rows))
	for _, row := range rows {
		u := table.UserChatFrom(user, row.Key.SK, row.Item)
		if u.Left() {
			l.left = append(l.left, u)
			continue
		}
		own, last := u.OwnUnread()
		l.chats = append(l.chats, listed{
			head: table.Head{ChatID: u.ChatID}, changedAt: u.ChangedAt, notUnread: u.ReadSequence + own, ownLast: last,
			joinedVersion: u.JoinedVersion, archived: u.Archived,
		})
	}
}

func (r *Reader) addHeads(ctx context.Context, chats []listed) error {
	keys := make([]store.Key, len(chats))
	for i := range chats {
		keys[i] = table.HeadKey(chats[i].head.ChatID)
	}
	items, err := r.items(ctx, keys)
	if err != nil {
		return err
	}
	for i, it := range items {
		chats[i].head = table.HeadFrom(chats[i].head.ChatID, it)
	}
	return nil
}

// turn does a part of the work on a list. Lists are the longest requests there are:
// only so many parts run at once that other requests find a processor free, and each
// list waits for its next turn behind those that came before.
func (r *Reader) turn(ctx context.Context, part func() error) error {
	if r.turns == nil {
		return part()
	}
	select {
	case r.turns <- struct{}{}:
		defer func() { <-r.turns }()
		return part()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// list returns the user's chats as they are at the call or later.
func (r *Reader) list(ctx context.Context, user string) (*list, error) {
	if r.cache == nil {
		return r.load(ctx, user)
	}
	return r.loads.Get(ctx, user, func(ctx context.Context) (*list, error) { return r.load(ctx, user) })
}

// cachedList returns the list that a page token names, nil if it was dropped.
func (r *Reader) cachedList(user string, id uint64) *list {
	if r.cache == nil {
		return nil
	}
	l, _ := r.cache.Get(user, id, r.clock())
	return l
}

// cacheList caches a list for its next page.
func (r *Reader) cacheList(user string, l *list) {
	if r.cache != nil {
		r.cache.Put(user, l.id, l, l.bytes(), r.clock())
	}
}

func newListID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}
