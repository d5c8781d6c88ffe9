// Package view reads the data that a user may see: chats, members, messages, changes, and
// what changed since a synchronisation token was given out.
//
// It owns the order of reads that keeps a former member from seeing anything newer than the
// removal, the rules of what is hidden in chats with [table.SinceJoined] history, the pages
// of all lists, and the two kinds of tokens. Its answers are the API's own messages. It
// does not own any rule of changing chats (package chat), the rows' layout (package table),
// or the transport; a caller that answers with what was read waits for
// [store.Store.Durable] first.
//
// # Order of reads
//
// Every read for a user goes: head of the chat, contents, the user's row of the
// chat. The head first, so that the version an answer names is not newer than
// its contents: asking for the changes after that version loses nothing. The
// user's row last, so that everything in the answer was committed before that row
// still said "member". The same row is also read first, together with the head,
// where it saves work: a stranger costs one read, and gets the same answer after
// the same reads whether the chat exists or not.
//
// # Lists of chats
//
// A list is loaded once, for its first page: all rows of the user, then all heads.
// Later pages use what was loaded, which is cached for a while; a page costs its
// chats and the user's rows of them, which are read again, last. The list that a page
// token names may have been dropped: then the page loads another, and paging.go says
// why nothing is lost. Calls for one user share loads, but never one that began before
// they came. Work on lists is done in turns, so that long ones delay neither short
// ones nor other requests.
//
// # Files
//
// view.go reads rows and single chats, chats.go overviews and the lists of chats and members,
// messages.go messages, changes.go what changed in a chat. list.go loads a user's chats,
// paging.go goes through them, token.go has both kinds of tokens.
//
// # Concurrency
//
// A Reader is safe for use by many goroutines and starts none. It holds a mutex for
// its lists only for a few steps, never during a read. All reads are consistent.
package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Errors of reads. A chat that the user is not a member of, and one that does
// not exist, is [chat.ErrNotAMember]. Errors of the store come through wrapped.
var (
	ErrInvalidToken     = errors.New("view: invalid synchronisation token")
	ErrInvalidPageToken = errors.New("view: invalid page token")
)

// Limits of a Reader's configuration.
const (
	MaxGeneration = 56 // bytes: tokens that have it must fit into requests
	KeySize       = 32 // bytes

	// DefaultLists is the memory for lists of which pages are being read, in bytes.
	DefaultLists = 64 << 20
)

// Config sets up a Reader.
type Config struct {
	Store    store.Store
	History  store.History    // the store's; tokens name their place in it
	TokenKey []byte           // signs tokens; the same in all processes of a store
	Clock    func() time.Time // the clock that changes are stamped by
	Stamps   *timestamp.Clock // the process's, over Store and Clock; by default one of its own
	// Lists is the memory for lists of chats of which pages are being read; by
	// default DefaultLists. If it is negative, calls share nothing: each page loads
	// its own list, and none waits for its turn.
	Lists int
	// Turns is the number of lists of chats that are worked on at once; by default
	// half of the processors. More where the store is far away.
	Turns int
	// NoReadReceipts hides from the members of a direct chat how far the other person has
	// read, even if it was shown before.
	NoReadReceipts bool
}

// Validate checks a configuration.
func (c Config) Validate() error {
	switch {
	case c.Store == nil || c.Clock == nil:
		return errors.New("view: store and clock are required")
	case c.History == nil || c.History.Generation() == "" || len(c.History.Generation()) > MaxGeneration:
		return fmt.Errorf("view: a generation has 1 to %d bytes", MaxGeneration)
	case len(c.TokenKey) != KeySize:
		return fmt.Errorf("view: the token key has %d bytes, not %d", KeySize, len(c.TokenKey))
	}
	return nil
}

// Reader reads for users.
type Reader struct {
	store   store.Store
	clock   func() time.Time
	key     signatureKey
	history store.History

	noReadReceipts bool

	stamps *timestamp.Clock

	loads sharedLoads[*list]
	cache *shareCache[*list] // nil: calls share nothing
	turns chan struct{}      // a place for each list that is worked on
}

