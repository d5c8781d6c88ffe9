package userapi

import (
	"context"
	"encoding/base64"

	"connectrpc.com/connect"

	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/internal/streamwriter"
)

const maxPage = 100

// BlockUser implements UserService.
func (s *Server) BlockUser(ctx context.Context, req *userv1.BlockUserRequest) (*userv1.BlockUserResponse, error) {
	if err := s.cfg.People.Block(ctx, caller(ctx), req.GetUserId()); err != nil {
		return nil, err
	}
	return &userv1.BlockUserResponse{}, nil
}

// UnblockUser implements UserService.
func (s *Server) UnblockUser(
	ctx context.Context, req *userv1.UnblockUserRequest,
) (*userv1.UnblockUserResponse, error) {
	if err := s.cfg.People.Unblock(ctx, caller(ctx), req.GetUserId()); err != nil {
		return nil, err
	}
	return &userv1.UnblockUserResponse{}, nil
}

// ListBlocked implements UserService.
func (s *Server) ListBlocked(
	ctx context.Context, req *userv1.ListBlockedRequest,
) (*userv1.ListBlockedResponse, error) {
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, people.ErrCursor
	}
	size := int(req.GetPageSize())
	if size == 0 || size > maxPage {
		size = maxPage
	}
	page, more, err := s.cfg.People.Blocked(ctx, caller(ctx), string(after), size)
	if err != nil {
		return nil, err
	}
	res := &userv1.ListBlockedResponse{}
	for _, b := range page {
		res.BlockedUsers = append(res.BlockedUsers, blocked(b))
	}
	if more {
		res.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(page[len(page)-1].Other))
	}
	return res, nil
}

// InviteToChat implements UserService.
func (s *Server) InviteToChat(
	ctx context.Context, req *userv1.InviteToChatRequest,
) (*userv1.InviteToChatResponse, error) {
	i, err := s.cfg.People.Invite(ctx, caller(ctx), req.GetChatId(), req.GetUserId())
	if err != nil {
		return nil, err
	}
	return &userv1.InviteToChatResponse{Invitation: invitation(i)}, nil
}

// ListInvitations implements UserService.
func (s *Server) ListInvitations(
	ctx context.Context, _ *userv1.ListInvitationsRequest,
) (*userv1.ListInvitationsResponse, error) {
	list, err := s.cfg.People.Invitations(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	res := &userv1.ListInvitationsResponse{}
	for _, i := range list[:min(len(list), people.MaxInvitations)] { // two that come at once may be one too many
		res.Invitations = append(res.Invitations, invitation(i))
	}
	return res, nil
}

// AcceptInvitation implements UserService.
func (s *Server) AcceptInvitation(
	ctx context.Context, req *userv1.AcceptInvitationRequest,
) (*userv1.AcceptInvitationResponse, error) {
	if err := s.cfg.People.Accept(ctx, caller(ctx), req.GetChatId()); err != nil {
		return nil, err
	}
	return &userv1.AcceptInvitationResponse{}, nil
}

// DeclineInvitation implements UserService.
func (s *Server) DeclineInvitation(
	ctx context.Context, req *userv1.DeclineInvitationRequest,
) (*userv1.DeclineInvitationResponse, error) {
	if err := s.cfg.People.Decline(ctx, caller(ctx), req.GetChatId()); err != nil {
		return nil, err
	}
	return &userv1.DeclineInvitationResponse{}, nil
}

// ExportData implements UserService. A reader that is stuck is cut, like that of any stream.
func (s *Server) ExportData(
	ctx context.Context, req *userv1.ExportDataRequest, stream *connect.ServerStream[userv1.ExportDataResponse],
) error {
	out := streamwriter.New(ctx, stream.Conn())
	defer out.Close()
	return s.cfg.People.Export(ctx, caller(ctx), req.GetCursor(), func(r people.Record) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return out.Send(record(r))
	})
}
