package adminapi

import (
	"context"
	"slices"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/identity/admin"
)

type userService struct{ people *admin.People }

var _ adminv1connect.UserAdminServiceHandler = (*userService)(nil)

var statuses = map[admin.Status]adminv1.UserStatus{
	"":              adminv1.UserStatus_USER_STATUS_ACTIVE, // rows of releases that had none
	admin.Active:    adminv1.UserStatus_USER_STATUS_ACTIVE,
	admin.Suspended: adminv1.UserStatus_USER_STATUS_SUSPENDED,
	admin.Deleted:   adminv1.UserStatus_USER_STATUS_DELETED,
}

func userTo(u admin.User) *adminv1.UserAccount {
	out := &adminv1.UserAccount{UserId: u.ID, Status: statuses[u.Status], CreatedAt: timestamp(u.CreatedAt)}
	if u.Counted {
		out.Chats = &u.Chats
	}
	return out
}

// GetUser implements adminv1connect.UserAdminServiceHandler.
func (s *userService) GetUser(ctx context.Context, req *adminv1.GetUserRequest) (*adminv1.GetUserResponse, error) {
	u, err := s.people.Get(ctx, req.GetUserId())
	if err != nil {
		return nil, err
	}
	return &adminv1.GetUserResponse{User: userTo(u)}, nil
}

// SuspendUser implements adminv1connect.UserAdminServiceHandler.
func (s *userService) SuspendUser(
	ctx context.Context, req *adminv1.SuspendUserRequest,
) (*adminv1.SuspendUserResponse, error) {
	u, err := s.people.Suspend(ctx, req.GetUserId(), req.GetExecute())
	if err != nil {
		return nil, err
	}
	return &adminv1.SuspendUserResponse{User: userTo(u)}, nil
}

// RestoreUser implements adminv1connect.UserAdminServiceHandler.
func (s *userService) RestoreUser(
	ctx context.Context, req *adminv1.RestoreUserRequest,
) (*adminv1.RestoreUserResponse, error) {
	u, err := s.people.Restore(ctx, req.GetUserId(), req.GetExecute())
	if err != nil {
		return nil, err
	}
	return &adminv1.RestoreUserResponse{User: userTo(u)}, nil
}

type sessionService struct{ sessions admin.Sessions }

var _ adminv1connect.SessionAdminServiceHandler = (*sessionService)(nil)

// maxSessions is how many sessions of a user are shown.
const maxSessions = 1000

// ListSessions implements adminv1connect.SessionAdminServiceHandler.
func (s *sessionService) ListSessions(
	ctx context.Context, req *adminv1.ListSessionsRequest,
) (*adminv1.ListSessionsResponse, error) {
	list, err := s.sessions.List(ctx, req.GetUserId())
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListSessionsResponse{}
	for _, one := range list[:min(len(list), maxSessions)] {
		out.Sessions = append(out.Sessions, &adminv1.UserSession{SessionId: one.ID, Device: one.Device,
			CreatedAt: timestamp(one.CreatedAt), UsedAt: timestamp(one.UsedAt), ExpiresAt: timestamp(one.ExpiresAt)})
	}
	return out, nil
}

// EndSession implements adminv1connect.SessionAdminServiceHandler.
func (s *sessionService) EndSession(
	ctx context.Context, req *adminv1.EndSessionRequest,
) (*adminv1.EndSessionResponse, error) {
	if !req.GetExecute() {
		list, err := s.sessions.List(ctx, req.GetUserId())
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(list, func(one admin.Session) bool { return one.ID == req.GetSessionId() }) {
			return nil, admin.ErrNoSession
		}
		return &adminv1.EndSessionResponse{}, nil
	}
	if err := s.sessions.Revoke(ctx, req.GetUserId(), req.GetSessionId()); err != nil {
		return nil, err
	}
	return &adminv1.EndSessionResponse{}, nil
}

// EndAllSessions implements adminv1connect.SessionAdminServiceHandler.
func (s *sessionService) EndAllSessions(
	ctx context.Context, req *adminv1.EndAllSessionsRequest,
) (*adminv1.EndAllSessionsResponse, error) {
	list, err := s.sessions.List(ctx, req.GetUserId())
	if err == nil && req.GetExecute() {
		err = s.sessions.EndEverything(ctx, req.GetUserId())
	}
	if err != nil {
		return nil, err
	}
	return &adminv1.EndAllSessionsResponse{Sessions: int32(len(list))}, nil
}