// New makes a Reader. It panics if the configuration is not valid; see
// [Config.Validate].
func New(cfg Config) *Reader {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	if cfg.Turns <= 0 {
		cfg.Turns = max(1, runtime.GOMAXPROCS(0)/2)
	}
	r := &Reader{
		store:   cfg.Store,
		clock:   cfg.Clock,
		key:     slices.Clone(cfg.TokenKey),
		history: cfg.History,

		noReadReceipts: cfg.NoReadReceipts,
	}
	r.stamps = cmp.Or(cfg.Stamps, timestamp.New(cfg.Store, cfg.Clock))
	if cfg.Lists == 0 {
		cfg.Lists = DefaultLists
	}
	if cfg.Lists > 0 {
		r.cache, r.turns = newShareCache[*list](cfg.Lists), make(chan struct{}, cfg.Turns)
	}
	return r
}

// UserChats returns all rows of a user, those of chats that were left included,
// in order of chat id.
func (r *Reader) UserChats(ctx context.Context, user string) ([]table.UserChat, error) {
	var rows []table.UserChat
	err := r.query(ctx, store.Query{Table: store.DeliveryState, PK: user}, func(row store.Row) error {
		rows = append(rows, table.UserChatFrom(user, row.Key.SK, row.Item))
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Then those that were left: a chat that is left meanwhile is in both.
	var left []table.UserChat
	q := store.Query{Table: store.DeliveryState, PK: table.LeftPartition(user), From: table.FirstLeft}
	err = r.query(ctx, q, func(row store.Row) error {
		u := table.UserChatFrom(user, row.Key.SK, row.Item)
		i, ok := slices.BinarySearchFunc(rows, u.ChatID,
			func(r table.UserChat, id string) int { return strings.Compare(r.ChatID, id) })
		switch {
		case !ok:
			left = append(left, u)
		case rows[i].JoinedVersion < u.LeftVersion:
			rows[i] = u
		}
		return nil
	})
	if len(left) > 0 {
		rows = append(rows, left...)
		slices.SortFunc(rows, func(a, b table.UserChat) int { return strings.Compare(a.ChatID, b.ChatID) })
	}
	return rows, err
}

// UserChatsOf returns the user's rows of distinct chats, nil where there is none.
func (r *Reader) UserChatsOf(ctx context.Context, user string, chatIDs []string) ([]*table.UserChat, error) {
	rows, err := r.userRows(ctx, chatIDs, func(id string) store.Key { return table.UserChatKey(user, id) }, user)
	if err != nil {
		return nil, err
	}
	var ids []string
	for i, row := range rows {
		if row == nil {
			ids = append(ids, chatIDs[i])
		}
	}
	if len(ids) == 0 {
		return rows, nil
	}
	left, err := r.userRows(ctx, ids, func(id string) store.Key { return table.LeftKey(user, id) }, user)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i] == nil {
			rows[i], left = left[0], left[1:]
		}
	}
	return rows, nil
}

func (r *Reader) userRows(
	ctx context.Context, chatIDs []string, key func(string) store.Key, user string,
) ([]*table.UserChat, error) {
	items, err := r.batch(ctx, chatIDs, key)
	if err != nil {
		return nil, err
	}
	return rowsFrom(chatIDs, items, func(id string, it store.Item) table.UserChat {
		return table.UserChatFrom(user, id, it)
	}), nil
}

// Heads returns the heads of distinct chats, nil where there is none.
func (r *Reader) Heads(ctx context.Context, chatIDs []string) ([]*table.Head, error) {
	items, err := r.batch(ctx, chatIDs, table.HeadKey)
	if err != nil {
		return nil, err
	}
	return rowsFrom(chatIDs, items, table.HeadFrom), nil
}

func (r *Reader) chats(ctx context.Context, chatIDs []string) ([]*table.Chat, error) {
	items, err := r.batch(ctx, chatIDs, table.ChatKey)
	if err != nil {
		return nil, err
	}
	return rowsFrom(chatIDs, items, table.ChatFrom), nil
}

// Events returns up to limit events of a chat that follow a version, without a
// gap: where one is missing, because its plan is not visible as a whole yet, it
// stops before it.
func (r *Reader) Events(ctx context.Context, chatID string, after int64, limit int) ([]event.Event, error) {
	if limit <= 0 {
		return nil, nil
	}
	q := store.Query{
		Table: store.Events, PK: chatID, Limit: limit,
		From: table.Number(after + 1), To: table.Number(after + int64(limit)),
	}
	var events []event.Event
	err := r.query(ctx, q, func(row store.Row) error {
		ev, err := table.EventFrom(row)
		if err != nil {
			return err
		}
		if ev.Version != after+int64(len(events))+1 {
			return errStop
		}
		e, err := event.Unmarshal(ev.Type, ev.Payload)
		if err != nil {
			return err
		}
		events = append(events, e)
		return nil
	})
	return events, err
}

