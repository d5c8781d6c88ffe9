package view

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Sizes of pages: without a wish, and at most.
const (
	chatsPage, maxChatsPage     = 50, 100
	membersPage, maxMembersPage = 100, 100
	syncPage, maxSyncPage       = 100, 1000
)

// Overview returns one chat of the user.
func (r *Reader) Overview(ctx context.Context, user, chatID string) (*chatv1.ChatOverview, error) {
	head, _, err := r.open(ctx, user, chatID)
	if err != nil {
		return nil, err
	}
	it, err := r.store.Get(ctx, table.ChatKey(chatID), store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read chat: %w", err)
	}
	row, err := r.confirm(ctx, user, chatID)
	if err != nil {
		return nil, err
	}
	if row.Role == "" {
		rows := []*table.UserChat{&row}
		if err := r.addRoles(ctx, user, rows); err != nil {
			return nil, err
		}
		if rows[0] == nil || rows[0].Left() {
			return nil, chat.ErrNotAMember
		}
		row = *rows[0]
	}
	if it == nil {
		return nil, incomplete(chatID, head.Version)
	}
	return r.overview(head, table.ChatFrom(chatID, it), row), nil
}

// Overviews returns what the user may see of chats. It reads heads, chats, and then the
// user's rows; chats that the row forbids are left out.
func (r *Reader) Overviews(ctx context.Context, user string, chatIDs []string) ([]*chatv1.ChatOverview, error) {
	heads, err := r.Heads(ctx, chatIDs)
	if err != nil {
		return nil, err
	}
	found := heads[:0]
	for _, h := range heads {
		if h != nil {
			found = append(found, h)
		}
	}
	overviews, _, err := r.overviews(ctx, user, found)
	return overviews, err
}

// overviews reads the chats of heads and then the user's rows. It returns what the user
// may see, in the order of the heads, and the chats that the user has left.
func (r *Reader) overviews(
	ctx context.Context, user string, heads []*table.Head,
) ([]*chatv1.ChatOverview, []*table.UserChat, error) {
	// Neighbours in the store are read together.
	indexes := make([]int, len(heads))
	for i := range indexes {
		indexes[i] = i
	}
	slices.SortFunc(indexes, func(a, b int) int { return strings.Compare(heads[a].ChatID, heads[b].ChatID) })
	found := overviews{heads: heads, visible: make([]*chatv1.ChatOverview, len(heads))}
	for part := range slices.Chunk(indexes, store.MaxBatchGet) {
		if err := r.turn(ctx, func() error { return r.addOverviews(ctx, user, &found, part) }); err != nil {
			return nil, nil, err
		}
	}
	return slices.DeleteFunc(found.visible, func(o *chatv1.ChatOverview) bool { return o == nil }), found.left, nil
}

// overviews is what was read of the chats of heads.
type overviews struct {
	heads   []*table.Head
	visible []*chatv1.ChatOverview // at the indexes of the heads; nil: not visible to the user
	left    []*table.UserChat
}

// addOverviews reads the chats of the heads at some indexes.
func (r *Reader) addOverviews(ctx context.Context, user string, found *overviews, indexes []int) error {
	ids := make([]string, len(indexes))
	for i, at := range indexes {
		ids[i] = found.heads[at].ChatID
	}
	chats, err := r.chats(ctx, ids)
	if err != nil {
		return err
	}
	rows, err := r.UserChatsOf(ctx, user, ids)
	if err != nil {
		return err
	}
	if err := r.addRoles(ctx, user, rows); err != nil {
		return err
	}
	for i, row := range rows {
		head := found.heads[indexes[i]]
		switch {
		case row == nil:
		case row.Left():
			found.left = append(found.left, row)
		case chats[i] == nil:
			return incomplete(head.ChatID, head.Version)
		default:
			found.visible[indexes[i]] = r.overview(*head, *chats[i], *row)
		}
	}
	return nil
}

