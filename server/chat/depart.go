package chat

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Depart ends the membership of a deleted account in a group. If the account owned the
// group, the admin who has been there longest becomes the owner; without an admin, the
// member who has been there longest. The last member stays a member, so that no living
// account owns the group any more. Repeating it is harmless. Errors: ErrInvalidArgument,
// ErrInvalidOperation for a direct chat, ErrBusy, store.ErrConflict if no member could
// become the owner, and the store's.
func (s *Service) Depart(ctx context.Context, user, chatID string) error {
	if err := command.CheckUser(user); err != nil {
		return err
	}
	if err := command.CheckChat(chatID); err != nil {
		return err
	}
	backoff := s.commits.Backoff()
	for range departAttempts {
		successor, err := s.successor(ctx, user, chatID)
		if err != nil {
			return err
		}
		_, err = s.change(ctx, command.Departure(user, chatID, successor))
		switch {
		case errors.Is(err, ErrNotAMember), errors.Is(err, command.LastMemberStays):
			return nil
		case !errors.Is(err, ErrMemberNotFound):
			return err
		}
		// The successor has left meanwhile, or is a member that is still being added, or the
		// chat's count includes members that do not exist.
		if successor == "" {
			if err := s.FinishPending(ctx, chatID); err != nil {
				return err
			}
			if _, err := s.CheckCount(ctx, chatID); err != nil {
				return err
			}
		}
		if err := backoff.Wait(ctx, ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("chat: %w: no member became the owner of the chat", store.ErrConflict)
}

// departAttempts is how often a departure starts over.
const departAttempts = 8

// successor finds the member who becomes the owner of a group when a user departs. It is
// empty if the user is not the owner, or if there is no other member.
func (s *Service) successor(ctx context.Context, user, chatID string) (string, error) {
	var best table.Membership
	owns := false
	for row, err := range s.commits.Partition(ctx, store.ChatMemberships, chatID) {
		if err != nil {
			return "", err
		}
		m := table.MembershipFrom(chatID, row.Key.SK, row.Item)
		switch {
		case m.UserID == user:
			owns = m.Role == table.Owner
		case best.UserID == "", m.Role == table.Admin && best.Role != table.Admin,
			m.Role == best.Role && m.JoinedVersion < best.JoinedVersion:
			best = m
		}
	}
	if !owns {
		return "", nil
	}
	return best.UserID, nil
}