// MemberIDs returns the members of a chat, in order, and a membership version
// that the list is not older than. Users still on their way into a new group are
// no members yet.
func (r *Reader) MemberIDs(ctx context.Context, chatID string) (membershipVersion int64, users []string, err error) {
	it, err := r.store.Get(ctx, table.HeadKey(chatID), store.Strong)
	if err != nil {
		return 0, nil, fmt.Errorf("read head: %w", err)
	}
	err = r.query(ctx, store.Query{Table: store.ChatMemberships, PK: chatID}, func(row store.Row) error {
		users = append(users, row.Key.SK)
		return nil
	})
	return table.HeadFrom(chatID, it).MembershipVersion, users, err
}

// open begins a read of one chat: the head, and the user's row as it was about then. A
// caller that is no member is refused here.
func (r *Reader) open(ctx context.Context, user, chatID string) (table.Head, table.UserChat, error) {
	keys := []store.Key{table.HeadKey(chatID), table.UserChatKey(user, chatID)}
	items, err := r.store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return table.Head{}, table.UserChat{}, fmt.Errorf("read head: %w", err)
	}
	row, err := member(user, chatID, items[1])
	if items[0] == nil {
		err = chat.ErrNotAMember
	}
	return table.HeadFrom(chatID, items[0]), row, err
}

// confirm ends a read of one chat: it returns the user's row as it is now, or
// chat.ErrNotAMember.
func (r *Reader) confirm(ctx context.Context, user, chatID string) (table.UserChat, error) {
	it, err := r.store.Get(ctx, table.UserChatKey(user, chatID), store.Strong)
	if err != nil {
		return table.UserChat{}, fmt.Errorf("read user's row: %w", err)
	}
	return member(user, chatID, it)
}

func member(user, chatID string, it store.Item) (table.UserChat, error) {
	row := table.UserChatFrom(user, chatID, it)
	if it == nil || row.Left() {
		return row, chat.ErrNotAMember
	}
	return row, nil
}

// incomplete is the answer where a plan that the head shows is not visible as a whole
// yet: on backends without snapshots its items may appear one by one.
func incomplete(chatID string, version int64) error {
	return fmt.Errorf("%w: version %d of %s is not visible yet", store.ErrUnavailable, version, chatID)
}

// errStop ends a query early.
var errStop = errors.New("stop")

// query passes all rows of a query to onRow, page by page. onRow may return
// errStop.
func (r *Reader) query(ctx context.Context, q store.Query, onRow func(store.Row) error) error {
	q.Consistency = store.Strong
	for left := q.Limit; ; {
		page, err := r.store.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("query %s: %w", q.Table, err)
		}
		for _, row := range page.Rows {
			if err := onRow(row); errors.Is(err, errStop) {
				return nil
			} else if err != nil {
				return fmt.Errorf("read %s: %w", row.Key, err)
			}
		}
		if left -= len(page.Rows); page.Cursor == "" || (q.Limit > 0 && left <= 0) {
			return nil
		}
		q.Cursor = page.Cursor
	}
}

// batch reads the rows of distinct ids.
func (r *Reader) batch(ctx context.Context, ids []string, key func(string) store.Key) ([]store.Item, error) {
	keys := make([]store.Key, len(ids))
	for i, id := range ids {
		keys[i] = key(id)
	}
	return r.items(ctx, keys)
}

// items reads any number of distinct keys.
func (r *Reader) items(ctx context.Context, keys []store.Key) ([]store.Item, error) {
	items := make([]store.Item, 0, len(keys))
	for chunk := range slices.Chunk(keys, store.MaxBatchGet) {
		got, err := r.store.BatchGet(ctx, chunk, store.Strong)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", chunk[0].Table, err)
		}
		items = append(items, got...)
	}
	return items, nil
}

// rowsFrom converts items to rows, nil where there is none.
func rowsFrom[R any](ids []string, items []store.Item, from func(string, store.Item) R) []*R {
	rows := make([]R, len(ids))
	out := make([]*R, len(ids))
	for i, it := range items {
		if it != nil {
			rows[i] = from(ids[i], it)
			out[i] = &rows[i]
		}
	}
	return out
}