// addRoles completes the rows that an earlier release wrote without the role: it
// reads the memberships and then these rows again, because a user's row is read last.
func (r *Reader) addRoles(ctx context.Context, user string, rows []*table.UserChat) error {
	var ids []string
	var indexes []int
	for i, row := range rows {
		if row != nil && !row.Left() && row.Role == "" {
			ids, indexes = append(ids, row.ChatID), append(indexes, i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	memberships, err := r.batch(ctx, ids, func(id string) store.Key { return table.MembershipKey(id, user) })
	if err != nil {
		return err
	}
	again, err := r.UserChatsOf(ctx, user, ids)
	if err != nil {
		return err
	}
	for i, row := range again {
		if row != nil && !row.Left() && row.Role == "" {
			row.Role = table.MembershipFrom(ids[i], user, memberships[i]).Role
		}
		rows[indexes[i]] = row
	}
	return nil
}

// ListChats returns a page of the user's chats, the one with the latest message
// first. Chats that get messages while the pages are read may come again at the
// end, but none is missing.
func (r *Reader) ListChats(
	ctx context.Context, user string, req *chatv1.ListChatsRequest,
) (*chatv1.ListChatsResponse, error) {
	filters := filtersOf(req)
	start, err := r.Begin(ctx)
	if err != nil {
		return nil, err
	}
	p := &pager{
		cursor: newCursor(start),
		user:   user, sort: byMessage, size: pageSize(int(req.GetPageSize()), chatsPage, maxChatsPage),
		filter: func(c *listed) bool { return filters.match(c.archived, max(c.head.Sequence, c.ownLast) > c.notUnread) },
	}
	if req.GetPageToken() != "" {
		if p.cursor, err = r.resume(ctx, req.GetPageToken(), purposeChats, user, filters.String()); err != nil {
			return nil, err
		}
	}
	entries, more, err := r.page(ctx, p)
	if err != nil {
		return nil, err
	}
	chats, _, err := r.overviews(ctx, user, headsOf(entries))
	if err != nil {
		return nil, err
	}
	// The user's rows were read again: their present state counts.
	res := &chatv1.ListChatsResponse{Overviews: slices.DeleteFunc(chats, func(c *chatv1.ChatOverview) bool {
		return !filters.match(c.GetState().GetArchived(), c.GetState().GetUnreadCount() > 0)
	})}
	if more {
		res.NextPageToken = r.nextPage(p, purposeChats, filters.String())
	}
	return res, nil
}

// nextPage makes the token of the page after one and caches the list for it.
func (r *Reader) nextPage(p *pager, purpose, query string) string {
	r.cacheList(p.user, p.from)
	return r.newPageToken(p.encode(), purpose, p.user, query)
}

// filters are what a list of chats is restricted to; nil is anything.
type filters struct{ archived, unread *bool }

func filtersOf(req *chatv1.ListChatsRequest) filters {
	return filters{archived: req.Archived, unread: req.Unread}
}

func (f filters) match(archived, unread bool) bool {
	return (f.archived == nil || *f.archived == archived) && (f.unread == nil || *f.unread == unread)
}

// String names the filters, for page tokens.
func (f filters) String() string {
	name := func(b *bool) string {
		if b == nil {
			return "any"
		}
		return strconv.FormatBool(*b)
	}
	return "archived=" + name(f.archived) + " unread=" + name(f.unread)
}

// Sync returns a page of what changed since the request's token was made.
func (r *Reader) Sync(ctx context.Context, user string, req *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	start, err := r.Begin(ctx)
	if err != nil {
		return nil, err
	}
	p := &pager{
		cursor: newCursor(start),
		user:   user, sort: byChange, withLeft: true, size: pageSize(int(req.GetPageSize()), syncPage, maxSyncPage),
	}
	if req.GetToken() != "" {
		token, err := r.Token(ctx, user, req.GetToken())
		if err != nil {
			return nil, err
		}
		p.full, p.since = token.Full, token.At.UnixMilli()
	}
	if req.GetPageToken() != "" {
		// The first page decided whether all chats are listed; meanwhile the token
		// may have grown too old.
		if p.cursor, err = r.resume(ctx, req.GetPageToken(), purposeChanged, user, req.GetToken()); err != nil {
			return nil, err
		}
	}
	entries, more, err := r.page(ctx, p)
	if err != nil {
		return nil, err
	}
	chats, left, err := r.overviews(ctx, user, headsOf(entries))
	if err != nil {
		return nil, err
	}
	res := &deliveryv1.SyncResponse{Overviews: chats, Full: p.full, Generation: r.history.Generation()}
	for _, e := range entries {
		if e.left != nil {
			left = append(left, e.left)
		}
	}
	// A chat that was left after the list was loaded is found in both ways.
	sent := make(map[string]int64, len(left))
	for _, row := range left {
		if sent[row.ChatID] == row.LeftVersion {
			continue
		}
		sent[row.ChatID] = row.LeftVersion
		res.LeftChats = append(res.LeftChats, &deliveryv1.LeftChat{ChatId: row.ChatID, Version: row.LeftVersion})
	}
	if more {
		res.NextPageToken = r.nextPage(p, purposeChanged, req.GetToken())
	} else {
		// The token names a commit that is not older than what was read.
		if err := r.store.Durable(ctx); err != nil {
			return nil, err
		}
		res.Token = r.NewToken(user, Start{At: time.UnixMilli(p.start), Setbacks: p.setbacks})
	}
	return res, nil
}

// resume returns the cursor of a page token. If stamps went back since, what changed at
// or after the time that they went back to may have moved past the pages sent, with a
// stamp before the start of the iteration: then the iteration starts at that time.
func (r *Reader) resume(ctx context.Context, token, purpose, user, query string) (cursor, error) {
	b, err := r.pageToken(token, purpose, user, query)
	if err != nil {
		return cursor{}, err
	}
	w, err := decodeCursor(b)
	if err != nil {
		return cursor{}, err
	}
	back, err := r.stamps.Setbacks(ctx)
	if err != nil {
		return cursor{}, err
	}
	if back.Count > w.setbacks {
		w.start, w.setbacks = min(w.start, back.From), back.Count
		if w.second { // more chats count as recent now, some before the position
			w.chatID = ""
		}
	}
	return w, nil
}

func headsOf(entries []entry) []*table.Head {
	heads := make([]*table.Head, 0, len(entries))
	for _, e := range entries {
		if e.chat != nil {
			heads = append(heads, &e.chat.head)
		}
	}
	return heads
}

// Members returns a page of a chat's members, in order of user id.
func (r *Reader) Members(
	ctx context.Context, user, chatID string, size int, pageToken string,
) (*chatv1.ListMembersResponse, error) {
	last := ""
	if pageToken != "" {
		b, err := r.pageToken(pageToken, purposeMembers, user, chatID)
		if err != nil {
			return nil, err
		}
		last = string(b)
	}
	head, _, err := r.open(ctx, user, chatID)
	if err != nil {
		return nil, err
	}
	size = pageSize(size, membersPage, maxMembersPage)
	res := &chatv1.ListMembersResponse{}
	// One more on each side: From includes the last member of the page before, and
	// one behind the page shows whether there are more.
	q := store.Query{Table: store.ChatMemberships, PK: chatID, From: last, Limit: size + 2}
	err = r.query(ctx, q, func(row store.Row) error {
		if row.Key.SK == last {
			return nil
		}
		if len(res.Members) == size {
			last = res.Members[size-1].GetUserId()
			res.NextPageToken = r.newPageToken([]byte(last), purposeMembers, user, chatID)
			return errStop
		}
		res.Members = append(res.Members, Member(table.MembershipFrom(chatID, row.Key.SK, row.Item)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	row, err := r.confirm(ctx, user, chatID)
	if err != nil {
		return nil, err
	}
	res.Head = headMessage(head, row)
	return res, nil
}
