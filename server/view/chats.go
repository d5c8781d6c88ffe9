package view

import (
	"context"
	"fmt"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
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
	if it == nil {
		return nil, incomplete(chatID, head.Version)
	}
	return r.overview(head, table.ChatFrom(chatID, it), row), nil
}

// Overviews returns what the user may see of the chats of rows. It reads heads,
// chats, and then the rows again; chats that the last row forbids are left out.
func (r *Reader) Overviews(ctx context.Context, user string, rows []table.UserChat) ([]*chatv1.ChatOverview, error) {
	ids := make([]string, len(rows))
	for i := range rows {
		ids[i] = rows[i].ChatID
	}
	heads, err := r.Heads(ctx, ids)
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

// overviews goes on from heads: it reads the chats and then the user's rows, and
// returns what the user may see, and the chats that turned out to be left.
func (r *Reader) overviews(ctx context.Context, user string, heads []*table.Head) ([]*chatv1.ChatOverview, []*table.UserChat, error) {
	ids := make([]string, len(heads))
	for i, h := range heads {
		ids[i] = h.ChatID
	}
	chats, err := r.chats(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	rows, err := r.UserChatsOf(ctx, user, ids)
	if err != nil {
		return nil, nil, err
	}
	shown := make([]*chatv1.ChatOverview, 0, len(heads))
	var left []*table.UserChat
	for i, row := range rows {
		switch {
		case row == nil:
		case row.Left():
			left = append(left, row)
		case chats[i] == nil:
			return nil, nil, incomplete(ids[i], heads[i].Version)
		default:
			shown = append(shown, r.overview(*heads[i], *chats[i], *row))
		}
	}
	return shown, left, nil
}

// ListChats returns a page of the user's chats, the last changed first. Chats
// that change while the pages are taken may come again at the end, but none is
// missing.
func (r *Reader) ListChats(ctx context.Context, user string, size int, pageToken string) (chats []*chatv1.ChatOverview, next string, err error) {
	w := walk{start: r.clock().UnixMilli(), full: true, first: true}
	if pageToken != "" {
		if w, err = r.resume(pageToken, purposeChats, user, ""); err != nil {
			return nil, "", err
		}
	}
	entries, more, err := r.page(ctx, user, w, 0, pageSize(size, chatsPage, maxChatsPage))
	if err != nil {
		return nil, "", err
	}
	if chats, _, err = r.overviews(ctx, user, headsOf(entries)); err != nil {
		return nil, "", err
	}
	if more != nil {
		next = r.newPageToken(more.encode(), purposeChats, user, "")
	}
	return chats, next, nil
}

// Sync returns a page of what changed since the request's token was made.
func (r *Reader) Sync(ctx context.Context, user string, req *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	w := walk{start: r.clock().UnixMilli(), full: true, first: true}
	since := int64(0)
	if req.GetToken() != "" {
		token, err := r.Token(user, req.GetToken())
		if err != nil {
			return nil, err
		}
		w.full, since = token.Full, token.At.UnixMilli()
	}
	if req.GetPageToken() != "" {
		// The first page decided whether all chats are listed; meanwhile the token
		// may have grown too old.
		var err error
		if w, err = r.resume(req.GetPageToken(), purposeChanged, user, req.GetToken()); err != nil {
			return nil, err
		}
	}
	entries, more, err := r.page(ctx, user, w, since, pageSize(int(req.GetPageSize()), syncPage, maxSyncPage))
	if err != nil {
		return nil, err
	}
	chats, left, err := r.overviews(ctx, user, headsOf(entries))
	if err != nil {
		return nil, err
	}
	res := &deliveryv1.SyncResponse{Chats: chats, Full: w.full, Generation: r.signer.generation}
	for _, e := range entries {
		if e.head == nil {
			left = append(left, e.row)
		}
	}
	for _, row := range left {
		res.Left = append(res.Left, &deliveryv1.LeftChat{ChatId: row.ChatID, Version: row.LeftVersion})
	}
	if more != nil {
		res.NextPageToken = r.newPageToken(more.encode(), purposeChanged, user, req.GetToken())
	} else {
		res.Token = r.NewToken(user, time.UnixMilli(w.start))
	}
	return res, nil
}

func (r *Reader) resume(token, purpose, user, query string) (walk, error) {
	b, err := r.pageToken(token, purpose, user, query)
	if err != nil {
		return walk{}, err
	}
	return decodeWalk(b)
}

func headsOf(entries []entry) []*table.Head {
	heads := make([]*table.Head, 0, len(entries))
	for _, e := range entries {
		if e.head != nil {
			heads = append(heads, e.head)
		}
	}
	return heads
}

// Members returns a page of a chat's members, in order of user id.
func (r *Reader) Members(ctx context.Context, user, chatID string, size int, pageToken string) (*chatv1.ListMembersResponse, error) {
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
	// one behind the page tells whether there are more.
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
