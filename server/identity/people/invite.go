package people

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Invite invites a user to join a group, in which the caller may add members. A later
// invitation replaces an earlier one to the same group. If the user has as many open
// invitations as are allowed, from the caller or from all users, older ones are dropped.
// Errors: those of an addition, as far as they are known before it, ErrUnknown, ErrSelf, and
// the store's.
func (s *Service) Invite(ctx context.Context, caller, chatID, user string) (rows.Invitation, error) {
	if caller == user {
		return rows.Invitation{}, ErrSelf
	}
	made := rows.Invitation{ID: s.cfg.NewID("inv_"), UserID: user, ChatID: chatID, By: caller, At: s.now()}
	made.ExpiresAt = seconds(made.At, InvitationFor)
	err := s.repeat(ctx, func() ([]store.Write, error) {
		group, err := s.mayInvite(ctx, made)
		if err != nil {
			return nil, err
		}
		made.ChatName = group.Name
		open, err := s.Invitations(ctx, user)
		if err != nil {
			return nil, err
		}
		cond := store.Absent()
		if i := slices.IndexFunc(open, func(i rows.Invitation) bool { return i.ChatID == chatID }); i >= 0 {
			if open[i].ID == made.ID {
				return nil, nil // by an attempt whose outcome was unknown
			}
			cond, open = store.Exists(), slices.Delete(open, i, i+1)
		}
		writes := []store.Write{
			put("invitation", cond, rows.InvitationKey(user, chatID), made.Item()),
			{Op: store.OpCheck, Key: rows.BlockKey(user, caller), Cond: store.Absent(), Name: "block"},
			{Op: store.OpCheck, Key: table.UserKey(user), Cond: there(), Name: "user"},
		}
		for _, i := range tooMany(open, caller) {
			writes = append(writes, store.Write{Op: store.OpDelete, Key: rows.InvitationKey(user, i.ChatID)})
		}
		return writes, nil
	})
	return made, err
}

// maxDropped bounds how many invitations go for one; there are more only if many came at once.
const maxDropped = 16

// tooMany chooses the open invitations of a person that are dropped for a new one from the
// user by: the oldest of the same inviter, or else of the inviter with the most. So no
// inviter closes a person's list to others.
func tooMany(open []rows.Invitation, by string) (gone []rows.Invitation) {
	open = slices.Clone(open)
	slices.SortFunc(open, func(a, b rows.Invitation) int { return cmp.Compare(a.At, b.At) })
	for len(gone) < maxDropped {
		count := map[string]int{by: 1}
		limit := by
		for _, i := range open {
			if count[i.By]++; count[i.By] > count[limit] {
				limit = i.By
			}
		}
		switch {
		case count[by] > MaxInvitedBy:
			limit = by
		case len(open) < MaxInvitations:
			return gone
		}
		oldest := slices.IndexFunc(open, func(i rows.Invitation) bool { return i.By == limit })
		if oldest < 0 { // everybody has one: the oldest of all
			oldest = 0
		}
		gone, open = append(gone, open[oldest]), slices.Delete(open, oldest, oldest+1)
	}
	return gone
}

// mayInvite decides whether an invitation may be made, by what there is now. Whether the
// person can be added then is decided when the person accepts.
func (s *Service) mayInvite(ctx context.Context, i rows.Invitation) (table.Chat, error) {
	items, err := s.commits.BatchGet(ctx, []store.Key{table.ChatKey(i.ChatID), table.UserKey(i.UserID),
		rows.BlockKey(i.UserID, i.By), table.MembershipKey(i.ChatID, i.By), table.MembershipKey(i.ChatID, i.UserID)})
	if err != nil {
		return table.Chat{}, err
	}
	group, access := table.ChatFrom(i.ChatID, items[0]), rows.AccessFrom(items[1])
	switch {
	case items[0] == nil, items[3] == nil:
		return group, chat.ErrNotAMember
	case group.Type != table.Group:
		return group, command.DirectChatMembersAreFixed
	case table.MembershipFrom(i.ChatID, i.By, items[3]).Role == table.Member:
		return group, command.MembersCannotAdd
	case !access.Exists, access.Deleted():
		return group, ErrUnknown
	case items[4] != nil:
		return group, chat.ErrAlreadyMember
	case items[2] != nil:
		return group, command.Unreachable(i.UserID)
	}
	return group, nil
}

// Invitations returns the open invitations of a user, in order of chat id.
func (s *Service) Invitations(ctx context.Context, user string) (list []rows.Invitation, err error) {
	for row, err := range s.query(ctx, rows.Invitations(user)) {
		if err != nil {
			return nil, err
		}
		list = append(list, rows.InvitationFrom(row))
	}
	return list, s.commits.Durable(ctx, nil)
}

// Accept makes a user a member of a group, added by the inviter. Errors: ErrNoInvitation,
// those of an addition by the inviter, and the store's.
func (s *Service) Accept(ctx context.Context, user, chatID string) error {
	key := rows.InvitationKey(user, chatID)
	it, err := s.commits.Get(ctx, key)
	if err != nil {
		return err
	}
	if it == nil {
		return s.commits.Durable(ctx, ErrNoInvitation)
	}
	i := rows.InvitationFrom(store.Row{Key: key, Item: it})
	_, err = s.cfg.Chats.Change(ctx, chat.OpAdd, chat.MemberChange{Caller: i.By, ChatID: chatID, UserID: user,
		Role: table.Member, Invited: true, RequestID: i.ID})
	if err != nil && !errors.Is(err, chat.ErrAlreadyMember) {
		return err
	}
	return s.drop(ctx, key, i.ID)
}

// Decline drops an invitation of a user, if there is one.
func (s *Service) Decline(ctx context.Context, user, chatID string) error {
	return s.commits.Repeat(ctx, store.Write{Op: store.OpDelete, Key: rows.InvitationKey(user, chatID)})
}

// drop removes an invitation, unless another one has taken its place.
func (s *Service) drop(ctx context.Context, key store.Key, id string) error {
	return s.repeat(ctx, func() ([]store.Write, error) {
		it, err := s.commits.Get(ctx, key)
		if err != nil || it == nil || rows.InvitationFrom(store.Row{Key: key, Item: it}).ID != id {
			return nil, err
		}
		return []store.Write{{Op: store.OpDelete, Key: key, Cond: store.Condition{}.Eq("id", store.String(id)),
			Name: "invitation"}}, nil
	})
}
